// State: everything the page shows, as one flat object that fits into a link.
"use strict";

Explorer.state = (() => {
  const views = { paths: "path", beliefs: "beliefs", uncertainty: "uncertainty" };
  const prefix = { paths: "", beliefs: "b.", uncertainty: "u." };
  const shown = { picture: "contour", field: false, others: true, view: "paths", story: "none" };
  const LOOKS = ["picture", "field", "others"]; // do not change what a story tells
  let catalogue = null;
  const values = { ...shown };
  const watchers = [];

  const fields = (view) => catalogue.fields[views[view]];
  const defaults = (view, landscape) => {
    const usual = {};
    for (const [name, field] of Object.entries(fields(view))) usual[name] = field.default;
    const own = view === "paths" && catalogue.landscapes[landscape || usual.landscape];
    return Object.assign(usual, own ? own.settings : {}, landscape ? { landscape } : {});
  };

  const text = (value) => (value === null ? "none" : Array.isArray(value) ? value.join(",") : String(value));
  const number = (word) => (word === "none" ? null : word.trim() === "" ? NaN : Number(word));
  const parse = (field, word) => {
    if (field.type === "string") return word;
    if (field.items) {
      if (word === "none") return null;
      const parts = word === "" ? [] : word.split(",");
      return field.items.type === "string" ? parts : parts.map(number);
    }
    return number(word);
  };
  // Whether a value keeps to its field's bounds, as the server will check them.
  const fits = (field, value) => {
    if (value === null) return [field.type].flat().includes("null");
    if (field.enum) return field.enum.includes(value);
    if (field.maxLength) return value.length <= field.maxLength;
    if (field.items) return value.length >= field.minItems && value.length <= field.maxItems && value.every((one) => fits(field.items, one));
    return value >= field.minimum && value <= field.maximum && (![field.type].flat().includes("integer") || Number.isInteger(value));
  };
  const choices = { picture: ["contour", "surface"], field: ["true", "false"], others: ["true", "false"], view: Object.keys(views) };
  const names = (name) => (name === "story" ? ["none", ...Object.keys(catalogue.stories)] : choices[name]);
  // What a story sets, as in a link.
  const storyWords = (name) => {
    const { view, field, settings } = catalogue.stories[name];
    const mine = Object.entries(settings).map(([key, value]) => [prefix[view] + key, text(value)]);
    return new Map([["view", view], ["field", String(field)], ...mine]);
  };
  // Whether all settings are those of the story.
  const holds = (name) => {
    const { view, settings } = catalogue.stories[name], mine = storyWords(name), usual = defaults(view, settings.landscape);
    return values.view === view && Object.keys(fields(view)).every((key) => text(values[prefix[view] + key]) === (mine.get(prefix[view] + key) ?? text(usual[key])));
  };

  const link = () => {
    const words = new URLSearchParams();
    for (const [name, usual] of Object.entries(shown)) if (values[name] !== usual) words.set(name, String(values[name]));
    for (const view of Object.keys(views)) {
      const usual = defaults(view, view === "paths" ? values.landscape : undefined);
      for (const name of Object.keys(fields(view))) {
        const key = prefix[view] + name;
        const first = key === "landscape" ? defaults("paths").landscape : usual[name];
        if (text(values[key]) !== text(first)) words.set(key, text(values[key]));
      }
    }
    return "#" + words.toString();
  };

  // Take over what a link says; a value that is not allowed becomes its default, and the page says so.
  const follow = (hash) => {
    const words = new URLSearchParams(hash.replace(/^#/, "")), unused = new Map(words);
    const story = catalogue.stories[words.get("story")] ? words.get("story") : "none";
    if (story !== "none") for (const [key, word] of storyWords(story)) if (!words.has(key)) words.set(key, word);
    const read = (key, field, usual) => {
      const value = words.has(key) ? parse(field, words.get(key)) : usual;
      if (!words.has(key) || !fits(field, value)) return usual;
      unused.delete(key);
      return value;
    };
    Object.assign(values, shown);
    const landscape = read("landscape", fields("paths").landscape, undefined);
    for (const view of Object.keys(views)) {
      const usual = defaults(view, view === "paths" ? landscape : undefined);
      for (const [name, field] of Object.entries(fields(view))) values[prefix[view] + name] = read(prefix[view] + name, field, usual[name]);
    }
    for (const name of Object.keys(shown)) {
      const word = read(name, { type: "string", enum: names(name) }, String(shown[name]));
      values[name] = typeof shown[name] === "boolean" ? word === "true" : word;
    }
    if (story !== "none" && !holds(story)) values.story = "none";
    const wrong = [...unused].map(([key, word]) => `${key}=${word}`.slice(0, 40)).slice(0, 5).join(", ");
    Explorer.trouble("link", wrong ? new Error(`The link says ${wrong}, which is not allowed here: the defaults are shown instead.`) : null);
  };

  let written = 0;
  const keep = () => {
    clearTimeout(written);
    written = setTimeout(() => history.replaceState(null, "", link()), 150);
  };

  return {
    values,
    get catalogue() { return catalogue; },
    begin(answer) { catalogue = answer; follow(location.hash); },
    follow, link, fields, defaults, prefix,
    watch(watcher) { watchers.push(watcher); },
    // Change some values; a new landscape brings its own settings along.
    set(changes) {
      let all = changes;
      if (changes.landscape && changes.landscape !== values.landscape) {
        const { rules, expression, steps } = values;
        all = { ...defaults("paths", changes.landscape), rules, expression, steps, ...changes };
      }
      if (!Object.keys(all).every((key) => LOOKS.includes(key))) values.story = "none";
      Object.assign(values, all);
      ["link", "export"].forEach((what) => Explorer.trouble(what, null));
      if (Explorer.stored && !Object.keys(all).some((key) => key.includes("."))) Object.assign(values, Explorer.fix(values));
      keep();
      watchers.forEach((watcher) => watcher(Object.keys(all)));
    },
    // The limits of the picture: those that are set, or the landscape's own.
    get box() { return values.box || (catalogue.landscapes[values.landscape] || catalogue).box; },
    // The request of a view.
    request(view) {
      return Object.fromEntries(Object.keys(fields(view)).map((name) => [name, values[prefix[view] + name]]));
    },
  };
})();
