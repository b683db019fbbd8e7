"use strict";
/* The words that lenses read at the explorer's visual tokens: a click on an image chooses a cell. */
const cellWords = (() => {
  const CONTAINERS = ["sample-images", "sample-activation", "sample-raw"];

  const find = (id) => document.getElementById(id);
  const make = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);

  let sample = null;
  let chosen = null; // a visual token
  let changed = () => {}; // is called when a reader chooses a cell or a lens

  /** Returns the image, row and column of a visual token. */
  function locate(token) {
    let first = 0;
    for (const [image, { grid: [rows, columns] }] of sample.images.entries()) {
      if (token < first + rows * columns) return { image, row: Math.floor((token - first) / columns), column: (token - first) % columns };
      first += rows * columns;
    }
    return null;
  }

  /** Returns the visual token at a point of an image's frame. */
  function tokenAt(frame, image, { clientX, clientY }) {
    const { left, top, width, height } = frame.getBoundingClientRect();
    const [rows, columns] = sample.images[image].grid;
    const cell = (part, count) => Math.min(Math.max(Math.floor(part * count), 0), count - 1);
    const first = sample.images.slice(0, image).reduce((sum, { grid: [high, wide] }) => sum + high * wide, 0);
    return first + cell((clientY - top) / height, rows) * columns + cell((clientX - left) / width, columns);
  }

  /** Outlines the chosen cell on the images. */
  function outline() {
    document.querySelectorAll(".cell-mark").forEach((mark) => mark.remove());
    const place = chosen === null ? null : locate(chosen);
    if (!place) return;
    const [rows, columns] = sample.images[place.image].grid;
    for (const container of CONTAINERS) {
      const frame = document.querySelectorAll(`#${container} .frame`)[place.image];
      if (!frame) continue;
      const mark = make("span", { className: "cell-mark" });
      Object.assign(mark.style, { left: `${(100 * place.column) / columns}%`, top: `${(100 * place.row) / rows}%`,
        width: `${100 / columns}%`, height: `${100 / rows}%` });
      frame.append(mark);
    }
  }

  /** Lists the words of the chosen cell after each layer. */
  function list() {
    const { lenses, layers, texts, places, ids } = sample.words;
    const cells = ids.length / lenses.length / layers.length / places;
    const lens = lenses.indexOf(find("cell-lens").value);
    const place = chosen === null ? null : locate(chosen);
    find("cell-name").textContent = place ? `of image ${place.image + 1}, row ${place.row + 1}, column ${place.column + 1}` : "";
    find("cell-rows").replaceChildren(...(place ? layers : []).map((layer, index) => {
      const start = ((lens * layers.length + index) * cells + chosen) * places;
      const words = Array.from(ids.subarray(start, start + places), (id) => texts[id]).filter((word) => word !== "");
      const row = make("tr");
      const cell = make("td");
      cell.append(...words.map((word) => make("span", { textContent: word.trim() || "␣", title: JSON.stringify(word) })));
      row.append(make("th", { scope: "row", textContent: layer }), cell);
      return row;
    }));
  }

  function choose(token) {
    const { lenses, layers, places, ids } = sample.words;
    chosen = Math.min(Math.max(token, 0), ids.length / lenses.length / layers.length / places - 1);
    find("cell-number").value = chosen;
    outline();
    list();
  }

  /** Shows a sample; no cell is chosen yet. */
  function show(other) {
    sample = other;
    chosen = null;
    for (const container of CONTAINERS) find(container).classList.toggle("worded", Boolean(sample.words));
    if (!sample.words) return;
    const before = find("cell-lens").value;
    find("cell-lens").replaceChildren(...sample.words.lenses.map((lens) => make("option", { value: lens, textContent: lens })));
    if (sample.words.lenses.includes(before)) find("cell-lens").value = before;
    find("cell-number").value = "";
    list();
  }

  function addListeners() {
    for (const container of CONTAINERS) {
      find(container).addEventListener("click", (event) => {
        const frame = event.target.closest(".frame");
        if (!frame || !sample?.words) return;
        const image = [...find(container).querySelectorAll(".frame")].indexOf(frame);
        choose(tokenAt(frame, image, event));
        changed();
      });
    }
    find("cell-number").addEventListener("input", () => {
      if (find("cell-number").value === "") return;
      choose(Math.floor(Number(find("cell-number").value)) || 0);
      changed();
    });
    find("cell-lens").addEventListener("change", () => {
      list();
      changed();
    });
  }

  return { show, choose, addListeners, onChange: (listener) => { changed = listener; } };
})();
