"use strict";
/* The table of answers. Rows are added 50 at a time. Needs numbers.js. */
(async () => {
  const ROWS_PER_PAGE = 50;
  const find = (id) => document.getElementById(id);
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };

  async function unpack(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(inflated).text());
  }

  const { columns, questions, images, rows } = await unpack(JSON.parse(find("answers-data").textContent));
  const answers = rows.map(([id, questionIndex, answer, truth, details, labels, rank, link, imageIndex, values]) => {
    const question = questions[questionIndex];
    return { id, question, answer, truth, details, labels, rank, link, values, images: images[imageIndex],
      text: [id, question, answer, truth, details].join("\n").toLowerCase() };
  });
  let label = "all";
  let matching = answers;
  let shown = 0;

  function row(answer) {
    const name = answer.link ? make("a", { href: `#${answer.link}`, textContent: answer.id, title: "Open in the explorer" })
      : make("span", { textContent: answer.id });
    const texts = make("div", {});
    if (answer.question !== null) texts.append(make("p", { className: "muted", textContent: answer.question }));
    texts.append(answer.answer === null ? make("p", { className: "muted", textContent: "no answer" })
      : make("p", { className: "answer", textContent: answer.answer || "(empty)" }));
    if (answer.truth !== null) texts.append(make("p", { className: "truth", textContent: answer.truth }));
    if (answer.details) texts.append(make("p", { className: "details", textContent: answer.details }));
    const cell = make("td", { className: "answer-text" });
    if (answer.images.length) {
      cell.append(make("div", { className: "thumbnails" }, ...answer.images.map((name, index) => make("img", {
        src: JSON.parse(find(name).textContent), alt: `Image ${index + 1}`, loading: "lazy" }))));
    }
    cell.append(texts);
    const values = columns.map((column, index) => {
      const number = make("td", { textContent: formatNumber(answer.values[index]) });
      number.dataset.label = column;
      return number;
    });
    const marks = answer.labels.flatMap((word) => [" ", make("span", { className: `mark ${word.replaceAll(" ", "-")}`, textContent: word })]);
    return make("tr", {}, make("th", { scope: "row" }, name, ...marks), cell, ...values);
  }

  function showMore() {
    const next = matching.slice(shown, shown + ROWS_PER_PAGE);
    find("answers-rows").append(...next.map(row));
    shown += next.length;
    find("answers-more").hidden = shown === matching.length;
    find("answers-count").textContent = `${shown} of ${matching.length} matching answers shown, ${answers.length} in total`;
  }

  /** Sorts answers by what is worth a look, or by the selected column. Answers without a number come last. */
  function sortAnswers(unsorted) {
    if (!find("answers-order").value) return unsorted;
    if (find("answers-order").value === "worth") return unsorted.sort((a, b) => a.rank - b.rank);
    const [column, sign] = find("answers-order").value.split(" ").map(Number);
    const known = unsorted.filter((answer) => answer.values[column] !== null);
    known.sort((a, b) => sign * (a.values[column] - b.values[column]));
    return [...known, ...unsorted.filter((answer) => answer.values[column] === null)];
  }

  function updateRows() {
    const words = find("answers-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    matching = sortAnswers(answers.filter((answer) => (label === "all" || answer.labels.includes(label))
      && words.every((word) => answer.text.includes(word))));
    shown = 0;
    find("answers-rows").replaceChildren();
    showMore();
  }

  for (const button of document.querySelectorAll(".answers [data-label]:is(button)")) {
    button.addEventListener("click", () => {
      label = button.dataset.label;
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
      updateRows();
    });
  }
  find("answers-search").addEventListener("input", updateRows);
  find("answers-order").addEventListener("change", updateRows);
  find("answers-more").addEventListener("click", showMore);
  updateRows();
})();
