"use strict";
/* The explorer. It shows one sample and unpacks its data block when it is selected.
   Needs numbers.js, heat.js, causes.js, words.js, data.js, heads.js, export.js and list.js. */
(() => {
  const PLOT = { width: 600, height: 90, top: 6 };

  const find = (id) => document.getElementById(id);
  const make = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);
  const percent = (value) => `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;
  const LEAST = 0.0005; // nat; less is shown as 0
  const DIM = 0.1; // of an answer's largest activation: the brightest colour of a step is this or more
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

  /** Says what the brightest colour is: the largest value, or the floor of the scale, with the largest value after it. */
  const nameScope = (most, maximum, scope) => (most < maximum ? `the ${scope} is ${formatNumber(most)}` : scope);

  function showHeat(step) {
    const perStep = find("normalise").value === "step";
    const scope = perStep ? "largest of this step" : "largest of all steps";
    showRaw(step, perStep, scope);
    if (showsCause()) {
      const most = causes.mostLost(sample.cause, perStep ? step : null);
      const maximum = causes.brightest(sample.cause, perStep ? step : null);
      paintMaps("sample-images", causes.map(sample.cause, step), maximum);
      find("legend-max").textContent = `${formatNumber(maximum, LEAST)} nat lost ${causes.words(sample.cause)}, ${nameScope(most, maximum, scope)}`;
    } else if (sample.attention) {
      const weights = sampleData.visualWeights(sample, step, choice());
      const most = perStep ? sampleData.largest(weights) : sampleData.largestWeight(sample, choice());
      const maximum = heat.brightest(most, weights.length);
      paintMaps("sample-images", weights, maximum);
      find("legend-max").textContent = `${formatNumber(maximum)} attention to one visual token, ${nameScope(most, maximum, scope)}`;
    }
    if (sample.activation) {
      const values = sampleData.activations(sample, step);
      const ofAll = sampleData.largest(sample.activation.scale);
      const most = perStep ? sampleData.largest(values) : ofAll;
      const maximum = Math.max(most, DIM * ofAll);
      paintMaps("sample-activation", values, maximum);
      find("activation-max").textContent = `${formatNumber(maximum)} activation of one visual token, ${nameScope(most, maximum, scope)}`;
    }
  }

  /** Shows the raw token activation map beside the full one. */
  function showRaw(step, perStep, scope) {
    if (!sample.raw) return;
    const values = sampleData.activations({ activation: sample.raw }, step);
    const maximum = sampleData.largest(perStep ? values : sample.raw.scale);
    paintMaps("sample-raw", values, maximum);
    find("raw-max").textContent = `logit ${formatNumber(maximum)} at one visual token, ${scope}`;
  }

  function showRegions() {
    for (const container of ["sample-images", "sample-activation", "sample-raw"]) {
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
    headMaps.showLayer(sample, step, choice());
    headMaps.showGrid(sample, step, choice());
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
    const visible = body.replaceAll("\n", "↵\n") + "↵".repeat(breaks.length) || "␣".repeat(before.length) || "·";
    const span = make("span", { className: `token${special ? " special" : ""}${wrong ? " wrong" : ""}`, textContent: visible, role: "option",
      ariaLabel: JSON.stringify(text) + (wrong ? ", part of a false claim" : "") });
    span.dataset.step = step;
    return [before, span, breaks];
  }

  function showAvailable() {
    const available = {
      attention: sample.attention,
      activation: sample.activation,
      raw: sample.raw,
      cause: sample.cause,
      both: sample.cause && sample.attention,
      map: sample.cause || sample.attention,
      maps: sample.cause || sample.attention || sample.activation,
      mass: sample.mass,
      share: hasShare() && sample.images.length && sample.tokens.length,
      layers: sample.layers.length,
      heads: sampleData.countHeads(sample) > 1,
      visualHeads: headMaps.countMaps(sample) > 1 && sample.tokens.length,
      allHeads: sampleData.countHeads(sample) > 1 && sample.images.length && sample.tokens.length,
      wrong: sample.tokens.some((token) => token.wrong),
      regions: sample.images.some((image) => image.regions.length),
      words: sample.words,
    };
    for (const part of document.querySelectorAll("#explorer [data-needs]")) {
      part.hidden = !available[part.dataset.needs];
    }
    find("layer").max = Math.max(sample.layers.length - 1, 0);
  }

  /** Returns the step that a sample opens on: the word that loses most with other images, or where that was not measured the
   * one of which the model was least sure; of the false words where some are. */
  function firstStep() {
    const worth = Array.from(sample.cause ? sample.cause.steps : sample.entropy, (value) => value ?? 0);
    const words = [...worth.keys()].filter((step) => !sample.tokens[step].special);
    const wrong = words.filter((step) => sample.tokens[step].wrong);
    const among = wrong.length ? wrong : words;
    return among.reduce((most, step) => (worth[step] > worth[most] ? step : most), among[0] ?? 0);
  }

  /** Links to the live page where `mmprobe serve` shows this report. */
  function showLive() {
    const [link, hint] = find("live").children;
    link.hidden = !location.protocol.startsWith("http") || !location.pathname.endsWith("/report");
    hint.hidden = !link.hidden;
    link.href = `./?sample=${encodeURIComponent(sample.id)}`;
  }

  /** Returns the map that is shown until the reader chooses one: a map of causes where it differs from place to place. */
  const usualMap = () => (sample.cause?.regions ? "cause" : "attention");

  function showSample() {
    find("sample-id").textContent = sample.id;
    Object.assign(find("sample-label"), { textContent: sample.label, className: `mark ${sample.label.replaceAll(" ", "-")}` });
    find("sample-question").textContent = sample.question;
    find("sample-truth").textContent = sample.truth === null ? "" : `True answer: ${sample.truth}`;
    showLive();
    find("sample-notes").replaceChildren(...sample.notes.map((note) => make("li", { textContent: note })));
    showImages("sample-images", sample.cause || sample.attention);
    showImages("sample-activation", sample.activation);
    showImages("sample-raw", sample.raw);
    cellWords.show(sample);
    find("tokens").replaceChildren(...sample.tokens.flatMap(tokenNodes));
    if (sample.cause) causes.underline(find("tokens").children, sample.cause);
    find("sample-dependence").textContent = sample.cause ? causes.sentence(sample.cause, sample.tokens.map(({ text }) => text)) : "";
    pinned = firstStep();
    if (!mapChosen) find("map").value = usualMap();
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

  /** Returns the controls beside step, layer and head, by their name in the address: what they show now, and by default. */
  function controls() {
    const regions = find("regions");
    const open = (id) => ({ now: find(id).open ? "open" : "", usual: "", set: (value) => { find(id).open = value === "open"; } });
    const value = (id, usual) => ({ now: find(id).value, usual, set: (text) => { find(id).value = text; } });
    return {
      map: { now: mapChosen ? find("map").value : "", usual: "", set: (text) => { mapChosen = text !== ""; if (mapChosen) find("map").value = text; } },
      scale: value("normalise", "step"),
      opacity: value("opacity", find("opacity").defaultValue),
      regions: { now: regions.checked ? "" : "off", usual: "", set: (text) => { regions.checked = text !== "off"; } },
      heads: open("all-heads"),
      grid: open("head-grid-part"),
      ...(sample.words ? { lens: value("cell-lens", sample.words.lenses[0]),
        cell: { now: find("cell-number").value, usual: "", set: (text) => { if (text !== "") cellWords.choose(Number(text) || 0); } } } : {}),
    };
  }

  /** Keeps what is shown in the address, without a new entry in the history. */
  function keepAddress() {
    if (sampleList.readAddress().name !== sample.id || requested !== sample.block) return;
    const parts = [`step=${pinned}`];
    if (!find("layer-mean").checked) parts.push(`layer=${sample.layers[Number(find("layer").value)]}`);
    if (find("head").value !== "") parts.push(`head=${find("head").value}`);
    for (const [name, { now, usual }] of Object.entries(controls())) {
      if (now !== usual) parts.push(`${name}=${now}`);
    }
    history.replaceState(null, "", `#explorer/${sample.id}/${parts.join("/")}`);
  }

  /** Shows what the address names: step, layer and head, and what other controls show. */
  function showAddress({ name, step, layer, head, ...others }) {
    if (name !== sample.id) return;
    for (const [control, { usual, set }] of Object.entries(controls())) set(others[control] ?? usual);
    if (!mapChosen) find("map").value = usualMap();
    showRegions();
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
    if (Object.keys(linked).length > 1) showAddress(linked);
  }

  // ---------------------------------------------------------------- events

  /** Shows the attention of a head of the chosen layers, or of all heads for "". */
  function chooseHead(head) {
    find("head").value = head;
    mapChosen = true;
    find("map").value = "attention";
    showMap();
  }

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
    for (const id of ["all-heads", "head-grid-part"]) {
      find(id).addEventListener("toggle", () => {
        if (!sample) return;
        showStep();
        keepAddress();
      });
    }
    find("head-grid").addEventListener("pointermove", (event) => {
      const { layer, head } = headMaps.gridPoint(sample, event);
      const share = hasShare() ? `: ${percent(sampleData.shareAt(sample, pointed ?? pinned, { layers: [layer], head: String(head) }))} of its attention on the images` : "";
      find("head-grid-name").textContent = `layer ${sample.layers[layer]}, head ${head}${share}`;
    });
    find("head-grid").addEventListener("click", (event) => {
      const { layer, head } = headMaps.gridPoint(sample, event);
      find("layer-mean").checked = false;
      find("layer").value = layer;
      chooseHead(String(head));
    });
    find("head-maps").addEventListener("click", (event) => {
      const button = event.target.closest("[data-head]");
      if (!button) return;
      chooseHead(find("head").value === button.dataset.head ? "" : button.dataset.head); // a second click frees it
      find("head-maps").querySelector(`[data-head="${button.dataset.head}"]`).focus();
    });
    find("save-svg").addEventListener("click", () => {
      const lines = [`${sample.id}: ${sample.question}`, `step ${pinned}, ${find("step-name").textContent}`,
        `${find("map-name").textContent}; largest ${find("legend-max").textContent}`];
      svgExport.save(find("sample-images"), lines, `${sample.id}-step-${pinned}`);
    });
    for (const id of ["opacity", "normalise"]) {
      find(id).addEventListener("input", () => {
        showStep();
        keepAddress();
      });
    }
    cellWords.onChange(keepAddress);
    find("map").addEventListener("change", () => {
      mapChosen = true;
      showMap();
    });
    find("regions").addEventListener("change", () => {
      showRegions();
      keepAddress();
    });
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
