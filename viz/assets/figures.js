"use strict";
/* Draws the figures of the visible page when they are scrolled to, each with buttons for CSV and SVG. Needs plotly.js, csv.js and narrow.js. */
(async () => {
  const root = document.documentElement;
  const small = matchMedia("(max-width: 640px)");
  const drawnWidths = new Map(); // by plot element; a hidden element has width 0 and is not drawn
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // Nothing leaves the page: no button that uploads the figure, no logo that opens plotly's site.
  const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "" };

  /** Plotly makes links of `<a href>` in texts. They stay text. */
  const disableLinks = (_, value) => (typeof value === "string" ? value.replaceAll(/<(?=a\b)/gi, "&lt;") : value);
  const texts = new Map(); // JSON of each figure, by the id of its data block

  async function unpack(block) {
    const bytes = Uint8Array.from(atob(JSON.parse(block.textContent)), (character) => character.charCodeAt(0));
    const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    texts.set(block.id, await new Response(inflated).text());
  }

  const readFigure = (plot) => JSON.parse(texts.get(plot.dataset.figure), disableLinks);

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

  /** Lists what a clicked point says, below a figure whose points have more words than they can show. */
  function listOnClick(plot) {
    const list = Object.assign(document.createElement("p"), { className: "clicked" });
    plot.after(list);
    plot.on("plotly_click", ({ points: [{ customdata }] }) => {
      const entities = { "&lt;": "<", "&gt;": ">", "&amp;": "&" };
      list.textContent = customdata.replaceAll("<br>", "\n").replaceAll(/&(lt|gt|amp);/g, (entity) => entities[entity]);
    });
  }

  function draw(plot) {
    const figure = readFigure(plot);
    const printing = root.classList.contains("printing");
    if (small.matches || printing) figure.layout = narrow.shrinkText(figure.layout);
    const { data, layout } = small.matches && !printing ? narrow.fit(figure) : figure;
    Plotly.react(plot, data, applyTheme(layout), CONFIG);
    if (figure.layout.meta?.click && !plot.nextElementSibling?.matches(".clicked")) listOnClick(plot);
    drawnWidths.set(plot, plot.clientWidth);
  }

  const isOutdated = (plot) => plot.clientWidth && drawnWidths.get(plot) !== plot.clientWidth;
  const nearby = new Set(); // plots in the window, or little below it
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) nearby[isIntersecting ? "add" : "delete"](target);
    drawVisible();
  }, { rootMargin: "300px" });

  function drawVisible() {
    for (const plot of root.classList.contains("printing") ? document.querySelectorAll(".plot") : nearby) {
      if (isOutdated(plot)) draw(plot);
    }
  }

  function redrawAll() {
    drawnWidths.clear();
    drawVisible();
  }

  function addButtons(panel) {
    const title = panel.querySelector("h3").textContent;
    const plot = panel.querySelector(".plot");
    const actions = {
      CSV: [`Download the data of “${title}” as CSV`, () => csv.save(title, readFigure(plot))],
      SVG: [`Download “${title}” as SVG`, () => Plotly.downloadImage(plot, {
        format: "svg", width: plot.clientWidth, height: plot.clientHeight, filename: csv.baseName(title) })],
    };
    const buttons = Object.entries(actions).map(([name, [label, action]]) => {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "csv", textContent: name,
        title: label, ariaLabel: label });
      button.addEventListener("click", action);
      return button;
    });
    panel.querySelector(".head").append(...buttons);
  }

  await Promise.all([...document.querySelectorAll("[id^=figure-data-]")].map(unpack)); // print needs all at once
  document.querySelectorAll(".panel").forEach(addButtons);
  document.querySelectorAll(".plot").forEach((plot) => observer.observe(plot));
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
