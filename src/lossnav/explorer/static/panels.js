// Panels: numbers and words beside the picture, and the costs below it.
"use strict";

Explorer.panels = (() => {
  const { make, number, place, fill } = Explorer;
  const pairs = (list) => make("dl", {}, ...list.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));

  function table(heads, rows) {
    return make("table", {},
      make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
      make("tbody", {}, ...rows.map(({ cells, colour, best, title }) => make("tr", { class: best ? "best" : null, title },
        make("th", { scope: "row", vars: colour ? { "--mark": colour } : {} }, cells[0]), ...cells.slice(1).map((cell) => make("td", {}, cell))))));
  }

  let rivals = [];
  // While the paths to other basins are computed, the last ones stay, so that nothing jumps.
  function summary(path, complete = true) {
    const rest = path.rest ? [["At rest", `${number(path.rest)} per unit of time, not in J`]] : [];
    const parts = [pairs([
      ["Cost J", number(path.J, 6)], ["Ends at", place(path.end)], ["First velocity", place(path.velocity0)], ...rest,
      ["Error, estimated", path.error === null ? "unknown" : path.error.toExponential(0)],
    ])];
    if (complete) rivals = path.candidates.length ? competing(path) : [];
    parts.push(...rivals, make("p", { class: "note" }, path.message));
    fill("summary", ...parts);
    Explorer.$("status").textContent = `Optimal path: J ${number(path.J, 5)}, ends at ${place(path.end)}. ${path.message}`;
  }

  function competing(path) {
    const c = Explorer.colours();
    const rows = [path, ...path.candidates].map((one, i) => ({
      cells: [place(one.end), number(one.J, 6), i ? `+${number(one.J - path.J, 3)}` : "best"], colour: i ? c.other : c.optimal, best: !i,
    }));
    return [make("h3", { class: "note" }, "Basins that compete"), table(["End", "J", ""], rows)];
  }

  function ranking(answer) {
    const c = Explorer.colours();
    const rows = answer.rows.map((row, i) => ({
      cells: [row.title, row.J === null ? "–" : number(row.J, 5), row.J === null || answer.J === null ? "–" : `+${number(row.J - answer.J, 3)}`, row.rate === null ? "" : number(row.rate, 3)],
      colour: c[row.name], best: !i && row.J !== null, title: row.note || null,
    }));
    const top = { cells: ["Optimal path", number(answer.J, 5), "0", ""], colour: c.optimal };
    const notes = answer.rows.filter((row) => row.note).map((row) => `${row.title}: ${row.note}`);
    fill("ranking", table(["Rule", "J", "regret", "rate"], [...(answer.J === null ? [] : [top]), ...rows]),
      make("p", { class: "note" }, `J over the time ${number(answer.T, 3)}, a step every ${number(answer.dt, 3)}. `
        + (Explorer.state.values.rate === null ? "Each rate is the best of 17 by J." : "The rate is the one set.")),
      ...notes.map((note) => make("p", { class: "note" }, note)),
      ...(answer.J === null ? [make("p", { class: "note" }, `No optimal path over this time: ${answer.why}`)] : []));
  }

  function equations(answer) {
    const letters = Object.entries({ η: answer.letters.eta, k: answer.letters.k, γ: answer.letters.gamma }).map(([name, value]) => `${name} = ${number(value)}`).join(", ");
    const drawn = answer.mathml.length ? Explorer.maths(answer.mathml) : [make("pre", {}, answer.text)];
    fill("equations", ...drawn, make("p", { class: "note" }, `with ${letters}`));
    const lines = answer.rule.split("\n").filter((one) => one.startsWith("- ")).map((one) => make("li", {}, one.slice(2)));
    const step = answer.step.mathml.length
      ? [make("p", { class: "note" }, "The step over dt in a direction with gradient g and curvature h, with its rate ρ:"), make("div", { class: "maths" }, ...Explorer.maths(answer.step.mathml))]
      : [make("p", { class: "note" }, answer.step.why)];
    fill("rule", ...step, make("p", { class: "note" }, "It is optimal for a learner who assumes:"), make("ul", { class: "words" }, ...lines));
    Explorer.$("python").textContent = answer.python;
  }
  // Clear plots, and show a word in place of an answer.
  function none(plots, words) {
    for (const id of plots) if (window.Plotly) Plotly.purge(Explorer.$(id));
    for (const [id, text] of Object.entries(words)) fill(id, ...(text ? [make("p", { class: "note" }, text)] : []));
    Explorer.$("status").textContent = "";
  }
  function noPath() {
    rivals = [];
    none(["costs"], { summary: "None." });
  }
  return { summary, ranking, equations, none, noPath, table, pairs };
})();

// What the optimal path pays for motion and for the loss, over time.
Explorer.costs = (() => {
  let until = 1, marked = false;
  async function draw(path) {
    await Explorer.plotly.ready;
    if (path !== Explorer.paths.latest.path) return; // it has been replaced or refused meanwhile
    const { c, line, axis, legend } = Explorer.chart(), hovertemplate = "%{y:.3g} at time %{x:.3g}";
    const narrow = Explorer.$("costs").clientWidth < 420; // then its legend has two lines
    until = path.t[path.t.length - 1];
    return Explorer.plot("costs", [
      { ...line("kinetic: cost of motion", path.t, path.kinetic, c.optimal), hovertemplate },
      { ...line("potential: k × loss", path.t, path.potential, c.flow, { dash: "dash" }), hovertemplate },
    ], { ...legend, margin: { ...legend.margin, t: narrow ? 46 : 28 }, xaxis: axis("time", { zeroline: false, range: [0, until] }), yaxis: axis() });
  }
  // A line at the time that the dots show.
  function clock(time) {
    const plot = Explorer.$("costs");
    const wanted = time < until;
    if (!plot._fullLayout || (!wanted && !marked)) return; // a picture that need not change is not drawn again
    marked = wanted;
    const line = { type: "line", x0: time, x1: time, y0: 0, y1: 1, yref: "paper", line: { color: Explorer.colours().soft, width: 1, dash: "dot" } };
    Plotly.relayout(plot, { shapes: wanted ? [line] : [] });
  }
  return { draw, clock };
})();
