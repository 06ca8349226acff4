// Uncertainty: the third view. A weight with a mean and a variance, when the task changes.
"use strict";

Explorer.uncertainty = (() => {
  const { state, panels, number } = Explorer;
  let latest = null;

  function draw(found) {
    const c = Explorer.colours();
    const line = (name, y, color, more = {}) => ({ type: "scatter", mode: "lines", name, x: found.t, y, line: { color, width: 2.6, ...more }, hovertemplate: "%{y:.3g}" });
    const flat = (name, value) => line(name, found.t.map(() => value), c.soft, { width: 1.3, dash: "dot" });
    const legend = { showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: c.soft } }, margin: { l: 50, r: 12, t: 28, b: 36 }, hovermode: "x unified" };
    const axis = { gridcolor: c.grid, zerolinecolor: c.grid, fixedrange: true };
    const sd = found.v.map((v) => Math.sqrt(Math.max(v, 0)));
    const slow = (key) => (found.slow[key].length ? [line("limit of a large γ", found.slow[key], c.flow, { dash: "dash", width: 2 })] : []);
    const layout = (title) => ({ ...legend, xaxis: { ...axis, title: { text: "time since the switch", standoff: 4 } }, yaxis: { ...axis, title: { text: title, standoff: 4 } } });
    Explorer.plot("uncertainty-mean", [
      { type: "scatter", mode: "lines", x: [...found.t, ...[...found.t].reverse()], y: [...found.mu.map((m, i) => m + sd[i]), ...found.mu.map((m, i) => m - sd[i]).reverse()], fill: "toself", fillcolor: Explorer.theme.dark ? "rgba(255,138,61,.18)" : "rgba(194,65,12,.13)", line: { width: 0 }, hoverinfo: "skip", showlegend: false },
      flat("new minimum", found.target[0]), ...slow("mu"), line("mean μ", found.mu, c.optimal),
    ], layout("mean"));
    Explorer.plot("uncertainty-variance", [flat("1/(k h) of the new task", found.target[1]), ...slow("v"), line("variance v", found.v, c.optimal)], layout("variance"));
  }

  function words(found) {
    const top = Math.max(...found.v), when = found.t[found.v.indexOf(top)];
    const rises = top > 1.001 * Math.max(found.start[1], found.target[1]);
    Explorer.fill("uncertainty-summary", panels.pairs([
      ["Cost J", number(found.J, 6)], ["Variance before", number(found.start[1])], ["Variance in the end", number(found.target[1])],
      ["Largest variance", `${number(top)} at t = ${number(when, 3)}`], ["Error, estimated", found.error === null ? "unknown" : found.error.toExponential(0)],
    ]), Explorer.make("p", { class: "note" }, rises
      ? "On the way the learner becomes less sure of the weight than before or after: uncertainty makes motion cheap."
      : "The variance goes to its new balance without rising above both."), Explorer.make("p", { class: "note" }, found.message));
    Explorer.fill("uncertainty-equations", ...Explorer.maths(found.mathml));
    Explorer.$("uncertainty-python").textContent = found.python;
    Explorer.$("status").textContent = `Largest variance ${number(top)} at time ${number(when, 3)}; in the end ${number(found.target[1])}.`;
  }

  const waits = (on) => ["uncertainty-mean", "uncertainty-variance", "uncertainty-summary", "uncertainty-equations", "uncertainty-python"].forEach((id) => Explorer.busy(id, "answer", on));

  async function all() {
    waits(true);
    try {
      const found = await Explorer.ask("uncertainty", state.request("uncertainty"));
      if (found === null) return;
      latest = found;
      Explorer.trouble("uncertainty", null);
      draw(found);
      words(found);
    } catch (error) {
      if (!(error instanceof Explorer.Refused)) throw error;
      latest = null;
      panels.none(["uncertainty-mean", "uncertainty-variance"], { "uncertainty-summary": "None.", "uncertainty-equations": "None.", "uncertainty-python": "" });
      Explorer.trouble("uncertainty", error);
    }
    waits(false);
  }

  function controls() {
    const { slider, group } = Explorer.controls, f = state.fields("uncertainty");
    const s = (name, label, more) => slider(`u.${name}`, label, { field: f[name], ...more });
    Explorer.fill("controls-uncertainty",
      group("The tasks", s("before", "Curvature before", { low: 0.1, high: 50 }), s("after", "Curvature after", { low: 0.1, high: 50 }), s("shift", "New minimum", { kind: "plain", low: -5, high: 5 })),
      group("What the learner believes", s("gamma", "Discount γ", { low: 0.05, high: 20 }), s("eta", "Learning rate η", { low: 0.05, high: 20 }), s("k", "Weight of the loss k", { low: 0.05, high: 20 })),
      group("Picture", s("time", "Time shown", { low: 0.5, high: 100 })));
  }
  return { controls, all, changed: all, redraw: () => latest && (draw(latest), words(latest)), get latest() { return latest; } };
})();
