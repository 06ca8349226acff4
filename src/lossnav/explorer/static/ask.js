// Ask: questions to the server, or in an export to its stored answers; of each kind one at a time, and only the newest one waits.
"use strict";

Explorer.ask = (() => {
  const PATIENCE = 400; // milliseconds after which a newer question stops the older one
  const lines = {};
  // A server that has only just begun solves every landscape once before it answers.
  const patience = setTimeout(() => Explorer.trouble("start", new Error("Starting: every landscape is solved once. The first answer comes in a moment.")), 800);
  const started = () => { clearTimeout(patience); Explorer.trouble("start", null); };
  const base = location.pathname.replace(/[^/]*$/, "");

  async function send(question, request, signal) {
    if (Explorer.stored) return Explorer.lookup(question, request);
    const response = await fetch(`${base}api/${question}`, {
      method: "POST", signal, body: JSON.stringify(request), headers: { "Content-Type": "application/json" },
    });
    const answer = await response.json();
    if (!response.ok) throw new Explorer.Refused(answer.error || `The server said ${response.status}.`);
    return answer;
  }

  async function run(line) {
    line.busy = true;
    while (line.next) {
      const { question, request, resolve, reject } = line.next;
      line.next = null;
      line.stop = new AbortController();
      line.since = performance.now();
      try {
        resolve(await send(question, request, line.stop.signal));
      } catch (error) {
        if (error.name === "AbortError") resolve(null);
        else if (error instanceof Explorer.Refused) reject(error);
        else reject(new Explorer.Refused("The server does not answer: is `lossnav explore` still running?"));
      }
      if (!line.stop.signal.aborted) started();
    }
    line.busy = false;
  }

  const ask = (question, request) => new Promise((resolve, reject) => {
    const line = (lines[question] ||= { busy: false, next: null });
    if (line.next) line.next.resolve(null); // dropped for a newer one
    line.next = { question, request, resolve, reject };
    if (!line.busy) run(line);
    else {
      const wait = Math.max(0, PATIENCE - (performance.now() - line.since));
      const current = line.stop;
      setTimeout(() => line.busy && line.stop === current && line.next && current.abort(), wait);
    }
  });
  // What nobody waits for any more is stopped, so that the path has the machine to itself.
  ask.drop = (question) => {
    const line = lines[question];
    if (!line) return;
    if (line.next) { line.next.resolve(null); line.next = null; }
    if (line.busy) line.stop.abort();
  };
  return ask;
})();

Explorer.Refused = class extends Error {};

// In an export: the nearest precomputed settings, and the answers to them.

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
  const loading = (Explorer.loading ||= {});
  loading[key] ||= new Promise((resolve, reject) => {
    (Explorer.takers ||= {})[key] = resolve;
    const script = document.createElement("script");
    script.src = `data/${key}.js`;
    script.onerror = () => reject(new Explorer.Refused(`The export has no file data/${key}.js.`));
    document.head.append(script);
  });
  return loading[key];
};
Explorer.keep = (key, answer) => Explorer.takers[key](answer);
