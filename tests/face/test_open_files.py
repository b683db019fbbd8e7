"""Only images of six formats and regular files are opened: no program starts, and nothing waits for ever."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import pytest
from helpers.command_line import assert_fails, run_in_process
from helpers.runs import write_run
from PIL import EpsImagePlugin, Image

import mmprobe as mp
from mmprobe.benchmarks.answers.coco import read_coco_objects
from mmprobe.benchmarks.core.api_models import data_uri, image_uri
from mmprobe.benchmarks.photo_pairs.photos import read_entries
from mmprobe.cache import verify
from mmprobe.errors import InputError
from mmprobe.files import json_lines
from mmprobe.interventions.registry import load_methods
from mmprobe.models.prompt import build_chat
from mmprobe.samples import IMAGE_FORMATS, Sample, check_image, load_samples, open_image
from mmprobe.traces import load_capture
from mmprobe.viz.report.images import embed_image

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "mmprobe"
FOLDERS = [PACKAGE, *(link for link in PACKAGE.iterdir() if link.is_symlink())]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


def run_with_timeout(function: Callable[[], Any], seconds: float = 20) -> Any:
    """Return what a function returns, or the error that it raises.

    Raises:
        TimeoutError: the function is still at work.
    """
    results: list[Any] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if not results:
        raise TimeoutError(f"still at work after {seconds} seconds")
    return results[0]


@pytest.fixture(params=["pipe", "device", "link to a pipe"])
def special_file(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    """Replace a file by one that is not a regular file."""

    def make(name: str) -> Path:
        path = tmp_path / name
        path.unlink(missing_ok=True)
        if request.param == "device":
            path.symlink_to("/dev/null")
        elif request.param == "pipe":
            os.mkfifo(path)
        else:
            os.mkfifo(tmp_path / "pipe")
            path.symlink_to(tmp_path / "pipe")
        return path

    return make


READERS: dict[str, Callable[[Path], Any]] = {
    "image.png": lambda path: check_image(path, "here"),
    "chat.png": lambda path: build_chat(Sample(id="a", images=[path], question="?")),
    "samples.jsonl": load_samples,
    "lines.jsonl": lambda path: list(json_lines(path)),
    "capture.yaml": load_capture,
    "method.yaml": load_methods,
    "instances.json": read_entries,
    "objects.json": read_coco_objects,
}


@pytest.mark.parametrize("name", READERS)
def test_special_files_are_refused_in_one_line(special_file, name: str) -> None:
    path = special_file(name)
    error = run_with_timeout(lambda: READERS[name](path))
    assert isinstance(error, InputError)
    assert str(path) in str(error) and "\n" not in str(error)


def test_a_samples_file_is_said_to_be_no_regular_file(special_file) -> None:
    path = special_file("samples.jsonl")
    message = f"{path}: cannot be read as UTF-8 text (not a regular file)"
    for read in (load_samples, lambda path: list(json_lines(path))):
        assert str(run_with_timeout(lambda read=read: read(path))) == message


def test_the_command_line_refuses_special_files(special_file, tmp_path: Path) -> None:
    path = special_file("samples.jsonl")
    arguments = ("trace", "--model", "tiny-spd", "--data", path, "--out", tmp_path / "run")
    assert_fails(run_with_timeout(lambda: run_in_process(*arguments)), f"{path}: cannot be read")


def test_images_that_are_special_files_are_not_shown_or_sent(special_file) -> None:
    path = special_file("a.png")
    shown, why = run_with_timeout(lambda: embed_image(path))
    assert shown is None and why.startswith("a.png ")
    for encode in (data_uri, image_uri):
        assert isinstance(run_with_timeout(lambda encode=encode: encode(path)), OSError)


@pytest.mark.parametrize("name", ["run.json", "failures.jsonl", "labels.jsonl"])
def test_a_run_with_a_special_file_is_refused(special_file, tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "run", {"a": {"steps/id": [1, 2]}})
    special_file(f"run/{name}")
    error = run_with_timeout(lambda: mp.open_run(tmp_path / "run"))
    assert isinstance(error, InputError) and re.search(
        r"not a readable run \(.*not a regular file", str(error)
    )


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_that_is_a_special_file_is_refused(special_file, tmp_path: Path, packed: bool) -> None:
    run = write_run(tmp_path / "run", {"a": {"steps/id": [1, 2]}})
    if packed:
        mp.pack(tmp_path / "run", tmp_path / "run.h5")
        trace = mp.open_run(tmp_path / "run.h5")["a"]
        special_file("run.h5")
        readers = [lambda: trace.answer]
    else:
        special_file("run/samples/a.h5")
        readers = [lambda: run["a"].answer, lambda: mp.pack(tmp_path / "run", tmp_path / "run.h5")]
    for read in readers:
        error = run_with_timeout(read)
        assert isinstance(error, InputError) and re.search("not a regular file|damaged", str(error))
    assert packed or any("damaged" in line for line in run_with_timeout(lambda: verify(run.path)))


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a false Ghostscript writes when it starts."""
    note, program = tmp_path / "started", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch '{note}'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # where Pillow keeps the program it has found
    return note


def test_an_image_starts_no_program(started: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(EPS)
    (tmp_path / "s.jsonl").write_text('{"id": "a", "question": "?", "images": ["a.png"]}')
    for read in (
        lambda: load_samples(tmp_path / "s.jsonl"),
        lambda: build_chat(Sample(id="a", images=[path], question="?")),
    ):
        with pytest.raises(InputError, match=r"a\.png: .*PNG") as error:
            read()
        assert "\n" not in str(error.value)
    shown, why = embed_image(path)
    assert shown is None and why.startswith("a.png ")
    assert not started.exists()
    with Image.open(path) as image, pytest.raises(CalledProcessError):
        image.load()
    assert started.exists()  # so Pillow alone would have started it


@pytest.mark.parametrize("name", IMAGE_FORMATS)
def test_the_content_says_what_an_image_is(tmp_path: Path, name: str) -> None:
    Image.new("RGB", (6, 4), (200, 30, 30)).save(tmp_path / "a.eps", name)
    assert check_image(tmp_path / "a.eps", "here") == (4, 6)
    with open_image(tmp_path / "a.eps") as image:
        assert image.convert("RGB").size == (6, 4)


def test_every_image_is_opened_as_one_of_the_allowed_formats() -> None:
    files = [file for folder in FOLDERS for file in folder.rglob("*.py")]
    users = {file: text for file in files if "Image.open(" in (text := file.read_text(encoding="utf-8"))}
    assert len(files) > 200 and {file.name for file in users} == {
        "samples.py",
        "base.py",
        "paper.py",
    }  # of files, of tables, of our own figures
    for text in users.values():
        assert text.count("Image.open(") == text.count(", formats=IMAGE_FORMATS)")
