"""Captures by name and from a file. Every mistake raises an InputError of one line that names it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from mmprobe.cache.schema import VARIABLES
from mmprobe.errors import InputError
from mmprobe.traces.capture import CaptureSpec, load_capture

ALWAYS = {"tokens", "images", "steps"}


@pytest.fixture
def load(tmp_path):
    def write_and_load(content):
        path = tmp_path / "mine.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_capture(path)

    return write_and_load


def load_error(load, content):
    """Return the message of the error that loading a file with this content raises."""
    with pytest.raises(InputError) as error:
        load(content)
    message = str(error.value)
    assert "\n" not in message
    assert "mine.yaml" in message
    return message


def test_full_records_everything_about_the_answer_except_whole_rows():
    left_out = (*ALWAYS, "prompt", "vision", "methods")
    recordable = {name for name in VARIABLES if name.split("/")[0] not in left_out} - {"attention/row"}
    assert sorted(load_capture("full").datasets) == sorted(recordable)
    assert load_capture("full").layers is None


def test_default_leaves_out_only_large_data_sets():
    left_out = set(load_capture("full").datasets) - set(load_capture("default").datasets)
    assert left_out == {
        "attention/visual_head",
        "residual/pre",
        "residual/mid",
        "residual/post",
        "ffn/active",
        "ffn/gate_first",
    }
    assert set(load_capture("default").datasets) < set(load_capture("full").datasets)


def test_a_spec_is_returned_as_it_is():
    spec = CaptureSpec(datasets=["update/kl"])
    assert load_capture(spec) is spec


def test_a_file_picks_data_sets_and_layers(load):
    spec = load("# mine\ndatasets: [residual/mid, attention/mass]\nlayers: [0, -1]\n")
    assert spec == CaptureSpec(datasets=["residual/mid", "attention/mass"], layers=[0, -1])


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [
        (("residual/",), True),
        (("tam/", "residual/"), True),
        (("tam/", "attention/"), False),
        (("residual/midd",), False),
    ],
)
def test_wants_compares_prefixes(prefixes, expected):
    assert CaptureSpec(datasets=["residual/mid"]).wants(*prefixes) is expected


@pytest.mark.parametrize(
    ("layers", "indices"),
    [(None, [0, 1, 2, 3]), ([2, 0], [0, 2]), ([-1], [3]), ([-4, 3, -1, 0], [0, 3]), ([1, 1], [1])],
)
def test_layers_are_unique_and_ascending(layers, indices):
    assert CaptureSpec(datasets=["update/kl"], layers=layers).layer_indices(4) == indices


@pytest.mark.parametrize("axis", ["layers", "heads"])
def test_a_list_of_no_layers_or_heads_is_refused(load, axis):
    message = load_error(load, f"datasets: [update/kl]\n{axis}: []")
    assert f"{axis}: " in message and "at least 1 item" in message


@pytest.mark.parametrize("layer", [4, -5, 1000])
def test_a_layer_that_the_model_does_not_have_is_refused(layer):
    with pytest.raises(InputError, match=rf"layer {layer} .* model's 4 \(0 to 3\)"):
        CaptureSpec(datasets=["update/kl"], layers=[0, layer]).layer_indices(4)


@pytest.mark.parametrize(
    "name", ["nope", "Default", "default.yaml", "", ".", "x" * 5000, "a\0b", "two\nlines"]
)
def test_an_unknown_name_is_refused_and_the_known_ones_are_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="YAML file") as error:
        load_capture(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["attention/maps", "attention", "", "tokens/id", "steps/id", "images/grid"])
def test_an_unknown_data_set_is_refused(load, name):
    message = load_error(load, f"datasets: [update/kl, '{name}']")
    assert f"datasets: {name!r} " in message and " attention/mass, " in message
    with pytest.raises(ValidationError):
        CaptureSpec(datasets=[name])


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "file: "),
        ("- a\n- b", "file: "),
        ("text", "file: "),
        ("layers: [0]", "datasets: Field required"),
        ("datasets: update/kl", "datasets: "),
        ("datasets: [3]", "datasets.0: "),
        ("datasets: [[update/kl]]", "datasets.0: "),
        ("datasets: [update/kl]\nlayers: 3", "layers: "),
        ("datasets: [update/kl]\nlayers: [0, 1.5]", "layers.1: "),
        ("datasets: [update/kl]\nlayers: [last]", "layers.0: "),
        ("datasets: [update/kl]\nheads: 0", "heads: "),
        (
            "datasets: [update/kl]\npositions: prompt",
            "file: positions: prompt: update/kl is not recorded for the prompt",
        ),
        ("datasets: [update/kl]\npositions: some", "positions: "),
        (
            "datasets: [residual/post]\ngroups: [visual]",
            "file: groups: names tokens of the prompt; add positions",
        ),
        ("datasets: [residual/post]\npositions: prompt\ngroups: [generated]", "groups.0: "),
        ("datasets: [residual/post]\npositions: prompt\ngroups: []", "groups: "),
        ("datasets: [update/kl]\ncompression: gzip", "compression: "),
        ("datasets: [update/kl]\nlayer: [0]", "layer: Extra inputs are not permitted"),
        ("datasets: [update/kl]\n1: 2", "1: "),
    ],
)
def test_a_wrong_field_is_named(load, content, named):
    assert f"mine.yaml: {named}" in load_error(load, content)


@pytest.mark.parametrize(
    "content",
    [
        "datasets: [update/kl",
        "datasets:\n\t- update/kl",
        "datasets: {[a]: b}",
        "datasets: *missing",
        "datasets: [2001-13-45]",
        "datasets: [" + "1" * 5000 + "]",
        "datasets: " + "[" * 3000,
        "!!python/object/apply:os.getcwd []",
        "a: b: c",
        "\0",
    ],
)
@pytest.mark.slow
def test_malformed_yaml_is_refused(load, content):
    assert "mine.yaml: not YAML (" in load_error(load, content)


def test_a_file_that_is_not_utf8_is_refused(load):
    assert "nor a readable YAML file" in load_error(load, b"datasets: [\xff\xfe]")
