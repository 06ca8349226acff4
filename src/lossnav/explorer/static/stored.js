// Stored: in an export, the nearest settings that were worked out, and the answers to them.
"use strict";

// Where in the grid a request falls.
Explorer.snap = (request) => {
  const { landscapes } = Explorer.stored.grid;
  const landscape = landscapes[request.landscape] ? request.landscape : Object.keys(landscapes)[0];
  const here = landscapes[landscape];
  const least = (list) => list.indexOf(Math.min(...list));
  const size = (v) => Math.log(0.05 + v); // gamma goes by powers of ten
  return {
    landscape,
    gamma: least(here.gammas.map((v) => Math.abs(size(v) - size(request.gamma)))),
    start: least(here.starts.map(([x, y]) => Math.hypot((x - request.x) / here.width, (y - request.y) / here.height))),
    variant: Math.max(0, here.variants.findIndex((v) => v.metric === request.metric && v.drift === request.drift)),
  };
};

// A story of paths has answers of its own.
Explorer.storied = (values) => Explorer.stored.grid.stories.includes(values.story);

// The values of the page as the grid has them.
Explorer.fix = (values) => {
  if (Explorer.storied(values)) return {};
  const at = Explorer.snap(values), here = Explorer.stored.grid.landscapes[at.landscape];
  const [x, y] = here.starts[at.start];
  const usual = Explorer.state.defaults("paths", at.landscape);
  const rules = values.rules.filter((name) => Explorer.stored.grid.rules.includes(name));
  return { ...usual, rules, ...here.variants[at.variant], landscape: at.landscape, gamma: here.gammas[at.gamma], x, y };
};

Explorer.lookup = async (question, request) => {
  if (question === "beliefs" || question === "uncertainty") return Explorer.load(question);
  const at = Explorer.snap(request);
  if (question === "landscape") return Explorer.load(`landscape-${at.landscape}`);
  const storied = Explorer.storied(Explorer.state.values);
  const part = (name) => Explorer.load(`${storied ? `story-${Explorer.state.values.story}` : `${at.landscape}-${at.gamma}-${at.variant}`}-${name}`);
  const start = () => part(storied ? 0 : at.start);
  const answer = await {
    path: async () => (await start()).path, basins: async () => (await start()).path, rules: async () => (await start()).rules,
    field: () => part("field"), equations: async () => ({ ...(await part("equations")), ...(await start()).words }),
  }[question]();
  if (typeof answer.error === "string") throw new Explorer.Refused(answer.error); // a path's own error is a number
  return question === "rules" ? { ...answer, rows: answer.rows.filter((row) => request.rules.includes(row.name)) } : answer;
};

// Files from disk cannot be fetched, so each is a script that hands over its answer.
Explorer.load = (key) => {
  const kept = (Explorer.kept ||= {});
  kept[key] ||= new Promise((resolve, reject) => {
    (Explorer.takers ||= {})[key] = resolve;
    const script = document.createElement("script");
    script.src = `data/${key}.js`;
    script.onerror = () => reject(new Explorer.Refused(`The export has no file data/${key}.js.`));
    document.head.append(script);
  });
  return kept[key];
};
Explorer.keep = (key, answer) => Explorer.takers[key](answer);
