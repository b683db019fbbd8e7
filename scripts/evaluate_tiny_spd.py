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
from page import fill_pages
from scipy.stats import binomtest
from tqdm import tqdm

from mmprobe.benchmarks.synthetic.check import AnswerCheck, check_answer
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.benchmarks.synthetic.questions import QUESTION_TYPES
from mmprobe.benchmarks.synthetic.scene import DIFFICULTIES
from mmprobe.models import Model, load_model
from mmprobe.notebook import markdown_table
from mmprobe.samples import Sample, load_samples

CARD = "models/tiny_spd/README.md"
HELD_OUT_SEED = 1_000_000
MAX_NEW_TOKENS = 128


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


def shares(
    verdicts: list[tuple[Sample, AnswerCheck]], heading: str, values: list, key: Callable[[Sample], object]
) -> str:
    """Return a table with one row for each value of the key. Shares are in per cent."""
    labels = ("correct", "exact", "faithful")
    rows = []
    for value in values:
        chosen = [verdict for sample, verdict in verdicts if key(sample) == value]
        if chosen:
            rows.append([value, len(chosen), *(share(chosen, label) for label in labels)])
    return markdown_table([heading, "n", *(f"{label} %" for label in labels)], rows)


def tables(verdicts: list[tuple[Sample, AnswerCheck]]) -> str:
    def differences(sample: Sample) -> int:
        return len(sample.metadata["differences"])

    parts = [
        "## By question",
        shares(verdicts, "question", list(QUESTION_TYPES), lambda s: s.metadata["type"]),
    ]
    for kind in ("same", "different", "count", "find", "steps"):
        members = [(sample, verdict) for sample, verdict in verdicts if sample.metadata["type"] == kind]
        parts += [
            f"## {kind}, by difficulty and number of differences",
            shares(members, "difficulty", list(DIFFICULTIES), lambda s: s.metadata["difficulty"]),
            shares(members, "differences", [0, 1, 2, 3], differences),
        ]
    for kind in ("exists", "colour", "describe"):
        members = [(sample, verdict) for sample, verdict in verdicts if sample.metadata["type"] == kind]
        parts += [
            f"## {kind}, by difficulty",
            shares(members, "difficulty", list(DIFFICULTIES), lambda s: s.metadata["difficulty"]),
        ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--write-card", action="store_true", help=f"fill the tables of {CARD}")
    args = parser.parse_args()
    model = load_model("tiny-spd", device=args.device)
    result = tables(evaluate(model, args.pairs, args.batch))
    if args.write_card:
        parameters = sum(parameter.numel() for parameter in model.hf.parameters()) / 1e6
        parts = {
            "parameters": f"{parameters:.1f}",
            "pairs": args.pairs,
            "seed": HELD_OUT_SEED,
            "tables": result,
        }
        fill_pages({CARD: parts})
    print(result)


if __name__ == "__main__":
    main()
