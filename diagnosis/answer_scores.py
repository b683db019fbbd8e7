"""How much each cause acts on one answer, from 0 to 1, by the answer's own record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mmprobe.diagnosis.battery.hints import OWN_HINT
from mmprobe.diagnosis.causes import Thresholds

Record = dict[str, Any]
LOOKING_HEADS = 0.1  # share of the heads that show whether a model looks; ours


def score_disuse(record: Record, limits: Thresholds) -> float:
    """Return 1 for an answer that loses nothing with other images, and 0.5 where it loses the threshold."""
    return limits.unused_effect / (limits.unused_effect + max(record["images"]["free_effect"], 0.0))


def read_moves(records: Sequence[Record]) -> list[float | None]:
    """Return for each answer how far attention moves over the images with their content, from 0 to 1.

    It is the mean over the tenth of the heads that move most, over all answers: models that do not use their images
    may still have heads that look at something. None where attention was not measured.
    """
    moved = [
        None if record["images"]["looks"] is None else record["images"]["looks"]["moved"]
        for record in records
    ]
    measured = np.array([row for row in moved if row is not None], float)
    if not measured.size:
        return [None] * len(records)
    means = measured.mean(0)
    heads = np.argsort(-means)[: max(1, round(LOOKING_HEADS * len(means)))]
    return [None if row is None else float(np.mean([row[head] for head in heads])) for row in moved]


def score_forgetting(record: Record, limits: Thresholds) -> float | None:
    """Return 1 for an answer whose later sentences lose nothing with other images while its first ones do.

    The answer is cut after the sentence where the later ones lose least, by the mean over their free tokens. The
    score is 0.5 where they lose the threshold's share of what the first ones lose, and 0 from twice that on. None for
    a single sentence.
    """
    sentences = record["images"]["sentences"]
    if len(sentences) < 2:
        return None
    shares = []
    for cut in range(1, len(sentences)):
        early, late = _mean_effect(sentences[:cut]), _mean_effect(sentences[cut:])
        if early >= limits.unused_effect:
            shares.append(max(late, 0.0) / early)
    return float(np.clip(1 - min(shares) / (2 * limits.forgotten_share), 0, 1)) if shares else 0.0


def _mean_effect(sentences: list[dict[str, float]]) -> float:
    free = sum(sentence["free"] for sentence in sentences)
    return sum(sentence["free"] * sentence["effect"] for sentence in sentences) / max(free, 1)


def find_usual_conclusion(records: Sequence[Record]) -> str | None:
    """Return the conclusion that most answers come to; None if no two agree.

    Models come to it whenever steps tell them nothing, so it cannot show that steps are not used.
    """
    counts = Counter(record["steps"]["conclusion"] for record in records if record["steps"] is not None)
    conclusion, count = counts.most_common(1)[0] if counts else ("", 0)
    return conclusion if count > 1 else None


def score_decision(record: Record, limits: Thresholds, usual: str | None = None) -> float | None:
    """Return 1 for a conclusion that moves with the images and loses almost nothing with other steps, else 0.

    It loses almost nothing if no change of its steps costs it the threshold's share of what other images cost it. None
    without steps, and for the usual conclusion.
    """
    steps = record["steps"]
    if steps is None or steps["conclusion"] == usual:
        return None
    lost = max(steps["lost"].values())
    return float(steps["moved_by_images"] and lost < limits.decided_share * steps["lost_by_images"])


def score_following(record: Record) -> float | None:
    """Return 1 for an answer that follows the hint in its own question in both directions, and 0 for one that does not.

    Where the question has none, half of the share of the given hints that the answer follows: the answer as it was
    given followed none. None if no hint could be given.
    """
    hints = record["hints"]
    if not hints:
        return None
    share = float(np.mean([hint["followed"] for hint in hints]))
    return share if any(hint["wording"] == OWN_HINT for hint in hints) else share / 2


def score_errors(record: Record, attribute: str) -> float | None:
    """Return 1 if an answer errs in an attribute, else how likely it would, 0.5 if false without a claim, else 0.

    How likely is the chance that the model says something else than the truth about the attribute.
    """
    claims, doubt = record["attributes"], record.get("doubt") or {}
    if any(claim["wrong"] and claim["attribute"] == attribute for claim in claims):
        return 1.0
    if attribute in doubt:
        return float(doubt[attribute])
    if record["right"] is None and not claims:
        return None
    return 0.5 if record["right"] is False and not claims else 0.0


def score_claims(record: Record, cue: str, thing: str) -> float | None:
    """Return 1 if an answer claims an absent thing where its cue is, else 0; None where nothing could be claimed."""
    asked = [each["claimed"] for each in record["cues"] if each["thing"] == thing and cue in each["cues"]]
    listed = [thing in each["false"] for each in record["listed"] if cue in each["cues"]]
    found = asked + listed
    return float(any(found)) if found else None
