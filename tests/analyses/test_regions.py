"""Names of things in answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.runs import write_run

from mmprobe.analyses.regions import align_tokens, find_mentions


def mentions(folder: Path, texts: list[str], answer: str, *names: str) -> dict[str, list[list[int]]]:
    trace = {"tokens/text": ["<s>", *texts], "tokens/group": [0, *[4] * len(texts)]}
    return find_mentions(write_run(folder / "run", {"a": trace}, answer=answer)["a"], names)


@pytest.mark.parametrize("space", [" ", ""], ids=["own space", "space dropped"])
def test_mentions_are_whole_names_of_any_number_of_tokens(tmp_path, space):
    """SentencePiece drops the space before a word where it decodes a token on its own."""
    texts = ["The", " um", "brel", "las", " start", " near", " a", " teddy", " bear", ",", " a", " Bear", "s"]
    answer = "".join(texts) + " and one STAR."
    texts = [text.replace(" ", space) for text in [*texts, " and", " one", " ST", "AR", ".", "</s>"]]
    assert mentions(tmp_path, texts, answer, "umbrella", "star", "bear", "teddy bear", "hat") == {
        "umbrella": [[1, 2, 3]],
        "teddy bear": [[7, 8]],
        "bear": [[11]],
        "star": [[15, 16]],
    }


def test_names_may_hold_signs_of_patterns(tmp_path):
    assert mentions(tmp_path, ["a", " (b", ")"], "a (b)", "(b)", "a|b") == {"(b)": [[1, 2]]}
    assert mentions(tmp_path / "none", ["a"], "a") == {}


def test_tokens_that_are_parts_of_characters_do_not_shift_the_others():
    answer, spans = align_tokens(["caf", "\ufffd", "\ufffd", " bus", "<|end|>"], "caf\u00e9 bus")
    assert [answer[start:end] for start, end in spans] == ["caf", "", "", "bus", ""]
