"""A LLaVA with weights written by hand: its answer is the colour of the one patch that is not black.

Head 0 of layer 0 copies the patch's colour to the text. The FFN of layer 1 maps it to the answer. Head 1 of
layer 0, the decoy, attends to the patch even more, and nothing reads what it computes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers as tf
from helpers.building import build_chat_template, build_tokenizer
from PIL import Image
from torch import Tensor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from mmprobe.models import Model
from mmprobe.models.families import find_family
from mmprobe.samples import Region, Sample

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
ROUTE_HEAD, DECOY_HEAD, ROUTE_FFN = (0, 0), (0, 1), 1  # layer and head; layer
PATCH, SIDE = 8, 32  # pixels of a visual token and of an image
HIDDEN, HEAD_DIM = 32, 16
# Dimensions of the residual stream.
SEEN, VISUAL, TEXT, COPIED, ANSWERED = slice(0, 3), 3, 4, slice(5, 8), slice(8, 11)
SLOW = 7  # the dimension of a head that rotates so slowly that its position plays no part


def build_toy() -> Model:
    """Return the model."""
    tokenizer = build_tokenizer("<image>")
    config = tf.LlavaConfig(
        text_config=tf.LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=HIDDEN, intermediate_size=8, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, head_dim=HEAD_DIM, pad_token_id=0, bos_token_id=None,
            eos_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": 1e12},
        ),
        vision_config=tf.CLIPVisionConfig(
            hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=1, patch_size=PATCH,
            image_size=SIDE,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    processor = tf.LlavaProcessor(
        CLIPImageProcessorPil(
            size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}, do_normalize=False
        ),
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=build_chat_template(("USER: ", " "), "ASSISTANT:", ("", " "), image="<image>\n"),
    )
    hf = tf.LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, weight in hf.named_parameters():
            weight.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
        _write_vision(hf.model)
        _write_decoder(hf.model.language_model)
        for index, colour in enumerate(COLOURS):
            row = hf.lm_head.weight[answer_id(tokenizer, colour)]
            row[ANSWERED][index] = 2.0  # small enough for an answer that is not certain, so it has a gradient
            row[COPIED][index] = 0.1  # a little of the answer comes straight from the head
    hf.generation_config.eos_token_id = None
    hf.generation_config.pad_token_id = 0
    return Model("toy", "toy", None, hf, processor, find_family(hf.config))


def answer_id(tokenizer: tf.PreTrainedTokenizerFast, colour: str) -> int:
    """Return the token id of a colour."""
    (token,) = tokenizer(f" {colour}", add_special_tokens=False)["input_ids"]
    return token


def _write_vision(model: torch.nn.Module) -> None:
    """Write each patch's mean red, green and blue into the stream of its visual token."""
    embeddings = model.vision_tower.embeddings
    for channel in range(3):  # in pairs of opposite sign, which the layer norm does not shift
        embeddings.patch_embedding.weight[channel, channel] = 1 / PATCH**2
        embeddings.patch_embedding.weight[channel + 3, channel] = -1 / PATCH**2
    embeddings.position_embedding.weight[:, 6], embeddings.position_embedding.weight[:, 7] = 1, -1
    projector = model.multi_modal_projector
    projector.linear_1.weight[SEEN, :3] = torch.eye(3)
    projector.linear_1.bias[SEEN] = 10  # where GELU is the identity
    projector.linear_2.weight.copy_(torch.eye(HIDDEN))
    projector.linear_2.bias[SEEN] = -10
    projector.linear_2.bias[VISUAL] = 1


def _write_decoder(decoder: torch.nn.Module) -> None:
    decoder.embed_tokens.weight[:, TEXT] = 1
    attention = decoder.layers[0].self_attn
    for head, sharpness in ((ROUTE_HEAD[1], 1.0), (DECOY_HEAD[1], 2.0)):
        first = head * HEAD_DIM
        attention.q_proj.weight[first + SLOW, TEXT] = sharpness
        attention.k_proj.weight[first + SLOW, SEEN] = sharpness
        attention.v_proj.weight[first : first + 3, SEEN] = torch.eye(3)
    attention.o_proj.weight[COPIED, :3] = 0.3 * torch.eye(3)  # the decoy's columns stay 0
    mlp = decoder.layers[ROUTE_FFN].mlp
    mlp.gate_proj.weight[:3, COPIED] = torch.eye(3)
    mlp.up_proj.weight[:3, COPIED] = torch.eye(3)
    mlp.down_proj.weight[ANSWERED, :3] = 0.05 * torch.eye(3)


def draw_sample(folder: Path, colour: str, cell: tuple[int, int] = (1, 2)) -> Sample:
    """Return a sample whose image shows one patch of a colour; its two regions are the patch and a black one."""
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    row, column = cell
    pixels[row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH] = COLOURS[colour]
    path = folder / f"{colour}-{row}{column}.png"
    Image.fromarray(pixels).save(path)
    boxes = [(column * PATCH, row * PATCH, PATCH, PATCH), (0, SIDE - PATCH, PATCH, PATCH)]
    return Sample(
        id=f"{colour}{row}{column}",
        images=[path],
        question="What colour is it?",
        answer=f" {colour}",
        regions=[Region(image=0, box=box) for box in boxes],
    )


def own_logits(model: Model, sample: Sample) -> Tensor:
    """Return the logits of the first token of the answer, [vocabulary], from the model alone."""
    with torch.no_grad():
        return model.hf(**model.prepare(sample)).logits[0, -1]
