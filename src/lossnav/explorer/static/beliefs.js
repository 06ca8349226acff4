// Beliefs: the second and the third view. Each shows one answer, asked for as a whole.
"use strict";

// A view: its plots, its panels with the word shown without an answer, and functions of the answer and its controls.
Explorer.view = (view, { plots, texts, draw, words, controls }) => {
  const { state, panels, fill, maths, $ } = Explorer;
  let latest = null;
  const blank = Object.fromEntries(Object.entries({ ...texts, equations: "None.", python: "" }).map(([id, text]) => [`${view}-${id}`, text]));
  const places = plots.map((id) => `${view}-${id}`);
  const waits = (on) => [...places, ...Object.keys(blank)].forEach((id) => Explorer.busy(id, "answer", on));
  const note = (text) => Explorer.make("p", { class: "note" }, text);

  function show() {
    draw(latest);
    const { equations = [], status } = words(latest, note);
    fill(`${view}-equations`, ...maths(latest.mathml), ...equations);
    $(`${view}-python`).textContent = latest.python;
    $("status").textContent = status;
  }
  async function ask() {
    waits(true);
    try {
      const answer = await Explorer.ask(view, state.request(view));
      if (answer === null) return;
      latest = answer;
      Explorer.trouble(view, null);
      show();
    } catch (error) {
      if (!(error instanceof Explorer.Refused)) throw error;
      latest = null;
      panels.none(places, blank);
      Explorer.trouble(view, error);
    }
    waits(false);
  }
  function begin() {
    const { slider, group } = Explorer.controls, fields = state.fields(view);
    const own = (name, label, more) => slider(state.prefix[view] + name, label, { field: fields[name], ...more });
    fill(`controls-${view}`, ...Object.entries(controls(own)).map(([title, sliders]) => group(title, ...sliders)));
  }
  return { controls: begin, all: ask, changed: ask, redraw: () => latest && show(), get latest() { return latest; } };
};

// A band between two curves.
Explorer.band = (x, low, high) => ({
  type: "scatter", mode: "lines", x: [...x, ...[...x].reverse()], y: [...high, ...[...low].reverse()], fill: "toself",
  fillcolor: Explorer.theme.dark ? "rgba(255,138,61,.18)" : "rgba(194,65,12,.13)", line: { width: 0 }, hoverinfo: "skip", showlegend: false,
});

// A stream of noisy gradients, Adam's averages, and the exact filter beside them.
Explorer.beliefs = Explorer.view("beliefs", {
  plots: ["mean", "gain"], texts: { table: "None." },
  draw({ t, g, mean, true_v, adam, kalman }) {
    const { c, line, axis, legend } = Explorer.chart(), right = axis("", { domain: [0.57, 1], anchor: "y2" }), dots = { dash: "dot", width: 1.6 };
    Explorer.plot("beliefs-mean", [
      { type: "scatter", mode: "markers", name: "gradient", x: t, y: g, marker: { color: c.soft, size: 3.5, opacity: 0.55 }, hoverinfo: "skip" },
      Explorer.band(t, kalman.low, kalman.high), line("true mean", t, mean, c.ink, dots), line("Adam's m", t, adam.m, c.adam), line("Kalman filter", t, kalman.m, c.optimal),
    ], { ...legend, xaxis: axis("number of gradients"), yaxis: axis("gradient") });
    Explorer.plot("beliefs-gain", [
      line("Adam's v", t, adam.v, c.adam), line("noise variance", t, t.map(() => true_v), c.ink, dots),
      { ...line("Adam's gain", t, adam.gain, c.adam, { dash: "dash" }), xaxis: "x2", yaxis: "y2" }, { ...line("Kalman gain", t, kalman.gain, c.optimal), xaxis: "x2", yaxis: "y2" },
    ], { ...legend, hovermode: "closest", xaxis: axis("", { domain: [0, 0.45] }), yaxis: axis("", { rangemode: "tozero" }), xaxis2: right, yaxis2: axis("", { anchor: "x2", range: [0, 1.02] }) });
  },
  words({ rms, beta1 }, note) {
    const { number, panels, fill } = Explorer, c = Explorer.colours();
    const rows = [["Kalman filter", rms.kalman, c.optimal], ["Adam's m", rms.adam, c.adam], ["Gradient itself", rms.gradient, c.soft]].sort((a, b) => a[1] - b[1]);
    fill("beliefs-table", panels.table(["Belief", "rms error"], rows.map(([name, value, colour], i) => ({ cells: [name, number(value, 3)], colour, best: !i }))),
      note(`The exact filter settles at the gain ${number(1 - beta1, 3)}: as Adam would with β₁ = ${number(beta1, 3)}.`));
    return { equations: [note("θ, m and v are coordinates of one objective; g is the observed gradient.")],
      status: `Root mean square errors: Kalman filter ${number(rms.kalman, 3)}, Adam ${number(rms.adam, 3)}.` };
  },
  controls: (own) => ({
    "The world": [own("sigma", "Noise of a gradient σ", { low: 0.02, high: 10 }), own("xi", "How fast the mean wanders ξ", { kind: "zero", low: 0.005, high: 5 }), own("alpha", "How fast it returns to zero α", { kind: "zero", low: 0.001, high: 5 })],
    Adam: [own("beta1", "Memory of the mean β₁", { kind: "plain", low: 0, high: 0.999 }), own("beta2", "Memory of the squares β₂", { kind: "plain", low: 0, high: 0.9999 })],
    "The stream": [own("steps", "Gradients", { low: 10, high: 1000, step: 1 }), own("seed", "Seed", { kind: "plain", low: 0, high: 100, step: 1 })],
  }),
});

