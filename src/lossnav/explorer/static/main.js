// Main: views and stories, and what each change updates.
"use strict";

Explorer.catalogue = Explorer.stored ? Promise.resolve(Explorer.stored.catalogue) : fetch("api/catalogue").then((response) => response.json());

(() => {
  const { $, make, state } = Explorer;
  const VIEWS = ["paths", "beliefs", "uncertainty"];
  const begun = new Set();

  function show(view) {
    for (const name of VIEWS) {
      const tab = $(`tab-${name}`);
      tab.setAttribute("aria-selected", String(name === view));
      tab.tabIndex = name === view ? 0 : -1;
      $(`view-${name}`).hidden = name !== view;
    }
    for (const item of document.querySelectorAll('[data-export="toml"]')) item.hidden = view !== "paths";
    if (view !== "paths") Explorer.plotly.load();
    if (begun.has(view)) Explorer[view].redraw(); else { begun.add(view); Explorer[view].all(); }
  }

  // Stories are links to settings that show one thing each; the sentence of the one that is shown is below them.
  function stories() {
    const links = Object.entries(state.catalogue.stories).map(([name, one]) => make("a", { href: `#story=${name}`, id: `story-${name}` }, one.title));
    Explorer.fill("stories", make("span", {}, "See"), ...links, make("p", { id: "story", role: "note" }));
  }
  function refresh() {
    Explorer.controls.refresh();
    Explorer.paths.refresh();
    const { story } = state.values;
    for (const name of Object.keys(state.catalogue.stories)) $(`story-${name}`).setAttribute("aria-current", String(name === story));
    $("story").textContent = story === "none" ? "" : state.catalogue.stories[story].sentence;
    $("story").hidden = story === "none";
  }

  function changed(keys) {
    refresh();
    if (keys.includes("view")) show(state.values.view);
    const parts = { paths: keys.filter((key) => !key.includes(".")), beliefs: keys.filter((key) => key.startsWith("b.")), uncertainty: keys.filter((key) => key.startsWith("u.")) };
    for (const view of VIEWS) if (begun.has(view) && parts[view].length) Explorer[view].changed(parts[view]);
  }

  function tabs() {
    $("tabs").addEventListener("click", (event) => { const { view } = event.target.dataset; if (view) state.set({ view }); });
    $("tabs").addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = VIEWS[(VIEWS.indexOf(state.values.view) + step + VIEWS.length) % VIEWS.length];
      state.set({ view: next });
      $(`tab-${next}`).focus();
    });
  }

  const fix = () => Explorer.stored && Object.assign(state.values, Explorer.fix(state.values)); // to the settings of an export

  async function begin() {
    state.begin(await Explorer.catalogue);
    fix();
    VIEWS.forEach((view) => Explorer[view].controls());
    for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
    tabs();
    stories();
    Explorer.handle.begin();
    Explorer.play.begin();
    Explorer.exports.begin();
    $("theme").addEventListener("click", () => Explorer.theme.toggle());
    Explorer.theme.watch(() => { Explorer.controls.refresh(); Explorer[state.values.view].redraw(); Explorer.map.legend(); });
    window.addEventListener("hashchange", () => { state.follow(location.hash); fix(); refresh(); begun.clear(); show(state.values.view); });
    state.watch(changed);
    refresh();
    show(state.values.view);
    setTimeout(Explorer.plotly.load, 1500); // even without a path
  }

  begin().catch((error) => {
    Explorer.trouble("start", new Error("The page could not begin: is `lossnav explore` still running?"));
    throw error;
  });
})();
