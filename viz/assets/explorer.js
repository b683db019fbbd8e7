"use strict";
/* The explorer. It shows one sample and unpacks its data block when it is selected.
   Needs numbers.js, heat.js, causes.js, words.js, data.js, export.js and list.js. */
(() => {
  const PLOT = { width: 600, height: 90, top: 6 };

  const find = (id) => document.getElementById(id);
  const make = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);
  const percent = (value) => `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;
  const LEAST = 0.0005; // nat; less is shown as 0
  const nat = (value) => (value === null ? "not a number" : `${formatNumber(value, LEAST)} nat`);

  let sample = null;
  let pinned = 0;
  let pointed = null;
  let mapChosen = false; // by the reader; else a map of causes shows only where it differs from place to place
  let requested = null; // latest request: a reader may click another sample while one is unpacked

  /** Returns which layers and heads are shown: the indices of one layer or all, and a head or "" for all. */
  function choice() {
    const all = sample.layers.map((_, index) => index);
    return { layers: find("layer-mean").checked ? all : [Number(find("layer").value)], head: find("head").value };
  }

  // ---------------------------------------------------------------- images

  /** Paints the values of a step on the images of one container. */
  function paintMaps(container, values, maximum) {
    let start = 0;
    for (const canvas of document.querySelectorAll(`#${container} canvas`)) {
      const end = start + canvas.width * canvas.height;
      heat.paint(canvas, values.subarray(start, end), maximum);
      canvas.style.opacity = find("opacity").value;
      start = end;
    }
  }

  const showsCause = () => Boolean(sample.cause) && (!sample.attention || find("map").value === "cause");

  function showHeat(step) {
    const perStep = find("normalise").value === "step";
    const scope = perStep ? "largest of this step" : "largest of all steps";
    if (showsCause()) {
      const maximum = causes.brightest(sample.cause, perStep ? step : null);
      paintMaps("sample-images", causes.map(sample.cause, step), maximum);
      find("legend-max").textContent = `${formatNumber(maximum, LEAST)} nat lost ${causes.words(sample.cause)}, ${scope}`;
    } else if (sample.attention) {
      const weights = sampleData.visualWeights(sample, step, choice());
      const maximum = perStep ? sampleData.largest(weights) : sampleData.largestWeight(sample, choice());
      paintMaps("sample-images", weights, maximum);
      find("legend-max").textContent = `${formatNumber(maximum)} attention to one visual token, ${scope}`;
    }
    if (sample.activation) {
      const values = sampleData.activations(sample, step);
      const maximum = sampleData.largest(perStep ? values : sample.activation.scale);
      paintMaps("sample-activation", values, maximum);
      find("activation-max").textContent = `${formatNumber(maximum)} activation of one visual token, ${scope}`;
    }
  }

  /** Shows what each head of the chosen layers attends to, all in one scale. Nothing while the part is folded. */
  function showHeads(step) {
    const heads = sample.attention?.heads ?? 0;
    if (!find("all-heads").open || !heads) return;
    const { layers } = choice();
    const weights = Array.from({ length: heads }, (_, head) => sampleData.visualWeights(sample, step, { layers, head: String(head) }));
    const maximum = sampleData.largest(weights.map(sampleData.largest));
    const figures = weights.map((values, head) => {
      const chosen = find("head").value === String(head);
      const button = make("button", { type: "button", title: `Head ${head}` });
      button.dataset.head = head;
      button.setAttribute("aria-pressed", String(chosen));
      let start = 0;
      sample.images.forEach((image, index) => {
        const part = heat.imageFigure(image, index, sample.images.length, true).querySelector(".frame");
        const canvas = part.querySelector("canvas");
        const end = start + canvas.width * canvas.height;
        heat.paint(canvas, values.subarray(start, end), maximum);
        canvas.style.opacity = find("opacity").value;
        start = end;
        button.append(part);
      });
      button.append(make("span", { textContent: `head ${head}` }));
      return button;
    });
    find("head-maps").replaceChildren(...figures);
  }

  function showRegions() {
    for (const container of ["sample-images", "sample-activation"]) {
      find(container).classList.toggle("outlined", find("regions").checked);
    }
  }

  // ---------------------------------------------------------------- one step

  function showMass(step) {
    const { groups } = sample.mass;
    const mass = sampleData.massAt(sample, step, choice());
    const keys = groups.map((group, index) => {
      const key = make("li", { textContent: `${group} ${percent(mass[index])}` });
      key.style.setProperty("--colour", `var(--group-${group})`);
      return key;
    });
    const bars = groups.map((group, index) => {
      const bar = make("span");
      bar.style.width = `${100 * mass[index]}%`;
      bar.style.background = `var(--group-${group})`;
      return bar;
    });
    find("mass").replaceChildren(...bars);
    find("mass").ariaLabel = keys.map((key) => key.textContent).join(", ");
    find("mass-keys").replaceChildren(...keys);
  }

  const plotX = (step) => (PLOT.width * (step + 0.5)) / sample.tokens.length;

  function showShare() {
    const shares = sample.tokens.map((_, step) => sampleData.shareAt(sample, step, choice()));
    const maximum = sampleData.largest(shares);
    const y = (value) => PLOT.height - (maximum > 0 ? (value / maximum) * (PLOT.height - PLOT.top) : 0);
    const points = shares.map((value, step) => `${plotX(step)},${y(value).toFixed(2)}`);
    const line = `M${points.join("L")}`;
    const svg = find("share");
    svg.querySelector(".line").setAttribute("d", line);
    svg.querySelector(".area").setAttribute("d",
      `${line}L${plotX(shares.length - 1)},${PLOT.height}L${plotX(0)},${PLOT.height}Z`);
    find("share-max").textContent = `highest ${percent(maximum)}`;
    svg.querySelector(".loss").setAttribute("d", sample.cause ? causes.path(sample.cause, plotX, PLOT) : "");
    if (sample.cause) find("loss-max").textContent = `highest ${causes.nat(causes.largest(sample.cause.steps))}`;
    find("share-last").textContent = `step ${shares.length - 1}`;
  }

  const hasShare = () => Boolean(sample.mass || sample.share);

  function showNumbers(step) {
    const logprob = sample.logprob[step];
    find("step-name").textContent = JSON.stringify(sample.tokens[step].text);
    find("step-number").textContent = `step ${step} of 0–${sample.tokens.length - 1}`;
    find("step-probability").textContent = logprob === null ? "not a number" : percent(Math.exp(logprob));
    find("step-logprob").textContent = nat(logprob);
    find("step-entropy").textContent = nat(sample.entropy[step]);
    if (sample.cause) find("step-loss").textContent = causes.nat(sample.cause.steps[step]);
    if (hasShare()) find("step-attention").textContent = percent(sampleData.shareAt(sample, step, choice()));
  }

  /** Shows the step under the pointer, or the selected step. */
  function showStep() {
    if (!sample.tokens.length) return;
    const step = pointed ?? pinned;
    for (const token of find("tokens").children) {
      const tokenStep = Number(token.dataset.step);
      token.classList.toggle("shown", tokenStep === step);
      token.ariaSelected = String(tokenStep === pinned);
      token.tabIndex = tokenStep === pinned ? 0 : -1;
    }
    showNumbers(step);
    showHeat(step);
    showHeads(step);
    if (sample.mass) showMass(step);
    if (hasShare()) {
      const cursor = find("share").querySelector(".cursor");
      cursor.setAttribute("x1", plotX(step));
      cursor.setAttribute("x2", plotX(step));
      find("share-now").textContent = percent(sampleData.shareAt(sample, step, choice()));
    }
  }

  const headWords = () => (find("head").value === "" ? "" : `, head ${find("head").value}`);

  function showLayers() {
    const mean = find("layer-mean").checked;
    const name = sample.layers[Number(find("layer").value)];
    find("layer-name").textContent = mean ? "mean" : name;
    find("heads-layer").textContent = mean ? "all layers" : `layer ${name}`;
    document.querySelectorAll(".layer-words").forEach((words) => {
      words.textContent = (mean ? "mean over layers" : `layer ${name}`) + headWords();
    });
    find("layer").setAttribute("aria-valuetext", `layer ${name}`);
    if (hasShare() && sample.tokens.length) showShare();
    showStep();
    keepAddress();
  }

  // ---------------------------------------------------------------- one sample

  /** Returns a token's nodes. Outer spaces and line breaks stay outside, so lines wrap as in the answer. */
  function tokenNodes({ text, special, wrong }, step) {
    const [, before, body, breaks] = text.match(/^( *)([^]*?)(\n*)$/);
    const visible = body.replaceAll("\n", "↵\n") + "↵".repeat(breaks.length) || "␣".repeat(before.length) || "∅";
    const span = make("span", { className: `token${special ? " special" : ""}${wrong ? " wrong" : ""}`, textContent: visible, role: "option",
      ariaLabel: JSON.stringify(text) + (wrong ? ", part of a false claim" : "") });
    span.dataset.step = step;
    return [before, span, breaks];
  }

  function showAvailable() {
    const available = {
      attention: sample.attention,
      activation: sample.activation,
      cause: sample.cause,
      both: sample.cause && sample.attention,
      map: sample.cause || sample.attention,
      maps: sample.cause || sample.attention || sample.activation,
      mass: sample.mass,
      share: hasShare() && sample.images.length && sample.tokens.length,
      layers: sample.layers.length,
      heads: sampleData.countHeads(sample) > 1,
      visualHeads: (sample.attention?.heads ?? 0) > 1 && sample.tokens.length,
      wrong: sample.tokens.some((token) => token.wrong),
      regions: sample.images.some((image) => image.regions.length),
      words: sample.words,
    };
    for (const part of document.querySelectorAll("#explorer [data-needs]")) {
      part.hidden = !available[part.dataset.needs];
    }
    find("layer").max = Math.max(sample.layers.length - 1, 0);
  }

  /** Returns the step that a sample opens on: its first false word, else the one that loses most with other images. */
  function firstStep() {
    const wrong = sample.tokens.findIndex((token) => token.wrong);
    if (wrong >= 0) return wrong;
    return sample.cause ? sample.cause.steps.indexOf(sample.cause.steps.reduce((most, loss) => Math.max(most, loss))) : 0;
  }

  /** Links to the live page where `mmprobe serve` shows this report. */
  function showLive() {
    const [link, hint] = find("live").children;
    link.hidden = !location.protocol.startsWith("http") || !location.pathname.endsWith("/report");
    hint.hidden = !link.hidden;
    link.href = `./?sample=${encodeURIComponent(sample.id)}`;
  }

  function showSample() {
    find("sample-id").textContent = sample.id;
    Object.assign(find("sample-label"), { textContent: sample.label, className: `mark ${sample.label.replaceAll(" ", "-")}` });
    find("sample-question").textContent = sample.question;
    find("sample-truth").textContent = sample.truth === null ? "" : `True answer: ${sample.truth}`;
    showLive();
    find("sample-notes").replaceChildren(...sample.notes.map((note) => make("li", { textContent: note })));
    showImages("sample-images", sample.cause || sample.attention);
    showImages("sample-activation", sample.activation);
    cellWords.show(sample);
    find("tokens").replaceChildren(...sample.tokens.flatMap(tokenNodes));
    if (sample.cause) causes.underline(find("tokens").children, sample.cause);
    find("sample-dependence").textContent = sample.cause ? causes.sentence(sample.cause) : "";
    pinned = firstStep();
    if (!mapChosen) find("map").value = sample.cause?.regions ? "cause" : "attention";
    pointed = null;
    find("sample").hidden = false;
    showAvailable();
    showRegions();
    showMap();
  }

  /** Names the map over the images, and shows it. */
  function showMap() {
    find("map-name").replaceChildren(showsCause()
      ? `Cause: what the token loses ${causes.words(sample.cause)}`
      : "Attention, ", showsCause() ? "" : make("span", { className: "layer-words" }));
    showLayers();
  }

  function showImages(container, map) {
    const hasMap = Boolean(map);
    const shown = hasMap || container === "sample-images" ? sample.images : [];
    find(container).replaceChildren(
      ...shown.map((image, index) => heat.imageFigure(image, index, sample.images.length, hasMap)));
  }

  /** Keeps what is shown in the address, without a new entry in the history. */
  function keepAddress() {
    if (sampleList.readAddress().name !== sample.id || requested !== sample.block) return;
    const parts = [`step=${pinned}`];
    if (!find("layer-mean").checked) parts.push(`layer=${sample.layers[Number(find("layer").value)]}`);
    if (find("head").value !== "") parts.push(`head=${find("head").value}`);
    history.replaceState(null, "", `#explorer/${sample.id}/${parts.join("/")}`);
  }

  /** Shows the step, layer and head that the address names. */
  function showAddress({ name, step, layer, head }) {
    if (name !== sample.id) return;
    const index = sample.layers.findIndex((each) => String(each) === layer);
    find("layer-mean").checked = index < 0;
    if (index >= 0) find("layer").value = index;
    find("head").value = [...find("head").options].some((option) => option.value === head) ? head : "";
    pinned = Math.max(Math.min(Number.parseInt(step ?? firstStep(), 10) || 0, sample.tokens.length - 1), 0);
    showMap();
  }

  function fillHeads() {
    const before = find("head").value;
    find("head").replaceChildren(make("option", { value: "", textContent: "mean" }),
      ...Array.from({ length: sampleData.countHeads(sample) }, (_, head) => make("option", { value: head, textContent: head })));
    find("head").value = Number(before) < sampleData.countHeads(sample) ? before : "";
  }

  async function choose(button) {
    requested = button.dataset.sample;
    sampleList.items().forEach((other) => {
      other.setAttribute("aria-current", String(other === button));
    });
    const loaded = await sampleData.load(find(button.dataset.sample).textContent);
    if (requested !== button.dataset.sample) return;
    const linked = sampleList.readAddress();
    sample = Object.assign(loaded, { block: requested, label: button.dataset.label });
    fillHeads();
    showSample();
    if (linked.step !== undefined) showAddress(linked);
  }

  // ---------------------------------------------------------------- events

  function pin(step) {
    pinned = Math.min(Math.max(step, 0), sample.tokens.length - 1);
    pointed = null;
    showStep();
    keepAddress();
    find("tokens").children[pinned].scrollIntoView({ block: "nearest" });
  }

  function pinFromKey(event) {
    const moves = { ArrowLeft: pinned - 1, ArrowRight: pinned + 1, Home: 0, End: sample.tokens.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    pin(moves[event.key]);
    find("tokens").children[pinned].focus();
  }

  function pinFromPlot(event) {
    const { left, width } = find("share").getBoundingClientRect();
    pin(Math.floor(((event.clientX - left) / width) * sample.tokens.length));
  }

  function addListeners() {
    sampleList.items().forEach((button) => {
      button.addEventListener("click", () => {
        if (sampleList.readAddress().name === button.dataset.name) choose(button);
        else location.hash = `explorer/${button.dataset.name}`;
      });
    });
    sampleList.addListeners();
    cellWords.addListeners();
    const tokens = find("tokens");
    tokens.addEventListener("pointerover", (event) => {
      if (event.target === tokens || event.pointerType === "touch") return;
      pointed = Number(event.target.dataset.step);
      showStep();
    });
    tokens.addEventListener("pointerleave", () => {
      pointed = null;
      showStep();
    });
    tokens.addEventListener("click", (event) => {
      if (event.target === tokens) return;
      pin(Number(event.target.dataset.step));
      event.target.focus();
    });
    tokens.addEventListener("keydown", pinFromKey);
    find("share").addEventListener("click", pinFromPlot);
    find("layer").addEventListener("input", () => {
      find("layer-mean").checked = false;
      showLayers();
    });
    find("layer-mean").addEventListener("change", showLayers);
    find("head").addEventListener("change", showLayers);
    find("all-heads").addEventListener("toggle", showStep);
    find("head-maps").addEventListener("click", (event) => {
      const button = event.target.closest("[data-head]");
      if (!button) return;
      find("head").value = find("head").value === button.dataset.head ? "" : button.dataset.head; // a second click frees it
      mapChosen = true;
      find("map").value = "attention";
      showMap();
      find("head-maps").querySelector(`[data-head="${button.dataset.head}"]`).focus();
    });
    find("save-svg").addEventListener("click", () => {
      const lines = [`${sample.id}: ${sample.question}`, `step ${pinned}, ${find("step-name").textContent}`,
        `${find("map-name").textContent}; largest ${find("legend-max").textContent}`];
      svgExport.save(find("sample-images"), lines, `${sample.id}-step-${pinned}`);
    });
    find("opacity").addEventListener("input", showStep);
    find("normalise").addEventListener("change", showStep);
    find("map").addEventListener("change", () => {
      mapChosen = true;
      showMap();
    });
    find("regions").addEventListener("change", showRegions);
  }

  async function chooseLinked() {
    const button = sampleList.linked();
    if (!button) return;
    if (button.dataset.sample === requested && sample) {
      showAddress(sampleList.readAddress());
      return;
    }
    if (button.parentElement.hidden) sampleList.showAll();
    button.scrollIntoView({ block: "nearest" });
    await choose(button);
  }

  for (const ramp of document.querySelectorAll("#explorer .ramp")) ramp.style.background = heat.ramp;
  addListeners();
  choose(sampleList.linked() ?? sampleList.items()[0]);
  addEventListener("hashchange", chooseLinked);
})();
