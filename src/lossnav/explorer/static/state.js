// State: everything the page shows, as one flat object that fits into a link.
"use strict";

Explorer.state = (() => {
  const views = { paths: "path", beliefs: "beliefs", uncertainty: "uncertainty" };
  const prefix = { paths: "", beliefs: "b.", uncertainty: "u." };
  const shown = { picture: "contour", field: false, others: true, view: "paths" };
  let catalogue = null;
  const values = { ...shown };
  const watchers = [];

  const fields = (view) => catalogue.fields[views[view]];
  const defaults = (view, landscape) => {
    const found = {};
    for (const [name, field] of Object.entries(fields(view))) found[name] = field.default;
    const own = view === "paths" && catalogue.landscapes[landscape || found.landscape];
    return Object.assign(found, own ? own.settings : {}, landscape ? { landscape } : {});
  };

  const text = (value) => (value === null ? "none" : Array.isArray(value) ? value.join(",") : String(value));
  const number = (word) => (word === "none" ? null : Number(word));
  const parse = (field, word) => {
    if (field.type === "string") return word;
    if (field.items) {
      if (word === "none") return null;
      const parts = word === "" ? [] : word.split(",");
      return field.items.type === "string" ? parts : parts.map(Number);
    }
    return number(word);
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

  const follow = (hash) => {
    const words = new URLSearchParams(hash.replace(/^#/, ""));
    const landscape = words.get("landscape") || undefined;
    Object.assign(values, shown);
    for (const view of Object.keys(views)) {
      const usual = defaults(view, view === "paths" ? landscape : undefined);
      for (const [name, field] of Object.entries(fields(view))) {
        const key = prefix[view] + name;
        values[key] = words.has(key) ? parse(field, words.get(key)) : usual[name];
      }
    }
    for (const name of Object.keys(shown)) {
      if (!words.has(name)) continue;
      values[name] = typeof shown[name] === "boolean" ? words.get(name) === "true" : words.get(name);
    }
    if (!views[values.view]) values.view = "paths";
    if (values.picture !== "surface") values.picture = "contour";
  };

  let written = 0;
  const keep = () => {
    clearTimeout(written);
    written = setTimeout(() => history.replaceState(null, "", link()), 150);
  };

  return {
    values,
    get catalogue() { return catalogue; },
    begin(found) { catalogue = found; follow(location.hash); },
    follow, link, fields, defaults, prefix,
    watch(watcher) { watchers.push(watcher); },
    // Change some values; a new landscape brings its own settings along.
    set(changes) {
      let all = changes;
      if (changes.landscape && changes.landscape !== values.landscape) {
        const { rules, expression, steps } = values;
        all = { ...defaults("paths", changes.landscape), rules, expression, steps, ...changes };
      }
      Object.assign(values, all);
      if (Explorer.stored && !Object.keys(all).some((key) => key.includes("."))) Object.assign(values, Explorer.fix(values));
      keep();
      watchers.forEach((watcher) => watcher(Object.keys(all)));
    },
    // The request of a view.
    request(view) {
      const found = {};
      for (const name of Object.keys(fields(view))) found[name] = values[prefix[view] + name];
      return found;
    },
  };
})();
