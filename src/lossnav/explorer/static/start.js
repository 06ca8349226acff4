// Start: everything but plotly.js is here by now.
"use strict";
Explorer.main.begin().catch((error) => {
  Explorer.trouble("start", new Error("The page could not begin: is `lossnav explore` still running?"));
  throw error;
});
