"""The registry of probes."""

from __future__ import annotations

from mmprobe.probes.registry import PROBES
from mmprobe.registry import first_line


def test_lines_that_are_read_from_the_source_are_those_of_the_functions():
    lines = {name: (probe.about, first_line(probe.load())) for name, probe in PROBES.working()}
    assert len(lines) >= 12
    assert all(read == own != "" for read, own in lines.values()), lines
