"use strict";
/* The numbers of one sample: unpacked from its data block, and their means over layers and heads.
   A choice is { layers, head }: indices of layers, and the number of a head or "" for all heads. */
const sampleData = (() => {
  const largest = (values) => values.reduce((maximum, value) => Math.max(maximum, value), 0);

  async function unpack(base64, ArrayType) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new ArrayType(await new Response(inflated).arrayBuffer());
  }

  /** Returns the sample of a data block. */
  async function load(text) {
    const sample = JSON.parse(text);
    const { mass, share, cause, words } = sample;
    for (const map of [sample.attention, sample.activation, sample.raw]) {
      if (!map) continue;
      map.weights = await unpack(map.weights, Uint8Array);
      map.scale = await unpack(map.scale, Float32Array);
    }
    if (mass) mass.values = await unpack(mass.values, Uint16Array);
    if (words) words.ids = await unpack(words.ids, Uint32Array);
    if (share) sample.share = await unpack(share, Float32Array);
    for (const part of cause ? ["steps", "losses"] : []) cause[part] = await unpack(cause[part], Float32Array);
    return sample;
  }

  const countHeads = ({ mass, attention }) => Math.max(mass?.heads ?? 0, attention?.heads ?? 0);

  /** Returns the indices of the chosen heads of an array with `count` of them. */
  function chooseHeads(head, count) {
    return head === "" || Number(head) >= count ? Array.from({ length: count }, (_, index) => index) : [Number(head)];
  }

  /** Returns the attention of a step to all visual tokens. */
  function visualWeights(sample, step, { layers, head }) {
    const { weights, scale, heads } = sample.attention;
    const visual = weights.length / scale.length;
    const count = heads || 1;
    const chosen = chooseHeads(head, count);
    const mean = new Float32Array(visual);
    for (const layer of layers) {
      for (const index of chosen) {
        const row = (step * sample.layers.length + layer) * count + index;
        const unit = scale[row] / 255 / layers.length / chosen.length;
        for (let token = 0; token < visual; token += 1) mean[token] += weights[row * visual + token] * unit;
      }
    }
    return mean;
  }

  /** Returns the largest weight of all steps. It is cached: it reads the whole sample. */
  function largestWeight(sample, choice) {
    const key = `${choice.layers} ${choice.head}`;
    sample.largest ??= new Map();
    if (!sample.largest.has(key)) {
      sample.largest.set(key, largest(sample.tokens.map((_, step) => largest(visualWeights(sample, step, choice)))));
    }
    return sample.largest.get(key);
  }

  /** Returns the token activation of a step at all visual tokens. */
  function activations({ activation: { weights, scale } }, step) {
    const visual = weights.length / scale.length;
    return Float32Array.from({ length: visual }, (_, token) => (weights[step * visual + token] * scale[step]) / 255);
  }

  /** Returns attention by token group at a step. */
  function massAt(sample, step, { layers, head }) {
    const { groups, heads, values } = sample.mass;
    const rows = layers.flatMap((layer) =>
      chooseHeads(head, heads).map((index) => (step * sample.layers.length + layer) * heads + index));
    return groups.map((_, group) =>
      rows.reduce((sum, row) => sum + values[row * groups.length + group], 0) / rows.length / 65535);
  }

  /** Returns the attention to all images at a step. */
  function shareAt(sample, step, choice) {
    if (sample.mass) return massAt(sample, step, choice)[sample.mass.groups.indexOf("visual")];
    const { layers } = choice;
    return layers.reduce((sum, layer) => sum + sample.share[step * sample.layers.length + layer], 0) / layers.length;
  }

  return { largest, load, countHeads, visualWeights, largestWeight, activations, massAt, shareAt };
})();
