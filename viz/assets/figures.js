"use strict";
(() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /** The figure's layout in the colours of the page; what the figure sets for its axes itself stays. */
  function themed(layout) {
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--muted"),
      tickcolor: colour("--muted") };
    const template = layout.template ?? {};
    const shared = template.layout ?? {};
    return {
      ...layout,
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { ...layout.font, color: colour("--text") },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--muted"), activecolor: colour("--accent") },
      template: { ...template, layout: { ...shared,
        xaxis: { ...shared.xaxis, ...axis }, yaxis: { ...shared.yaxis, ...axis } } },
    };
  }

  function draw(place) {
    const { data, layout } = JSON.parse(document.getElementById(place.dataset.figure).textContent);
    Plotly.react(place, data, themed(layout), { responsive: true, displaylogo: false });
  }

  function drawAll() {
    document.querySelectorAll(".plot").forEach(draw);
  }

  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
