"use strict";
/* Saves a figure's data as CSV, with one row for each point or each cell of a heat map. */
const csv = (() => {
  const ARRAYS = { i1: Int8Array, u1: Uint8Array, u1c: Uint8ClampedArray, i2: Int16Array, u2: Uint16Array, i4: Int32Array,
    u4: Uint32Array, f4: Float32Array, f8: Float64Array };
  const FIRST_COLUMNS = ["plot", "trace", "x", "y", "z", "low", "high"]; // other columns follow

  /** Decodes a plotly array into a plain array, nested if it has two dimensions. */
  function decode(values) {
    if (values == null || Array.isArray(values)) return values ?? [];
    if (values.bdata === undefined) return Array.from(values);
    const bytes = Uint8Array.from(atob(values.bdata), (character) => character.charCodeAt(0));
    const flat = Array.from(new ARRAYS[values.dtype](bytes.buffer));
    const shape = String(values.shape ?? flat.length).split(",").map(Number);
    return shape.slice(1).reverse().reduce((rest, size) =>
      Array.from({ length: size ? rest.length / size : 0 }, (_, row) => rest.slice(row * size, (row + 1) * size)), flat);
  }

  /** Returns the names of a trace's custom data by index; "" is the index of a single number. */
  const customNames = (trace) => new Map(Object.entries(trace.meta?.columns ?? {}));

  function customValues(point, names) {
    const values = point !== null && typeof point === "object" ? decode(point) : point;
    return Object.fromEntries([...names].map(([index, name]) => [name, index === "" ? values : values?.[Number(index)]]));
  }

  const stripTags = (text) => text?.replace(/<\/?(b|i|em|br|sub|sup|span)\b[^>]*>/gi, " ").replace(/ +/g, " ").trim();

  /** Returns the title of a trace's plot if the figure has several plots.
   *
   * It is the text above the plot, or the titles of its column and row. */
  function plotTitle(trace, layout) {
    const name = (trace.xaxis ?? "x").replace("x", "xaxis");
    const [x, y] = [layout[name]?.domain, layout[(trace.yaxis ?? "y").replace("y", "yaxis")]?.domain];
    if (!x || !y || Object.keys(layout).filter((key) => /^xaxis\d*$/.test(key)).length < 2) return undefined;
    const isClose = (a, b) => Math.abs(a - b) < 1e-6;
    const notes = (layout.annotations ?? []).filter((note) => note.xref === "paper" && note.yref === "paper");
    const above = notes.filter((note) => isClose(note.x, (x[0] + x[1]) / 2));
    const title = above.find((note) => isClose(note.y, y[1])) ?? above.find((note) => isClose(note.y, 1));
    const row = notes.find((note) => note.textangle === 90 && isClose(note.y, (y[0] + y[1]) / 2));
    return [title, row].filter(Boolean).map((note) => stripTags(note.text)).join(", ") || name.replace("xaxis", "") || "1";
  }

  function cells(trace, about) {
    const names = customNames(trace);
    const [xs, ys, extra] = [trace.x, trace.y, trace.customdata].map(decode);
    return decode(trace.z).flatMap((line, row) => decode(line).map((z, column) => ({
      ...about, x: xs[column] ?? column, y: ys[row] ?? row, z, ...customValues(decode(extra[row])[column], names) })));
  }

  /** Returns the ends of the intervals that error bars show. */
  function errorEnds(trace) {
    const [bars, values] = trace.error_y?.array ? [trace.error_y, decode(trace.y)] : [trace.error_x ?? {}, decode(trace.x)];
    if (!bars.array) return {};
    const above = decode(bars.array);
    const below = bars.symmetric === false || bars.arrayminus ? decode(bars.arrayminus) : above;
    return { low: values.map((value, index) => value - below[index]), high: values.map((value, index) => value + above[index]) };
  }

  function points(trace, about, band) {
    const names = customNames(trace);
    const ends = { ...band, ...errorEnds(trace) };
    const [xs, ys, extra] = [trace.x, trace.y, trace.customdata].map(decode);
    return Array.from({ length: Math.max(xs.length, ys.length) }, (_, index) => ({
      ...about, x: xs.length ? xs[index] : index, y: ys.length ? ys[index] : index, low: ends.low?.[index], high: ends.high?.[index],
      ...customValues(extra[index], names) }));
  }

  /** Returns the rows of a figure.
   *
   * A band gives low and high of the next line. Traces without hover text are skipped. */
  function rows({ data, layout }) {
    const allRows = [];
    let ends = {};
    for (const trace of data) {
      if (trace.meta?.end) {
        ends[trace.meta.end] = decode(trace.y);
        continue;
      }
      if (trace.hoverinfo === "skip") continue;
      const about = { plot: plotTitle(trace, layout), trace: stripTags(trace.name) };
      allRows.push(...(trace.z === undefined ? points(trace, about, ends) : cells(trace, about)));
      ends = {};
    }
    return allRows;
  }

  // Figures have `<` in texts as `&lt;`, because plotly reads some HTML.
  const unescapeText = (text) => text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");

  /** Formats a cell: numbers in full, text quoted if needed. No text can be a formula in a spreadsheet. */
  function cell(value) {
    if (value === undefined || value === null || Number.isNaN(value)) return "";
    if (typeof value === "number") return String(value);
    let text = unescapeText(String(value));
    const isNumber = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text);
    if (/^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/.test(text) && !isNumber) text = `'${text}`;
    return /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function table(figure) {
    const records = rows(figure);
    const filled = new Set(["x", "y"]);
    for (const row of records) for (const name of Object.keys(row)) if (cell(row[name]) !== "") filled.add(name);
    const columns = [...FIRST_COLUMNS.filter((name) => filled.has(name)), ...[...filled].filter((name) => !FIRST_COLUMNS.includes(name))];
    return [columns, ...records.map((row) => columns.map((name) => row[name]))]
      .map((line) => `${line.map(cell).join(",")}\r\n`).join("");
  }

  const baseName = (title) =>
    title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 80) || "figure";

  function save(title, figure) {
    const address = URL.createObjectURL(new Blob([table(figure)], { type: "text/csv;charset=utf-8" }));
    Object.assign(document.createElement("a"), { href: address, download: `${baseName(title)}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }

  return { save, baseName };
})();
