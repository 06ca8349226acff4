// Overlay: what lies above the picture and moves without drawing it again: paths, the start, and the dots of each path.
"use strict";

Explorer.overlay = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const DASH = { solid: "", dot: "1 6", dash: "9 6", dashdot: "9 5 1 5", longdash: "16 6", longdashdot: "16 5 1 5" };
  let sheet = null, frame = null;
  const lines = new Map();

  function begin() {
    sheet = document.createElementNS(SVG, "svg");
    sheet.classList.add("overlay");
    sheet.setAttribute("aria-hidden", "true");
    frame = document.createElementNS(SVG, "svg"); // cuts off what lies outside the axes
    sheet.append(frame);
    Explorer.$("map-holder").append(sheet);
  }

  function trace(xs, ys, xaxis, yaxis) {
    let text = "", pen = "M";
    for (let i = 0; i < xs.length; i += 1) {
      if (xs[i] === null) { pen = "M"; continue; }
      text += `${pen}${xaxis.l2p(xs[i]).toFixed(1)} ${yaxis.l2p(ys[i]).toFixed(1)}`;
      pen = "L";
    }
    return text;
  }

  function draw(ways) {
    if (!sheet) begin();
    const full = Explorer.handle.axes();
    sheet.style.display = full && ways.length ? "" : "none";
    if (!full || !ways.length) return;
    const { xaxis, yaxis } = full;
    for (const [name, value] of [["x", xaxis._offset], ["y", yaxis._offset], ["width", xaxis._length], ["height", yaxis._length]]) frame.setAttribute(name, value);
    for (const way of ways) {
      let line = lines.get(way.name);
      if (!line) { line = document.createElementNS(SVG, "path"); line.dataset.name = way.name; lines.set(way.name, line); frame.append(line); }
      line.setAttribute("d", trace(way.x, way.y, xaxis, yaxis));
      line.setAttribute("stroke", way.color);
      line.setAttribute("stroke-width", way.width);
      line.setAttribute("stroke-dasharray", DASH[way.dash]);
    }
  }
  return { draw };
})();

// The start of the path, to be dragged or moved with the arrow keys; and the dots that show where each path is.
Explorer.handle = (() => {
  const { $, make, state } = Explorer;
  const axes = () => { const full = $("map")._fullLayout; return full && full.xaxis && full.xaxis.l2p ? full : Explorer.sheet.axes; };
  const pixel = (x, y) => { const { xaxis, yaxis } = axes(); return [xaxis._offset + xaxis.l2p(x), yaxis._offset + yaxis.l2p(y)]; };
  const box = () => { const { land } = Explorer.map; return [land.x[0], land.x[land.x.length - 1], land.y[0], land.y[land.y.length - 1]]; };

  function place() {
    const handle = $("handle");
    const shown = Explorer.map.land && Explorer.map.flat() && axes();
    handle.hidden = !shown;
    if (!shown) return;
    const { x, y } = state.values, [left, top] = pixel(x, y);
    handle.style.left = `${left}px`;
    handle.style.top = `${top}px`;
    handle.style.background = Explorer.colours().optimal;
    handle.setAttribute("aria-valuetext", `${Explorer.number(x, 3)}, ${Explorer.number(y, 3)}`);
  }

  function move(x, y) {
    const [x0, x1, y0, y1] = box();
    const near = (v, low, high) => Number(Math.min(high, Math.max(low, v)).toPrecision(4));
    let spot = { x: near(x, x0, x1), y: near(y, y0, y1) };
    if (Explorer.stored) {
      const at = Explorer.snap({ ...state.values, ...spot });
      const [sx, sy] = Explorer.stored.grid.landscapes[at.landscape].starts[at.start];
      spot = { x: sx, y: sy };
    }
    if (spot.x !== state.values.x || spot.y !== state.values.y) state.set(spot);
  }

  function begin() {
    const handle = $("handle"), holder = $("map-holder");
    handle.addEventListener("pointerdown", (event) => {
      handle.setPointerCapture(event.pointerId);
      event.preventDefault();
      handle.focus();
      const follow = (moved) => {
        const { xaxis, yaxis } = axes(), frame = holder.getBoundingClientRect();
        move(xaxis.p2l(moved.clientX - frame.left - xaxis._offset), yaxis.p2l(moved.clientY - frame.top - yaxis._offset));
      };
      const end = () => { handle.removeEventListener("pointermove", follow); handle.removeEventListener("pointerup", end); handle.removeEventListener("pointercancel", end); };
      handle.addEventListener("pointermove", follow);
      handle.addEventListener("pointerup", end);
      handle.addEventListener("pointercancel", end);
    });
    handle.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!way) return;
      event.preventDefault();
      const [x0, x1, y0, y1] = box(), part = Explorer.stored ? 1 / 4 : event.shiftKey ? 1 / 10 : 1 / 50;
      move(state.values.x + way[0] * (x1 - x0) * part, state.values.y + way[1] * (y1 - y0) * part);
    });
    new ResizeObserver(() => requestAnimationFrame(() => { place(); if (Explorer.map.flat()) Explorer.map.paint(); Explorer.map.fit(); })).observe(holder);
  }

  const dots = new Map();
  // Put a dot on the picture for each name; those without a place are hidden.
  function mark(places) {
    for (const [name, spot] of Object.entries(places)) {
      if (!dots.has(name)) {
        const dot = make("div", { class: "dot", "aria-hidden": "true" });
        $("map-holder").append(dot);
        dots.set(name, dot);
      }
      const dot = dots.get(name);
      dot.hidden = !spot || !Explorer.map.flat() || !axes();
      if (dot.hidden) continue;
      const [left, top] = pixel(...spot);
      dot.style.transform = `translate(${left}px, ${top}px)`;
      dot.style.background = Explorer.colours()[name];
    }
  }
  return { place, begin, mark, axes };
})();
