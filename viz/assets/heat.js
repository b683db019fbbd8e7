"use strict";
/* Images with heat maps of their visual tokens. */
const heat = (() => {
  // Inferno: brightness grows with the value, also for colour-blind readers.
  const INFERNO = ["#000004", "#1b0c41", "#4a0c6b", "#781c6d", "#a52c60", "#cf4446", "#ed6925", "#fb9b06",
    "#f7d13d", "#fcffa4"].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const MIN_ALPHA = 100; // of 255: the image stays visible where the map is low

  const make = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);

  function inferno(value) {
    const position = Math.min(Math.max(value, 0), 1) * (INFERNO.length - 1);
    const below = Math.min(Math.floor(position), INFERNO.length - 2);
    return INFERNO[below].map((low, channel) => low + (position - below) * (INFERNO[below + 1][channel] - low));
  }

  /** Returns the weight with the brightest colour: the largest, or that of attention spread evenly over the visual tokens, so
   * that nothing is not bright. */
  const brightest = (largest, tokens) => Math.max(largest, 1 / tokens);

  /** Colours a canvas, or a part of it, with one pixel per visual token; `largest` is the weight with the brightest colour.
   * Tokens whose weight is NaN stay clear. */
  function paint(canvas, weights, largest, { left = 0, top = 0, columns = canvas.width, opaque = false } = {}) {
    const context = canvas.getContext("2d");
    const pixels = context.createImageData(columns, Math.ceil(weights.length / columns));
    weights.forEach((weight, cell) => {
      if (Number.isNaN(weight)) return;
      const value = largest > 0 ? weight / largest : 0;
      const alpha = opaque ? 255 : MIN_ALPHA + (255 - MIN_ALPHA) * value;
      pixels.data.set([...inferno(value), alpha].map(Math.round), 4 * cell);
    });
    context.putImageData(pixels, left, top);
  }

  /** Returns the regions of an image as outlines, in the image's pixels. */
  function drawRegions(image) {
    const [height, width] = image.size;
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("aria-hidden", "true");
    for (const [x, y, boxWidth, boxHeight] of image.regions) {
      for (const kind of ["halo", "edge"]) {
        const box = document.createElementNS(svg.namespaceURI, "rect");
        Object.entries({ x, y, width: boxWidth, height: boxHeight, class: kind })
          .forEach(([name, value]) => box.setAttribute(name, value));
        svg.append(box);
      }
    }
    return svg;
  }

  /** Returns the address of an image, which one data block has for all answers. */
  const source = (name) => JSON.parse(document.getElementById(name).textContent);

  /** Returns a figure with an image, a canvas for its heat map, its regions and a caption. */
  function imageFigure(image, index, count, hasMap) {
    const [height, width] = image.size;
    const [rows, columns] = image.grid;
    const name = image.name ?? `Image ${index + 1} of ${count}`;
    const frame = make("div", { className: "frame" });
    frame.style.aspectRatio = `${width} / ${height}`;
    frame.style.setProperty("--ratio", width / height);
    frame.classList.toggle("tiny", Math.max(width, height) <= 224);
    frame.append(image.source ? make("img", { src: source(image.source), alt: name })
      : make("p", { className: "missing", textContent: `The image cannot be shown: ${image.problem}.` }));
    if (hasMap) frame.append(make("canvas", { width: columns, height: rows, ariaHidden: "true" }));
    if (image.regions.length) frame.append(drawRegions(image));
    const figure = make("figure");
    figure.append(frame, make("figcaption", {
      textContent: `${name}, ${width} × ${height} pixels, ${columns} × ${rows} visual tokens` }));
    return figure;
  }

  const ramp = `linear-gradient(to right, ${INFERNO.map((parts) => `rgb(${parts.join()})`).join()})`;
  return { brightest, paint, imageFigure, ramp };
})();
