"use strict";
/* A figure's data as CSV: a row for each point, or for each cell of a heat map. */
const csv = (() => {
  const ARRAYS = { i1: Int8Array, u1: Uint8Array, u1c: Uint8ClampedArray, i2: Int16Array, u2: Uint16Array, i4: Int32Array,
    u4: Uint32Array, f4: Float32Array, f8: Float64Array };
  const FIRST = ["plot", "trace", "x", "y", "z", "low", "high"]; // columns in this order, others after them

  /** A plotly array as a plain one, nested where it has two dimensions. */
  function plain(values) {
    if (values == null || Array.isArray(values)) return values ?? [];
    if (values.bdata === undefined) return Array.from(values);
    const bytes = Uint8Array.from(atob(values.bdata), (character) => character.charCodeAt(0));
    const flat = Array.from(new ARRAYS[values.dtype](bytes.buffer));
    const shape = String(values.shape ?? flat.length).split(",").map(Number);
    return shape.slice(1).reverse().reduce((rest, size) =>
      Array.from({ length: size ? rest.length / size : 0 }, (_, row) => rest.slice(row * size, (row + 1) * size)), flat);
  }

  /** What custom data mean, read off the hover text that shows them: "[low, high]", "n = 3", "Hedges' g +0.1". */
  function customNames(template) {
    const names = new Map();
    let before = "";
    for (const part of (template ?? "").split(/(%\{[^}]*\})/)) {
      const found = part.match(/^%\{customdata(?:\[(\d+)\])?/);
      if (found) {
        const own = before.split(/<[^>]*>|, /).pop().replace(/[=:\s]+$/, "").trim();
        const name = /\[$/.test(before) ? "low" : before === ", " && [...names.values()].at(-1) === "low" ? "high" : own;
        if (name) names.set(found[1] ?? "", name);
      }
      before = part.startsWith("%{") ? "" : part;
    }
    return names;
  }

  function custom(point, names) {
    const values = point !== null && typeof point === "object" ? plain(point) : point;
    return Object.fromEntries([...names].map(([at, name]) => [name, at === "" ? values : values?.[Number(at)]]));
  }

  const words = (text) => text?.replace(/<\/?(b|i|em|br|sub|sup|span)\b[^>]*>/gi, " ").replace(/ +/g, " ").trim();

  /** Title of the plot that a trace is in, where a figure has several: what stands above it, or above its column and
   * beside its row. */
  function plotTitle(trace, layout) {
    const name = (trace.xaxis ?? "x").replace("x", "xaxis");
    const [x, y] = [layout[name]?.domain, layout[(trace.yaxis ?? "y").replace("y", "yaxis")]?.domain];
    if (!x || !y || Object.keys(layout).filter((key) => /^xaxis\d*$/.test(key)).length < 2) return undefined;
    const near = (one, other) => Math.abs(one - other) < 1e-6;
    const notes = (layout.annotations ?? []).filter((note) => note.xref === "paper" && note.yref === "paper");
    const above = notes.filter((note) => near(note.x, (x[0] + x[1]) / 2));
    const own = above.find((note) => near(note.y, y[1])) ?? above.find((note) => near(note.y, 1));
    const row = notes.find((note) => note.textangle === 90 && near(note.y, (y[0] + y[1]) / 2));
    return [own, row].filter(Boolean).map((note) => words(note.text)).join(", ") || name.replace("xaxis", "") || "1";
  }

  function cells(trace, about) {
    const names = customNames(trace.hovertemplate);
    const [xs, ys, extra] = [trace.x, trace.y, trace.customdata].map(plain);
    return plain(trace.z).flatMap((line, row) => plain(line).map((z, column) => ({
      ...about, x: xs[column] ?? column, y: ys[row] ?? row, z, ...custom(plain(extra[row])[column], names) })));
  }

  /** Ends of the intervals that error bars show. */
  function errorEnds(trace) {
    const [bars, values] = trace.error_y?.array ? [trace.error_y, plain(trace.y)] : [trace.error_x ?? {}, plain(trace.x)];
    if (!bars.array) return {};
    const above = plain(bars.array);
    const below = bars.symmetric === false || bars.arrayminus ? plain(bars.arrayminus) : above;
    return { low: values.map((value, at) => value - below[at]), high: values.map((value, at) => value + above[at]) };
  }

  function points(trace, about, band) {
    const names = customNames(trace.hovertemplate);
    const ends = { ...band, ...errorEnds(trace) };
    const [xs, ys, extra] = [trace.x, trace.y, trace.customdata].map(plain);
    return Array.from({ length: Math.max(xs.length, ys.length) }, (_, at) => ({
      ...about, x: xs.length ? xs[at] : at, y: ys.length ? ys[at] : at, low: ends.low?.[at], high: ends.high?.[at],
      ...custom(extra[at], names) }));
  }

  /** Rows of a figure. Bands become ends of the line after them; what no pointer finds is decoration. */
  function rows({ data, layout }) {
    const found = [];
    let ends = {};
    for (const trace of data) {
      if (trace.meta?.end) {
        ends[trace.meta.end] = plain(trace.y);
        continue;
      }
      if (trace.hoverinfo === "skip") continue;
      const about = { plot: plotTitle(trace, layout), trace: words(trace.name) };
      found.push(...(trace.z === undefined ? points(trace, about, ends) : cells(trace, about)));
      ends = {};
    }
    return found;
  }

  /** A cell: numbers in full, text quoted where needed and never a formula to a spreadsheet. */
  function cell(value) {
    if (value === undefined || value === null || Number.isNaN(value)) return "";
    if (typeof value === "number") return String(value);
    let text = String(value);
    const isNumber = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text);
    if (/^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/.test(text) && !isNumber) text = `'${text}`;
    return /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function table(figure) {
    const all = rows(figure);
    const filled = new Set(["x", "y"]);
    for (const row of all) for (const name of Object.keys(row)) if (cell(row[name]) !== "") filled.add(name);
    const columns = [...FIRST.filter((name) => filled.has(name)), ...[...filled].filter((name) => !FIRST.includes(name))];
    return [columns, ...all.map((row) => columns.map((name) => row[name]))]
      .map((line) => `${line.map(cell).join(",")}\r\n`).join("");
  }

  const fileName = (title) =>
    `${title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 80) || "figure"}.csv`;

  function save(title, figure) {
    const address = URL.createObjectURL(new Blob([table(figure)], { type: "text/csv;charset=utf-8" }));
    Object.assign(document.createElement("a"), { href: address, download: fileName(title) }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }

  return { save };
})();
