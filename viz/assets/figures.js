"use strict";
/* Draws the figures of the page that is shown, and gives each its CSV. Needs plotly.js, csv.js and narrow.js. */
(() => {
  const root = document.documentElement;
  const small = matchMedia("(max-width: 640px)");
  const drawn = new Map(); // place to the width it was drawn for; a hidden place has none to draw for
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  const read = (place) => JSON.parse(document.getElementById(place.dataset.figure).textContent);

  /** The figure's layout in the colours of the page; what the figure sets for its axes itself stays. */
  function themed(layout) {
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--muted"),
      tickcolor: colour("--muted") };
    // What the template draws in its near-black, error bars among it, has to be seen on dark paper, too.
    const template = JSON.parse(JSON.stringify(layout.template ?? {}).replaceAll("rgb(36,36,36)", colour("--text")));
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
    const figure = read(place);
    const printing = root.classList.contains("printing");
    if (small.matches || printing) figure.layout = narrow.inSmall(figure.layout);
    const { data, layout } = small.matches && !printing ? narrow.fitted(figure) : figure;
    Plotly.react(place, data, themed(layout), { responsive: true, displaylogo: false });
    drawn.set(place, place.clientWidth);
  }

  function drawShown() {
    for (const place of document.querySelectorAll(".plot")) {
      if (place.clientWidth && drawn.get(place) !== place.clientWidth) draw(place);
    }
  }

  function drawAnew() {
    drawn.clear();
    drawShown();
  }

  function offerCsv(panel) {
    const title = panel.querySelector("h3").textContent;
    const button = Object.assign(document.createElement("button"), { type: "button", className: "csv", textContent: "CSV",
      title: "Download the data of this figure", ariaLabel: `Download the data of “${title}” as CSV` });
    button.addEventListener("click", () => csv.save(title, read(panel.querySelector(".plot"))));
    panel.querySelector(".head").append(button);
  }

  document.querySelectorAll(".panel").forEach(offerCsv);
  drawShown();
  addEventListener("turned", drawShown);
  small.addEventListener("change", drawAnew);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAnew);
  // Paper has every page, in the width of paper and in light colours.
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    drawAnew();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    drawAnew();
  });
})();
