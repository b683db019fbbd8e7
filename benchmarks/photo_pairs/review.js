"use strict";
const { key, pairs } = JSON.parse(document.getElementById("data").textContent);
const storageKey = `mmprobe-reviews-${key}`;
let decisions = {}; // pair id -> { decision, descriptions, types, categories, reason }
try {
  decisions = JSON.parse(localStorage.getItem(storageKey)) || {};
} catch {
  // without storage, decisions last until the page is closed
}
let unsaved = false;

function createElement(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function storeDecisions() {
  unsaved = true;
  try {
    localStorage.setItem(storageKey, JSON.stringify(decisions));
  } catch {
    // without storage, decisions last until the page is closed
  }
  showProgress();
}

function showProgress() {
  const choices = pairs.map((pair) => (decisions[pair.id] || {}).decision);
  const accepted = choices.filter((decision) => decision === "accept").length;
  const rejected = choices.filter((decision) => decision === "reject").length;
  document.getElementById("progress").textContent =
    `${pairs.length} pairs: ${accepted} accepted, ${rejected} rejected, ${pairs.length - accepted - rejected} left`;
}

function createFigure(pair, index) {
  const image = createElement("img", { src: pair.images[index], loading: "lazy", alt: index ? "changed" : "original" });
  const figure = createElement("figure", {}, image);
  image.addEventListener("load", () => {
    for (const region of pair.regions.filter((item) => item.image === index)) {
      const [x, y, width, height] = region.box;
      const box = createElement("div", { className: "box" });
      box.style.left = `${(100 * x) / image.naturalWidth}%`;
      box.style.top = `${(100 * y) / image.naturalHeight}%`;
      box.style.width = `${(100 * width) / image.naturalWidth}%`;
      box.style.height = `${(100 * height) / image.naturalHeight}%`;
      figure.append(box);
    }
  });
  return figure;
}

function createArticle(pair) {
  const saved = decisions[pair.id];
  const isCurrent = saved && [saved.descriptions, saved.types, saved.categories].every(
    (values) => values && values.length === pair.differences.length);
  const collect = (key) => pair.differences.map((difference) => difference[key]);
  const fresh = { decision: null, descriptions: collect("description"), types: collect("type"), categories: collect("category"), reason: "" };
  const state = isCurrent ? saved : fresh;
  const note = pair.reviewed ? ", already accepted" : "";
  const subtitle = createElement("small", { textContent: pair.properties + note });
  const article = createElement("article", {}, createElement("h2", { textContent: pair.id }, subtitle));
  article.append(createElement("div", { className: "images" }, createFigure(pair, 0), createFigure(pair, 1)));
  const saveState = () => {
    decisions[pair.id] = state;
    storeDecisions();
  };
  pair.differences.forEach((difference, index) => {
    const text = createElement("input", { type: "text", maxLength: 1000, value: state.descriptions[index] });
    text.addEventListener("input", () => {
      state.descriptions[index] = text.value;
      saveState();
    });
    const options = pair.types.map((name) => createElement("option", { value: name, textContent: name }));
    const type = createElement("select", {}, ...options);
    type.value = state.types[index];
    type.setAttribute("aria-label", `type of difference ${index + 1}`);
    type.addEventListener("change", () => {
      state.types[index] = type.value;
      saveState();
    });
    const category = createElement("input", { type: "text", maxLength: 100, value: state.categories[index] });
    category.setAttribute("aria-label", `category of difference ${index + 1}`);
    category.addEventListener("input", () => {
      state.categories[index] = category.value;
      saveState();
    });
    const title = `${index + 1}. ${difference.type}, ${difference.category}`;
    article.append(createElement("label", { textContent: title }, text), createElement("div", { className: "correct" }, type, category));
  });
  const yes = createElement("button", { type: "button", className: "yes", textContent: "Accept" });
  const no = createElement("button", { type: "button", className: "no", textContent: "Reject" });
  const reason = createElement("input", { type: "text", maxLength: 1000, placeholder: "Reason for rejection", value: state.reason });
  reason.setAttribute("aria-label", "Reason for rejection");
  const showDecision = () => {
    article.className = state.decision || "";
    yes.setAttribute("aria-pressed", state.decision === "accept");
    no.setAttribute("aria-pressed", state.decision === "reject");
  };
  for (const [button, decision] of [[yes, "accept"], [no, "reject"]]) {
    button.addEventListener("click", () => {
      state.decision = state.decision === decision ? null : decision;
      showDecision();
      saveState();
    });
  }
  reason.addEventListener("input", () => {
    state.reason = reason.value;
    saveState();
  });
  showDecision();
  article.append(createElement("div", { className: "decide" }, yes, no, reason));
  return article;
}

document.getElementById("boxes").addEventListener("click", (event) => {
  const hidden = document.body.classList.toggle("hide-boxes");
  event.target.setAttribute("aria-pressed", hidden);
});

document.getElementById("save").addEventListener("click", () => {
  const reviews = pairs
    .filter((pair) => (decisions[pair.id] || {}).decision)
    .map((pair) => {
      const { decision, descriptions, types = [], categories = [], reason } = decisions[pair.id];
      const keep = (texts) => (decision === "accept" ? texts.map((text) => text.trim()) : []);
      return { id: pair.id, decision, descriptions: keep(descriptions), types: keep(types), categories: keep(categories), reason };
    });
  const incomplete = reviews.find((review) => [...review.descriptions, ...review.categories].some((text) => !text));
  if (incomplete) {
    alert(`${incomplete.id}: a description or category is empty`);
    return;
  }
  const file = new Blob([JSON.stringify({ format: 1, reviews }, null, 1)], { type: "application/json" });
  const link = createElement("a", { href: URL.createObjectURL(file), download: "reviews.json" });
  link.click();
  URL.revokeObjectURL(link.href);
  unsaved = false;
});

addEventListener("beforeunload", (event) => {
  if (unsaved) event.preventDefault();
});

document.getElementById("pairs").replaceChildren(...pairs.map(createArticle));
showProgress();
