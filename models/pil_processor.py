"""A Qwen2.5-VL processor without torchvision: PIL image processor and tokenizer, but no video."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast, ProcessorMixin
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil


class PilQwenProcessor(Qwen2_5_VLProcessor):
    """A processor of images and chat messages for Qwen2.5-VL models.

    The processor of transformers also builds a video processor, which cannot be imported without torchvision.
    This one has no video and is otherwise the same.

    Example:
        >>> from mmprobe.models import load_model
        >>> load_model("tiny-spd").processor.image_token
        '<|image_pad|>'
    """

    video_token = None
    video_token_id = None

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None):
        self.image_token = "<|image_pad|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    @classmethod
    def from_folder(cls, folder: Path) -> PilQwenProcessor:
        """Read `tokenizer.json`, `preprocessor_config.json` and `chat_template.jinja` from a folder."""
        return cls(
            Qwen2VLImageProcessorPil.from_pretrained(folder),
            PreTrainedTokenizerFast.from_pretrained(folder),
            chat_template=(folder / "chat_template.jinja").read_text(encoding="utf-8"),
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
