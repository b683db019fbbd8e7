"use strict";
/* Fits figures into narrow windows: plots of a row are stacked, a grid scrolls, long titles of x axes have several lines. */
const narrow = (() => {
  const PLOT_HEIGHT = 220; // pixels of a stacked plot
  const GAP = 80; // pixels between stacked plots, for labels and titles
  const PLOT_WIDTH = 100; // pixels of a plot in a grid, and of its labels
  const FONT_SIZE = 11;
  const isClose = (a, b) => Math.abs(a - b) < 1e-6;

  /** Returns the layout with a smaller font. */
  const shrinkText = (layout) => ({
    ...layout,
    font: { ...layout.font, size: FONT_SIZE },
    annotations: (layout.annotations ?? []).map((note) => ({ ...note, font: { ...note.font, size: FONT_SIZE + 1 } })),
  });

  const TITLE_LENGTH = 24; // characters of a line
  const wrap = (text) => text.replace(new RegExp(`(.{${TITLE_LENGTH / 2},${TITLE_LENGTH}}) `, "g"), "$1<br>");

  /** Returns the layout with the titles of its x axes on several lines where they are long. */
  function wrapTitles(layout) {
    const wrapped = { ...layout };
    for (const [name, axis] of Object.entries(layout)) {
      if (!/^xaxis\d*$/.test(name) || !axis.title?.text) continue;
      wrapped[name] = { ...axis, title: { ...axis.title, text: wrap(axis.title.text) } };
    }
    return wrapped;
  }

  function fit({ data, layout: wide }) {
    const layout = wrapTitles(wide);
    const names = Object.keys(layout).filter((name) => /^xaxis\d*$/.test(name) && layout[name].domain);
    const columns = new Set(names.map((name) => layout[name].domain.join())).size;
    if (columns < 2) return { data, layout };
    return columns === names.length ? stack(data, layout, names)
      : { data, layout: { ...layout, width: PLOT_WIDTH * (columns + 1) } };
  }

  function stack(data, layout, names) {
    const count = names.length;
    const inner = count * (PLOT_HEIGHT + GAP) - GAP;
    const { t = 40, b = 56 } = layout.margin ?? {};
    const tops = names.map((_, index) => 1 - (index * (PLOT_HEIGHT + GAP)) / inner);
    const domains = tops.map((top) => [Math.max(0, top - PLOT_HEIGHT / inner), top]);
    const stacked = { ...layout, height: inner + t + b, legend: { ...layout.legend, y: 1 + 24 / inner },
      annotations: (layout.annotations ?? []).map((note) => ({ ...note })) };
    names.forEach((name, index) => {
      const middle = (layout[name].domain[0] + layout[name].domain[1]) / 2;
      const yName = (layout[name].anchor ?? "y").replace("y", "yaxis");
      stacked[name] = { ...layout[name], domain: [0, 1] };
      stacked[yName] = { ...layout[yName], domain: domains[index] };
      for (const [noteIndex, note] of (layout.annotations ?? []).entries()) {
        if (note.xref === "paper" && note.yref === "paper" && isClose(note.x, middle)) {
          Object.assign(stacked.annotations[noteIndex], { x: 0.5, y: domains[index][1] });
        }
      }
    });
    return { data: data.map((trace) => moveColorbar(trace, names, domains)), layout: stacked };
  }

  function moveColorbar(trace, names, domains) {
    if (!trace.colorbar) return trace;
    const [low, high] = domains[names.indexOf((trace.xaxis ?? "x").replace("x", "xaxis"))];
    return { ...trace, colorbar: { ...trace.colorbar, x: 1.01, y: (low + high) / 2, len: high - low } };
  }

  return { fit, shrinkText };
})();
