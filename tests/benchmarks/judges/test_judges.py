"""Judges: strict replies, the fence, the reply cache, majorities, and kappa."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from mmprobe.benchmarks.core.api_models import Reply
from mmprobe.benchmarks.judges import Judgement
from mmprobe.benchmarks.judges.agreement import compute_agreement
from mmprobe.benchmarks.judges.cache import ReplyCache, cache_key
from mmprobe.benchmarks.judges.ensemble import majority_labels
from mmprobe.benchmarks.judges.model import ModelJudge
from mmprobe.benchmarks.judges.requests import UnusableReply, fence, list_reader
from mmprobe.benchmarks.spd_faith.match import Agreement
from mmprobe.benchmarks.spd_faith.model_labels import majority_claims
from mmprobe.benchmarks.spd_faith.prompts import JudgedClaim, Match, read_claims, read_matches
from mmprobe.errors import InputError

ANSWER = "No. The chair turned red, and the dog is gone."
CHAIR = {"type": "color", "category": "chair", "quote": "The chair turned red"}
DOG = {"type": "remove", "category": "Dog ", "quote": "the dog is  gone"}
CLAIMED = (
    JudgedClaim("color", "chair", "The chair turned red"),
    JudgedClaim("remove", "dog", "the dog is  gone"),
)


def reply(*claims):
    return json.dumps({"claims": list(claims)})


# replies, read strictly


def test_reads_claims_that_quote_the_answer():
    assert read_claims(reply(CHAIR, DOG), ANSWER) == CLAIMED
    assert read_claims(f"```json\n{reply(CHAIR)}\n```", ANSWER) == CLAIMED[:1]
    assert read_claims(reply(), ANSWER) == ()


@pytest.mark.parametrize(
    "text",
    [
        f"Here you are: {reply(CHAIR)} I hope that this helps {{a lot}}.",
        f"<think>Is it {reply()} or not?</think>\n{reply(CHAIR)}",
        f"Sure!\n```json\n{reply(CHAIR)}\n```\nAnything else?",
        reply(CHAIR | {"score": 1}),
        json.dumps({"claims": [CHAIR], "reason": "red"}),
        f'{{"thoughts": "one claim"}} {reply(CHAIR)} {reply(CHAIR)}',
    ],
)
def test_the_object_of_the_form_is_read_beside_prose_thoughts_and_further_keys(text):
    assert read_claims(text, ANSWER) == CLAIMED[:1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I'm sorry, I can't help with that.",
        "null",
        "[]",
        "{}",
        '{"claims": null}',
        reply(CHAIR)[:-1],
        reply(CHAIR | {"type": "size"}),
        reply(CHAIR | {"type": 1}),
        reply({"type": "color", "category": "chair"}),
        reply(CHAIR | {"quote": "the sofa turned red"}),
        reply(CHAIR | {"quote": "  "}),
        reply(CHAIR | {"category": " "}),
        reply(*[CHAIR] * 201),
    ],
)
def test_other_replies_are_unusable(text):
    with pytest.raises(UnusableReply) as caught:
        read_claims(text, ANSWER)
    assert "sofa" not in str(caught.value)  # the message quotes nothing of the reply


def test_the_number_of_labels_must_be_right():
    read = list_reader(Agreement, 2, "pairs")
    assert read('{"labels": ["consistent", "contradictory"]}') == ("consistent", "contradictory")
    for text in (
        '{"labels": ["consistent"]}',
        '{"labels": ["consistent", "maybe"]}',
        '{"labels": "consistent"}',
    ):
        with pytest.raises(UnusableReply):
            read(text)


def test_matches_name_a_truth_or_an_error():
    def label(claim, truth, error):
        return {"claim": claim, "truth": truth, "error": error}

    good = json.dumps({"labels": [label(1, 2, None), label(2, None, "fabrication")]})
    assert read_matches(good, 2, 2) == (Match(1, None), Match(None, "fabrication"))
    for labels in (
        [label(1, 1, None)],
        [label(2, 1, None), label(1, 1, None)],
        [label(1, 1, None), label(1, 1, None)],
        [label(1, 3, None), label(2, 1, None)],
        [label(1, 0, None), label(2, 1, None)],
        [label(1, 1, "fabrication"), label(2, 1, None)],
        [label(1, None, None), label(2, 1, None)],
        [label(1, None, "lie"), label(2, 1, None)],
        [label(1, True, None), label(2, 1, None)],
    ):
        with pytest.raises(UnusableReply):
            read_matches(json.dumps({"labels": labels}), 2, 2)


# the fence

FENCED = re.compile(r"<data (\w{8})>\n(.*)\n</data \1>")


def test_data_cannot_leave_its_fence(injection):
    whole = fence({"answer": injection})
    match = FENCED.fullmatch(whole)  # the dot matches no line break, so all data is on one line
    assert json.loads(match[2]) == {"answer": injection}
    assert "<" not in match[2]
    assert match[2].isprintable()
    forged = fence({"answer": whole})
    assert FENCED.fullmatch(forged) and forged.count("<data ") == 1


def test_another_language_stays_readable():
    assert "椅子变红了, çà" in fence({"answer": "椅子变红了, çà"})


def test_without_inspect_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai.model", None)
    with pytest.raises(InputError, match=r"pip install 'mmprobe\[eval\]'"):
        ModelJudge("openai/gpt-4o")


# the cache


def test_the_key_depends_on_all_inputs():
    base = ("a/b", [("user", "Hi")], {"seed": 0})
    keys = {
        cache_key(*base),
        cache_key("a/c", *base[1:]),
        cache_key("a/b", [("system", "Hi")], base[2]),
        cache_key("a/b", [("user", "Hi"), ("user", "")], base[2]),
        cache_key("a/b", base[1], {"seed": 1}),
        cache_key("a/b", [("user", "\ud800")], base[2]),
    }
    assert len(keys) == 6
    assert cache_key(*base) == cache_key("a/b", [("user", "Hi")], {"seed": 0})


def test_the_cache_keeps_the_last_reply(tmp_path):
    path = tmp_path / "made" / "cache.sqlite"
    cache = ReplyCache(path)
    cache.put("k", Reply("first", "stop"))
    cache.put("k", Reply("second \U0001f600", "stop"))
    cache.put("half", Reply("\ud800", "stop"))
    cache.close()
    again = ReplyCache(path)
    assert again.get("k") == Reply("second \U0001f600", "stop")
    assert again.get("half").text == "?" and again.get("none") is None and len(again) == 2


def test_other_files_are_not_taken_for_a_cache(tmp_path):
    (tmp_path / "text").write_text("this is no database at all, but a text" * 100)
    with pytest.raises(InputError, match="reply cache"):
        ReplyCache(tmp_path / "text")
    with pytest.raises(InputError, match="reply cache"):
        ReplyCache(tmp_path)
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("CREATE TABLE precious (x)")
    other.close()
    with pytest.raises(InputError, match="no reply cache"):
        ReplyCache(tmp_path / "other.sqlite")


WRITE = """
import sys
from mmprobe.benchmarks.core.api_models import Reply
from mmprobe.benchmarks.judges.cache import ReplyCache
cache, worker = ReplyCache(sys.argv[1]), sys.argv[2]
for number in range(int(sys.argv[3])):
    cache.put(str(number % 50), Reply(str(number % 50), "stop"))
    cache.put(f"{worker}-{number}", Reply("x" * 5000, "stop"))
    print(number, flush=True)
