"use strict";
// A figure in a frame of its own; see web/pages/figures.py for what the frame may do. It tells its page how tall it is.
const values = JSON.parse(document.getElementById("values").textContent);
window.vegaEmbed("#figure", values, { actions: false, renderer: "svg" }).then(() => {
  parent.postMessage({ height: document.documentElement.scrollHeight }, "*");
});
