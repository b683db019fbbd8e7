"""Models, images and a browser that several folders test with.

torch and transformers are imported where they are needed: the process that only hands out tests has no need of them.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from tqdm import tqdm

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from mmprobe.models import Model

LONG = {"face", "diagnosis"}  # folders

# tqdm's lock is shared with forked processes: one that is killed while it holds the lock would stop its parent.
tqdm.set_lock(threading.RLock())
tqdm.monitor_interval = 0  # else a thread takes the lock now and then, perhaps while a process forks


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while tests are imported, and never look through these modules again: a fourth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # after pytest's own collections, before those of Python's end


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two test processes share two cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Let `os.fsync` only check its descriptor: no test cuts the power, and thousands of files wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: os.fstat(file) and None)
        yield


@pytest.fixture(scope="session")
def tiny_spd() -> Model:
    import mmprobe as mp

    return mp.load_model("tiny-spd", device="cpu")


@pytest.fixture(scope="session")
def random_qwen(tiny_spd: Model) -> Model:
    """A Qwen2.5-VL that never stops early, with random weights large enough for uneven attention."""
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    config = tiny_spd.hf.config.__class__.from_dict(tiny_spd.hf.config.to_dict())
    config.text_config.num_hidden_layers = 3
    config.text_config.layer_types = ["full_attention"] * 3
    config.text_config.hidden_size = 96
    config.text_config.intermediate_size = 100  # no multiple of 8: the last byte of ffn/active is padded
    config.text_config.num_attention_heads = 4
    config.text_config.num_key_value_heads = 2
    config.text_config.rope_parameters["mrope_section"] = [4, 4, 4]
    config.text_config.initializer_range = 0.08
    config.vision_config.out_hidden_size = 96
    torch.manual_seed(7)
    hf = Qwen2_5_VLForConditionalGeneration(config).eval()
    hf.generation_config.eos_token_id = None
    torch.nn.init.normal_(
        hf.get_input_embeddings().weight, std=0.3
    )  # the row of the pad token is 0 otherwise
    return replace(tiny_spd, hf=hf, name="random-qwen")


@pytest.fixture(scope="session")
def image_paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three images of different shapes: square, wide and tall."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(3)
    paths = []
    for index, (height, width) in enumerate([(112, 112), (60, 140), (150, 75)]):
        paths.append(folder / f"{index}.png")
        Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(paths[-1])
    return paths


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium; without one, the test is skipped, or fails where MMPROBE_REQUIRE_BROWSER is set.

    Its scope is no wider, because Playwright's event loop would block `asyncio.run` in other tests.
    """
    from helpers.browser import NoBrowserError, open_browser

    try:
        with open_browser() as browser:
            yield browser
    except NoBrowserError as error:
        required = os.environ.get("MMPROBE_REQUIRE_BROWSER", "0") not in ("", "0")
        (pytest.fail if required else pytest.skip)(str(error))


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that open pages, and put the tests of whole commands first.

    Some of these take most of a minute. One that a process began last would leave the others with nothing to do.
    """
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: LONG.isdisjoint(item.path.parts))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before and after all other summaries
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """Report all skipped browser tests in one line."""
    from helpers.browser import NO_BROWSER

    stats = terminalreporter.stats
    reports = stats.get("skipped", [])
    skipped = [report for report in reports if NO_BROWSER in str(report.longrepr)]
    if skipped:
        stats["skipped"] = [report for report in reports if report not in skipped]
    yield
    if skipped:
        stats["skipped"] = reports
        line = f"NOT TESTED: {len(skipped)} browser tests were skipped: {NO_BROWSER}"
        terminalreporter.write_line(line, red=True, bold=True)
