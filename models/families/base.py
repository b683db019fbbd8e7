"""What a family declares, and the views and patch positions that families share.

Some crop images, pad them or cut them into tiles, each of which CLIP or SigLIP reads. Qwen-like families show each
image in one view, as large as the image allows, and their encoder merges its patches in squares.

Modules of families import torch and transformers where they use them, so that families are listed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Size = tuple[int, int]  # height and width
ViewBox = tuple[float, float, float, float]  # x, y, width and height


def centre_box(size: Size, height: float, width: float) -> ViewBox:
    """Return a box with the image's centre. It reaches outside the image where padding is shown."""
    return (size[1] - width) / 2, (size[0] - height) / 2, width, height


def find_crop(image_processor: Any, size: Size) -> ViewBox:
    """Return the part of an image that remains when a processor pads, resizes and crops it, in that order.

    The processor pads to a square and crops at the centre; it may leave out any of these steps.
    """
    height, width = size
    if getattr(image_processor, "do_pad", None) and hasattr(image_processor, "pad_to_square"):
        height = width = max(size)
    crop = image_processor.crop_size if getattr(image_processor, "do_center_crop", None) else None
    if not crop:
        return centre_box(size, height, width)
    resized_height, resized_width, edge = height, width, image_processor.size.get("shortest_edge")
    if image_processor.do_resize and edge:
        shorter = min(height, width)
        resized_height, resized_width = int(edge * height / shorter), int(edge * width / shorter)
    elif image_processor.do_resize:
        resized_height, resized_width = image_processor.size["height"], image_processor.size["width"]
    return centre_box(size, crop["height"] * height / resized_height, crop["width"] * width / resized_width)


def split_into_tiles(size: Size, rows: int, columns: int, side: int) -> list[View]:
    """Return the tiles of an image stretched to rows x columns, row by row, then the whole image as one tile.

    An image that is not cut has only the last. Each view has `side` x `side` cells.
    """
    height, width = size
    whole = View((side, side), (0, 0, width, height))
    tile_height, tile_width = height / max(rows, 1), width / max(columns, 1)
    tiles = [
        View((side, side), (column * tile_width, row * tile_height, tile_width, tile_height))
        for row in range(rows)
        for column in range(columns)
    ]
    return [*tiles, whole] if len(tiles) > 1 else [whole]


def count_tiles(size: Size, config: Any) -> Size:
    """Return rows and columns of tiles in the resolution of `image_grid_pinpoints` that suits an image."""
    from transformers.image_processing_utils import select_best_resolution

    height, width = select_best_resolution(size, config.image_grid_pinpoints)
    edge = config.vision_config.image_size
    return height // edge, width // edge


def build_unpadded_view(size: Size, config: Any, side: int | None = None) -> View:
    """Return the view of an image's joined tiles without padding; one more token ends each row.

    Args:
        side: cells along a tile; the default is its number of patches.

    A patch at the edge may show both padding and image, and is kept or dropped as a whole. So the box may be
    a little larger or smaller than the image.
    """
    import torch
    from transformers.models.llava_next.modeling_llava_next import unpad_image

    height, width = size
    side = side or config.vision_config.image_size // config.vision_config.patch_size
    rows, columns = (count * side for count in count_tiles(size, config))
    _, kept_rows, kept_columns = unpad_image(torch.empty(0, rows, columns), size).shape
    pixels = max(height / rows, width / columns)  # of the image's file, along a patch
    box = centre_box(size, kept_rows * pixels, kept_columns * pixels)
    return View((kept_rows, kept_columns), box, row_end_tokens=1)


def get_tower_layers(hf: Any) -> Sequence[Any]:
    """Return the layers of a CLIP or SigLIP vision tower."""
    tower = hf.model.vision_tower
    return getattr(tower, "vision_model", tower).encoder.layers


