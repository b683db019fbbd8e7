"""Trainings that are killed, that meet a full disk or damaged checkpoints, or that two processes begin in one folder."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.command_line import run_in_process
from helpers.killing import kill_after
from helpers.small_disk import fill_disk, mount_disk
from safetensors.torch import load_file, save_file

from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.training.checkpoints import (
    WholeCheckpoints,
    hold_training,
    last_checkpoint,
    place_model,
    start_training,
)

SIZES = {
    "guesser": ("--epochs", "8", "--batch", "4", "--learning-rate", "1e-3"),
    "logos": (
        *("--only", "count", "--stages", "2", "--epochs", "2", "--samples", "2", "--batch", "4", "--micro-batch", "4"),
        *("--max-new-tokens", "3", "--instruction", "", "--save-steps", "1", "--learning-rate", "1e-3"),
    ),
}  # fmt: skip
MODELS = {"guesser": "model", "logos": "plain/stage-2/model"}


@pytest.fixture(scope="module")
def calls(text_folder, policy_folder, tmp_path_factory) -> dict[str, list[object]]:
    """The arguments of both commands but `--out`."""
    data = make_pairs(tmp_path_factory.mktemp("data") / "pairs", 2, 0, difficulty="easy")
    models = {"guesser": text_folder, "logos": policy_folder}
    calls = {name: ["train", name, "--model", models[name], "--data", data, *SIZES[name]] for name in SIZES}
    calls["logos"] += ["--device", "cpu", "--ablate", "plain"]
    return calls


class FullDisk:
    """What Trainer does for a checkpoint, in one line."""

    def _save_checkpoint(self, model: object, trial: object) -> None:
        folder = Path(self.args.output_dir) / "checkpoint-1"
        folder.mkdir(parents=True)
        self.save(folder)


class Trainer(WholeCheckpoints, FullDisk):
    def __init__(self, out: Path, save: object):
        self.args = type("", (), {"output_dir": str(out)})
        self.state = type("", (), {"global_step": 1})
        self.save = save


def save_tensors(folder: Path) -> None:
    save_file({"a": torch.zeros(10_000)}, folder / "model.safetensors")


def save_states(folder: Path) -> None:
    torch.save({"a": torch.zeros(100_000)}, folder / "optimizer.pt")


@pytest.mark.parametrize("save", [save_tensors, save_states])
def test_a_full_disk_is_named_and_leaves_no_half_checkpoint(save, tmp_path):
    with mount_disk(tmp_path / "disk", 1_000_000) as disk:
        fill_disk(disk, 4096)
        with pytest.raises(OSError, match="No space left") as error:
            Trainer(disk / "out", save)._save_checkpoint(None, None)
        assert error.value.errno == errno.ENOSPC and error.value.filename.endswith("checkpoint-1")
        assert not list((disk / "out").iterdir())
        with pytest.raises(OSError, match="No space left"):
            place_model(save, disk / "out" / "model")
        assert not list((disk / "out").iterdir())


def test_a_failed_save_that_is_no_disks_error_is_told_as_it_is(tmp_path):
    def fail(folder: Path) -> None:
        raise RuntimeError("a shape")

    with pytest.raises(RuntimeError, match="a shape"):
        Trainer(tmp_path, fail)._save_checkpoint(None, None)
    assert not (tmp_path / "checkpoint-1").exists()


def test_the_last_checkpoint_is_the_last_that_is_whole(tmp_path, caplog):
    Trainer(tmp_path, save_tensors)._save_checkpoint(None, None)
    first = tmp_path / "checkpoint-1"
    for number in (9, 10, 11):
        shutil.copytree(first, tmp_path / f"checkpoint-{number}")
    assert last_checkpoint(tmp_path).name == "checkpoint-11", "by number, not by name"
    content = bytearray((tmp_path / "checkpoint-11" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "checkpoint-11" / "model.safetensors").write_bytes(content)
    (tmp_path / "checkpoint-10" / "complete").unlink()  # a kill cut it off
    assert last_checkpoint(tmp_path).name == "checkpoint-9"
    assert "checkpoint-11: is damaged" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-9"]
    (tmp_path / "checkpoint-9" / "complete").write_text("")  # of an earlier version
    assert last_checkpoint(tmp_path).name == "checkpoint-9"


def test_links_among_checkpoints_are_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoint-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="checkpoint-1: is a link"):
        last_checkpoint(tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="link: is a link"):
        last_checkpoint(tmp_path / "link")


def test_a_second_training_of_a_folder_is_refused(tmp_path):
    out = tmp_path / "out"
    with hold_training(out, resume=False):
        start_training(out, {"seed": 1}, {})
        with pytest.raises(InputError, match="training into it"), hold_training(out, resume=True):
            pass
    with pytest.raises(InputError, match="already contains a training"), hold_training(out, resume=False):
        pass
    with hold_training(out, resume=True), pytest.raises(InputError, match="was trained with seed 1, not 2"):
        start_training(out, {"seed": 2}, {})
    with hold_training(out, resume=False, overwrite=True):
        assert [path.name for path in out.iterdir() if not path.name.startswith(".lock")] == []
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="contains no training"), hold_training(out, resume=False):
        pass


@pytest.mark.stress
@pytest.mark.parametrize("name", SIZES)
def test_a_training_killed_at_any_moment_resumes_to_the_same_weights(name, calls, tmp_path):
    assert run_in_process(*calls[name], "--out", tmp_path / "whole").code == 0
    whole = load_file(tmp_path / "whole" / MODELS[name] / "model.safetensors")
    rng, killed = np.random.default_rng(3), 0

    def call() -> None:
        done = run_in_process(*calls[name], "--out", tmp_path / "out", "--resume")
        assert done.code == 0, done.stderr

    for _ in range(3):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        for _ in range(4):
            killed += kill_after(call, rng.uniform(0, 2))
        call()
        resumed = load_file(tmp_path / "out" / MODELS[name] / "model.safetensors")
        assert all(torch.equal(resumed[key], value) for key, value in whole.items())
        assert not list(tmp_path.glob("out/**/*.part"))
    assert killed


@pytest.mark.stress
@pytest.mark.parametrize("name", SIZES)
def test_a_training_is_refused_while_another_one_holds_the_folder(name, calls, tmp_path):
    out = tmp_path / "out"
    with hold_training(
        out / "plain" if name == "logos" else out, resume=False
    ):  # each of an ablation has its own
        for options in [(), ("--resume",), ("--overwrite",)]:
            done = run_in_process(*calls[name], "--out", out, *options)
            assert done.code == 2 and "training into it" in done.stderr, done.stderr
    assert run_in_process(*calls[name], "--out", out).code == 0
    assert load_file(out / MODELS[name] / "model.safetensors")


@pytest.mark.stress
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("free", [0, 20_000, 150_000, 400_000])
def test_a_full_disk_ends_a_training_in_one_line(name, free, calls, tmp_path):
    with mount_disk(tmp_path / "disk", 60_000_000) as disk:
        filler = fill_disk(disk, free)
        done = run_in_process(*calls[name], "--out", disk / "out")
        assert done.code in (0, 1) and done.stderr.count("\n") <= 1, done.stderr
        assert done.code == 0 or "No space left" in done.stderr, done.stderr
        assert done.code or free, "nothing was written"
        assert not list(disk.glob("**/*.part"))
        filler.unlink()
        done = run_in_process(*calls[name], "--out", disk / "out", "--resume")
        assert done.code == 0, done.stderr
