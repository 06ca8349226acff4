// Map: the landscape as contours or as a surface, with every path on it.
"use strict";

Explorer.map = (() => {
  const { $ } = Explorer;
  const RULES = ["natural", "newton", "ballistic", "momentum", "adam", "flow", "ours"];
  const AT = { ground: 0, watershed: 1, field: 2, minima: 3, ways: 4 };
  let land = null, path = null, rules = null, field = null, height = (v) => v, drawn = false, turn = 0, hides = [];

  // Height by the logarithm, so that deep wells and steep walls are both visible.
  function scaleOf(ground) {
    const above = ground.z.flat().filter((v) => v !== null).map((v) => v - ground.low).sort((a, b) => a - b);
    const unit = Math.max(above[Math.floor(above.length * 0.3)], 1e-9);
    return (v) => (v === null ? null : Math.log1p(Math.max(0, v - ground.low) / unit));
  }

  const flat = () => Explorer.state.values.picture === "contour";
  // Every path as a line to draw, the most important one last.
  function ways() {
    const c = Explorer.colours(), { values } = Explorer.state;
    const nothing = { x: [], y: [], loss: [] };
    const joined = (list) => list.reduce((all, one) => ({ x: [...all.x, ...one.x, null], y: [...all.y, ...one.y, null], loss: [...all.loss, ...one.loss, null] }), nothing);
    const lines = [{ name: "other", ...(path && values.others ? joined(path.candidates) : nothing), color: c.other, width: 2.2, dash: "dot" }];
    for (const name of RULES) {
      const row = values.rules.includes(name) && rules && rules.rows.find((one) => one.name === name);
      lines.push({ name, ...(row ? { x: row.x, y: row.y, loss: row.loss } : nothing), color: c[name], width: 2.2, dash: Explorer.dashes[name] });
    }
    lines.push({ name: "optimal", ...(path ? { x: path.x, y: path.y, loss: path.loss } : nothing), color: c.optimal, width: 4, dash: "solid" });
    return lines;
  }
  const asTrace = ({ x, y, loss, color, width, dash }) => (flat()
    ? { type: "scatter", mode: "lines", x, y, line: { color, width, dash }, hoverinfo: "skip" }
    : { type: "scatter3d", mode: "lines", x, y, z: loss.map(height), line: { color, width: 1.6 * width, dash }, hoverinfo: "skip" });

  function arrows() {
    if (!field || !Explorer.state.values.field) return { x: [], y: [] };
    const [w, h] = field.spacing, lines = { x: [], y: [] };
    field.x.forEach((x, i) => {
      const u = field.u[i] * w * 0.62, v = field.v[i] * h * 0.62, y = field.y[i];
      const tip = [x + u / 2, y + v / 2], wing = (side) => [tip[0] - u * 0.34 + side * v * 0.2 * (w / h), tip[1] - v * 0.34 - side * u * 0.2 * (h / w)];
      const [a, b] = [wing(1), wing(-1)];
      lines.x.push(x - u / 2, tip[0], a[0], null, tip[0], b[0], null);
      lines.y.push(y - v / 2, tip[1], a[1], null, tip[1], b[1], null);
    });
    return lines;
  }
  const watershed = () => (field && Explorer.state.values.field ? field.watershed : { x: [], y: [] });

  function traces() {
    const c = Explorer.colours(), two = flat();
    const kind = two ? "scatter" : "scatter3d";
    const heights = land.z.map((row) => row.map(height));
    const text = land.z.map((row) => row.map((v) => Explorer.number(v, 3)));
    const ground = two
      ? { type: "contour", x: land.x, y: land.y, z: heights, text, colorscale: c.scale, showscale: false, ncontours: 22, line: { color: c.lines, width: 0.8 },
          hovertemplate: "%{x:.3g}, %{y:.3g}<br>loss %{text}<extra></extra>" }
      : { type: "surface", x: land.x, y: land.y, z: heights, text, colorscale: c.scale, showscale: false, opacity: 0.94, hovertemplate: "%{x:.3g}, %{y:.3g}<br>loss %{text}<extra></extra>",
          contours: { z: { show: true, color: c.lines, width: 1 } }, lighting: { ambient: 0.75, diffuse: 0.5, specular: 0.05 } };
    const silent = { hoverinfo: "skip" };
    const lows = { x: land.minima.map((p) => p[0]), y: land.minima.map((p) => p[1]) };
    if (!two) {
      const z = land.losses.map(height), empty = { type: "scatter3d", x: [], y: [], z: [] };
      return [ground, empty, empty, { type: kind, mode: "markers", ...lows, z, marker: { symbol: "cross", size: 3, color: c.ink }, ...silent }, ...ways().map(asTrace)];
    }
    return [
      ground,
      { type: "scatter", mode: "markers", ...watershed(), marker: { color: c.ink, size: 3.5 }, ...silent },
      { type: "scatter", mode: "lines", ...arrows(), line: { color: c.soft, width: 1.1 }, ...silent },
      { type: "scatter", mode: "markers", ...lows, marker: { symbol: "cross-thin", size: 10, line: { width: 2, color: c.ink } }, ...silent },
    ];
  }

  function layout() {
    const c = Explorer.colours(), [x, y] = land.names.map(name);
    const axis = { gridcolor: c.grid, zeroline: false, color: c.soft };
    if (!flat()) {
      const bare = { ...axis, backgroundcolor: "rgba(0,0,0,0)", showspikes: false };
      const xs = land.x, ys = land.y, wide = xs[xs.length - 1] - xs[0], deep = ys[ys.length - 1] - ys[0], most = Math.max(wide, deep);
      return { dragmode: "turntable", margin: { l: 0, r: 0, t: 0, b: 0 }, uirevision: "surface",
        scene: { xaxis: { ...bare, title: { text: x } }, yaxis: { ...bare, title: { text: y } }, zaxis: { ...bare, title: { text: "loss (log)" }, showticklabels: false },
          aspectmode: "manual", aspectratio: { x: 1.5 * wide / most, y: 1.5 * deep / most, z: 0.7 }, camera: { eye: { x: -1.25, y: -1.5, z: 1.2 }, center: { x: 0, y: 0, z: -0.18 } } } };
    }
    const ends = (list) => [list[0], list[list.length - 1]];
    return {
      xaxis: { ...axis, range: ends(land.x), title: { text: x, standoff: 4 }, constrain: "domain", fixedrange: true },
      yaxis: { ...axis, range: ends(land.y), title: { text: y, standoff: 4 }, scaleanchor: "x", constrain: "domain", fixedrange: true },
      margin: { l: 46, r: 8, t: 6, b: 40 },
    };
  }
  const name = (word) => ({ theta1: "θ₁", theta2: "θ₂", alpha: "α", beta: "β" }[word] || word);

  // As tall as the landscape needs at this width, within what the window has room for.
  function tall() {
    const most = Math.max(300, Math.min(600, 0.62 * window.innerHeight)), wide = $("map-holder").clientWidth;
    if (!flat()) return Math.round(Math.min(most, Math.max(320, 0.8 * wide)));
    const [xs, ys] = [land.x, land.y], shape = (ys[ys.length - 1] - ys[0]) / (xs[xs.length - 1] - xs[0]);
    return Math.round(Math.min(most, Math.max(240, (wide - 54) * shape + 46)));
  }

  // A window of another width has room for another height.
  const fit = Explorer.later(() => { if (land && $("map").style.height !== `${tall()}px`) draw(); }, 150);

  // Without a landscape there is nothing to draw on.
  function clear() {
    turn += 1;
    drawn = false;
    Explorer.sheet.remove();
    Explorer.overlay.draw([]);
    if (window.Plotly) Plotly.purge($("map"));
    Explorer.handle.place();
  }

  async function draw() {
    if (!land) return clear();
    height = scaleOf(land);
    $("map").style.height = `${tall()}px`;
    if (!window.Plotly) {
      Explorer.sheet.remove();
      if (!flat()) Explorer.plotly.load();
      else { Explorer.sheet.draw(land, height, land.names.map(name)); shown(); }
    }
    const mine = (turn += 1);
    await Explorer.plotly.ready;
    if (mine !== turn) return; // another picture was asked for meanwhile
    await Explorer.plot("map", traces(), { ...layout(), height: $("map").clientHeight }); // else it keeps the last one's
    Explorer.sheet.remove();
    shown();
  }
  function shown() {
    drawn = true;
    paint();
    legend();
    Explorer.handle.place();
    hides.forEach((after) => after());
  }

  // Contours are expensive to draw, so in the plane the paths lie on a sheet of their own above them.
  async function paint() {
    if (!drawn) return;
    if (flat()) { Explorer.overlay.draw(ways()); firstShown(); return; }
    Explorer.overlay.draw([]);
    if (!window.Plotly) return;
    const all = ways().map(asTrace);
    await Plotly.restyle($("map"), { x: all.map((d) => d.x), y: all.map((d) => d.y), z: all.map((d) => d.z) }, all.map((_, i) => AT.ways + i));
  }

  // The first path that is shown, on its landscape; only then is there time for plotly.js.
  function firstShown() {
    if (!path || Explorer.first) return;
    Explorer.first = performance.now(); // read by the benchmark
    requestAnimationFrame(() => setTimeout(Explorer.plotly.load));
  }

  function legend() {
    const c = Explorer.colours(), { make, state } = Explorer;
    const css = { solid: "solid", dot: "dotted" };
    const item = (text, colour, dash = "solid") => make("span", { vars: { "--mark": colour, "--dash": css[dash] || "dashed" } }, text);
    const shown = state.values.rules.map((rule) => item(state.catalogue.rules[rule], c[rule], Explorer.dashes[rule]));
    const beside = state.values.others && path && path.candidates.length ? [item("Best path to another basin", c.other, "dot")] : [];
    Explorer.fill("legend", ...(path ? [item("Optimal path", c.optimal)] : []), ...beside, ...(rules ? shown : []));
  }

  return {
    draw, fit, legend,
    get land() { return land; }, get path() { return path; }, get rules() { return rules; },
    flat,
    after(work) { hides.push(work); },
    setLand(answer) { land = answer; field = null; return draw(); },
    // What an exported picture holds besides: in the plane, the paths.
    get extra() { return flat() ? ways().map(asTrace) : []; },
    paint,
    setPath(answer) { path = answer; return paint(); },
    setRules(answer) { rules = answer; legend(); return paint(); },
    async setField(answer) {
      if (!answer && !field) return;
      field = answer;
      if (drawn && flat() && window.Plotly) { const [w, f] = [watershed(), arrows()]; await Plotly.restyle($("map"), { x: [w.x, f.x], y: [w.y, f.y] }, [AT.watershed, AT.field]); }
    },
    setOthers() { legend(); return paint(); },
  };
})();
