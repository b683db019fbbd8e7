"use strict";
/* Single heads: those of one layer over the image, and all heads of all layers at once. Needs heat.js and data.js. */
const headMaps = (() => {
  const find = (id) => document.getElementById(id);
  const make = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);
  const LEAST_SHARE = 0.01; // of the attention: the brightest colour of a grid without maps is this or more

  const countMaps = (sample) => sample.attention?.heads ?? 0;

  /** Draws each head of the chosen layers over the images, all in one scale, as buttons. Nothing while the part is folded. */
  function showLayer(sample, step, { layers, head: chosen }) {
    if (!find("all-heads").open || !countMaps(sample)) return;
    const weights = Array.from({ length: countMaps(sample) }, (_, head) =>
      sampleData.visualWeights(sample, step, { layers, head: String(head) }));
    const brightest = heat.brightest(sampleData.largest(weights.map(sampleData.largest)), weights[0].length);
    find("head-maps").replaceChildren(...weights.map((values, head) => {
      const button = make("button", { type: "button", title: `Head ${head}` });
      button.dataset.head = head;
      button.setAttribute("aria-pressed", String(chosen === String(head)));
      let start = 0;
      sample.images.forEach((image, index) => {
        const part = heat.imageFigure(image, index, sample.images.length, true).querySelector(".frame");
        const canvas = part.querySelector("canvas");
        const end = start + canvas.width * canvas.height;
        heat.paint(canvas, values.subarray(start, end), brightest);
        canvas.style.opacity = find("opacity").value;
        start = end;
        button.append(part);
      });
      button.append(make("span", { textContent: `head ${head}` }));
      return button;
    }));
  }

  /** Returns the rows and columns of a head's part of the grid: the maps of the images side by side, or one cell. */
  function partSize(sample) {
    if (!countMaps(sample)) return [1, 1];
    return [Math.max(...sample.images.map(({ grid }) => grid[0])), sample.images.reduce((sum, { grid }) => sum + grid[1], 0)];
  }

  /** Returns what each head of each layer attends to, [layer][head][row * column] of its part. */
  function gridValues(sample, step, [rows, columns]) {
    return sample.layers.map((_, layer) => Array.from({ length: sampleData.countHeads(sample) }, (__, head) => {
      const choice = { layers: [layer], head: String(head) };
      if (!countMaps(sample)) return [sampleData.shareAt(sample, step, choice)];
      const weights = sampleData.visualWeights(sample, step, choice);
      const part = new Float32Array(rows * columns);
      let first = 0;
      let left = 0;
      for (const { grid: [high, wide] } of sample.images) {
        for (let cell = 0; cell < high * wide; cell += 1) part[Math.floor(cell / wide) * columns + left + (cell % wide)] = weights[first + cell];
        first += high * wide;
        left += wide;
      }
      return part;
    }));
  }

  /** Draws all heads of all layers in one scale, a row a layer. Nothing while the part is folded. */
  function showGrid(sample, step, choice) {
    if (!find("head-grid-part").open || sampleData.countHeads(sample) < 2) return;
    const [rows, columns] = partSize(sample);
    const values = gridValues(sample, step, [rows, columns]);
    const largest = sampleData.largest(values.flat().map(sampleData.largest));
    const brightest = countMaps(sample) ? heat.brightest(largest, rows * columns) : Math.max(largest, LEAST_SHARE);
    const gap = countMaps(sample) ? 1 : 0;
    const canvas = find("head-grid");
    canvas.width = values[0].length * (columns + gap);
    canvas.height = values.length * (rows + gap);
    values.forEach((heads, layer) => heads.forEach((part, head) => {
      // by the square root: a head that attends to one token alone would leave the others black
      const shades = countMaps(sample) ? part.map((value) => Math.sqrt(value * brightest)) : part;
      heat.paint(canvas, shades, brightest, { left: head * (columns + gap), top: layer * (rows + gap), columns, opaque: true });
    }));
    canvas.classList.toggle("with-maps", countMaps(sample) > 0);
    canvas.style.height = countMaps(sample) ? "" : `${0.9 * values.length}rem`;
    const mark = find("head-grid-mark");
    const layer = choice.layers.length === 1 ? choice.layers[0] : null;
    mark.hidden = layer === null || choice.head === "";
    if (!mark.hidden) {
      Object.assign(mark.style, { left: `${(100 * Number(choice.head)) / values[0].length}%`, width: `${100 / values[0].length}%`,
        top: `${(100 * layer) / values.length}%`, height: `${100 / values.length}%` });
    }
    find("head-grid-axes").textContent = `Rows: layers ${sample.layers[0]} to ${sample.layers.at(-1)}. Columns: heads 0 to ${values[0].length - 1}.`;
    find("head-grid-max").textContent = `${formatNumber(brightest)} ${countMaps(sample) ? "attention to one visual token, largest of this step; colours go by the square root" : "of the attention on the images"}`;
  }

  /** Returns the index of the layer and the head at a point of the grid. */
  function gridPoint(sample, { clientX, clientY }) {
    const { left, top, width, height } = find("head-grid").getBoundingClientRect();
    const within = (part, count) => Math.min(Math.max(Math.floor(part * count), 0), count - 1);
    return { layer: within((clientY - top) / height, sample.layers.length), head: within((clientX - left) / width, sampleData.countHeads(sample)) };
  }

  return { countMaps, showLayer, showGrid, gridPoint };
})();
