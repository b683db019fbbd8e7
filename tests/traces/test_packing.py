"""Traces that are joined during a run equal those of a run that leaves each in its own file."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.command_line import read_result, run_in_process
from helpers.datasets import read_datasets, write_samples
from helpers.killing import kill_after

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.samples import Sample
from mmprobe.traces.run import Packer
from mmprobe.traces.shards import merge_shards


@pytest.fixture(scope="module")
def samples(image_paths: list[Path]) -> list[Sample]:
    """Seven questions, the fifth of which fails."""
    asked = [
        Sample(
            id=f"s{index}", images=image_paths[: 1 + index % 2], question=("What?", "How many?")[index % 2]
        )
        for index in range(7)
    ]
    asked[4] = asked[4].model_copy(update={"images": [image_paths[0].with_name("gone.png")]})
    return asked


@pytest.fixture(scope="module")
def plain(random_qwen: Model, samples: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> mp.Run:
    return trace(random_qwen, samples, tmp_path_factory.mktemp("plain") / "run")


def trace(model: Model, samples: list[Sample], out: Path, **options) -> mp.Run:
    return mp.trace(model, samples, out, capture="full", max_new_tokens=4, **options)


def contents(run: mp.Run) -> dict[str, dict[str, bytes]]:
    return {name: read_datasets(run[name].file, run[name].group) for name in run.ids}


def files(run: mp.Run) -> list[str]:
    return sorted(str(path.relative_to(run.path)) for path in run.path.glob("*/*"))


@pytest.mark.slow
def test_a_packed_run_holds_the_same_bytes(random_qwen, samples, plain, tmp_path):
    run = trace(random_qwen, samples, tmp_path / "run", pack_every=2)
    assert files(run) == ["packs/000001.h5", "packs/000002.h5", "packs/000003.h5"]
    assert (
        contents(run) == contents(plain)
        and list(run.ids) == list(plain.ids)
        and run.failures == plain.failures
    )
    assert (run.path / "run.json").read_bytes() == (plain.path / "run.json").read_bytes()
    assert mp.verify(run.path) == []
    assert run["s5"].answer == plain["s5"].answer and run["s5"].sample == plain["s5"].sample
    packed = mp.open_run(mp.cache.pack(run.path, tmp_path / "one.h5"))
    assert contents(packed) == contents(plain) and mp.verify(packed.path) == []


@pytest.mark.slow
@pytest.mark.parametrize("where", ["numbers", "names"])
def test_the_traces_of_a_damaged_pack_are_made_again(random_qwen, samples, plain, tmp_path, where, caplog):
    expected = contents(plain)
    run = trace(random_qwen, samples, tmp_path / "run", pack_every=3)
    pack = run.path / "packs" / "000001.h5"
    content = bytearray(pack.read_bytes())
    with h5py.File(pack) as file:
        place = file[f"samples/{run.ids[0]}/residual/post"].id.get_chunk_info(0).byte_offset
    content[place if where == "numbers" else 100] ^= 1
    pack.write_bytes(content)
    problems = mp.verify(run.path)
    assert len(problems) == 4 and str(pack) in problems[0]
    assert all("not traced" in problem for problem in problems[1:])
    (run.path / "packs" / "000009.h5.part").touch()
    again = trace(random_qwen, samples, run.path, pack_every=3, resume=True)
    assert contents(again) == expected and mp.verify(run.path) == []
    assert files(again) == ["packs/000002.h5", "packs/000003.h5"]
    assert str(pack) in caplog.text


def test_a_trace_that_stays_behind_its_pack_is_removed(random_qwen, samples, plain, tmp_path):
    """A process that is killed between joining traces and removing their files leaves both."""
    run = trace(random_qwen, samples, tmp_path / "run", pack_every=2)
    (run.path / "samples" / "s0.h5").write_bytes((plain.path / "samples" / "s0.h5").read_bytes())
    assert contents(mp.open_run(run.path)) == contents(plain)
    again = trace(random_qwen, samples, run.path, resume=True)
    assert contents(again) == contents(plain) and "samples/s0.h5" not in files(again)


@pytest.mark.slow
def test_shards_that_are_packed_make_one_run(random_qwen, samples, plain, tmp_path):
    out = tmp_path / "run"
    trace(random_qwen, samples, out, shard="1/2", pack_every=2)
    run = trace(random_qwen, samples, out, shard="2/2", pack_every=2)
    assert contents(run) == contents(plain) and mp.verify(out) == []
    assert {path.partition("/")[0] for path in files(run)} == {"packs"}
    with pytest.raises(InputError, match="contains no shards"):
        merge_shards(out)


@pytest.mark.exhaustive
def test_a_run_that_is_killed_while_it_packs_loses_nothing(random_qwen, samples, plain, tmp_path):
    out, rng = tmp_path / "run", np.random.default_rng(3)

    def go_on() -> None:
        trace(random_qwen, samples, out, resume=True, pack_every=2)

    finished: set[str] = set()
    for _ in range(12):
        kill_after(go_on, rng.uniform(0, 1))
        if (out / "run.json").is_file():
            assert finished <= set(mp.open_run(out).ids)
            finished = set(mp.open_run(out).ids)
    run = trace(random_qwen, samples, out, resume=True, pack_every=2)
    assert contents(run) == contents(plain) and mp.verify(out) == []


def test_the_command_packs(samples, tmp_path):
    data, out = write_samples(tmp_path / "samples.jsonl", samples[:3]), tmp_path / "run"
    command = f"trace --model tiny-spd --data {data} --max-new-tokens 1 --out {out} --pack-every 2 --json"
    assert read_result(run_in_process(*command.split()))["traced"] == 3
    assert len(list((tmp_path / "run" / "packs").iterdir())) == 2


def test_less_than_one_is_refused(tmp_path):
    with pytest.raises(InputError, match="pack_every 0: must be 1 or more"):
        Packer(tmp_path, 0)