def find_tile_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Return the patch positions of a CLIP or SigLIP tower that reads one tile for each of `pixel_values`."""
    return find_tower_positions(len(inputs["pixel_values"]), hf)


def find_tower_positions(n_tiles: int, hf: Any) -> np.ndarray:
    """Return the patch positions of a CLIP or SigLIP tower that reads `n_tiles` tiles, int32 [patch, 3]."""
    tower, config = hf.model.vision_tower, hf.config.vision_config
    embeddings = getattr(tower, "vision_model", tower).embeddings
    side = config.image_size // config.patch_size
    return build_patch_positions(n_tiles, side, has_class_token=hasattr(embeddings, "class_embedding"))


def build_patch_positions(n_tiles: int, side: int, has_class_token: bool) -> np.ndarray:
    """Return tile, row and column of each position of an encoder of square tiles, int32 [patch, 3].

    Row and column of a class token, which comes first in its tile, are -1.
    """
    cells = np.stack(np.divmod(np.arange(side * side, dtype=np.int32), side), 1)
    if has_class_token:
        cells = np.concatenate([np.full((1, 2), -1, np.int32), cells])
    tile = np.repeat(np.arange(n_tiles, dtype=np.int32), len(cells))
    return np.column_stack([tile, np.tile(cells, (n_tiles, 1))])


def build_merged_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each whole image, with a cell for each merged patch."""
    merge = _find_merge_size(processor, config)
    return [
        [View((int(rows) // merge, int(columns) // merge), (0, 0, width, height))]
        for (_, rows, columns), (height, width) in zip(inputs.get("image_grid_thw", []), sizes, strict=True)
    ]


def build_merged_video_views(
    inputs: Mapping[str, Any], videos: Sequence[Frames], processor: Any, config: Any
) -> list[list[View]]:
    """Return a view of each few frames that the encoder merges, with a cell for each merged patch.

    The last frame is repeated where their number does not divide.
    """
    merge = _find_merge_size(processor, config)
    merges = [int(each) for each in inputs.get("video_merge_sizes", [merge] * len(videos))]
    together = int(processor.video_processor.temporal_patch_size)
    return [
        [
            View((int(rows) // merge, int(columns) // merge), (0, 0, width, height), pictures=pictures)
            for pictures in (
                min(together, number - first) for first in range(0, int(times) * together, together)
            )
        ]
        for (times, rows, columns), (number, height, width), merge in zip(
            inputs.get("video_grid_thw", []), videos, merges, strict=True
        )
    ]


def build_stretched_frames(videos: Sequence[Frames], rows: int, columns: int) -> list[list[View]]:
    """Return a view of each frame, which is stretched to one grid."""
    return [[View((rows, columns), (0, 0, width, height))] * number for number, height, width in videos]


def build_sized_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each whole image, given the size to which the processor scaled it (Pixtral)."""
    cell = processor.patch_size * processor.spatial_merge_size
    return [
        [View((int(resized_height) // cell, int(resized_width) // cell), (0, 0, width, height))]
        for (resized_height, resized_width), (height, width) in zip(
            inputs.get("image_sizes", []), sizes, strict=True
        )
    ]


def _find_merge_size(processor: Any, config: Any) -> int:
    """Return how many patches along each side of a square are merged into one visual token.

    The config or the processor says so under one of several names; Kimi gives both sides.
    """
    names = ("spatial_merge_size", "merge_size", "merge_kernel_size", "downsample_factor")
    for source in (getattr(config, "vision_config", None), processor.image_processor, config):
        for name in names:
            value = getattr(source, name, None)
            if value is not None:
                return int(value if isinstance(value, int) else value[0])
    return 1


def get_encoder_blocks(hf: Any) -> Sequence[Any]:
    """Return the layers of a Qwen-like vision encoder."""
    return hf.model.visual.blocks


def find_merged_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Return image, row and column of each patch, int32 [patch, 3]; merged patches are adjacent."""
    merge = hf.config.vision_config.spatial_merge_size
    positions = []
    for image, (_, rows, columns) in enumerate(inputs["image_grid_thw"].tolist()):
        row, column = np.mgrid[:rows, :columns]
        grid = np.stack([np.full((rows, columns), image), row, column], -1)
        squares = grid.reshape(rows // merge, merge, columns // merge, merge, 3).swapaxes(1, 2)
        positions.append(squares.reshape(-1, 3))
    return np.concatenate(positions).astype(np.int32)


class View(NamedTuple):
    """One grid of visual tokens. It shows an image, or a part of it where a family cuts images into tiles.

    Attributes:
        grid: rows and columns of the visual tokens, which come row by row.
        box: the part of the image that the grid shows: x, y, width and height in pixels of the image's file.
        row_end_tokens: number of tokens after each row that show no part of the image (learned line breaks).
        end_tokens: number of such tokens after the last row.
        start_tokens: number of such tokens before the first row.
        first_key: for families that see images by cross-attention, the index of the first cell among the
            keys of a cross-attention layer. None where visual tokens are in the prompt.
        pictures: number of pictures that it shows: 1, or of a video the frames that its encoder merges.
    """

    grid: tuple[int, int]
    box: tuple[float, float, float, float]
    row_end_tokens: int = 0
    end_tokens: int = 0
    first_key: int | None = None
    start_tokens: int = 0
    pictures: int = 1


class LayerParts(NamedTuple):
    """Modules of one decoder layer.

    Attributes:
        attention: the module that calls transformers' attention registry. None in a layer that mixes tokens without
            softmax rows (linear attention, a convolution, a state space), or not at all.
        update: its output, times `gain`, is what attention adds to the residual stream. None in a layer that only
            has an FFN.
        mid: its input is resid_mid. None where no module reads resid_mid, as in a layer whose FFN runs beside its
            attention: then it is computed, as resid_pre plus the update.
        activation: its output is act(gate), one number for each neuron. None in a mixture of experts, or where no
            module returns it.
        gain: returns a factor of the update, a scalar tensor (Mllama's tanh gates). None if there is none.
        has_cross_attention: whether its keys are those of the images instead of those of the tokens.
    """

    attention: Any
    update: Any
    mid: Any
    activation: Any | None
    gain: Callable[[], Any] | None = None
    has_cross_attention: bool = False


class VisionEncoder(NamedTuple):
    """The layers of a family's vision encoder.

    Attributes:
        layers: returns the encoder's layers, given the transformers model.
        attention: path, within a layer, of the module that calls transformers' attention registry.
        patch_positions: returns int32 [patch, 3], given the processor's output and the transformers model:
            the image (or tile) that each position of the encoder's sequences shows, and its row and column
            there; -1 where a position shows none.
    """

    layers: Callable[[Any], Sequence[Any]]
    attention: str
    patch_positions: Callable[[Mapping[str, Any], Any], np.ndarray]


MIXERS = ("linear_attn", "conv")  # what layers without softmax rows have in place of attention


def get_decoder_parts(layer: Any) -> LayerParts:
    """Return the parts of a decoder layer under the names that most families give them.

    Raises:
        LookupError: the layer lacks a part.
    """
    attention = getattr(layer, "self_attn", None)
    mixer = _get_first(layer, "self_attn", *MIXERS)
    update: Any = mixer
    if hasattr(layer, "pre_feedforward_layernorm"):  # Gemma 2 and later: norms before and after both halves
        update, mid = layer.post_attention_layernorm, layer.pre_feedforward_layernorm
    elif hasattr(layer, "post_self_attn_layernorm"):  # GLM-4: the same under other names
        update, mid = layer.post_self_attn_layernorm, layer.post_attention_layernorm
    elif hasattr(layer, "post_norm1"):  # HyperCLOVA X: a norm or the identity
        update, mid = layer.post_norm1, layer.post_attention_layernorm
    elif hasattr(layer, "post_feedforward_layernorm"):  # EXAONE 4: norms after both halves only
        update, mid = layer.post_attention_layernorm, layer.mlp
    else:
        mid = _get_first(layer, "post_attention_layernorm", "ffn_norm")
    return LayerParts(attention, update, mid, _find_activation(layer), _find_gain(layer))


def get_parallel_parts(layer: Any) -> LayerParts:
    """Return the parts of a layer whose FFN reads what its attention reads (Cohere)."""
    return LayerParts(layer.self_attn, layer.self_attn, None, _find_activation(layer))


def _find_activation(layer: Any) -> Any | None:
    """Return the module whose output is act(gate); None in a mixture of experts, or if there is no such module."""
    mlp = _get_first(layer, "mlp", "feed_forward")
    if any(hasattr(module, name) for module in (layer, mlp) for name in ("experts", "router")):
        return None
    return next(
        (getattr(mlp, name) for name in ("act_fn", "activation_fn", "act") if hasattr(mlp, name)), None
    )


def find_down(layer: Any) -> Any:
    """Return the last projection of a layer's FFN, which reads its neurons; None if it has no usual name."""
    mlp = next((getattr(layer, name) for name in ("mlp", "feed_forward") if hasattr(layer, name)), layer)
    down = next((getattr(mlp, name) for name in ("down_proj", "fc2", "w2") if hasattr(mlp, name)), None)
    return down if hasattr(down, "in_features") else None


def find_width(layer: Any) -> int | None:
    """Return the number of neurons of a layer's FFN, or None if its last projection has no usual name."""
    return getattr(find_down(layer), "in_features", None)


def _find_gain(layer: Any) -> Callable[[], Any] | None:
    """Return the factor of a layer's updates, as Granite has it; None if there is none."""
    if getattr(layer, "residual_multiplier", 1.0) == 1.0:
        return None

    def get_gain() -> Any:
        from torch import tensor

        return tensor(layer.residual_multiplier)

    return get_gain


def _get_first(module: Any, *names: str) -> Any:
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(f"{type(module).__name__} has no {' or '.join(names)}")


def get_image_token_id(config: Any) -> int:
    """Return the id of an image's visual token, under one of the names that configs have for it."""
    return _get_token_id(config, "image")


def _get_video_token_id(config: Any) -> int:
    return _get_token_id(config, "video")


def _get_token_id(config: Any, kind: str) -> int:
    for name in (f"{kind}_token_id", f"{kind}_token_index"):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    raise LookupError(f"{type(config).__name__} has no {kind}_token_id")


class Frames(NamedTuple):
    """The frames of a video as a processor gets them: their number, and their height and width in pixels."""

    number: int
    height: int
    width: int


BuildVideoViews = Callable[[Mapping[str, Any], Sequence[Frames], Any, Any], list[list[View]]]
BuildViews = Callable[[Mapping[str, Any], Sequence[tuple[int, int]], Any, Any], list[list[View]]]


@dataclass(frozen=True)
class Family:
    """What the tracer must know of a family of models.

    Attributes:
        name: the family's name, as its module in transformers.
        model_types: the values of `config.model_type` that it covers.
        views: returns the views of each image, in the order of their tokens. Its arguments are the
            processor's output for a batch, the size in pixels (height, width) of each image of the batch, the
            processor and the model's config.
        extras: extras of mmprobe that the processor needs.
        video_views: returns the views of each video, frame after frame, as `views` does of each image. Its second argument
            are the frames of each video of the batch. None for families that are not shown videos.
        video_options: what the processor is given with videos.
        infers_axes: whether the processor guesses which axis of an image has the colours, which fails for images three
            pixels high. Then it is given arrays with the colours first.
        equal_videos: whether the processor takes videos of one number of frames together only, or fills up the shorter ones.
        videos_alone: whether the processor takes images or videos in a prompt, and not both.
        image_token_id: returns the id of an image's visual token, given the model's config.
        video_token_id: returns the id of a video's visual token.
        parts: returns the modules of a decoder layer.
        vision: the vision encoder. None where it cannot be recorded.
        chat_template: for processors that come without one.
        adds_between_layers: whether the model changes the residual stream at the prompt's visual tokens between
            layers, so that resid_post of a layer is not resid_pre of the next one.
        batches: whether transformers computes the same for a prompt in a batch with others. If not, prompts are read
            one at a time.
        answers_by: name of the module that `generate` calls at each step, if it is not the model itself.
        without_map: why the visual tokens show no part of an image, for families that are traced without a map of
            patches. Empty for all others.
        answer_token_type: what `token_type_ids` are at the tokens of an answer, in families that have them.
        shares_prefixes: whether every token attends to all tokens before it, over one growing cache of keys and
            values, and only to them. Then prompts with the same beginning can share what was read of it.
        continues_with_images: whether an image can be read after a cached beginning that has others, and is then what it is in a whole
            prompt: positions count tokens, and no image's features depend on another one.
        notes: what a user should know of the family, in a sentence.
    """

    name: str
    model_types: tuple[str, ...]
    views: BuildViews
    extras: tuple[str, ...] = ()
    video_views: BuildVideoViews | None = None
    video_options: Mapping[str, Any] = field(default_factory=dict)
    infers_axes: bool = False
    equal_videos: bool = False
    videos_alone: bool = False
    image_token_id: Callable[[Any], int] = get_image_token_id
    video_token_id: Callable[[Any], int] = _get_video_token_id
    parts: Callable[[Any], LayerParts] = get_decoder_parts
    vision: VisionEncoder | None = None
    chat_template: str | None = None
    adds_between_layers: bool = False
    batches: bool = True
    answers_by: str = ""
    without_map: str = ""
    answer_token_type: int = 0
    shares_prefixes: bool = False
    continues_with_images: bool = False
    notes: str = ""

    @property
    def about(self) -> str:
        """One line about the family."""
        types = f"config.model_type {', '.join(self.model_types)}."
        return f"{types} {self.notes}".strip()

    def decoder(self, hf: Any) -> Any:
        """Return the module that contains the decoder's `layers` and its final norm."""
        decoder = hf.get_decoder()
        while not hasattr(
            decoder, "layers"
        ):  # a language model with its head, OPT's model around its decoder
            inner = getattr(decoder, "model", None) or getattr(decoder, "decoder", None)
            if inner is None:
                return decoder
            decoder = inner
        return decoder

    def answering(self, hf: Any) -> Any:
        """Return the module that `generate` calls at each step: the model, or the language model within BLIP-2."""
        return getattr(hf, self.answers_by) if self.answers_by else hf

    def final_norm(self, hf: Any) -> Any:
        """Return the norm after the decoder's last layer.

        Raises:
            LookupError: the decoder has none under a known name.
        """
        return _get_first(
            self.decoder(hf), "norm", "embedding_norm", "norm_f", "final_layernorm", "final_layer_norm"
        )
