"use strict";
/* The table of answers: rows are made when they are to be seen, a few at a time. */
(async () => {
  const AT_ONCE = 50;
  const find = (id) => document.getElementById(id);
  const make = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  async function unpack(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(inflated).text());
  }

  const { columns, questions, rows } = await unpack(JSON.parse(find("results-data").textContent));
  const answers = rows.map(([id, question, answer, read, label, place, values]) => {
    const asked = questions[question];
    return { id, asked, answer, read, label, place, values,
      words: [id, asked, answer, read].join("\n").toLowerCase() };
  });
  let label = "all";
  let chosen = answers;
  let shown = 0;

  const written = (value) => {
    if (value === null) return "–";
    return typeof value === "string" ? value : String(Number(value.toPrecision(3)));
  };

  function row(answer) {
    const name = answer.place ? make("a", { href: `#${answer.place}`, textContent: answer.id, title: "Open in the explorer" })
      : make("span", { textContent: answer.id });
    const said = make("td", { className: "said" });
    if (answer.asked !== null) said.append(make("p", { className: "muted", textContent: answer.asked }));
    said.append(answer.answer === null ? make("p", { className: "muted", textContent: "not answered" })
      : make("p", { className: "answer", textContent: answer.answer || "(empty)" }));
    if (answer.read) said.append(make("p", { className: "read", textContent: answer.read }));
    const values = columns.map((column, at) => {
      const cell = make("td", { textContent: written(answer.values[at]) });
      cell.dataset.label = column;
      return cell;
    });
    const mark = make("span", { className: `mark ${answer.label}`, textContent: answer.label });
    return make("tr", {}, make("th", { scope: "row" }, name, " ", mark), said, ...values);
  }

  function showMore() {
    const next = chosen.slice(shown, shown + AT_ONCE);
    find("answers-rows").append(...next.map(row));
    shown += next.length;
    find("answers-more").hidden = shown === chosen.length;
    find("answers-count").textContent = `${shown} shown of ${chosen.length} found, ${answers.length} in all`;
  }

  /** Numbers in order, upwards or downwards; those without one last. */
  function inOrder(found) {
    if (!find("answers-order").value) return found;
    const [at, sign] = find("answers-order").value.split(" ").map(Number);
    const known = found.filter((answer) => answer.values[at] !== null);
    known.sort((one, other) => sign * (one.values[at] - other.values[at]));
    return [...known, ...found.filter((answer) => answer.values[at] === null)];
  }

  function choose() {
    const words = find("answers-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    chosen = inOrder(answers.filter((answer) => (label === "all" || answer.label === label)
      && words.every((word) => answer.words.includes(word))));
    shown = 0;
    find("answers-rows").replaceChildren();
    showMore();
  }

  for (const button of document.querySelectorAll("#results [data-label]:is(button)")) {
    button.addEventListener("click", () => {
      label = button.dataset.label;
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
      choose();
    });
  }
  find("answers-search").addEventListener("input", choose);
  find("answers-order").addEventListener("change", choose);
  find("answers-more").addEventListener("click", showMore);
  choose();
})();
