"use strict";
const { key, pairs } = JSON.parse(document.getElementById("data").textContent);
const stored = `mmprobe-reviews-${key}`;
let decisions = {}; // by pair: decision, descriptions, reason
try {
  decisions = JSON.parse(localStorage.getItem(stored)) || {};
} catch {
  // a browser that remembers nothing: what is decided lives until the page is closed
}
let unsaved = false;

function made(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function remember() {
  unsaved = true;
  try {
    localStorage.setItem(stored, JSON.stringify(decisions));
  } catch {
    // see above
  }
  progress();
}

function progress() {
  const told = pairs.map((pair) => (decisions[pair.id] || {}).decision);
  const accepted = told.filter((one) => one === "accept").length;
  const rejected = told.filter((one) => one === "reject").length;
  document.getElementById("progress").textContent =
    `${pairs.length} pairs: ${accepted} accepted, ${rejected} rejected, ${pairs.length - accepted - rejected} left`;
}

function picture(pair, index) {
  const image = made("img", { src: pair.pictures[index], loading: "lazy", alt: index ? "changed" : "original" });
  const figure = made("figure", {}, image);
  image.addEventListener("load", () => {
    for (const region of pair.regions.filter((one) => one.image === index)) {
      const [x, y, width, height] = region.box;
      const box = made("div", { className: "box" });
      box.style.left = `${(100 * x) / image.naturalWidth}%`;
      box.style.top = `${(100 * y) / image.naturalHeight}%`;
      box.style.width = `${(100 * width) / image.naturalWidth}%`;
      box.style.height = `${(100 * height) / image.naturalHeight}%`;
      figure.append(box);
    }
  });
  return figure;
}

function show(pair) {
  const before = decisions[pair.id];
  const known = before && before.descriptions.length === pair.differences.length ? before : null;
  const state = known || { decision: null, descriptions: pair.differences.map((one) => one.description), reason: "" };
  const note = pair.reviewed ? ", accepted before" : "";
  const article = made("article", {}, made("h2", { textContent: pair.id }, made("small", { textContent: pair.about + note })));
  article.append(made("div", { className: "pictures" }, picture(pair, 0), picture(pair, 1)));
  const keep = () => {
    decisions[pair.id] = state;
    remember();
  };
  pair.differences.forEach((difference, index) => {
    const text = made("input", { type: "text", maxLength: 1000, value: state.descriptions[index] });
    text.addEventListener("input", () => {
      state.descriptions[index] = text.value;
      keep();
    });
    article.append(made("label", { textContent: `${index + 1}. ${difference.type}, ${difference.category}` }, text));
  });
  const yes = made("button", { type: "button", className: "yes", textContent: "Accept" });
  const no = made("button", { type: "button", className: "no", textContent: "Reject" });
  const reason = made("input", { type: "text", maxLength: 1000, placeholder: "Why it is rejected", value: state.reason });
  reason.setAttribute("aria-label", "Why it is rejected");
  const mark = () => {
    article.className = state.decision || "";
    yes.setAttribute("aria-pressed", state.decision === "accept");
    no.setAttribute("aria-pressed", state.decision === "reject");
  };
  for (const [button, decision] of [[yes, "accept"], [no, "reject"]]) {
    button.addEventListener("click", () => {
      state.decision = state.decision === decision ? null : decision;
      mark();
      keep();
    });
  }
  reason.addEventListener("input", () => {
    state.reason = reason.value;
    keep();
  });
  mark();
  article.append(made("div", { className: "decide" }, yes, no, reason));
  return article;
}

document.getElementById("boxes").addEventListener("click", (event) => {
  const bare = document.body.classList.toggle("bare");
  event.target.setAttribute("aria-pressed", bare);
});

document.getElementById("save").addEventListener("click", () => {
  const reviews = pairs
    .filter((pair) => (decisions[pair.id] || {}).decision)
    .map((pair) => {
      const { decision, descriptions, reason } = decisions[pair.id];
      const texts = decision === "accept" ? descriptions.map((text) => text.trim()) : [];
      return { id: pair.id, decision, descriptions: texts, reason };
    });
  const empty = reviews.find((one) => one.descriptions.some((text) => !text));
  if (empty) {
    alert(`${empty.id}: a description is empty`);
    return;
  }
  const file = new Blob([JSON.stringify({ format: 1, reviews }, null, 1)], { type: "application/json" });
  const link = made("a", { href: URL.createObjectURL(file), download: "reviews.json" });
  link.click();
  URL.revokeObjectURL(link.href);
  unsaved = false;
});

addEventListener("beforeunload", (event) => {
  if (unsaved) event.preventDefault();
});

document.getElementById("pairs").replaceChildren(...pairs.map(show));
progress();
