"""asked.json and drawn.json, by which a call knows an earlier one, are checked like other files."""

from __future__ import annotations

import json

import pytest

from mmprobe.benchmarks.core.benchmark import BENCHMARKS, load_truth
from mmprobe.benchmarks.core.runner import open_answers
from mmprobe.errors import InputError
from mmprobe.settings import DataSettings

WRONG = ["null", "3", "[]", "[" * 5000, "{", '{"n": 4}', '{"n": "4", "seed": 7}']


@pytest.mark.parametrize("text", WRONG)
def test_a_note_of_another_form_is_refused_in_one_line(tmp_path, text):
    open_answers(tmp_path, [], {}, None, resume=False)
    (tmp_path / "responses.jsonl").write_text('{"id": "a", "response": "Yes."}\n')
    assert open_answers(tmp_path, [], {}, None, resume=True) == {"a": "Yes."}
    (tmp_path / "asked.json").write_text(text)
    with pytest.raises(InputError, match="choose another folder") as error:
        open_answers(tmp_path, [], {"model": "a"}, None, resume=True)
    assert "\n" not in str(error.value)
    benchmark = BENCHMARKS["chair"]()
    load_truth(benchmark, DataSettings(n=4), tmp_path / "data", seed=7)
    load_truth(benchmark, DataSettings(n=4), tmp_path / "data", seed=7)
    (tmp_path / "data" / "drawn.json").write_text(text)
    with pytest.raises(InputError, match=r"drawn\.json") as error:
        load_truth(benchmark, DataSettings(n=4), tmp_path / "data", seed=7)
    assert "\n" not in str(error.value)


def test_another_seed_is_refused(tmp_path):
    load_truth(BENCHMARKS["chair"](), DataSettings(n=4), tmp_path / "data", seed=7)
    assert json.loads((tmp_path / "data" / "drawn.json").read_text()) == {"n": 4, "seed": 7}
    with pytest.raises(InputError, match="was drawn with n 4 and seed 7"):
        load_truth(BENCHMARKS["chair"](), DataSettings(n=4), tmp_path / "data", seed=8)
