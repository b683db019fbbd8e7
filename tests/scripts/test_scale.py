"""The script for SLURM works in a plain shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_line import ENVIRONMENT

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.stress
@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_the_script_for_slurm_makes_one_run_of_an_array(tmp_path):
    data, out = make_pairs(tmp_path / "pairs", n=2, seed=5), tmp_path / "run"
    arguments = ["tiny-spd", data, out, "--max-new-tokens", "3", "--limit", "4"]
    tasks = [
        subprocess.Popen(
            [ROOT / "scripts" / "slurm" / "trace.sh", *arguments],
            env={
                **ENVIRONMENT,
                "SLURM_ARRAY_TASK_ID": str(task),
                "SLURM_ARRAY_TASK_COUNT": "2",
                "MMPROBE": f"{sys.executable} -P -m mmprobe",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for task in (1, 2)
    ]
    outputs = [task.communicate(timeout=300) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    assert len(mp.open_run(out)) == 4 and mp.verify(out) == []
    assert {path.name for path in out.iterdir()} == {"run.json", "samples", "labels.jsonl"}
