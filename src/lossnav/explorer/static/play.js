// Play: time along the paths, by a slider or running; at the end all of each path is behind its dot.
"use strict";

Explorer.play = (() => {
  const { $ } = Explorer;
  const LENGTH = 6000; // milliseconds from start to end
  let running = 0;

  const longest = () => {
    const { path, rules } = Explorer.map;
    const ends = [path, ...(rules ? rules.rows : [])].filter((one) => one && one.t.length).map((one) => one.t[one.t.length - 1]);
    return path ? Math.min(Math.max(...ends), 1.25 * ends[0]) : 1;
  };

  function spot(one, time) {
    if (!one || !one.t.length) return null;
    const { t, x, y } = one, last = t.length - 1;
    if (time >= t[last]) return [x[last], y[last]];
    let low = 0, high = last;
    while (high - low > 1) { const middle = (low + high) >> 1; if (t[middle] <= time) low = middle; else high = middle; }
    const share = (time - t[low]) / Math.max(t[high] - t[low], 1e-12);
    return [x[low] + share * (x[high] - x[low]), y[low] + share * (y[high] - y[low])];
  }

  function show() {
    const { path, rules } = Explorer.map, clock = $("clock");
    const share = clock.value / 1000, time = share * longest(), over = share >= 1 || !path;
    const places = { optimal: over ? null : spot(path, time) };
    for (const name of Object.keys(Explorer.state.catalogue.rules)) {
      const row = rules && Explorer.state.values.rules.includes(name) && rules.rows.find((one) => one.name === name);
      places[name] = over || !row ? null : spot(row, time);
    }
    Explorer.handle.mark(places);
    Explorer.costs.clock(over ? Infinity : time);
    $("clock-text").textContent = path ? `t = ${Explorer.number(time, 3)}` : "";
    clock.setAttribute("aria-valuetext", `time ${Explorer.number(time, 3)}`);
  }

  function stop() {
    cancelAnimationFrame(running);
    running = 0;
    $("play").textContent = "▶ Play";
    $("play").setAttribute("aria-pressed", "false");
  }

  function start() {
    const clock = $("clock");
    if (clock.value >= 1000) clock.value = 0;
    const from = performance.now() - (clock.value / 1000) * LENGTH;
    $("play").textContent = "❚❚ Pause";
    $("play").setAttribute("aria-pressed", "true");
    const step = (now) => {
      clock.value = Math.min(1000, (1000 * (now - from)) / LENGTH);
      show();
      if (clock.value >= 1000) stop(); else running = requestAnimationFrame(step);
    };
    running = requestAnimationFrame(step);
  }

  function begin() {
    $("play").addEventListener("click", () => (running ? stop() : start()));
    $("clock").addEventListener("input", () => { stop(); show(); });
    Explorer.map.after(show);
  }
  return { begin, show };
})();
