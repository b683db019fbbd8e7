"""Declarations that do not fit their model are refused when the model is loaded."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from mmprobe.errors import InputError
from mmprobe.models.families.base import get_decoder_parts
from mmprobe.models.loading import check_loaded, find_numeric_errors, has_plain_logits


def misplace_parts(family, **parts):
    """Return the family with parts of its layers taken from other modules, by path."""

    def get_wrong_parts(layer):
        return get_decoder_parts(layer)._replace(
            **{name: layer.get_submodule(path) for name, path in parts.items()}
        )

    return dataclasses.replace(family, parts=get_wrong_parts)


@pytest.mark.parametrize("model", ["tiny_spd", "random_qwen"])
def test_a_declaration_that_fits_passes(model, request):
    model = request.getfixturevalue(model)
    assert find_numeric_errors(model.hf, model.family) == []
    assert has_plain_logits(model.hf, model.family)


@pytest.mark.parametrize("parts", [{"mid": "input_layernorm"}, {"update": "mlp"}, {"mid": "mlp"}])
def test_a_misplaced_part_is_named_with_its_layer(random_qwen, parts):
    family = misplace_parts(random_qwen.family, **parts)
    with pytest.raises(InputError, match="qwen2_5_vl: layer 0: resid_pre .*adding-a-family"):
        check_loaded(random_qwen.hf, family, "my-model")


def test_attention_outside_the_registry_is_named(random_qwen):
    family = misplace_parts(random_qwen.family, attention="mlp")
    with pytest.raises(InputError, match="registry"):
        check_loaded(random_qwen.hf, family, "my-model")


def test_logits_that_are_rescaled_are_found(random_qwen):
    head = random_qwen.hf.get_output_embeddings()
    handle = head.register_forward_hook(lambda module, inputs, output: torch.tanh(output / 5) * 5)
    try:
        assert not has_plain_logits(random_qwen.hf, random_qwen.family)
    finally:
        handle.remove()
