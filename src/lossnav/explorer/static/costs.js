// Costs: what the optimal path pays for motion and for the loss, over time.
"use strict";

Explorer.costs = (() => {
  let until = 1, marked = false;
  async function draw(path) {
    await Explorer.plotly.ready;
    if (path !== Explorer.paths.latest.path) return; // it has been replaced or refused meanwhile
    const c = Explorer.colours();
    const narrow = Explorer.$("costs").clientWidth < 420; // then its legend has two lines
    until = path.t[path.t.length - 1];
    const line = (name, values, color, dash) => ({ type: "scatter", mode: "lines", name, x: path.t, y: values, line: { color, width: 2.4, dash }, hovertemplate: "%{y:.3g} at time %{x:.3g}" });
    return Explorer.plot("costs", [
      line("kinetic: cost of motion", path.kinetic, c.optimal, "solid"),
      line("potential: k × loss", path.potential, c.flow, "dash"),
    ], {
      showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: c.soft } }, margin: { l: 50, r: 10, t: narrow ? 46 : 28, b: 36 },
      xaxis: { title: { text: "time", standoff: 4 }, gridcolor: c.grid, zeroline: false, fixedrange: true, range: [0, until] },
      yaxis: { gridcolor: c.grid, zerolinecolor: c.grid, fixedrange: true }, hovermode: "x unified",
    });
  }
  // A line at the time that the dots show.
  function clock(time) {
    const plot = Explorer.$("costs");
    const wanted = time < until;
    if (!plot._fullLayout || (!wanted && !marked)) return; // a picture that need not change is not drawn again
    marked = wanted;
    const c = Explorer.colours(), at = Math.min(time, until);
    const shapes = !wanted ? [] : [{ type: "line", x0: at, x1: at, y0: 0, y1: 1, yref: "paper", line: { color: c.soft, width: 1, dash: "dot" } }];
    Plotly.relayout(plot, { shapes });
  }
  return { draw, clock };
})();
