"""A Qwen2.5-VL processor without torchvision: PIL image processor, the same for the frames of videos, and tokenizer."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BatchFeature, PreTrainedTokenizerFast, ProcessorMixin
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.video_utils import VideoMetadata, make_batched_videos

_IMAGE = "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
SHOW_VIDEOS = (
    _IMAGE,
    f"{_IMAGE}{{% elif part.type == 'video' %}}<|vision_start|><|video_pad|><|vision_end|>",
)
"""What the embedded model's chat template has for images, and the same with videos. Its file stays as it is, since by a hash
of it runs know the model that they are continued with."""


class PilVideoProcessor:
    """A processor of videos for Qwen-like models, each of whose frames is scaled as an image is.

    That of transformers cannot be imported without torchvision. It scales a frame by other limits; frames within the
    limits of both give the same.

    Args:
        images: the model's image processor.

    Example:
        >>> from mmprobe.models import load_model
        >>> images = load_model("tiny-spd").processor.image_processor
        >>> frames = np.zeros((3, 56, 84, 3), np.uint8)
        >>> PilVideoProcessor(images)([frames], [{"fps": None}])["video_grid_thw"].shape
        torch.Size([1, 3])
    """

    do_sample_frames = True
    fps = 2.0
    max_frames = 64
    model_input_names = ("pixel_values_videos", "video_grid_thw")

    def __init__(self, images: Qwen2VLImageProcessorPil):
        self.images = images
        self.merge_size, self.temporal_patch_size = images.merge_size, images.temporal_patch_size

    def sample_frames(self, metadata: VideoMetadata, fps: float | None = None) -> np.ndarray:
        """Return the indices of about `fps` frames a second, at equal distances."""
        wanted = math.ceil(metadata.total_num_frames / (metadata.fps or 24) * (fps or self.fps))
        count = min(max(wanted, self.temporal_patch_size), metadata.total_num_frames, self.max_frames)
        return np.linspace(0, metadata.total_num_frames - 1, count).round().astype(int)

    def __call__(self, videos: Sequence[Any], video_metadata: Sequence[Any], **_: Any) -> BatchFeature:
        """Return patches, [patch, values], and the grids of the videos, [video, 3]: times, rows and columns."""
        patches, grids, videos = [], [], make_batched_videos(videos)
        for video in videos:
            inputs = self.images([np.asarray(frame) for frame in video], return_tensors="pt")
            _, rows, columns = inputs["image_grid_thw"][0].tolist()
            frames = inputs["pixel_values"].reshape(
                len(video), rows * columns, 3, self.temporal_patch_size, -1
            )
            short = -len(frames) % self.temporal_patch_size
            frames = torch.cat([frames, *[frames[-1:]] * short])[
                ..., 0, :
            ]  # an image is repeated over its patch's times
            times = frames.reshape(-1, self.temporal_patch_size, *frames.shape[1:]).permute(0, 2, 3, 1, 4)
            patches.append(times.reshape(len(times) * rows * columns, -1))
            grids.append([len(times), rows, columns])
        metadata = [
            VideoMetadata(**{"total_num_frames": len(each), **about})
            for each, about in zip(videos, video_metadata, strict=True)
        ]
        data = {"pixel_values_videos": torch.cat(patches), "video_grid_thw": torch.tensor(grids)}
        return BatchFeature(data | {"video_metadata": metadata})


class PilQwenProcessor(Qwen2_5_VLProcessor):
    """A processor of images, videos and chat messages for Qwen2.5-VL models.

    The processor of transformers also builds a video processor, which cannot be imported without torchvision.
    This one has another and is otherwise the same.

    Example:
        >>> from mmprobe.models import load_model
        >>> load_model("tiny-spd").processor.image_token
        '<|image_pad|>'
    """

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None):
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids(
            [self.image_token, self.video_token]
        )
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
        self.video_processor = PilVideoProcessor(image_processor)

    @classmethod
    def from_folder(cls, folder: Path) -> PilQwenProcessor:
        """Read `tokenizer.json`, `preprocessor_config.json` and `chat_template.jinja` from a folder."""
        return cls(
            Qwen2VLImageProcessorPil.from_pretrained(folder),
            PreTrainedTokenizerFast.from_pretrained(folder),
            chat_template=(folder / "chat_template.jinja")
            .read_text(encoding="utf-8")
            .replace(*SHOW_VIDEOS, 1),
        )

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Write what `from_folder` reads."""
        folder = Path(save_directory)
        self.tokenizer.save_pretrained(folder)
        self.image_processor.save_pretrained(folder)
        file = folder / "preprocessor_config.json"
        config = json.loads(file.read_text(encoding="utf-8")) | {"processor_class": type(self).__name__}
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (folder / "chat_template.jinja").write_text(str(self.chat_template), encoding="utf-8")
