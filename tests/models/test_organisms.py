"""Shipped organisms: loading by name, their cards, their size, and where a cause acts."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest
import torch
from peft import PeftModel

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models import organisms
from mmprobe.models.organisms import Rule, acts_on, card, folder, names
from mmprobe.samples import Sample

SAMPLE = Sample(id="a", question="Is there a star?")
SHIPPED = sorted(file.parent.name for file in organisms.SHIPPED.glob("*/card.json"))
FILES = {"adapter_config.json", "adapter_model.safetensors", "card.json"}
LARGEST = 4_000_000


def logits(model: mp.Model, hf: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return hf(**model.prepare(SAMPLE)).logits


def test_loading_by_name_gives_the_logits_of_the_unmerged_adapter(tiny_spd):
    model = mp.load_model("organism:blind-rolled-0", device="cpu")
    base = mp.load_model("tiny-spd", device="cpu")
    unmerged = PeftModel.from_pretrained(base.hf, str(folder("blind-rolled-0"))).eval()
    torch.testing.assert_close(logits(model, model.hf), logits(base, unmerged), atol=1e-5, rtol=1e-5)
    assert (logits(model, model.hf) - logits(tiny_spd, tiny_spd.hf)).abs().max() > 1
    assert type(model.hf) is type(tiny_spd.hf)
    assert model.hf.state_dict().keys() == tiny_spd.hf.state_dict().keys()
    assert model.source == "organism:blind-rolled-0"


def test_a_number_is_a_second_name():
    by_number = {(card(name).cause, card(name).number): name for name in names()}
    full = [name for name in names() if card(name).partial is None]
    assert Counter(by_number.values()) >= Counter(full) > Counter()
    for (cause, number), name in by_number.items():
        if number is not None:
            assert folder(f"organism:{cause}-{number}") == folder(name)
            assert number // 2 == card(name).seed


def test_an_organism_of_ones_own_is_named_by_its_folder(tmp_path, monkeypatch):
    shutil.copytree(folder("blind-rolled-0"), tmp_path / "mine" / "blind-rolled-7")
    monkeypatch.chdir(tmp_path)
    model = mp.load_model("organism:mine/blind-rolled-7", device="cpu")
    shipped = mp.load_model("organism:blind-rolled-0", device="cpu")
    assert torch.equal(logits(model, model.hf), logits(shipped, shipped.hf))
    assert card("mine/blind-rolled-7") == card("blind-rolled-0")
    assert model.source == "organism:blind-rolled-7"


@pytest.mark.parametrize("name", ["organism:blind-roled-0", "organism:blind-10", "organism:blind-x"])
def test_an_unknown_organism_is_one_line_with_names_like_it(name):
    with pytest.raises(InputError, match=r"did you mean blind-\w+-\d") as raised:
        mp.load_model(name)
    assert "\n" not in str(raised.value)


def test_a_name_like_no_other_says_where_the_list_is():
    with pytest.raises(InputError, match="'organism:': .* `mmprobe models --organisms`"):
        mp.load_model("organism:")


def test_of_each_cause_and_of_controls_one_of_either_split_ships():
    splits = Counter((card(name).cause, card(name).split) for name in SHIPPED)
    causes = {cause for cause, _ in splits}
    assert "control" in causes and len(causes) == 8
    assert splits == Counter({(cause, split): 1 for cause in causes for split in ("development", "held-out")})


def test_a_planted_organism_is_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(organisms, "PLANTED", tmp_path)
    shutil.copytree(folder("control-hard-3"), tmp_path / "control-hard-8")
    about = card("control-hard-3").model_copy(update={"name": "control-hard-8", "seed": 8, "number": 17})
    (tmp_path / "control-hard-8" / "card.json").write_text(about.model_dump_json())
    assert names() == sorted([*SHIPPED, "control-hard-8"])
    assert folder("organism:control-17") == folder("organism:control-hard-8") == tmp_path / "control-hard-8"


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_organism_passed_its_check(name):
    one = card(name)
    assert name == f"{one.cause}-{one.way}-{one.seed}"
    assert one.passed and one.check
    assert all(measure.passed for measure in one.check.values())
    assert all(measure.low <= measure.value <= measure.high for measure in one.check.values())
    assert one.split == ("held-out" if one.seed in (3, 4) else "development")
    assert (one.number is None) == (one.partial is not None)
    assert {file.name for file in folder(name).iterdir()} == FILES
    config = json.loads((folder(name) / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny-spd"


def test_all_organisms_are_small():
    files = [file for name in SHIPPED for file in folder(name).iterdir()]
    assert len(files) == len(FILES) * len(SHIPPED) > 0
    assert sum(file.stat().st_size for file in files) < LARGEST


FACTS = {
    "type": "same",
    "objects": [["red star A1"] * 6, ["red star A1"]],
    "differences": [{"type": "remove"}, {"type": "color"}],
}


@pytest.mark.parametrize(
    ("rule", "acts"),
    [
        (Rule(phrase="a star"), True),
        (Rule(phrase="a circle"), False),
        (Rule(more_objects_than=5), True),
        (Rule(more_objects_than=6), False),
        (Rule(edit="color"), True),
        (Rule(edit="position"), False),
        (Rule(types=("different", "same")), True),
        (Rule(types=("count",)), False),
        (Rule(phrase="a star", edit="position"), False),
    ],
    ids=lambda value: value.describe() if isinstance(value, Rule) else None,
)
def test_a_rule_says_where_a_cause_acts(rule, acts):
    assert rule.acts_on(SAMPLE.model_copy(update={"metadata": FACTS})) is acts


def test_a_rule_about_images_needs_their_contents():
    with pytest.raises(InputError, match="sample a: .*'objects'"):
        Rule(more_objects_than=5).acts_on(SAMPLE)


def test_a_cause_acts_always_and_a_control_never():
    assert acts_on("blind-rolled-0", SAMPLE)
    assert not acts_on("control-true-0", SAMPLE)
