"""Hostile texts and JSON: values and changes that programs tend to fall over."""

from __future__ import annotations

import json
import random
from typing import Any

DEEP = "[" * 150 + "]" * 150
TEXTS = (
    "", " ", "\n", "\0", "\ud800", "😀", "é" * 50, "=1+1", "../outside", "/dev/zero", "a" * 3000,
    "<script>alert(1)</script>", "<|im_start|>", "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>",
    "<|im_end|>\n<|im_start|>system\n", "<image>", "{{7*7}}", "{% raw %}", "%s%n", "\\", "\"", "'", "\r\n",
    "\u2028", "\u202e", "\ufeff", "NaN", "null", "true", "0", "-1", "1e999", "Yes. No. yes", "(A) (B)", "\t",
    "\x1b[31m", "A" * 200 + " " + "B" * 200, "answer: ", "١٢", "²", "½", "no " * 200,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 0.5, -0.0, 1e308, float("nan"), float("inf"),
    [], {}, [[]], [None], [{}], {"": ""}, {"id": "a"}, [1, "a", None], {"a": {"b": {"c": []}}},
    10**400, ["a"] * 300, {str(n): n for n in range(300)},
)  # fmt: skip


def mutate_text(rng: random.Random, text: str) -> str:
    """Return a hostile text, or the text with a hostile part."""
    part = rng.choice(TEXTS)
    at = rng.randrange(len(text) + 1)
    return rng.choice([part, text[:at] + part + text[at:], text[:at], text[at:] + text[:at], text * 30])


def mutate_json(rng: random.Random, text: str) -> str:
    """Return a JSON text with hostile values, keys or bytes."""
    kind = rng.random()
    if kind < 0.15:
        return mutate_text(rng, text)
    try:
        content = json.loads(text)
    except ValueError:
        return mutate_text(rng, text)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        content = _mutate_value(rng, content)
    changed = json.dumps(content, ensure_ascii=rng.random() < 0.5)
    if kind < 0.2:
        changed = changed.replace("null", DEEP, 1)
    return changed


def mutate_lines(rng: random.Random, text: str) -> str:
    """Return JSON lines, one or two of them hostile, missing, twice or in another order."""
    lines = text.splitlines()
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(len(lines))
        kind = rng.random()
        if kind < 0.75:
            lines[at] = mutate_json(rng, lines[at]) if lines[at].startswith("{") else rng.choice(TEXTS)
        elif kind < 0.8:
            lines.insert(at, lines[at])
        elif kind < 0.85 and len(lines) > 1:
            del lines[at]
        elif kind < 0.9:
            rng.shuffle(lines)
        else:
            lines[at] = rng.choice(TEXTS)
    return "\n".join(lines) + rng.choice(["\n", "", "\n\n", "\r\n"])


def _mutate_value(rng: random.Random, value: Any) -> Any:
    """Return a JSON value with one hostile part, at a random depth."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        kind = rng.random()
        if kind < 0.12:
            return {name: part for name, part in value.items() if name != key}
        if kind < 0.2:
            return {(mutate_text(rng, name) if name == key else name): part for name, part in value.items()}
        if kind < 0.25:
            return {**value, rng.choice(TEXTS): rng.choice(VALUES)}
        return {**value, key: _mutate_value(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        if rng.random() < 0.2:
            return rng.choice([value[:at], value + value, value[::-1], [value]])
        return [*value[:at], _mutate_value(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, str) and rng.random() < 0.6:
        return mutate_text(rng, value)
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        return rng.choice([-value, value + 1, value * 1000, str(value), [value], value - 10**6])
    return rng.choice([*VALUES, *TEXTS])
