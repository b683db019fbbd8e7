"""A folder that a second call continues: the same call, on the same model and images, with whole lines."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mmprobe import ledger as ledger_module
from mmprobe.errors import InputError, command_line_options, option
from mmprobe.ledger import Ledger, find_change, fingerprint, hash_images, list_differences
from mmprobe.samples import Sample


def make_ledger(folder: Path, **options) -> Ledger:
    differs, remedy = "was made with another {words} ({old}, not {new})", "choose another folder"
    offer = f"use {option('resume')}"
    return Ledger(folder, "settings.json", "a thing", differs, remedy, offer, **options)


def test_a_second_call_needs_an_option_and_must_be_the_same(tmp_path):
    ledger = make_ledger(tmp_path)
    ledger.check(resume=False)
    ledger.begin({"max_length": 1, "shape": (1, 2)})
    with pytest.raises(InputError, match="resume=True$"):
        ledger.check(resume=False)
    with pytest.raises(InputError, match="resume=True and overwrite=True: choose one"):
        ledger.check(resume=True, overwrite=True)
    ledger.check(resume=True)
    before = (tmp_path / "settings.json").read_bytes()
    ledger.begin({"max_length": 1, "shape": (1, 2)})
    assert (tmp_path / "settings.json").read_bytes() == before
    expected = rf"^{tmp_path}: was made with another max length \(1, not 2\); choose another folder$"
    with pytest.raises(InputError, match=expected):
        ledger.begin({"max_length": 2, "shape": (1, 2)})
    with pytest.raises(InputError, match=r"another seed \(None, not 3\)"):
        ledger.begin({"max_length": 1, "shape": (1, 2), "seed": 3})


def test_messages_name_options_as_the_caller_gives_them(tmp_path):
    (tmp_path / "settings.json").write_text("{}")
    with command_line_options():
        ledger = make_ledger(tmp_path)
        with pytest.raises(InputError, match="; use --resume$"):
            ledger.check(resume=False)
        with pytest.raises(InputError, match="^--resume and --overwrite: choose one$"):
            ledger.check(resume=True, overwrite=True)
    assert option("resume") == "resume=True"


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 5000])
def test_settings_that_cannot_be_read_are_one_line(tmp_path, text):
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(
        InputError, match=r"whose call left it \(settings.json cannot be read\); choose another folder$"
    ):
        make_ledger(tmp_path).begin({})


def test_what_is_not_kept_is_recorded_anew_and_what_is_kept_must_have_settings(tmp_path):
    ledger = make_ledger(tmp_path)
    ledger.begin({"a": 1})
    ledger.begin({"a": 2}, kept=False)
    assert json.loads((tmp_path / "settings.json").read_text()) == {"a": 2}
    (tmp_path / "settings.json").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        ledger.begin({"a": 2}, kept=True)


def test_a_changed_model_or_image_is_named(tmp_path):
    sample = Sample(id="0001", question="?", images=[tmp_path / "a.png", tmp_path / "b.png"])
    for path in sample.images:
        path.write_bytes(b"1")
    model = {"of": "files", "weights": "1", "chat template": "2"}
    ledger = make_ledger(tmp_path / "out")
    (tmp_path / "out").mkdir()
    ledger.begin({"a": 1}, fingerprint(model, [sample]))
    ledger.begin({"a": 1}, fingerprint(model, [sample]))
    ledger.begin({"a": 1}, fingerprint(None, []))
    ledger.begin({"a": 1}, fingerprint({"of": "memory", "weights": "3"}, [sample]))
    expected = rf"^{tmp_path}/out: the model's weights changed since the earlier call; choose another folder$"
    with pytest.raises(InputError, match=expected):
        ledger.begin({"a": 1}, fingerprint(model | {"weights": "3"}, [sample]))
    with pytest.raises(InputError, match="chat template changed"):
        ledger.begin({"a": 1}, fingerprint(model | {"chat template": "3"}, [sample]))
    sample.images[1].write_bytes(b"22")
    with pytest.raises(InputError, match="images of sample 0001 changed"):
        ledger.begin({"a": 1}, fingerprint(model, [sample]))
    sample.images[1].unlink()
    ledger.begin({"a": 1}, fingerprint(model, [sample]))  # a missing image is another problem


def test_a_part_of_a_model_that_is_removed_or_added_is_named(tmp_path):
    with_it = {"of": "files", "weights": "1", "generation config": "2"}
    without = with_it | {"generation config": ""}
    for number, (earlier, now) in enumerate(((with_it, without), (without, with_it))):
        ledger = make_ledger(tmp_path / str(number))
        ledger.folder.mkdir()
        ledger.begin({}, fingerprint(earlier))
        with pytest.raises(InputError, match="generation config changed"):
            ledger.begin({}, fingerprint(now))
    ledger.begin({}, fingerprint(with_it | {"weights": ""}))  # nothing of the model was read
    ledger.begin({}, fingerprint({"of": "files", "weights": "1"}))  # an earlier version knew fewer parts


def test_what_differs_within_a_setting_is_named(tmp_path):
    ledger = replace(make_ledger(tmp_path), differs="was made with another {words}")
    about = {"name": "a", "dtype": "float32", "sizes": [1, 2], "of": {"max_length": 3, "kinds": ["x"]}}
    ledger.begin({"model": about})
    changes = {
        "(dtype float32, now bfloat16)": {"dtype": "bfloat16"},
        "(sizes)": {"sizes": [1, 3]},
        "(of (max length 3, now 4))": {"of": about["of"] | {"max_length": 4}},
        "(of (kinds))": {"of": about["of"] | {"kinds": []}},
        "(new None, now 1)": {"new": 1},
    }
    for words, change in changes.items():
        with pytest.raises(InputError, match=re.escape(f"with another model {words}; choose")):
            ledger.begin({"model": about | change})


def test_an_older_folder_has_no_fingerprint_and_gets_none(tmp_path):
    ledger = make_ledger(tmp_path)
    ledger.begin({"a": 1})
    ledger.begin({"a": 1}, fingerprint({"of": "files", "weights": "1"}))
    assert json.loads((tmp_path / "settings.json").read_text()) == {"a": 1}
    assert find_change(None, {"model": {"of": "files", "weights": "1"}}) is None


def test_equal_images_elsewhere_are_the_same_and_their_order_counts(tmp_path):
    paths = [tmp_path / name for name in ("a.png", "b.png", "c.png")]
    for path, content in zip(paths, (b"1", b"2", b"1"), strict=True):
        path.write_bytes(content)
    first, second, third = paths
    hashes = [
        hash_images(Sample(id="a", question="?", images=images))
        for images in ([first, second], [third, second], [second, first])
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_torn_line_is_removed_and_the_next_one_is_whole(tmp_path):
    ledger = make_ledger(tmp_path)
    assert ledger.lines("lines.jsonl") == []
    ledger.append("lines.jsonl", [{"id": "a"}, {"id": "ä"}])
    with (tmp_path / "lines.jsonl").open("a") as file:
        file.write('{"id": "cut')
    assert ledger.lines("lines.jsonl") == [{"id": "a"}, {"id": "ä"}]
    ledger.append("lines.jsonl", [{"id": "\ud800 ü"}], ensure_ascii=False)
    assert (tmp_path / "lines.jsonl").read_text() == '{"id": "a"}\n{"id": "\\u00e4"}\n{"id": "? ü"}\n'
    (tmp_path / "lines.jsonl").write_text('{"id": "cut')
    assert ledger.lines("lines.jsonl") == [] and (tmp_path / "lines.jsonl").read_bytes() == b""


def test_what_the_ledger_owns_is_cleared_and_the_mark_goes_last(tmp_path, monkeypatch):
    ledger = make_ledger(tmp_path, mark="answers.jsonl", owns=("*.json", "answers.jsonl", "run"))
    (tmp_path / "run").mkdir()
    names = ["answers.jsonl", "keep.txt", "results.json", "run/a", "settings.json", ".lock.json"]
    for name in names:
        (tmp_path / name).write_text("")
    order, unlink = [], Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path: (order.append(path.name), unlink(path)))
    ledger.clear()
    assert order[-2:] == ["settings.json", "answers.jsonl"]
    assert {path.name for path in tmp_path.iterdir()} == {"keep.txt", ".lock.json"}
    assert not ledger.begun and ledger.is_empty(["keep.txt"]) and not ledger.is_empty()


def test_settings_are_compared_as_json():
    assert list_differences({"a": [1, 2], "b": None}, {"a": (1, 2), "b": None, "c": None}) == []
    assert list_differences({}, {"a": 1}) == ["a"]


def test_another_dtype_is_refused_even_where_the_weights_are_in_memory(tmp_path):
    ledger = make_ledger(tmp_path)
    ledger.begin({"a": 1}, fingerprint({"of": "files", "weights": "1", "dtype": "float32"}))
    for model in ({"of": "files", "weights": "1"}, {"of": "memory", "weights": "2"}):
        with pytest.raises(InputError, match="dtype changed"):
            ledger.begin({"a": 1}, fingerprint(model | {"dtype": "bfloat16"}))
        ledger.begin({"a": 1}, fingerprint(model | {"dtype": "float32"}))


def test_other_versions_of_libraries_are_a_warning_that_names_both(tmp_path, monkeypatch, caplog):
    ledger = make_ledger(tmp_path)
    ledger.begin({"a": 1}, fingerprint({"of": "files", "weights": "1"}))
    ledger.begin({"a": 1}, fingerprint({"of": "files", "weights": "1"}))
    assert not caplog.text
    now = ledger_module.library_versions() | {"torch": "99.0"}
    monkeypatch.setattr(ledger_module, "library_versions", lambda: now)
    ledger.begin({"a": 1}, fingerprint({"of": "files", "weights": "1"}))
    assert "was begun with torch " in caplog.text and "now 99.0; digits may differ" in caplog.text
    assert "numpy" not in caplog.text