// A weight with a mean and a variance, when the task changes.
Explorer.uncertainty = Explorer.view("uncertainty", {
  plots: ["mean", "variance"], texts: { summary: "None." },
  draw({ t, mu, v, target, slow }) {
    const { c, line, axis, legend } = Explorer.chart(), sd = v.map((one) => Math.sqrt(Math.max(one, 0)));
    const flat = (name, value) => line(name, t, t.map(() => value), c.soft, { width: 1.3, dash: "dot" });
    const limit = (values) => (values.length ? [line("limit of a large γ", t, values, c.flow, { dash: "dash", width: 2 })] : []);
    const layout = (title) => ({ ...legend, xaxis: axis("time since the switch"), yaxis: axis(title) });
    Explorer.plot("uncertainty-mean", [
      Explorer.band(t, mu.map((m, i) => m - sd[i]), mu.map((m, i) => m + sd[i])), flat("new minimum", target[0]), ...limit(slow.mu), line("mean μ", t, mu, c.optimal),
    ], layout("mean"));
    Explorer.plot("uncertainty-variance", [flat("1/(k h) of the new task", target[1]), ...limit(slow.v), line("variance v", t, v, c.optimal)], layout("variance"));
  },
  words({ t, v, J, start, target, error, message }, note) {
    const { number, panels, fill } = Explorer, top = Math.max(...v), when = number(t[v.indexOf(top)], 3);
    const rises = top > 1.001 * Math.max(start[1], target[1]);
    fill("uncertainty-summary", panels.pairs([
      ["Cost J", number(J, 6)], ["Variance before", number(start[1])], ["Variance in the end", number(target[1])],
      ["Largest variance", `${number(top)} at t = ${when}`], ["Error, estimated", error === null ? "unknown" : error.toExponential(0)],
    ]), note(rises
      ? "On the way the learner becomes less sure of the weight than before or after: uncertainty makes motion cheap."
      : "The variance goes to its new balance without rising above both."), note(message));
    return { status: `Largest variance ${number(top)} at time ${when}; in the end ${number(target[1])}.` };
  },
  controls: (own) => ({
    "The tasks": [own("before", "Curvature before", { low: 0.1, high: 50 }), own("after", "Curvature after", { low: 0.1, high: 50 }), own("shift", "New minimum", { kind: "plain", low: -5, high: 5 })],
    "What the learner believes": [own("gamma", "Discount γ", { low: 0.05, high: 20 }), own("eta", "Learning rate η", { low: 0.05, high: 20 }), own("k", "Weight of the loss k", { low: 0.05, high: 20 })],
    Picture: [own("time", "Time shown", { low: 0.5, high: 100 })],
  }),
});
