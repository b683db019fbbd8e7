"use strict";
/* The explorer. It shows one sample and unpacks its data block when it is selected. Needs heat.js and causes.js. */
(() => {
  const PLOT = { width: 600, height: 90, top: 6 };
  const LABELS = new Map([[true, "faithful"], [false, "unfaithful"], [null, "unlabelled"]]);

  const find = (id) => document.getElementById(id);
  const make = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);
  const percent = (value) => `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;
  const number = (value) => (value ? value.toPrecision(3) : value === null ? "not a number" : "0");

  let sample = null;
  let pinned = 0;
  let pointed = null;
  let requested = null; // latest request: a reader may click another sample while one is unpacked

  // ---------------------------------------------------------------- data

  async function unpack(base64, ArrayType) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new ArrayType(await new Response(inflated).arrayBuffer());
  }

  async function load(name) {
    const data = JSON.parse(find(name).textContent);
    const { mass, share, cause } = data;
    for (const map of [data.attention, data.activation]) {
      if (!map) continue;
      map.weights = await unpack(map.weights, Uint8Array);
      map.scale = await unpack(map.scale, Float32Array);
    }
    if (mass) mass.values = await unpack(mass.values, Float32Array);
    if (share) data.share = await unpack(share, Float32Array);
    for (const part of cause ? ["steps", "losses"] : []) cause[part] = await unpack(cause[part], Float32Array);
    return data;
  }

  /** Returns the indices of the shown layers: one, or all for the mean. */
  function shownLayers() {
    const all = sample.layers.map((_, index) => index);
    return find("layer-mean").checked ? all : [Number(find("layer").value)];
  }

  /** Returns the attention of a step to all visual tokens, mean over the shown layers. */
  function visualWeights(step) {
    const { weights, scale } = sample.attention;
    const visual = weights.length / scale.length;
    const layers = shownLayers();
    const mean = new Float32Array(visual);
    for (const layer of layers) {
      const row = step * sample.layers.length + layer;
      const unit = scale[row] / 255 / layers.length;
      for (let token = 0; token < visual; token += 1) mean[token] += weights[row * visual + token] * unit;
    }
    return mean;
  }

  /** Returns the token activation of a step at all visual tokens. */
  function activations(step) {
    const { weights, scale } = sample.activation;
    const visual = weights.length / scale.length;
    return Float32Array.from({ length: visual }, (_, token) => (weights[step * visual + token] * scale[step]) / 255);
  }

  const largest = (values) => values.reduce((maximum, value) => Math.max(maximum, value), 0);

  /** Returns the largest weight of all steps for the shown layers. It is cached: it reads the whole sample. */
  function largestOfSample() {
    const key = shownLayers().join();
    sample.largest ??= new Map();
    if (!sample.largest.has(key)) {
      sample.largest.set(key, largest(sample.tokens.map((_, step) => largest(visualWeights(step)))));
    }
    return sample.largest.get(key);
  }

  /** Returns the mean over the shown layers of an array [step, layer, width], at one step. */
  function meanOverLayers(values, step, width) {
    const layers = shownLayers();
    const valueAt = (layer, index) => values[(step * sample.layers.length + layer) * width + index];
    return Array.from({ length: width }, (_, index) =>
      layers.reduce((sum, layer) => sum + valueAt(layer, index), 0) / layers.length);
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
      find("legend-max").textContent = `${maximum.toPrecision(3)} nat lost ${causes.words(sample.cause)}, ${scope}`;
    } else if (sample.attention) {
      const weights = visualWeights(step);
      const maximum = perStep ? largest(weights) : largestOfSample();
      paintMaps("sample-images", weights, maximum);
      find("legend-max").textContent = `${maximum.toPrecision(3)} attention to one visual token, ${scope}`;
    }
    if (sample.activation) {
      const values = activations(step);
      const maximum = largest(perStep ? values : sample.activation.scale);
      paintMaps("sample-activation", values, maximum);
      find("activation-max").textContent = `${maximum.toPrecision(3)} activation of one visual token, ${scope}`;
    }
  }

  function showRegions() {
    for (const container of ["sample-images", "sample-activation"]) {
      find(container).classList.toggle("outlined", find("regions").checked);
    }
  }

  // ---------------------------------------------------------------- one step

  function showMass(step) {
    const { groups, values } = sample.mass;
    const mass = meanOverLayers(values, step, groups.length);
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

  const shareAt = (step) => meanOverLayers(sample.share, step, 1)[0];
  const plotX = (step) => (PLOT.width * (step + 0.5)) / sample.tokens.length;

  function showShare() {
    const shares = sample.tokens.map((_, step) => shareAt(step));
    const maximum = largest(shares);
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

  function showNumbers(step) {
    const logprob = sample.logprob[step];
    find("step-name").textContent = JSON.stringify(sample.tokens[step].text);
    find("step-number").textContent = `step ${step} of 0–${sample.tokens.length - 1}`;
    find("step-probability").textContent = logprob === null ? "not a number" : percent(Math.exp(logprob));
    find("step-logprob").textContent = `${number(logprob)} nat`;
    find("step-entropy").textContent = `${number(sample.entropy[step])} nat`;
    if (sample.cause) find("step-loss").textContent = causes.nat(sample.cause.steps[step]);
    if (sample.share) find("step-attention").textContent = percent(shareAt(step));
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
    if (sample.mass) showMass(step);
    if (sample.share) {
      const cursor = find("share").querySelector(".cursor");
      cursor.setAttribute("x1", plotX(step));
      cursor.setAttribute("x2", plotX(step));
      find("share-now").textContent = percent(shareAt(step));
    }
  }

  function showLayers() {
    const mean = find("layer-mean").checked;
    const name = sample.layers[Number(find("layer").value)];
    find("layer-name").textContent = mean ? "mean" : name;
    document.querySelectorAll(".layer-words").forEach((words) => {
      words.textContent = mean ? "mean over layers" : `layer ${name}`;
    });
    find("layer").setAttribute("aria-valuetext", `layer ${name}`);
    if (sample.share && sample.tokens.length) showShare();
    showStep();
  }

  // ---------------------------------------------------------------- one sample

  /** Returns a token's nodes. Outer spaces and line breaks stay outside, so lines wrap as in the answer. */
  function tokenNodes({ text, special }, step) {
    const [, before, body, breaks] = text.match(/^( *)([^]*?)(\n*)$/);
    const visible = body.replaceAll("\n", "↵\n") + "↵".repeat(breaks.length) || "␣".repeat(before.length) || "∅";
    const span = make("span", { className: special ? "token special" : "token", textContent: visible, role: "option",
      ariaLabel: JSON.stringify(text) });
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
      share: sample.share && sample.images.length && sample.tokens.length,
      layers: sample.layers.length,
      regions: sample.images.some((image) => image.regions.length),
    };
    for (const part of document.querySelectorAll("#explorer [data-needs]")) {
      part.hidden = !available[part.dataset.needs];
    }
    find("layer").max = Math.max(sample.layers.length - 1, 0);
  }

  function showSample() {
    const label = LABELS.get(sample.faithful);
    find("sample-id").textContent = sample.id;
    Object.assign(find("sample-label"), { textContent: label, className: `mark ${label}` });
    find("sample-question").textContent = sample.question;
    find("sample-truth").textContent = sample.truth === null ? "" : `True answer: ${sample.truth}`;
    find("sample-notes").replaceChildren(...sample.notes.map((note) => make("li", { textContent: note })));
    showImages("sample-images", sample.cause || sample.attention);
    showImages("sample-activation", sample.activation);
    find("tokens").replaceChildren(...sample.tokens.flatMap(tokenNodes));
    if (sample.cause) causes.underline(find("tokens").children, sample.cause);
    pinned = 0;
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

  async function choose(button) {
    requested = button.dataset.sample;
    document.querySelectorAll(".samples [data-sample]").forEach((other) => {
      other.setAttribute("aria-current", String(other === button));
    });
    const loaded = await load(button.dataset.sample);
    if (requested !== button.dataset.sample) return;
    sample = loaded;
    showSample();
  }

  function filter(button) {
    document.querySelectorAll("[data-filter]").forEach((other) => {
      other.setAttribute("aria-pressed", String(other === button));
    });
    document.querySelectorAll(".samples [data-sample]").forEach((item) => {
      item.parentElement.hidden = !["all", item.dataset.label].includes(button.dataset.filter);
    });
  }

  // ---------------------------------------------------------------- events

  function pin(step) {
    pinned = Math.min(Math.max(step, 0), sample.tokens.length - 1);
    pointed = null;
    showStep();
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
    document.querySelectorAll(".samples [data-sample]").forEach((button) => {
      button.addEventListener("click", () => choose(button));
    });
    document.querySelectorAll("[data-filter]").forEach((button) => {
      button.addEventListener("click", () => filter(button));
    });
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
    find("opacity").addEventListener("input", showStep);
    find("normalise").addEventListener("change", showStep);
    find("map").addEventListener("change", showMap);
    find("regions").addEventListener("change", showRegions);
  }

  /** Returns the button of the sample that the fragment of the address names, or null. */
  function linkedButton() {
    const item = find(location.hash.slice(1));
    return item?.closest(".samples li") ? item.querySelector("[data-sample]") : null;
  }

  function chooseLinked() {
    const button = linkedButton();
    if (!button) return;
    const all = document.querySelector("[data-filter=all]");
    if (button.parentElement.hidden && all) filter(all);
    button.scrollIntoView({ block: "nearest" });
    choose(button);
  }

  for (const ramp of document.querySelectorAll("#explorer .ramp")) ramp.style.background = heat.ramp;
  addListeners();
  choose(linkedButton() ?? document.querySelector(".samples [data-sample]"));
  addEventListener("hashchange", chooseLinked);
})();
