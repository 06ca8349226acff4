// Sheet: the first picture of the landscape, drawn by hand while plotly.js is still loading.
"use strict";

Explorer.sheet = (() => {
  const MARGIN = { l: 46, r: 8, t: 6, b: 40 }; // as in the picture that takes its place
  let canvas = null, axes = null;

  const axis = (from, to, offset, length, up) => {
    const unit = length / (to - from);
    return {
      _offset: offset, _length: length,
      l2p: (v) => (up ? (to - v) * unit : (v - from) * unit),
      p2l: (p) => (up ? to - p / unit : from + p / unit),
    };
  };
  // A step of 1, 2 or 5 times a power of ten, so that there are at most so many.
  const nice = (span, most) => {
    const ten = 10 ** Math.floor(Math.log10(span / most));
    return ten * [1, 2, 5, 10].find((factor) => span / (factor * ten) <= most);
  };
  const mixed = (scale, share) => {
    let i = 1;
    while (i < scale.length - 1 && scale[i][0] < share) i += 1;
    const [[from, a], [to, b]] = [scale[i - 1], scale[i]], part = Math.min(1, Math.max(0, (share - from) / (to - from)));
    const number = (text, at) => parseInt(text.slice(at, at + 2), 16);
    return [1, 3, 5].map((at) => Math.round(number(a, at) + part * (number(b, at) - number(a, at))));
  };

  // Bands of equal height, with a thin line where one ends.
  function bands(image, heights, c) {
    const all = heights.flat().filter((v) => v !== null), low = Math.min(...all), high = Math.max(...all);
    const step = nice(Math.max(high - low, 1e-9), 22), colours = [];
    const colour = (band) => (colours[band] ||= mixed(c.scale, ((band + 0.5) * step - low) / (high - low || 1)));
    const { width, height, data } = image, rows = heights.length - 1, columns = heights[0].length - 1;
    const [, ...ink] = c.lines.match(/rgba\((\d+),(\d+),(\d+),([\d.]+)\)/).map(Number);
    const first = Math.floor(low / step), above = new Int32Array(width).fill(-1);
    for (let i = 0; i < height; i += 1) {
      const y = rows * (1 - (i + 0.5) / height), r = Math.min(Math.floor(y), rows - 1), v = y - r;
      let left = -1;
      for (let j = 0; j < width; j += 1) {
        const x = (columns * (j + 0.5)) / width, q = Math.min(Math.floor(x), columns - 1), u = x - q;
        const a = heights[r][q], b = heights[r][q + 1], d = heights[r + 1][q], e = heights[r + 1][q + 1];
        if (a === null || b === null || d === null || e === null) { left = above[j] = -1; continue; }
        const band = Math.floor(((1 - v) * ((1 - u) * a + u * b) + v * ((1 - u) * d + u * e)) / step) - first;
        const line = (left >= 0 && left !== band) || (above[j] >= 0 && above[j] !== band) ? ink[3] : 0, fill = colour(band + first);
        for (let part = 0; part < 3; part += 1) data[4 * (i * width + j) + part] = fill[part] + line * (ink[part] - fill[part]);
        data[4 * (i * width + j) + 3] = 255;
        left = above[j] = band;
      }
    }
  }

  function ticks(pen, c, [x0, x1, y0, y1], names) {
    const { xaxis, yaxis } = axes, bottom = yaxis._offset + yaxis._length;
    pen.fillStyle = c.soft;
    pen.font = "12px system-ui, sans-serif";
    const each = (from, to, most, draw) => {
      const step = nice(to - from, Math.max(2, most));
      for (let n = Math.ceil(from / step - 1e-9); n * step <= to + 1e-9 * step; n += 1) draw(n * step, String(Number((n * step).toPrecision(6))).replace("-", "−"));
    };
    pen.textAlign = "center";
    each(x0, x1, xaxis._length / 90, (v, text) => pen.fillText(text, xaxis._offset + xaxis.l2p(v), bottom + 15));
    pen.fillText(names[0], xaxis._offset + xaxis._length / 2, bottom + 32);
    pen.textAlign = "right";
    each(y0, y1, yaxis._length / 60, (v, text) => pen.fillText(text, xaxis._offset - 4, yaxis._offset + yaxis.l2p(v) + 4));
    pen.translate(xaxis._offset - 34, yaxis._offset + yaxis._length / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText(names[1], 0, 0);
  }

  function draw(land, height, names) {
    remove();
    const c = Explorer.colours(), place = Explorer.$("map"), wide = place.clientWidth, tall = place.clientHeight;
    const ends = (list) => [list[0], list[list.length - 1]], [x0, x1] = ends(land.x), [y0, y1] = ends(land.y);
    const w = wide - MARGIN.l - MARGIN.r, h = tall - MARGIN.t - MARGIN.b, unit = Math.min(w / (x1 - x0), h / (y1 - y0));
    const across = unit * (x1 - x0), down = unit * (y1 - y0);
    if (!(across >= 2 && down >= 2)) return;
    axes = { xaxis: axis(x0, x1, MARGIN.l + (w - across) / 2, across, false), yaxis: axis(y0, y1, MARGIN.t + (h - down) / 2, down, true) };
    canvas = Explorer.make("canvas", { width: wide, height: tall, class: "sheet", "aria-hidden": "true" });
    const pen = canvas.getContext("2d"), image = pen.createImageData(Math.round(across), Math.round(down));
    bands(image, land.z.map((row) => row.map(height)), c);
    pen.putImageData(image, Math.round(axes.xaxis._offset), Math.round(axes.yaxis._offset));
    pen.strokeStyle = c.ink;
    pen.lineWidth = 2;
    for (const [x, y] of land.minima) {
      const [left, top] = [axes.xaxis._offset + axes.xaxis.l2p(x), axes.yaxis._offset + axes.yaxis.l2p(y)];
      pen.beginPath(); pen.moveTo(left - 5, top); pen.lineTo(left + 5, top); pen.moveTo(left, top - 5); pen.lineTo(left, top + 5); pen.stroke();
    }
    ticks(pen, c, [x0, x1, y0, y1], names);
    Explorer.$("map-holder").prepend(canvas);
  }
  function remove() { if (canvas) canvas.remove(); canvas = axes = null; }
  return { draw, remove, get axes() { return axes; } };
})();
