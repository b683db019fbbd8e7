"use strict";
/* Figures of several plots, for windows too narrow for them: a row is stacked, a grid is wider than the window. */
const narrow = (() => {
  const HEIGHT = 220; // pixels for each plot of a stack
  const GAP = 80; // between them, for labels and titles
  const WIDTH = 100; // pixels for each plot of a grid, and as many for labels
  const LETTERS = 11;
  const near = (one, other) => Math.abs(one - other) < 1e-6;

  /** A layout in smaller letters. */
  const inSmall = (layout) => ({
    ...layout,
    font: { ...layout.font, size: LETTERS },
    annotations: (layout.annotations ?? []).map((note) => ({ ...note, font: { ...note.font, size: LETTERS + 1 } })),
  });

  function fitted({ data, layout }) {
    const names = Object.keys(layout).filter((name) => /^xaxis\d*$/.test(name) && layout[name].domain);
    const columns = new Set(names.map((name) => layout[name].domain.join())).size;
    if (columns < 2) return { data, layout };
    return columns === names.length ? stacked(data, layout, names)
      : { data, layout: { ...layout, width: WIDTH * (columns + 1) } };
  }

  function stacked(data, layout, names) {
    const count = names.length;
    const inner = count * (HEIGHT + GAP) - GAP;
    const { t = 40, b = 56 } = layout.margin ?? {};
    const tops = names.map((_, at) => 1 - (at * (HEIGHT + GAP)) / inner);
    const places = tops.map((top) => [Math.max(0, top - HEIGHT / inner), top]);
    const changed = { ...layout, height: inner + t + b, legend: { ...layout.legend, y: 1 + 24 / inner },
      annotations: (layout.annotations ?? []).map((note) => ({ ...note })) };
    names.forEach((name, at) => {
      const middle = (layout[name].domain[0] + layout[name].domain[1]) / 2;
      const yName = (layout[name].anchor ?? "y").replace("y", "yaxis");
      changed[name] = { ...layout[name], domain: [0, 1] };
      changed[yName] = { ...layout[yName], domain: places[at] };
      for (const [index, note] of (layout.annotations ?? []).entries()) {
        if (note.xref === "paper" && note.yref === "paper" && near(note.x, middle)) {
          Object.assign(changed.annotations[index], { x: 0.5, y: places[at][1] });
        }
      }
    });
    return { data: data.map((trace) => besideItsPlot(trace, names, places)), layout: changed };
  }

  function besideItsPlot(trace, names, places) {
    if (!trace.colorbar) return trace;
    const [low, high] = places[names.indexOf((trace.xaxis ?? "x").replace("x", "xaxis"))];
    return { ...trace, colorbar: { ...trace.colorbar, x: 1.01, y: (low + high) / 2, len: high - low } };
  }

  return { fitted, inSmall };
})();
