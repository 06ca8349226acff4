// Paths: the first view. A change asks for what depends on it: the path at once, the rest when the hand rests.
"use strict";

Explorer.paths = (() => {
  const { state, map, panels, later, trouble } = Explorer;
  const latest = {};
  const GROUND = ["landscape", "expression", "box"], PATH = ["x", "y", "eta", "k", "gamma", "horizon", "metric", "ratio", "angle", "drift", "speed"];
  const facts = (values) => JSON.stringify([...GROUND, ...PATH].map((name) => values[name]));
  const ground = (values) => JSON.stringify(GROUND.map((name) => values[name]));
  let about = ""; // what the path that is shown is the answer to
  let floor = ""; // the landscape on which the rules that are shown were run

  // Take away what an answer has shown, when it is no longer true.
  const forget = {
    landscape() { latest.landscape = null; return map.setLand(null); },
    path() {
      [latest.path, about] = [null, ""];
      map.setPath(null);
      map.legend();
      panels.noPath();
      Explorer.play.show();
    },
    basins() { if (latest.path) panels.summary(latest.path); },
    rules(why = "None.") {
      waits("rules", false);
      latest.rules = null;
      map.setRules(null);
      panels.none([], { ranking: why });
      Explorer.play.show();
    },
    equations() { latest.equations = null; panels.none([], { equations: "None.", rule: "None.", python: "" }); },
    field() { latest.field = null; return map.setField(null); },
  };

  // The panels that wait for each answer. The paths to other basins are asked for after the path.
  const PANELS = { landscape: ["map"], path: ["summary", "costs"], basins: ["summary"], rules: ["ranking"], equations: ["equations", "rule", "python"], field: ["map"] };
  const waits = (question, on) => PANELS[question].forEach((id) => Explorer.busy(id, question, on));

  async function ask(question, use, view = "paths") {
    waits(question, true);
    try {
      const request = state.request(view), answer = await Explorer.ask(question, request);
      if (answer === null) return; // a newer question is on its way
      trouble(question, null);
      await use(answer, request);
    } catch (error) {
      if (!(error instanceof Explorer.Refused)) throw error;
      await forget[question]();
      trouble(question, question === "basins" ? new Error(`Paths to other basins: ${error.message}`) : error);
    }
    waits(question, false);
  }

  const land = () => ask("landscape", (answer, request) => {
    latest.landscape = answer;
    if (map.path && !current()) forget.path(); // it would lie on another landscape
    if (map.rules && floor !== ground(request)) forget.rules("…");
    return map.setLand(answer);
  });
  // The path is drawn at once; what it costs and the paths to other basins follow when the hand rests.
  const path = () => ask("path", async (answer, request) => {
    [latest.path, about] = [answer, facts(request)];
    await map.setPath(answer);
    Explorer.drawn = (Explorer.drawn || 0) + 1; // read by the benchmark
    panels.summary(answer, false);
    Explorer.play.show();
    costs();
    waits("basins", true);
    basins();
  });
  const current = () => about === facts(state.values);
  const basins = later(() => current() && ask("basins", async (answer, request) => {
    if (facts(request) !== about || !current()) return; // it is about another state
    latest.path = answer;
    await map.setPath(answer);
    map.legend();
    panels.summary(answer);
    costs();
  }), 160);
  const costs = later(() => latest.path && Explorer.costs.draw(latest.path), 120);
  const rules = later(() => (state.values.rules.length ? ask("rules", (answer, request) => { [latest.rules, floor] = [answer, ground(request)]; panels.ranking(answer); Explorer.play.show(); return map.setRules(answer); }) : forget.rules("Choose a rule to compare.")), 140);
  const equations = later(() => ask("equations", (answer) => { latest.equations = answer; panels.equations(answer); }), 200);
  const field = later(() => (state.values.field ? ask("field", (answer) => { latest.field = answer; return map.setField(answer); }) : map.setField(null)), 120);

  const touches = (keys, names) => keys.some((key) => names.includes(key));

  async function changed(keys) {
    if (touches(keys, [...GROUND, ...PATH])) {
      ["basins", "rules", "equations"].forEach(Explorer.ask.drop);
      ["rules", "equations"].forEach((question) => waits(question, true));
      waits("basins", false);
      trouble("basins", null);
      Explorer.handle.place(); path(); rules(); equations();
      if (state.values.field && touches(keys, [...GROUND, ...PATH.slice(2)])) { Explorer.ask.drop("field"); field(); }
    }
    if (touches(keys, GROUND)) land();
    if (touches(keys, ["dt", "steps", "rate", "rules"])) { rules(); if (keys.includes("rules")) map.legend(); if (keys.includes("dt")) equations(); }
    if (keys.includes("picture")) map.draw();
    if (keys.includes("field")) field();
    if (keys.includes("others")) map.setOthers();
  }

  function controls() {
    const { slider, list, check, member, words, limits, group, shownIf } = Explorer.controls;
    const f = state.fields("paths"), { landscapes, rules: titles } = state.catalogue;
    const names = Object.fromEntries([...Object.entries(landscapes).map(([name, one]) => [name, one.title]), ["expression", "Your own formula"]]);
    if (Explorer.stored) for (const name of Object.keys(names)) if (!Explorer.stored.grid.landscapes[name]) delete names[name];
    const own = (test, row) => shownIf(row, test);
    Explorer.fill("controls-paths",
      group("Landscape", list("landscape", "Landscape", names),
        own((v) => v.landscape === "expression", words("expression", "L(x, y) =", "+ − * / **, brackets, pi, exp log sqrt sin cos tan tanh abs …")),
        check("box", "Set the limits of the picture", { on: () => [...state.box], off: null }),
        own((v) => v.box !== null, limits("box", f.box))),
      group("What the learner believes",
        slider("gamma", "Discount γ", { kind: "zero", low: 0.01, high: 20, field: f.gamma, title: "0 plans for the whole future, large values only for the next moment" }),
        slider("eta", "Learning rate η", { low: 0.05, high: 20, field: f.eta }),
        slider("k", "Weight of the loss k", { low: 0.005, high: 10, field: f.k }),
        check("horizon", "Finite horizon", { on: () => 5, off: null }),
        own((v) => v.horizon !== null, slider("horizon", "Horizon T", { low: 0.5, high: 50, field: f.horizon }))),
      group("Geometry",
        list("metric", "Metric", { euclidean: "Euclidean", anisotropic: "Anisotropic", fisher: "Fisher (y is a variance)" }),
        own((v) => v.metric === "anisotropic", slider("ratio", "Price across / along", { low: 0.02, high: 50, field: f.ratio })),
        own((v) => v.metric === "anisotropic", slider("angle", "Cheap direction, degrees", { kind: "plain", low: -90, high: 90, field: f.angle })),
        list("drift", "Drift", { none: "None", decay: "Decay to zero", rotation: "Rotation" }),
        own((v) => v.drift !== "none", slider("speed", "Rate of the drift", { kind: "zero", low: 0.02, high: 5, field: f.speed }))),
      group("Rules to compare", ...Object.entries(titles).filter(([name]) => !Explorer.stored || Explorer.stored.grid.rules.includes(name)).map(([name, title]) => member("rules", name, title)),
        slider("dt", "Step time dt", { low: 0.01, high: 1, field: f.dt }),
        slider("steps", "Steps", { low: 10, high: 400, field: f.steps, step: 1 }),
        check("rate", "Set the learning rate", { on: () => 0.1, off: null }),
        own((v) => v.rate !== null, slider("rate", "Learning rate", { low: 1e-4, high: 10, field: f.rate }))),
      group("Start", slider("x", "First coordinate", { kind: "plain", low: () => state.box.slice(0, 2), field: f.x }), slider("y", "Second coordinate", { kind: "plain", low: () => state.box.slice(2), field: f.y })));
    const pick = (value, text) => Explorer.make("button", { type: "button", id: `picture-${value}`, onclick: () => state.set({ picture: value }) }, text);
    Explorer.fill("map-bar", Explorer.make("div", { class: "choice", role: "group", "aria-label": "Kind of picture" }, pick("contour", "Contours"), pick("surface", "3-D")),
      shownIf(check("field", "Policy field and watershed"), (v) => v.picture === "contour"), check("others", "Paths to other basins"));
  }

  function refresh() {
    for (const kind of ["contour", "surface"]) Explorer.$(`picture-${kind}`).setAttribute("aria-pressed", String(state.values.picture === kind));
  }
  // All at once, as for a link followed on the open page: answers to what was asked before are dropped.
  const all = () => { waits("basins", false); ["basins", "rules", "equations", "field"].forEach(Explorer.ask.drop); land(); path(); rules(); equations(); field(); };
  const redraw = () => { map.draw(); if (latest.path) { panels.summary(latest.path); Explorer.costs.draw(latest.path); } if (latest.rules) panels.ranking(latest.rules); };
  return { controls, changed, refresh, all, redraw, latest };
})();
