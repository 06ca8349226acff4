// Small things that every part of the page needs.
"use strict";

Explorer.$ = (id) => document.getElementById(id);

// An element with attributes and children; text is never read as HTML.
Explorer.make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") Object.entries(value).forEach(([key, v]) => element.style.setProperty(key, v));
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};

Explorer.number = (value, digits = 4) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(2).replace("-", "−").replace("e+", "e");
  return String(Number(value.toPrecision(digits))).replace("-", "−");
};
Explorer.place = (point) => (point ? `(${point.map((v) => Explorer.number(Math.abs(v) < 1e-9 ? 0 : v, 3)).join(", ")})` : "none: it runs on");

// MathML from the server is parsed as XML and only its elements of mathematics are taken over.
// A formula comes in pieces, as lines break only between them.
Explorer.maths = (formulas) => formulas.map((pieces) => Explorer.make("div", { class: "formula" }, ...pieces.flatMap((text) => {
  const parsed = new DOMParser().parseFromString(text, "application/xml").documentElement;
  const bad = parsed.namespaceURI !== "http://www.w3.org/1998/Math/MathML" || parsed.querySelector("annotation-xml, maction");
  return [bad ? document.createTextNode(text) : document.importNode(parsed, true), " "];
})));

// A card that waits for an answer says so; "what" distinguishes several answers of one card.
Explorer.busy = (() => {
  const waiting = new Map();
  return (id, what, on) => {
    const card = Explorer.$(id).closest(".card"), kept = waiting.get(card) || new Set();
    waiting.set(card, kept);
    if (on) kept.add(what); else kept.delete(what);
    card.setAttribute("aria-busy", String(kept.size > 0));
  };
})();

Explorer.fill = (id, ...children) => Explorer.$(id).replaceChildren(...children);

Explorer.later = (work, wait) => {
  let timer = 0;
  return (...given) => { clearTimeout(timer); timer = setTimeout(() => work(...given), wait); };
};

// One place for what went wrong: shown, and read out.
Explorer.trouble = (() => {
  const known = new Map();
  return (what, error) => {
    if (error) known.set(what, error.message); else known.delete(what);
    const box = Explorer.$("error");
    const sentences = [...new Set(known.values())];
    box.hidden = !sentences.length;
    const text = sentences.join(" ");
    if (box.textContent !== text) box.textContent = text;
  };
})();

// plotly.js takes longer to read than all else together, so it is asked for once the first path is shown.
Explorer.plotly = (() => {
  let begun = false, tell, fail;
  const ready = new Promise((resolve, reject) => { tell = resolve; fail = reject; });
  ready.catch(() => Explorer.trouble("plotly", new Error("plotly.js cannot be read: load the page again.")));
  function load() {
    if (begun) return;
    begun = true;
    const script = Explorer.make("script", { src: "static/plotly.min.js" });
    script.onload = tell;
    script.onerror = fail;
    document.head.append(script);
  }
  return { ready, load };
})();

Explorer.plot = async (id, traces, layout, config = {}) => {
  Explorer.busy(id, "plot", true);
  await Explorer.plotly.ready;
  Explorer.busy(id, "plot", false);
  return Plotly.react(Explorer.$(id), traces, Explorer.layout(layout), { displayModeBar: false, responsive: true, scrollZoom: false, ...config });
};

// The parts of a chart over time: lines, axes with a title, and a legend above.
Explorer.chart = () => {
  const c = Explorer.colours();
  return {
    c,
    line: (name, x, y, color, more) => ({ type: "scatter", mode: "lines", name, x, y, line: { color, width: 2.4, ...more }, hovertemplate: "%{y:.3g}" }),
    axis: (title, more) => ({ gridcolor: c.grid, zerolinecolor: c.grid, fixedrange: true, ...(title && { title: { text: title, standoff: 4 } }), ...more }),
    legend: { showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: c.soft } }, margin: { l: 50, r: 12, t: 30, b: 38 }, hovermode: "x unified" },
  };
};
