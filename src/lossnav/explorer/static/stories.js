// Stories: links to settings that show one thing each; the sentence of the one that is shown is below them.
"use strict";

Explorer.stories = (() => {
  const { make, state, $ } = Explorer;

  function begin() {
    const links = Object.entries(state.catalogue.stories).map(([name, one]) => make("a", { href: `#story=${name}`, id: `story-${name}` }, one.title));
    Explorer.fill("stories", make("span", {}, "See"), ...links, make("p", { id: "story", role: "note" }));
  }
  function refresh() {
    const { story } = state.values;
    for (const name of Object.keys(state.catalogue.stories)) $(`story-${name}`).setAttribute("aria-current", String(name === story));
    $("story").textContent = story === "none" ? "" : state.catalogue.stories[story].sentence;
    $("story").hidden = story === "none";
  }
  return { begin, refresh };
})();
