// Beliefs: the second view. A stream of noisy gradients, Adam's averages, and the exact filter beside them.
"use strict";

Explorer.beliefs = (() => {
  const { state, panels, number } = Explorer;
  let latest = null;

  function draw(found) {
    const c = Explorer.colours();
    const line = (name, y, color, more = {}) => ({ type: "scatter", mode: "lines", name, x: found.t, y, line: { color, width: 2.2, ...more }, hovertemplate: "%{y:.3g}" });
    const legend = { showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: c.soft } }, margin: { l: 48, r: 12, t: 30, b: 38 }, hovermode: "x unified" };
    const axis = { gridcolor: c.grid, zerolinecolor: c.grid, fixedrange: true };
    Explorer.plot("beliefs-mean", [
      { type: "scatter", mode: "markers", name: "gradient seen", x: found.t, y: found.g, marker: { color: c.soft, size: 3.5, opacity: 0.55 }, hoverinfo: "skip" },
      { type: "scatter", mode: "lines", x: [...found.t, ...[...found.t].reverse()], y: [...found.kalman.high, ...[...found.kalman.low].reverse()], fill: "toself", fillcolor: Explorer.theme.dark ? "rgba(255,138,61,.18)" : "rgba(194,65,12,.13)", line: { width: 0 }, hoverinfo: "skip", showlegend: false },
      line("true mean", found.mean, c.ink, { width: 1.6, dash: "dot" }), line("Adam's m", found.adam.m, c.adam), line("Kalman filter", found.kalman.m, c.optimal),
    ], { ...legend, xaxis: { ...axis, title: { text: "gradients seen", standoff: 4 } }, yaxis: { ...axis, title: { text: "gradient", standoff: 4 } } });
    const right = { ...axis, domain: [0.57, 1], anchor: "y2" };
    Explorer.plot("beliefs-gain", [
      line("Adam's v", found.adam.v, c.adam), line("noise variance", found.t.map(() => found.true_v), c.ink, { width: 1.4, dash: "dot" }),
      { ...line("Adam's gain", found.adam.gain, c.adam, { dash: "dash" }), xaxis: "x2", yaxis: "y2" }, { ...line("Kalman gain", found.kalman.gain, c.optimal), xaxis: "x2", yaxis: "y2" },
    ], { ...legend, hovermode: "closest", xaxis: { ...axis, domain: [0, 0.45] }, yaxis: { ...axis, rangemode: "tozero" }, xaxis2: right, yaxis2: { ...axis, anchor: "x2", range: [0, 1.02] } });
  }

  function words(found) {
    const c = Explorer.colours(), rows = [["Kalman filter", found.rms.kalman, c.optimal], ["Adam's m", found.rms.adam, c.adam], ["Gradient itself", found.rms.gradient, c.soft]].sort((a, b) => a[1] - b[1]);
    Explorer.fill("beliefs-table", panels.table(["Belief", "rms error"], rows.map(([name, value, colour], i) => ({ cells: [name, number(value, 3)], colour, best: !i }))),
      Explorer.make("p", { class: "note" }, `The exact filter settles at the gain ${number(1 - found.beta1, 3)}: as Adam would with β₁ = ${number(found.beta1, 3)}.`));
    Explorer.fill("beliefs-equations", ...Explorer.maths(found.mathml), Explorer.make("p", { class: "note" }, "θ, m and v are coordinates of one objective; g is the gradient seen."));
    Explorer.$("beliefs-python").textContent = found.python;
    Explorer.$("status").textContent = `Root mean square errors: Kalman filter ${number(found.rms.kalman, 3)}, Adam ${number(found.rms.adam, 3)}.`;
  }

  const waits = (on) => ["beliefs-mean", "beliefs-gain", "beliefs-table", "beliefs-equations", "beliefs-python"].forEach((id) => Explorer.busy(id, "answer", on));

  async function all() {
    waits(true);
    try {
      const found = await Explorer.ask("beliefs", state.request("beliefs"));
      if (found === null) return;
      latest = found;
      Explorer.trouble("beliefs", null);
      draw(found);
      words(found);
    } catch (error) {
      if (!(error instanceof Explorer.Refused)) throw error;
      latest = null;
      panels.none(["beliefs-mean", "beliefs-gain"], { "beliefs-table": "None.", "beliefs-equations": "None.", "beliefs-python": "" });
      Explorer.trouble("beliefs", error);
    }
    waits(false);
  }

  function controls() {
    const { slider, group } = Explorer.controls, f = state.fields("beliefs");
    const s = (name, label, more) => slider(`b.${name}`, label, { field: f[name], ...more });
    Explorer.fill("controls-beliefs",
      group("The world", s("sigma", "Noise of a gradient σ", { low: 0.02, high: 10 }), s("xi", "How fast the mean wanders ξ", { kind: "zero", low: 0.005, high: 5 }), s("alpha", "How fast it returns to zero α", { kind: "zero", low: 0.001, high: 5 })),
      group("Adam", s("beta1", "Memory of the mean β₁", { kind: "plain", low: 0, high: 0.999 }), s("beta2", "Memory of the squares β₂", { kind: "plain", low: 0, high: 0.9999 })),
      group("The stream", s("steps", "Gradients", { low: 10, high: 1000, step: 1 }), s("seed", "Seed", { kind: "plain", low: 0, high: 100, step: 1 })));
  }
  return { controls, all, changed: all, redraw: () => latest && (draw(latest), words(latest)), get latest() { return latest; } };
})();
