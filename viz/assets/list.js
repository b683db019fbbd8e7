"use strict";
/* The list of samples beside the explorer: search, filter by label, and the sample that the address names. */
const sampleList = (() => {
  const find = (id) => document.getElementById(id);
  const items = () => [...document.querySelectorAll(".samples [data-sample]")];
  const filters = () => [...document.querySelectorAll("[data-filter]")];

  /** Shows the samples of the pressed label that contain all searched words. */
  function filter() {
    const label = document.querySelector("[data-filter][aria-pressed=true]")?.dataset.filter ?? "all";
    const words = find("samples-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const item of items()) {
      const text = item.textContent.toLowerCase();
      item.parentElement.hidden = !["all", item.dataset.label].includes(label) || !words.every((word) => text.includes(word));
    }
  }

  function press(button) {
    for (const other of filters()) other.setAttribute("aria-pressed", String(other === button));
    filter();
  }

  /** Shows all samples. */
  function showAll() {
    find("samples-search").value = "";
    press(document.querySelector("[data-filter=all]"));
  }

  /** Returns what the address says: sample, step, layer and head. */
  function readAddress() {
    const [page, name, ...parts] = location.hash.slice(1).split("/");
    return page === "explorer" ? { name, ...Object.fromEntries(parts.map((part) => part.split("="))) } : {};
  }

  /** Returns the button of the sample that the address names, or null. */
  const linked = () => items().find((each) => each.dataset.name === readAddress().name) ?? null;

  function addListeners() {
    for (const button of filters()) button.addEventListener("click", () => press(button));
    find("samples-search").addEventListener("input", filter);
  }

  return { items, showAll, readAddress, linked, addListeners };
})();
