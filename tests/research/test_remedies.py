"""Remedies for known causes: what is asked, what is gained, and where the page keeps it."""

from __future__ import annotations

import numpy as np
import pytest
import remedies
import remedies_page
from checks import is_faithful

from mmprobe.models.organisms import card
from mmprobe.stats.compare import sign_flip_p
from mmprobe.stats.estimate import Estimate


@pytest.mark.parametrize("name", remedies.ORGANISMS)
def test_every_organism_is_asked_what_its_cause_acts_on(name):
    about = card(name)
    cases = list(remedies.draw_cases(about, 3))
    assert len({case.id for case in cases}) == len(cases) >= 3
    assert [case.id for case in remedies.draw_cases(about, 2)] == [
        case.id for case in cases[: len(cases) * 2 // 3]
    ]
    assert all(is_faithful(case.question.answer, case.question, case.pair) for case in cases)
    for case in cases:
        if about.cause == "follows-hints":
            word = case.question.answer[:3].strip(".,").lower()
            assert case.text.lower().endswith(f"{'no' if word == 'yes' else 'yes'}.")
        if about.cause == "co-occurrence" and case.question.type == "exists":
            assert case.question.answer.startswith("No, there is no")


def test_a_gain_is_paired_with_the_plain_answer():
    plain = {f"{pair:04d}-{kind}": pair < 4 for pair in range(8) for kind in ("same", "colour")}
    own = {name: value or name.endswith("same") for name, value in plain.items()}
    gain = remedies_page.measure_gain({**own, "0009-same": False}, plain)
    assert (gain.share, gain.difference.value, gain.difference.n) == (0.75, 0.25, 16)
    assert gain.difference.low < 0.25 < gain.difference.high <= 1
    assert remedies_page.measure_gain(dict.fromkeys(plain, True), dict.fromkeys(plain, False)).difference.sign
    assert not remedies_page.measure_gain(plain, plain).difference.sign


def test_tables_say_who_helps_and_who_harms():
    gains = {
        cause: {
            "plain": remedies_page.Gain(0.5, Estimate(0, 0, 0, 9)),
            "sage: see": remedies_page.Gain(0.5 + value, Estimate(value, value - 0.1, value + 0.1, 9)),
        }
        for cause, value in (("control", -0.2), ("blind", 0.3), ("co-occurrence", 0.05))
    }
    assert "| sage: see | 0.30<br>**-0.20 [-0.30, -0.10]** |" in remedies_page.write_table(gains)
    assert "- **blind** helps: sage: see +0.30; harms: none" in remedies_page.write_verdicts(gains)
    claims = remedies_page.write_claims(gains)
    assert "harms control -0.20" in claims
    assert np.shape(remedies_page.draw_figure(gains).data[0].z) == (3, 1)


def test_help_is_said_only_where_false_discoveries_are_held():
    rng = np.random.default_rng(0)
    cells = {f"nothing {number}": rng.random(200) for number in range(60)}
    plain = {f"{pair:04d}-same": pair % 2 == 0 for pair in range(200)}
    drawn = {
        name: {key: value ^ (draws[index] < 0.05) for index, (key, value) in enumerate(plain.items())}
        for name, draws in cells.items()
    }
    helps = {key: value or index % 5 == 0 for index, (key, value) in enumerate(plain.items())}
    scores = {"blind": {"plain": plain, "helps": helps, **drawn}}
    gains = remedies_page.control_discoveries(
        {
            cause: {name: remedies_page.measure_gain(own, plain) for name, own in by.items()}
            for cause, by in scores.items()
        }
    )["blind"]
    by_interval = [name for name in drawn if gains[name].difference.sign]
    assert by_interval, "some of 60 intervals exclude 0 by chance"
    assert gains["helps"].sign == 1 and gains["plain"].sign == 0
    assert not [name for name in drawn if gains[name].sign]


def test_p_flips_the_signs_of_whole_pairs():
    differences, pairs = np.array([1.0, 1, 1, 1, 1, 1, -1, 1]), np.repeat(np.arange(4), 2)
    sums = np.bincount(pairs, differences)
    flips = np.array(np.meshgrid(*[[1, -1]] * 4)).reshape(4, -1).T
    exact = np.mean(np.abs(flips @ sums) >= abs(sums.sum()))
    assert sign_flip_p(differences, pairs) == pytest.approx(exact)
    assert sign_flip_p(np.zeros(4), np.arange(4)) == 1


def test_answers_are_asked_once(tmp_path, monkeypatch):
    def answer(model, samples, folder, settings):
        return ((sample.id, "No.") for sample in samples)

    monkeypatch.setattr(remedies, "answer", answer)
    about = card("misperceives-swapped-0")
    samples = remedies.write_samples(list(remedies.draw_cases(about, 2)), tmp_path / "images")
    assert all(image.is_file() for sample in samples for image in sample.images)
    contender, file = remedies.CONTENDERS[0], tmp_path / "answers" / "plain.jsonl"
    answers = remedies.answer_cases(lambda: None, contender, samples[:3], file)
    file.write_text(file.read_text() + '{"id": "00')  # a killed process
    assert remedies.read_answers(file) == answers and len(answers) == 3
    assert remedies.score_answers(about, answers, 2) == dict.fromkeys(answers, False)
