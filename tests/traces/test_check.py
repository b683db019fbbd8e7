"""`mmprobe check` names what is wrong with a model that is declared or read wrongly; test_types.py has what it says of right ones."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from helpers.command_line import run_in_process
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model

from mmprobe.models import Model, prompt
from mmprobe.models.reading import AnswerReader
from mmprobe.samples import Sample
from mmprobe.traces.check import check_model, describe_setting, was_checked


def not_ok(model: Model, *samples: Sample) -> set[str]:
    return {check.name for check in check_model(model, samples) if check.ok is False}


@pytest.mark.parametrize("family", first_fast(["qwen2_5_vl", "qwen3_vl", "glm4v"]))
def test_exchanged_rows_and_columns_are_found(family):
    """The number of visual tokens is right, so nothing else notices."""
    model = load_tiny_model(family)

    def views(*arguments):
        return [
            [view._replace(grid=(view.grid[1], view.grid[0])) for view in of_image]
            for of_image in model.family.views(*arguments)
        ]

    assert not_ok(replace(model, family=replace(model.family, views=views))) == {"grid"}


def test_exchanged_tiles_of_cross_attention_are_found():
    model = load_tiny_model("mllama")

    def views(*arguments):
        found = []
        for of_image in model.family.views(*arguments):
            boxes = [view.box for view in of_image]
            found.append(
                [view._replace(box=box) for view, box in zip(of_image, reversed(boxes), strict=True)]
            )
        return found

    assert not_ok(replace(model, family=replace(model.family, views=views))) == {"grid"}


def test_visual_tokens_in_another_order_are_found():
    model = load_tiny_model("qwen2_5_vl")
    merger = model.hf.model.visual.merger
    forward = merger.forward
    merger.forward = lambda *arguments: forward(*arguments).flip(0)
    assert not_ok(model) == {"grid"}


def test_other_positions_while_reading_are_found(monkeypatch):
    model, read = load_tiny_model("qwen2_5_vl"), AnswerReader.read

    def shifted(self, count):
        self.options["position_ids"] = self.options["position_ids"] * 2
        read(self, count)

    monkeypatch.setattr(AnswerReader, "read", shifted)
    assert {"attention of drawn-1", "log-probabilities of drawn-2", "reading of drawn-2"} <= not_ok(model)


def test_a_module_that_is_not_where_it_is_said_to_be_is_found():
    model = load_tiny_model("llava")
    family = replace(
        model.family, parts=lambda layer: model.family.parts(layer)._replace(mid=layer.input_layernorm)
    )
    assert "structure" in not_ok(replace(model, family=family))


def test_another_prompt_than_the_template_gives_is_found(monkeypatch):
    render = prompt.render_chat
    changed = lambda *arguments: render(*arguments)._replace(text=render(*arguments).text + "\n")  # noqa: E731
    monkeypatch.setattr(prompt, "render_chat", changed)
    assert {"prompt of drawn-1", "prompt of drawn-2"} <= not_ok(load_tiny_model("qwen2_5_vl"))


def test_the_command_writes_its_lines(tmp_path, monkeypatch, image_paths):
    monkeypatch.chdir(tmp_path)
    model = load_tiny_model("llava")
    monkeypatch.setattr("mmprobe.models.load_model", lambda *_, **__: model)
    samples = [
        {"id": "mine", "question": "Is there a star?", "images": [str(image_paths[0])], "system": "Be brief."}
    ]
    (tmp_path / "mine.jsonl").write_text(json.dumps(samples[0]) + "\n")
    done = run_in_process("check", "tiny-spd", "--data", "mine.jsonl")
    assert done.code == 0, done.stdout
    result = json.loads((tmp_path / "check.json").read_text())
    assert result["ok"] and result["model"]["name"] == model.name and result["versions"]["torch"]
    assert "attention of mine" in {check["name"] for check in result["checks"]}
    assert done.stdout.splitlines()[-1].startswith(f"0 of {len(result['checks'])} not ok")

    monkeypatch.setattr("mmprobe.traces.check.LEAST_FOUND", 1.1)
    monkeypatch.setattr("mmprobe.traces.check.LEAST_FOLLOWING", 1.1)
    done = run_in_process("check", "tiny-spd", "--json")
    assert done.code == 1 and json.loads(done.stdout)["ok"] is False
    assert run_in_process("check", "tiny-spd", "--data", "nowhere.jsonl").code == 2
    assert run_in_process("check", "tiny-spd", "--out", "nowhere/check.json").code == 2


def test_a_model_counts_as_checked_until_it_changes(tmp_path):
    model, file = load_tiny_model("llava"), tmp_path / "check.json"
    assert not was_checked(model, file)
    file.write_text(json.dumps(describe_setting(model)))
    assert was_checked(model, file)
    changed = load_tiny_model("llava")
    next(changed.hf.parameters()).data.add_(1)
    assert not was_checked(changed, file)
    file.write_text("[]")
    assert not was_checked(model, file)
