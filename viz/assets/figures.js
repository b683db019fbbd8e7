"use strict";
/* Draws the figures of the visible page, each with a CSV button. Needs plotly.js, csv.js and narrow.js. */
(() => {
  const root = document.documentElement;
  const small = matchMedia("(max-width: 640px)");
  const drawnWidths = new Map(); // by plot element; a hidden element has width 0 and is not drawn
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // Nothing leaves the page: no button that uploads the figure, no logo that opens plotly's site.
  const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "" };

  /** Plotly makes links of `<a href>` in texts. They stay text. */
  const disableLinks = (_, value) => (typeof value === "string" ? value.replaceAll(/<(?=a\b)/gi, "&lt;") : value);
  const readFigure = (plot) => JSON.parse(document.getElementById(plot.dataset.figure).textContent, disableLinks);

  /** Returns the layout in the colours of the page. Settings of the figure's own axes stay. */
  function applyTheme(layout) {
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--muted"),
      tickcolor: colour("--muted") };
    // The template draws error bars and other parts in near-black, which must be visible on a dark page.
    const template = JSON.parse(JSON.stringify(layout.template ?? {}).replaceAll("rgb(36,36,36)", colour("--text")));
    const shared = template.layout ?? {};
    return {
      ...layout,
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { ...layout.font, color: colour("--text") },
      modebar: { ...layout.modebar, bgcolor: "rgba(0,0,0,0)", color: colour("--muted"), activecolor: colour("--accent") },
      template: { ...template, layout: { ...shared,
        xaxis: { ...shared.xaxis, ...axis }, yaxis: { ...shared.yaxis, ...axis } } },
    };
  }

  function draw(plot) {
    const figure = readFigure(plot);
    const printing = root.classList.contains("printing");
    if (small.matches || printing) figure.layout = narrow.shrinkText(figure.layout);
    const { data, layout } = small.matches && !printing ? narrow.fit(figure) : figure;
    Plotly.react(plot, data, applyTheme(layout), CONFIG);
    drawnWidths.set(plot, plot.clientWidth);
  }

  function drawVisible() {
    for (const plot of document.querySelectorAll(".plot")) {
      if (plot.clientWidth && drawnWidths.get(plot) !== plot.clientWidth) draw(plot);
    }
  }

  function redrawAll() {
    drawnWidths.clear();
    drawVisible();
  }

  function addCsvButton(panel) {
    const title = panel.querySelector("h3").textContent;
    const button = Object.assign(document.createElement("button"), { type: "button", className: "csv", textContent: "CSV",
      title: "Download the data of this figure", ariaLabel: `Download the data of “${title}” as CSV` });
    button.addEventListener("click", () => csv.save(title, readFigure(panel.querySelector(".plot"))));
    panel.querySelector(".head").append(button);
  }

  document.querySelectorAll(".panel").forEach(addCsvButton);
  drawVisible();
  addEventListener("pageshown", drawVisible);
  small.addEventListener("change", redrawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  // Print has every page, in the width of the paper and in light colours.
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    redrawAll();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    redrawAll();
  });
})();
