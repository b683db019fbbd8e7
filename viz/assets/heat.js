"use strict";
/* Images with a map of their visual tokens on them. */
const heat = (() => {
  // Inferno, sampled evenly: brightness grows with the value, also for colour-blind readers.
  const INFERNO = ["#000004", "#1b0c41", "#4a0c6b", "#781c6d", "#a52c60", "#cf4446", "#ed6925", "#fb9b06",
    "#f7d13d", "#fcffa4"].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const LEAST_OPAQUE = 100; // of 255: where a map is low, the image stays visible

  const make = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);

  function inferno(value) {
    const place = Math.min(Math.max(value, 0), 1) * (INFERNO.length - 1);
    const below = Math.min(Math.floor(place), INFERNO.length - 2);
    return INFERNO[below].map((low, channel) => low + (place - below) * (INFERNO[below + 1][channel] - low));
  }

  /** Colours a canvas of one pixel a visual token; `most` is the weight that is brightest. */
  function paint(canvas, weights, most) {
    const context = canvas.getContext("2d");
    const pixels = context.createImageData(canvas.width, canvas.height);
    weights.forEach((weight, cell) => {
      const value = most > 0 ? weight / most : 0;
      const opaque = LEAST_OPAQUE + (255 - LEAST_OPAQUE) * value;
      pixels.data.set([...inferno(value), opaque].map(Math.round), 4 * cell);
    });
    context.putImageData(pixels, 0, 0);
  }

  /** The boxes of an image, in its own pixels. */
  function outlines(image) {
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

  /** An image, the canvas for its heat map if there is one, its boxes, and a caption. */
  function imageFigure(image, index, count, mapped) {
    const [height, width] = image.size;
    const [rows, columns] = image.grid;
    const name = `Image ${index + 1} of ${count}`;
    const frame = make("div", { className: "frame" });
    frame.style.aspectRatio = `${width} / ${height}`;
    frame.style.setProperty("--ratio", width / height);
    frame.classList.toggle("tiny", Math.max(width, height) <= 224);
    frame.append(image.source ? make("img", { src: image.source, alt: name })
      : make("p", { className: "missing", textContent: `The image cannot be shown: ${image.problem}.` }));
    if (mapped) frame.append(make("canvas", { width: columns, height: rows, ariaHidden: "true" }));
    if (image.regions.length) frame.append(outlines(image));
    const figure = make("figure");
    figure.append(frame, make("figcaption", {
      textContent: `${name}, ${width} × ${height} pixels, ${columns} × ${rows} visual tokens` }));
    return figure;
  }

  const ramp = `linear-gradient(to right, ${INFERNO.map((parts) => `rgb(${parts.join()})`).join()})`;
  return { paint, imageFigure, ramp };
})();
