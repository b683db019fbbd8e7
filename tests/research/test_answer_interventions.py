"""Answers for docs/interventions.md are asked once, and are scored without a model."""

from __future__ import annotations

from importlib import import_module

import pytest

from mmprobe.benchmarks.core.compare import Contender


@pytest.fixture
def script(monkeypatch):
    module = import_module("answer_interventions")
    monkeypatch.setattr(module, "SETS", {"test": (5, 2)})
    monkeypatch.setattr(module, "_load_worker_model", lambda: None)
    return module


def test_answers_are_kept_and_scored_without_a_model(script, monkeypatch, tmp_path):
    asked = []

    def answer(model, samples, folder, settings):
        for sample in samples:
            asked.append((settings.methods[0].name, sample.id))
            is_count = sample.metadata["type"] == "count"
            yield sample.id, "There are 2 differences." if is_count else "Yes."

    monkeypatch.setattr(script, "answer", answer)
    data = script.draw_pairs(tmp_path, "test")
    contenders = [Contender("plain", "plain", {}), Contender("weak", "sage", {"eta": 0.0})]
    jobs = [(contender, "spd-faith", data, None) for contender in contenders]
    numbers = [script._answer_in_worker(job)[2] for job in jobs]
    assert numbers[0] == numbers[1] > 8 and len(asked) == sum(numbers)
    assert sum(name.endswith("-find") for _, name in asked) == 4, "two follow-up questions a method"
    assert [script._answer_in_worker(job)[2] for job in jobs] == [0, 0]
    file = tmp_path / "test" / "answers" / "sage-eta=0.0" / "spd-faith.jsonl"
    lines = file.read_text().splitlines()
    lines[0] = lines[0].replace('"question": "', '"question": "Once more: ')  # an answer to another question
    file.write_text("\n".join([*lines[:-1], lines[-1][:20]]))  # the process was killed
    assert script._answer_in_worker(jobs[1])[2] == 2
    monkeypatch.setattr(script, "answer", None)
    ds = script.score_all(contenders, ["spd-faith"], tmp_path, "test")
    assert ds["contender"].values.tolist() == ["plain", "weak"]
    assert ds["n"].sel(metric="spd-faith dqr_exact").values.tolist() == [2, 2]
    assert ds["difference"].sel(metric="spd-faith dqr_exact", contender="weak") == 0
    part = script.score_all(contenders, ["spd-faith"], tmp_path, "test", 1)
    assert part["n"].sel(metric="spd-faith dqr_exact").values.tolist() == [1, 1]