"""


def writer(path, worker, count):
    command = [sys.executable, "-P", "-c", WRITE, str(path), str(worker), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_several_processes_share_a_cache(tmp_path):
    path = tmp_path / "cache.sqlite"
    workers = [writer(path, worker, 100) for worker in range(3)]
    for worker in workers:
        worker.communicate(timeout=120)
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    cache = ReplyCache(path)
    assert len(cache) == 350
    assert all(cache.get(str(number)).text == str(number) for number in range(50))


def test_a_kill_loses_no_reply(tmp_path):
    path = tmp_path / "cache.sqlite"
    worker = writer(path, "w", 10**9)
    stored = [int(next(worker.stdout)) for _ in range(200)]
    worker.kill()
    stored += [int(line) for line in worker.stdout.read().splitlines()]
    worker.wait()
    cache = ReplyCache(path)
    assert all(cache.get(f"w-{number}").text == "x" * 5000 for number in stored)
    assert len(stored) <= len(cache) - 50 <= len(stored) + 1
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


# several judges

CAT = JudgedClaim("color", "cat", "a black cat")
HEN = JudgedClaim("remove", "hen", "no hen")
ALSO_HEN = JudgedClaim("remove", "hen", "the second hen is gone")


def test_claims_that_most_judges_found():
    majority = majority_claims(
        [
            Judgement((HEN, ALSO_HEN, CAT), calls=1),
            Judgement((HEN, ALSO_HEN), calls=2),
            Judgement((HEN,), calls=1, truncated=True),
        ]
    )
    assert majority == Judgement((HEN, ALSO_HEN), None, 4, True)
    assert majority_claims([Judgement((HEN,)), Judgement(())]).items == ()  # one of two is not a majority
    assert majority_claims([Judgement(()), Judgement(()), Judgement((CAT,))]).items == ()


def test_words_for_one_category_are_one_vote():
    puppy, dog = JudgedClaim("remove", "puppy", "no puppy"), JudgedClaim("remove", "dog", "the dog is gone")
    assert majority_claims([Judgement((puppy,)), Judgement((dog,))]).items == (puppy,)


def test_too_few_judges_that_scored():
    lost = Judgement(None, "timeout", 1)
    assert majority_claims([Judgement((HEN,)), Judgement((HEN,)), lost]).items == (HEN,)
    assert majority_claims([Judgement((HEN,)), lost, lost]) == Judgement(None, "timeout", 2)
    assert majority_labels([Judgement(("a",)), lost]) == Judgement(None, "timeout", 1)


def test_labels_that_most_judges_gave():
    def by(*labels):
        return Judgement(labels)

    assert majority_labels([by("a", "b"), by("a", "c"), by("d", "c")]).items == ("a", "c")
    assert majority_labels([by("a"), by("b"), by("c")]).unscored == "disagreement"
    assert majority_labels([by("a"), by("b"), by("c")], tie="z").items == ("z",)
    assert majority_labels([by("a", "a"), by("b", "a")], tie="z").items == ("z", "a")
    assert majority_labels([by(), by()]).items == ()
    with pytest.raises(ValueError):
        majority_labels([by("a"), by("a", "b")])


# agreement


def test_kappa_by_hand():
    """A textbook table: 20 both yes, 15 both no, 5 and 10 disagreements: (0.7 - 0.5) / (1 - 0.5)."""
    first = [["yes"]] * 25 + [["no"]] * 25
    second = [["yes"]] * 20 + [["no"]] * 5 + [["yes"]] * 10 + [["no"]] * 15
    metrics = compute_agreement(first, second)
    assert metrics["kappa"].value == pytest.approx(0.4)
    assert metrics["agreement"].value == pytest.approx(0.7)
    assert metrics["kappa"].low < 0.4 < metrics["kappa"].high
    width = metrics["kappa"].high - metrics["kappa"].low
    standard_error = (0.7 * 0.3 / 50) ** 0.5 / 0.5  # Cohen's
    assert width == pytest.approx(2 * 1.96 * standard_error, rel=0.15)


def test_kappa_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    first = [rng.choice(["a", "b", "c"], size=rng.integers(0, 5)).tolist() for _ in range(80)]
    second = [[label if rng.random() < 0.6 else "b" for label in labels] for labels in first]
    expected = cohen_kappa_score(sum(first, []), sum(second, []))
    assert compute_agreement(first, second)["kappa"].value == pytest.approx(expected)


def test_kappa_at_its_edges():
    assert compute_agreement([["a"], ["b"]], [["a"], ["b"]])["kappa"].value == 1
    assert compute_agreement([["a"], ["b"]], [["b"], ["a"]])["kappa"].value == -1
    always = compute_agreement([["a"]] * 3, [["a"]] * 3)
    assert (always["kappa"].value, always["agreement"].value) == (None, 1)
    assert compute_agreement([], [])["kappa"].value is None
    assert compute_agreement([[]], [[]])["kappa"].value is None
    partly = compute_agreement([["a"], None, ["b"]], [["a"], ["a"], None])
    assert (partly["agreement"].n, partly["agreement"].coverage) == (1, pytest.approx(1 / 3))


def test_judges_of_different_samples():
    with pytest.raises(InputError, match="1 samples by one judge, 2"):
        compute_agreement([["a"]], [["a"], ["b"]])
    with pytest.raises(InputError, match="sample 0 .* 1 labels .* 2"):
        compute_agreement([["a"]], [["a", "b"]])
