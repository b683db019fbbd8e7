"""Circuits of other families, on tiny random models, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model
from PIL import Image

from mmprobe.errors import InputError, NotApplicable
from mmprobe.probes import (
    check_circuit,
    evaluate_circuit,
    find_circuit,
    patch_components,
    patch_edges,
)
from mmprobe.samples import Sample


@pytest.mark.parametrize("name", first_fast(["qwen3_vl", "gemma3", "llava_next", "qwen3_vl_moe", "glm4v"]))
def test_a_family_has_circuits(name, tmp_path):
    """DeepStack, sliding windows with norms after the heads, tiles, a mixture of experts; grouped queries."""
    model, samples = load_tiny_model(name), _draw_noise(tmp_path)
    ds = find_circuit(model, *samples, steps=2, metric="logprob")
    assert ds.attrs["group_size"] == 2
    assert np.abs(ds.node_score.sel(source=["image 0", "image 1"])).min() > 1e-5
    if name.startswith("qwen3_vl"):
        assert (ds.source_kind == "between").any()
        assert np.abs(ds.node_score.values[ds.source_kind.values == "between"]).max() > 1e-6
    judged = evaluate_circuit(model, ds, *samples, shares=(0, 1), metric="logprob")
    np.testing.assert_allclose(judged.faithfulness, [[0, 1]] * 3, atol=1e-4)
    patched = check_circuit(model, *samples, steps=1, edges=4, metric="logprob")
    # where a norm follows the heads, a node keeps that norm's scale, and a patched head changes it
    for kind in ("ffn",) if name in ("gemma3", "glm4v") else ("head", "ffn"):
        rows = [source.startswith(kind) for source in patched.source.values]
        expected = patch_components(model, *samples, kind).effect.values.ravel()
        np.testing.assert_allclose(patched.node_effect.values[0, rows], expected, atol=1e-5, rtol=1e-3)


def _draw_noise(folder) -> list[Sample]:
    """Return two samples with noise of the same sizes."""
    rng, samples = np.random.default_rng(5), []
    for name in "ab":
        paths = [folder / f"{name}{index}.png" for index in range(2)]
        for path, (height, width) in zip(paths, [(60, 140), (150, 75)], strict=True):
            Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(path)
        samples.append(
            Sample(id=name, images=paths, question="Compare the two pictures.", answer="The first.")
        )
    return samples


def test_errors_are_one_line(toy, colours, tiny_spd, found, tmp_path):
    red, blue = colours
    longer = blue.model_copy(update={"question": "What colour is it, please?"})
    blind = blue.model_copy(update={"images": [], "regions": []})
    crossing = load_tiny_model("mllama")
    for call, error, words in [
        (lambda: find_circuit(toy, red, blue, steps=0), InputError, "steps 0"),
        (lambda: find_circuit(toy, [red, red], [blue]), InputError, "as many of each"),
        (lambda: find_circuit(toy, red, longer), InputError, "texts of the same length"),
        (lambda: find_circuit(toy, red, blind), InputError, "as many images"),
        (
            lambda: find_circuit(crossing, *_draw_noise(tmp_path)),
            NotApplicable,
            "mllama reads images by cross",
        ),
        (lambda: evaluate_circuit(toy, found, red, blue), InputError, "of another model"),
        (lambda: evaluate_circuit(toy, found, red, blue, shares=(0.5, 0.1)), InputError, "shares"),
        (lambda: patch_edges(toy, red, blue, [("logits", "ffn 0")]), InputError, "no such edge"),
        (lambda: patch_edges(toy, red, blue, [("ffn 1", "q 0.0")]), InputError, "no such edge"),
        (lambda: check_circuit(toy, red, blue, edges=2), InputError, "edges 2"),
    ]:
        with pytest.raises(error, match=words) as raised:
            call()
        assert "\n" not in str(raised.value)
