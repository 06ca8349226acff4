// Ask: questions to the server, of each kind one at a time; the newest one waits, older ones are dropped.
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
    const found = await response.json();
    if (!response.ok) throw new Explorer.Refused(found.error || `The server said ${response.status}.`);
    return found;
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
      const held = line.stop;
      setTimeout(() => line.busy && line.stop === held && line.next && held.abort(), wait);
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
