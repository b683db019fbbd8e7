"use strict";
/* What each token of an answer loses with other images: over the images, under the tokens, and over the steps. */
const causes = (() => {
  const FULL = 3; // nat: the token becomes 20 times less likely; our choice
  const MOST_NAMED = 4; // free tokens
  const LEAST_FULL = 1; // nat: the brightest colour of a map is this or more, so that nothing is not bright; our choice
  const largest = (values) => values.reduce((maximum, value) => Math.max(maximum, value), 0);

  /** Returns the loss of a step at all visual tokens; NaN where nothing was exchanged. */
  function map({ losses, cells, visual, steps }, step) {
    const values = new Float32Array(visual).fill(NaN);
    cells.forEach((tokens, region) => {
      const loss = Math.max(losses[region * steps.length + step], 0);
      for (const token of tokens) values[token] = Number.isNaN(values[token]) ? loss : Math.max(values[token], loss);
    });
    return values;
  }

  /** Returns the largest loss that a map of one step shows, or of all steps. */
  const mostLost = ({ losses, steps }, step) =>
    largest(losses.filter((_, index) => step === null || index % steps.length === step));

  /** Returns the loss with the brightest colour. */
  const brightest = (cause, step) => Math.max(mostLost(cause, step), LEAST_FULL);

  /** Says in words what a map of causes shows. */
  const words = ({ regions }) => (regions ? "with the region exchanged" : "with all images exchanged");

  /** Underlines each token by what it loses with all images exchanged, on a scale that is the same for all answers. */
  function underline(tokens, { steps }) {
    for (const token of tokens) {
      const loss = Math.min(Math.max(steps[Number(token.dataset.step)], 0), FULL);
      token.classList.add("measured");
      token.style.setProperty("--loss", `${Math.round((100 * loss) / FULL)}%`);
    }
  }

  /** Says what the answer's free tokens lose: those that some of the other images would change. */
  function sentence({ steps, free }, texts) {
    if (!free) return `Its most dependent token loses ${nat(largest(steps))} with other images.`;
    const { tokens, effect, floor, kinds, others, unused } = free;
    const sets = `${others} other ${others === 1 ? "set" : "sets"} of images (${kinds.join(", ")})`;
    const named = tokens.slice(0, MOST_NAMED).map((step) => JSON.stringify(texts[step])).join(", ") + (tokens.length > MOST_NAMED ? ", …" : "");
    const changed = tokens.length === 0 ? `With ${sets}, the model would say the same at every step`
      : `With ${sets}, the model would say another token at ${tokens.length} of ${steps.length} steps (${named}), which lose ${nat(effect)}; with images of the same content ${nat(floor)}`;
    if (unused) return `${changed}. So nothing here shows that the answer depends on its images.`;
    return unused === null ? `${changed}. It takes two sets or more to say whether the answer depends on its images.` : `${changed}.`;
  }

  /** Returns the path of the losses over the steps in a plot of a height; losses under 0 are drawn as 0. */
  function path({ steps }, plotX, { height, top }) {
    const maximum = largest(steps);
    const y = (loss) => height - (maximum > 0 ? (Math.max(loss, 0) / maximum) * (height - top) : 0);
    return `M${Array.from(steps, (loss, step) => `${plotX(step)},${y(loss).toFixed(2)}`).join("L")}`;
  }

  const nat = (loss) => `${formatNumber(loss, 0.0005)} nat`;

  return { map, mostLost, brightest, words, underline, sentence, path, nat, largest };
})();
