"use strict";
/* What each token of an answer loses with other images: over the images, under the tokens, and over the steps. */
const causes = (() => {
  const FULL = 3; // nat: the token becomes 20 times less likely; our choice
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
  const brightest = ({ losses, steps }, step) =>
    largest(losses.filter((_, index) => step === null || index % steps.length === step));

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

  /** Says how much the answer depends on its images. */
  function sentence({ steps, unused }) {
    const mean = steps.reduce((sum, loss) => sum + loss, 0) / steps.length;
    const loses = `Loses ${nat(mean)} a token with other images in place of its own`;
    return mean < unused ? `${loses}: it hardly depends on its images.` : `${loses}.`;
  }

  /** Returns the path of the losses over the steps in a plot of a height; losses under 0 are drawn as 0. */
  function path({ steps }, plotX, { height, top }) {
    const maximum = largest(steps);
    const y = (loss) => height - (maximum > 0 ? (Math.max(loss, 0) / maximum) * (height - top) : 0);
    return `M${Array.from(steps, (loss, step) => `${plotX(step)},${y(loss).toFixed(2)}`).join("L")}`;
  }

  const nat = (loss) => `${formatNumber(loss, 0.0005)} nat`;

  return { map, brightest, words, underline, sentence, path, nat, largest };
})();
