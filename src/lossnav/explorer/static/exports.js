// Exports: the picture, the numbers behind it, the problem as a file, and a link to the whole state.
"use strict";

Explorer.exports = (() => {
  const { state, $ } = Explorer;
  const say = (text) => { $("status").textContent = text; };

  function save(name, kind, content) {
    const link = Explorer.make("a", { href: URL.createObjectURL(new Blob([content], { type: kind })), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    say(`Saved ${name}.`);
  }

  const plots = { paths: "map", beliefs: "beliefs-mean", uncertainty: "uncertainty-variance" };
  async function picture(format) {
    const plot = $(plots[state.values.view]), c = Explorer.colours();
    const { data, layout } = plot, size = { width: plot.clientWidth, height: plot.clientHeight };
    const start = state.values.view === "paths" && Explorer.map.flat()
      ? [{ type: "scatter", mode: "markers", x: [state.values.x], y: [state.values.y], marker: { size: 13, color: c.optimal, line: { color: "#fff", width: 2.5 } } }] : [];
    const shown = { data: [...data, ...(state.values.view === "paths" ? Explorer.map.extra : []), ...start], layout: { ...layout, paper_bgcolor: c.card, plot_bgcolor: c.card } };
    const url = await Plotly.toImage(shown, { format, ...size, scale: format === "png" ? 2 : 1 });
    const name = `lossnav-${state.values.view}.${format}`;
    if (format === "svg") return save(name, "image/svg+xml", decodeURIComponent(url.slice(url.indexOf(",") + 1)));
    const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (ch) => ch.charCodeAt(0));
    return save(name, "image/png", bytes);
  }

  // One line for each point: the path's name, time, place, and costs where they are known.
  function rows() {
    if (state.values.view === "beliefs") {
      const f = Explorer.beliefs.latest;
      return [["t", "gradient", "mean", "adam_m", "adam_v", "adam_gain", "kalman_m", "kalman_gain"], ...f.t.map((t, i) => [t, f.g[i], f.mean[i], f.adam.m[i], f.adam.v[i], f.adam.gain[i], f.kalman.m[i], f.kalman.gain[i]])];
    }
    if (state.values.view === "uncertainty") {
      const f = Explorer.uncertainty.latest;
      return [["t", "mu", "v"], ...f.t.map((t, i) => [t, f.mu[i], f.v[i]])];
    }
    const { path, rules } = Explorer.paths.latest, [x, y] = path.names;
    const table = [["path", "t", x, y, "loss", "kinetic", "potential"]];
    const add = (name, one) => one.t.forEach((t, i) => table.push([name, t, one.x[i], one.y[i], one.loss[i], one.kinetic && one.kinetic[i] !== undefined ? one.kinetic[i] : "", one.potential ? one.potential[i] : ""]));
    add("optimal", path);
    path.candidates.forEach((one, i) => add(`candidate ${i + 1}`, one));
    for (const row of rules ? rules.rows : []) add(row.name, { ...row, kinetic: null, potential: null });
    return table;
  }

  function data() {
    const { view } = state.values;
    const answers = view === "paths" ? Explorer.paths.latest : { [view]: Explorer[view].latest };
    return { view, settings: state.request(view), link: location.href.split("#")[0] + state.link(), ...answers };
  }

  async function run(kind) {
    const name = `lossnav-${state.values.view}`;
    const { view } = state.values, { latest } = Explorer[view];
    const there = kind === "toml" ? latest.equations : view === "paths" ? latest.path : latest;
    if (kind === "toml" && there && !there.toml) throw new Error("A problem file cannot hold a slice of a model: use the lines of Python.");
    if (!there) throw new Error("There is no answer to export: change the setting that the page complains of.");
    Explorer.trouble("export", null);
    if (kind === "png" || kind === "svg") return picture(kind);
    if (kind === "csv") return save(`${name}.csv`, "text/csv", rows().map((row) => row.join(",")).join("\n") + "\n");
    if (kind === "json") return save(`${name}.json`, "application/json", JSON.stringify(data(), null, 1));
    return save("lossnav-problem.toml", "application/toml", Explorer.paths.latest.equations.toml);
  }

  async function copy() {
    const link = location.href.split("#")[0] + state.link();
    history.replaceState(null, "", state.link());
    try { await navigator.clipboard.writeText(link); say("The link is copied."); } catch { say("The link is in the address bar."); }
    const button = $("copy-link");
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy link"; }, 1500);
  }

  function begin() {
    $("copy-link").addEventListener("click", copy);
    const menu = $("export");
    $("export-items").addEventListener("click", (event) => {
      const kind = event.target.dataset.export;
      if (!kind) return;
      menu.open = false;
      menu.querySelector("summary").focus();
      run(kind).catch((error) => Explorer.trouble("export", error));
    });
    menu.addEventListener("keydown", (event) => { if (event.key === "Escape") { menu.open = false; menu.querySelector("summary").focus(); } });
    document.addEventListener("click", (event) => { if (!menu.contains(event.target)) menu.open = false; });
  }
  return { begin };
})();
