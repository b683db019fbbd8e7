"""`verify` compares what a trace says about its run and its model with run.json and with its data sets."""

from __future__ import annotations

import json

import pytest
from helpers.runs import edit_trace

from mmprobe.cache import open_run, verify
from mmprobe.cache.run import hash_config
from mmprobe.errors import InputError


def set_attributes(folder, **texts):
    for name in ("a", "b"):
        file = folder / "samples" / f"{name}.h5"
        edit_trace(file, lambda root: root.attrs.update(texts))


def test_verify_finds_settings_that_changed_in_run_json(make_run):
    folder = make_run()
    assert verify(folder) == []
    set_attributes(folder, run_hash=hash_config(open_run(folder).config))
    assert verify(folder) == []
    config = json.loads((folder / "run.json").read_text())
    config["model"]["name"] += "x"
    (folder / "run.json").write_text(json.dumps(config))
    problems = verify(folder)
    assert len(problems) == 2 and all("than run.json says" in problem for problem in problems)


@pytest.mark.parametrize("neurons", ["0", "8", "17", "nine", "-11", "9" * 5000])
def test_verify_finds_a_number_of_neurons_that_cannot_be(make_run, neurons):
    folder = make_run()
    set_attributes(folder, neurons=neurons)
    assert (
        all("damaged trace (2 bytes for" in problem for problem in verify(folder))
        and len(verify(folder)) == 2
    )
    with pytest.raises(InputError):
        open_run(folder)["a"].ffn_active  # noqa: B018
