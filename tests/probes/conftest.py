"""The hand-built toy, whose causes are known, and two samples of it."""

from __future__ import annotations

import pytest
from helpers.causal_toy import build_toy, draw_sample

from mmprobe.models import Model
from mmprobe.samples import Sample


@pytest.fixture(scope="module")
def toy() -> Model:
    return build_toy()


@pytest.fixture(scope="module")
def colours(tmp_path_factory) -> tuple[Sample, Sample]:
    """Return a red and a blue sample of the toy."""
    folder = tmp_path_factory.mktemp("toy")
    return draw_sample(folder, "red"), draw_sample(folder, "blue")
