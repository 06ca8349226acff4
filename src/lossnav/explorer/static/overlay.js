// Overlay: lines above the picture, drawn by hand, so that a move of the hand is seen at once.
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
