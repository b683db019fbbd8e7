"""Measure the embedded model on held-out pairs, and write its model card.

python scripts/evaluate_tiny_spd.py --pairs 60                  # prints the tables
python scripts/evaluate_tiny_spd.py --write-card                # 300 pairs, models/tiny_spd/README.md
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from scipy.stats import binomtest
from tqdm import tqdm

from mmprobe.benchmarks.synthetic.check import AnswerCheck, check_answer
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.benchmarks.synthetic.questions import QUESTION_TYPES
from mmprobe.benchmarks.synthetic.scene import DIFFICULTIES
from mmprobe.models import Model, load_model
from mmprobe.samples import Sample, load_samples

CARD = Path(__file__).parent.parent / "models" / "tiny_spd" / "README.md"
HELD_OUT_SEED = 1_000_000
MAX_NEW_TOKENS = 128
ABOUT = """\
# tiny-spd

A `Qwen2_5_VLForConditionalGeneration` with {parameters:.1f} million parameters. Decoder: 8 layers, hidden size 192, 6 heads, 2
key-value heads. Vision tower: 4 layers, one visual token for each cell of 28 x 28 pixels. It was trained from scratch on pairs of
drawn scenes: coloured shapes on a four by four grid, with edits of colour, removal and position. It knows nothing else. With it
every part of mmprobe can be tried and tested offline, on a model that uses its images.

- `scripts/train_tiny_spd.py` trained it: the vision tower for 1,000 batches of 128 scenes, then the decoder for 7,000 batches of
  512 questions, in 17 minutes on one H100. The run had two parts: 3,560 batches with
  `--steps 12000 --batch 512 --tower-steps 1000 --compile`, the rest with `--steps 7000`.
- The weights are stored as float16 and loaded as float32.
- License: Apache-2.0, like the code. All training data are our own drawings.

`make model-card` writes the tables below: {pairs} pairs drawn with seed {seed} (training used seeds below 1,000,000), all
difficulties and 0 to 3 differences equally often, greedy answers. *Correct*: the conclusion is right (yes or no, the number, the
colour, the whole set of differences or objects). *Exact*: the whole answer equals the true answer, word for word. *Faithful*:
nothing in it is false of the images. Intervals are 95 % Wilson intervals.
"""


def answer_batch(model: Model, samples: list[Sample]) -> list[str]:
    """Return greedy answers to a batch, padded on the left."""
    prompts = [model.prepare(sample) for sample in samples]
    longest = max(inputs["input_ids"].shape[1] for inputs in prompts)
    batch = {}
    for name, fill in (
        ("input_ids", model.tokenizer.pad_token_id),
        ("attention_mask", 0),
        ("mm_token_type_ids", 0),
    ):
        rows = [
            torch.nn.functional.pad(p[name][0], (longest - p[name].shape[1], 0), value=fill) for p in prompts
        ]
        batch[name] = torch.stack(rows)
    for name in ("pixel_values", "image_grid_thw"):
        batch[name] = torch.cat([inputs[name] for inputs in prompts])
    with torch.inference_mode():
        output = model.hf.generate(**batch, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    return model.tokenizer.batch_decode(output[:, longest:], skip_special_tokens=True)


def evaluate(model: Model, pairs: int, batch: int) -> list[tuple[Sample, AnswerCheck]]:
    with tempfile.TemporaryDirectory() as folder:
        samples = load_samples(make_pairs(Path(folder) / "pairs", pairs, HELD_OUT_SEED))
        samples.sort(key=lambda sample: (sample.metadata["type"], sample.id))
        verdicts = []
        for start in tqdm(range(0, len(samples), batch), desc="answers", unit="batch", disable=None):
            part = samples[start : start + batch]
            for sample, text in zip(part, answer_batch(model, part), strict=True):
                verdicts.append((sample, check_answer(text, sample.answer or "", sample.metadata)))
    return verdicts


def share(verdicts: Iterable[AnswerCheck], label: str) -> str:
    """Return the share of verdicts with a label in per cent, with its interval."""
    values = [getattr(verdict, label) for verdict in verdicts]
    interval = binomtest(sum(values), len(values)).proportion_ci(method="wilson")
    return f"{100 * sum(values) / len(values):.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def table(
    verdicts: list[tuple[Sample, AnswerCheck]], heading: str, rows: list, key: Callable[[Sample], object]
) -> str:
    """Return a table with one row for each value of the key. Shares are in per cent."""
    lines = [f"| {heading} | n | correct % | exact % | faithful % |", "|---|---|---|---|---|"]
    for row in rows:
        chosen = [verdict for sample, verdict in verdicts if key(sample) == row]
        if chosen:
            shares = " | ".join(share(chosen, label) for label in ("correct", "exact", "faithful"))
            lines.append(f"| {row} | {len(chosen)} | {shares} |")
    return "\n".join(lines)


def tables(verdicts: list[tuple[Sample, AnswerCheck]]) -> str:
    def differences(sample: Sample) -> int:
        return len(sample.metadata["differences"])

    parts = [
        "## By question",
        table(verdicts, "question", list(QUESTION_TYPES), lambda s: s.metadata["type"]),
    ]
    for kind in ("same", "different", "count", "find", "steps"):
        members = [(sample, verdict) for sample, verdict in verdicts if sample.metadata["type"] == kind]
        parts += [
            f"## {kind}, by difficulty and number of differences",
            table(members, "difficulty", list(DIFFICULTIES), lambda s: s.metadata["difficulty"]),
            table(members, "differences", [0, 1, 2, 3], differences),
        ]
    for kind in ("exists", "colour", "describe"):
        members = [(sample, verdict) for sample, verdict in verdicts if sample.metadata["type"] == kind]
        parts += [
            f"## {kind}, by difficulty",
            table(members, "difficulty", list(DIFFICULTIES), lambda s: s.metadata["difficulty"]),
        ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--write-card", action="store_true", help=f"write {CARD.name} in models/tiny_spd")
    args = parser.parse_args()
    model = load_model("tiny-spd", device=args.device)
    result = tables(evaluate(model, args.pairs, args.batch))
    if args.write_card:
        parameters = sum(parameter.numel() for parameter in model.hf.parameters()) / 1e6
        CARD.write_text(
            ABOUT.format(parameters=parameters, pairs=args.pairs, seed=HELD_OUT_SEED) + "\n" + result
        )
    print(result)


if __name__ == "__main__":
    main()
