// Light or dark: as chosen, or as the system has it; and the colours of pictures.
"use strict";
const Explorer = (window.Explorer = {});

Explorer.theme = (() => {
  const kept = () => { try { return localStorage.getItem("lossnav-theme"); } catch { return null; } };
  const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const watchers = [];
  const set = (name) => {
    document.documentElement.dataset.theme = name;
    watchers.forEach((watcher) => watcher(name));
  };
  set(kept() || system());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => kept() || set(system()));
  return {
    get name() { return document.documentElement.dataset.theme; },
    get dark() { return this.name === "dark"; },
    toggle() {
      const next = this.dark ? "light" : "dark";
      try { localStorage.setItem("lossnav-theme", next); } catch { /* a page from disk may not keep anything */ }
      set(next);
    },
    watch(watcher) { watchers.push(watcher); },
  };
})();

// Colours that differ for colour-blind readers too (Okabe and Ito), with dashes as a second sign.
Explorer.colours = () => {
  const dark = Explorer.theme.dark;
  return {
    ink: dark ? "#e6eaf1" : "#1b2330", soft: dark ? "#9aa6b6" : "#5b6675", grid: dark ? "#2b3442" : "#e3e7ec",
    card: dark ? "#191f29" : "#ffffff",
    optimal: dark ? "#ff8a3d" : "#c2410c",
    ours: dark ? "#f29ccf" : "#a8326e", flow: dark ? "#5fb4ff" : "#0061a8", adam: dark ? "#4fd6a7" : "#007a58",
    momentum: dark ? "#ffce5c" : "#8a6400", ballistic: dark ? "#8fe3f5" : "#1c7f96",
    newton: dark ? "#d0d5dd" : "#4a4f57", natural: dark ? "#b9a5ff" : "#5f3dc4",
    other: dark ? "#ffb98a" : "#d98a5f",
    scale: dark
      ? [[0, "#0d2b45"], [0.25, "#17405f"], [0.5, "#25577a"], [0.75, "#3a6b8c"], [1, "#55809c"]]
      : [[0, "#cfe3f2"], [0.25, "#dcebf5"], [0.5, "#e9f2f8"], [0.75, "#f2f6f9"], [1, "#fafbfc"]],
    lines: dark ? "rgba(220,235,250,.22)" : "rgba(30,60,95,.20)",
  };
};
Explorer.dashes = { ours: "solid", flow: "dash", adam: "dot", momentum: "dashdot", ballistic: "longdash", newton: "dot", natural: "longdashdot" };

Explorer.layout = (more) => {
  const c = Explorer.colours();
  const axis = { gridcolor: c.grid, zerolinecolor: c.grid, linecolor: c.grid, tickcolor: c.grid, automargin: true };
  return Object.assign({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: c.soft, size: 12, family: "system-ui, sans-serif" },
    margin: { l: 44, r: 10, t: 8, b: 34 }, showlegend: false, hovermode: "closest", dragmode: false, xaxis: { ...axis }, yaxis: { ...axis },
  }, more);
};
