// Controls: sliders with a number beside each, lists and boxes; all of them say their label and their value.
"use strict";

Explorer.controls = (() => {
  const { make, state } = Explorer, { values, set } = state;
  const refreshers = [];

  // Where the end of a side must lie above its start, as the server will check.
  const least = (low, high) => 1e-6 * Math.max(1, Math.abs(low), Math.abs(high));

  // Four numbers: the limits of the picture. A start outside of them is moved to the border.
  function limits(key, field) {
    const names = ["x from", "x to", "y from", "y to"];
    const boxes = names.map((name, i) => make("input", { type: "number", step: "any", id: `c-${key}-${i}`, "aria-label": `Limits of the picture: ${name}` }));
    const change = () => {
      const sides = boxes.map((box) => (box.value === "" ? NaN : Number(box.value)));
      const wrong = sides.map((v, i) => !(v >= field.items.minimum && v <= field.items.maximum) || (i % 2 === 1 && !(v - sides[i - 1] > least(sides[i - 1], v))));
      boxes.forEach((box, i) => box.setAttribute("aria-invalid", String(wrong[i])));
      const first = wrong.indexOf(true), { minimum, maximum } = field.items;
      Explorer.trouble(key, first < 0 ? null : new Error(`"${names[first]}" must be a number from ${minimum} to ${maximum}${first % 2 ? `, above "${names[first - 1]}"` : ""}.`));
      if (first >= 0) return;
      const within = (v, low, high) => Math.min(high, Math.max(low, v)), { x, y } = values;
      set({ [key]: sides, x: within(x, sides[0], sides[1]), y: within(y, sides[2], sides[3]) });
    };
    boxes.forEach((box) => box.addEventListener("change", change));
    refreshers.push(() => boxes.forEach((box, i) => {
      box.disabled = isFixed(key);
      if (!boxes.includes(document.activeElement) && values[key]) { box.value = values[key][i]; box.setAttribute("aria-invalid", "false"); }
    }));
    const row = (name, i) => make("div", { class: "limits" }, make("span", {}, name), boxes[i], make("span", {}, "to"), boxes[i + 1]);
    return make("div", { role: "group", "aria-label": "Limits of the picture" }, row("x", 0), row("y", 2));
  }

  // A slider goes by powers of ten where both ends are positive; "zero" adds 0 at its left end.
  const scales = (kind, low, high) => {
    if (kind === "plain") return { to: (v) => (v - low) / (high - low), from: (s) => low + s * (high - low) };
    const log = Math.log(high / low), gap = kind === "zero" ? 0.04 : 0;
    return {
      to: (v) => (v <= 0 ? 0 : Math.max(gap, gap + (1 - gap) * Math.log(Math.max(v, low) / low) / log)),
      from: (s) => (s < gap / 2 && gap ? 0 : low * Math.exp(log * Math.max(0, (s - gap) / (1 - gap)))),
    };
  };

  function slider(key, label, { kind = "log", low, high, field, title = "", step = "any" }) {
    const scale = () => scales(kind, ...(typeof low === "function" ? low() : [low, high]));
    const id = `c-${key}`;
    const range = make("input", { type: "range", id, min: 0, max: 1000, step: 1, title, "aria-label": label });
    const box = make("input", { type: "number", id: `${id}-n`, min: field.minimum, max: field.maximum, step, "aria-label": `${label}, exactly` });
    const round = (v) => Number(v.toPrecision(3));
    const change = (value) => {
      box.setAttribute("aria-invalid", "false");
      Explorer.trouble(key, null);
      set({ [key]: step === 1 ? Math.round(value) : value });
    };
    range.addEventListener("input", () => change(round(scale().from(range.value / 1000))));
    box.addEventListener("change", () => {
      const value = Number(box.value);
      const ok = box.value !== "" && value >= field.minimum && value <= field.maximum;
      if (ok) return change(value);
      box.setAttribute("aria-invalid", "true");
      Explorer.trouble(key, new Error(`${label} must be from ${field.minimum} to ${field.maximum}.`));
    });
    refreshers.push(() => {
      const value = values[key];
      const off = value === null;
      range.disabled = box.disabled = off || isFixed(key);
      if (off) { box.value = ""; return; }
      range.value = Math.round(1000 * Math.min(1, Math.max(0, scale().to(value))));
      range.setAttribute("aria-valuetext", Explorer.number(value));
      if (document.activeElement !== box) box.value = Number(value.toPrecision(4));
    });
    return make("div", { class: "row" }, make("label", { for: id }, label), box, range);
  }

  function list(key, label, options) {
    const select = make("select", { id: `c-${key}`, "aria-label": label }, ...Object.entries(options).map(([value, text]) => make("option", { value }, text)));
    select.addEventListener("change", () => set({ [key]: select.value }));
    refreshers.push(() => { select.value = values[key]; select.disabled = isFixed(key); });
    return make("div", { class: "row wide" }, make("label", { for: `c-${key}` }, label), select);
  }

  function check(key, label, { on = true, off = false, swatch = null } = {}) {
    const box = make("input", { type: "checkbox", id: `c-${key}-check` });
    box.addEventListener("change", () => set({ [key]: box.checked ? (typeof on === "function" ? on() : on) : off }));
    refreshers.push(() => { box.checked = values[key] !== off; box.disabled = isFixed(key); });
    return make("label", { class: "check" }, box, label, swatch);
  }

  function member(key, name, label) {
    const box = make("input", { type: "checkbox", id: `c-${key}-${name}` });
    const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
    box.addEventListener("change", () => {
      const kept = Object.keys(state.catalogue.rules).filter((rule) => (rule === name ? box.checked : values[key].includes(rule)));
      set({ [key]: kept });
    });
    refreshers.push(() => {
      box.checked = values[key].includes(name);
      swatch.style.borderTopColor = Explorer.colours()[name];
    });
    return make("label", { class: "check" }, box, label, swatch);
  }

  function words(key, label, hint) {
    const box = make("input", { type: "text", id: `c-${key}`, spellcheck: "false", autocomplete: "off", maxlength: 300, "aria-describedby": `c-${key}-hint` });
    box.addEventListener("change", () => set({ [key]: box.value, landscape: "expression" }));
    box.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); box.blur(); box.focus(); } });
    refreshers.push(() => { if (document.activeElement !== box) box.value = values[key]; box.disabled = isFixed(key); });
    return make("div", { class: "row wide" }, make("label", { for: `c-${key}` }, label), box, make("p", { class: "hint", id: `c-${key}-hint` }, hint));
  }

  const free = ["landscape", "gamma", "x", "y", "metric", "drift", "rules", "field", "others", "picture"];
  const isFixed = (key) => Boolean(Explorer.stored) && !free.includes(key);
  const group = (title, ...children) => make("fieldset", {}, make("legend", {}, title), ...children);
  const shownIf = (element, test) => { refreshers.push(() => { element.hidden = !test(values); }); return element; };
  const refresh = () => refreshers.forEach((refresher) => refresher());
  return { slider, list, check, member, words, limits, group, shownIf, refresh };
})();
