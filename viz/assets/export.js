"use strict";
/* Saves the images of the explorer with their map as SVG: images, cells, regions and captions. */
const svgExport = (() => {
  const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
  const GAP = 16; // pixels between images
  const LINE = 18; // pixels of a line of text

  /** Returns one frame as SVG at a place, and its width and height. */
  function frame(figure, x, y) {
    const [image, canvas, regions] = ["img", "canvas", "svg"].map((tag) => figure.querySelector(tag));
    const { width, height } = figure.querySelector(".frame").getBoundingClientRect();
    const place = `x="${x}" y="${y}" width="${width}" height="${height}" preserveAspectRatio="none"`;
    const parts = image ? [`<image ${place} href="${image.src}"/>`] : [];
    if (canvas) {
      parts.push(`<image ${place} style="image-rendering: pixelated" opacity="${Number(canvas.style.opacity || 1)}"`
        + ` href="${canvas.toDataURL()}"/>`);
    }
    if (regions && getComputedStyle(regions).visibility === "visible") {
      const { width: columns, height: rows } = regions.viewBox.baseVal;
      for (const box of regions.querySelectorAll(".edge")) {
        const [left, top, boxWidth, boxHeight] = ["x", "y", "width", "height"].map((name) => Number(box.getAttribute(name)));
        parts.push(`<rect x="${x + (left * width) / columns}" y="${y + (top * height) / rows}" fill="none" stroke="#fff"`
          + ` stroke-width="2" width="${(boxWidth * width) / columns}" height="${(boxHeight * height) / rows}"/>`);
      }
    }
    return { svg: parts.join(""), width, height };
  }

  /** Saves the figures of a container under lines of text. */
  function save(container, lines, name) {
    let x = 0;
    let height = 0;
    const top = LINE * lines.length + GAP / 2;
    const frames = [...container.querySelectorAll("figure")].map((figure) => {
      const drawn = frame(figure, x, top);
      x += drawn.width + GAP;
      height = Math.max(height, drawn.height);
      return drawn.svg;
    });
    const texts = lines.map((line, index) =>
      `<text x="0" y="${LINE * (index + 0.8)}" font-family="system-ui, sans-serif" font-size="13">${escape(line)}</text>`);
    const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="${Math.max(x - GAP, 320)}" height="${top + height}">`
      + `${texts.join("")}${frames.join("")}</svg>`;
    const address = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
    Object.assign(document.createElement("a"), { href: address, download: `${name}.svg` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }

  return { save };
})();
