"""Methods compared: paired differences by hand, who is compared, and the command."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

from mmprobe.benchmarks.benchmark import find_benchmark
from mmprobe.benchmarks.comparing import _dataset, contenders, markdown, slug
from mmprobe.cli import app
from mmprobe.errors import InputError
from mmprobe.samples import Sample
from mmprobe.viz.method_comparison import panels


def test_differences_are_those_of_the_same_samples():
    """Six questions, all to be answered yes; one is not answered with the second method."""
    pope = find_benchmark("pope")
    samples = [Sample(id=str(number), question="?", answer="yes") for number in range(6)]
    plain = dict(zip("012345", ("Yes", "Yes", "No", "No", "Yes", "No"), strict=True))
    other = dict(zip("01234", ("Yes", "No", "Yes", "Yes", "Yes"), strict=True))
    found = {("plain", "pope"): pope.score(samples, plain), ("vcd", "pope"): pope.score(samples, other)}
    ds = _dataset(found, ["plain", "vcd"], [pope])
    accuracy = ds.sel(metric="pope accuracy")
    assert accuracy.value.values.tolist() == [0.5, 0.8]
    assert accuracy.n_paired.values.tolist() == [6, 5]
    assert accuracy.difference.values.tolist() == [0, pytest.approx((0 - 1 + 1 + 1 + 0) / 5)]
    low, high = accuracy.difference_low.values[1], accuracy.difference_high.values[1]
    assert low < 0.2 < high and low >= -1 and high <= 1
    assert np.isnan(ds.difference.sel(metric="pope f1", contender="vcd")), "no mean over samples"
    assert "| pope accuracy | 0.500 | 0.800 (+0.200 [" in markdown(ds)
    assert markdown(ds, ["pope f1"]).splitlines()[2].count("(") == 0


def test_who_is_compared():
    assert [each.name for each in contenders(["vcd", "plain"])] == ["plain", "vcd"]
    staged = contenders(["plain"], ablate="sage")
    assert [each.parameters.get("generate", True) for each in staged] == [True, False, False, True]
    swept = contenders(["plain"], sweep="sage.alpha=0,0.05")
    assert [each.parameters for each in swept] == [{}, {"alpha": 0}, {"alpha": 0.05}]
    assert len({slug(each.name) for each in staged + swept[1:]}) == len(staged + swept) - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["sagee"]}, "sage"),
        ({"methods": ["plain"], "ablate": "vcd"}, "only sage"),
        ({"methods": ["plain"], "sweep": "sage.alpha"}, "give METHOD.PARAMETER"),
        ({"methods": ["plain"], "sweep": "sage.alhpa=1"}, "alpha"),
    ],
)
def test_bad_requests(options, message):
    with pytest.raises(InputError, match=message):
        contenders(**options)


def test_the_command_compares_and_goes_on(tmp_path):
    arguments = ["compare", "--model", "tiny-spd", "--methods", "plain,pai", "--benchmarks", "chair"]
    arguments += ["--n", "2", "--batch-size", "2", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0 and "| chair chair_s |" in done.stdout
    assert (tmp_path / "out" / "compare.html").stat().st_size > 1e6
    ds = xr.load_dataset(tmp_path / "out" / "method_comparison.nc", engine="h5netcdf")
    assert ds["contender"].values.tolist() == ["plain", "pai"]
    assert (ds["tokens_per_second"] > 0).all()
    assert panels(ds)[0].figure.data
    results = json.loads((tmp_path / "out" / "pai" / "chair" / "results.json").read_text())
    assert results["method"] == "pai"
    again = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert again.exit_code == 0 and again.stdout == done.stdout
