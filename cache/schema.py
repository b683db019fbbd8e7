"""The trace format: the dimensions, type, meaning and unit of every data set; and the files beside the traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, RootModel

from mmprobe.errors import shorten
from mmprobe.files import JsonRecord, Text
from mmprobe.samples import Id

FORMAT_VERSION = 2
READ_VERSIONS = {1: 5, 2: 6}
"""The versions that are read, and how many token groups each has. Version 1 has no earlier turns and no `steps/span`."""
GROUP_NAMES = ("template", "system", "visual", "user", "generated", "assistant")
TEXT_ATTRIBUTES = (
    "id",
    "sample",
    "answer",
    "model",
    "neurons",
    "run_hash",
    "fingerprint",
    "image_hash",
    "reading",
    "prompt_groups",
)  # of a trace
WHOLE_GROUPS = ("tokens", "images", "steps")  # every trace has all data sets of these
SPANS = "steps/span"  # version 1 lacks it
OF_VIDEOS = ("images/video", "images/frames", "images/time")  # only samples with videos have them
DIM_SIZES = {
    "group": tuple(READ_VERSIONS.values()),
    "axis": (2,),
    "corner": (4,),
    "place": (3,),
    "ends": (2,),
}
"""The sizes that dimensions have which depend on the version of the format alone."""
BLOCK_STEPS = 64  # steps that are reduced and written at a time; a chunk on disk contains at most as many


@dataclass(frozen=True)
class Variable:
    """One data set of the format.

    Attributes:
        dtype: numpy type, or `str` for text.
        dims: names of the dimensions.
        long_name: meaning.
        units: unit.
    """

    dtype: str
    dims: tuple[str, ...]
    long_name: str
    units: str = "1"


VARIABLES: dict[str, Variable] = {
    "tokens/id": Variable("i4", ("token",), "token id, prompt then generated"),
    "tokens/group": Variable("u1", ("token",), "0 template, 1 system, 2 visual, 3 user, 4 generated, 5 assistant (earlier turns)"),
    "tokens/image": Variable("i2", ("token",), "view that a visual token shows, -1 where none"),
    "tokens/text": Variable("str", ("token",), "the token's own text; a character of several tokens is at its last one"),
    "images/grid": Variable("i4", ("image", "axis"), "grid of the view's visual tokens, height and width", "visual tokens"),
    "images/size": Variable("i4", ("image", "axis"), "size of the view's image file, height and width", "pixels"),
    "images/source": Variable("i4", ("image",), "index of the picture that the view shows, or of the first: the sample's images, then the frames of its videos"),
    "images/box": Variable("f4", ("image", "corner"), "part of the image that the view shows: x, y, width, height", "pixels"),
    "images/video": Variable("i4", ("image",), "index of the sample's video that the view shows, -1 for an image"),
    "images/frames": Variable("i4", ("image", "ends"), "first and last frame of the video that the view shows, -1 for an image"),
    "images/time": Variable("f4", ("image",), "time of the view's first frame in the video, NaN for an image or where it is not known", "s"),
    "steps/id": Variable("i4", ("step",), "id of the generated token"),
    "steps/logprob": Variable("f4", ("step",), "log probability of the generated token before any sampling rule", "nat"),
    "steps/entropy": Variable("f4", ("step",), "entropy of the next-token distribution before any sampling rule", "nat"),
    "steps/span": Variable("u1", ("step",), "part of the answer: 0 other (marks), 1 thinking, 2 answer"),
    "attention/mass": Variable("f4", ("step", "layer", "head", "group"), "attention of the step's query by token group"),
    "attention/leading": Variable("f4", ("step", "layer", "head"), "attention on everything before the first image"),
    "attention/visual": Variable("f2", ("step", "layer", "visual"), "attention on each visual token, mean over heads"),
    "attention/visual_head": Variable("f2", ("step", "layer", "head", "visual"), "attention on each visual token"),
    "attention/row": Variable("f2", ("step", "layer", "head", "token"), "attention of the step's query on every token"),
    "residual/pre": Variable("f2", ("step", "layer", "hidden"), "residual stream before the layer, at the query"),
    "residual/mid": Variable("f2", ("step", "layer", "hidden"), "residual stream after attention, at the query"),
    "residual/post": Variable("f2", ("step", "layer", "hidden"), "residual stream after the layer, at the query"),
    "update/cos_mha": Variable("f4", ("step", "layer"), "cosine of resid_pre and resid_mid"),
    "update/cos_ffn": Variable("f4", ("step", "layer"), "cosine of resid_mid and resid_post"),
    "update/kl": Variable("f4", ("step", "layer"), "KL of the softmaxed attention update from the FFN update", "nat"),
    "ffn/gate_sum": Variable("f4", ("layer", "neuron"), "sum over steps of SiLU(gate) at the query"),
    "ffn/gate_first": Variable("f4", ("layer", "neuron"), "SiLU(gate) at the first query, which is the last prompt token"),
    "ffn/active": Variable("u1", ("step", "layer", "neuron_byte"), "SiLU(gate) > 0, eight neurons a byte, first in the highest bit"),
    "prompt/attention_mass": Variable("f4", ("position", "layer", "head", "group"), "attention of each prompt token by token group"),
    "prompt/attention_visual": Variable("f2", ("position", "layer", "visual"), "attention of each prompt token on each visual token, mean over heads"),
    "prompt/attention_visual_head": Variable("f2", ("position", "layer", "head", "visual"), "attention of each prompt token on each visual token"),
    "prompt/attention_row": Variable("f2", ("position", "layer", "head", "key"), "attention of each prompt token on every prompt token"),
    "prompt/residual_pre": Variable("f2", ("position", "layer", "hidden"), "residual stream before the layer, at each prompt token"),
    "prompt/residual_mid": Variable("f2", ("position", "layer", "hidden"), "residual stream after attention, at each prompt token"),
    "prompt/residual_post": Variable("f2", ("position", "layer", "hidden"), "residual stream after the layer, at each prompt token"),
    "vision/residual": Variable("f2", ("vision_layer", "patch", "vision_hidden"), "residual stream of the vision encoder after the layer"),
    "vision/attention": Variable("f4", ("vision_layer", "vision_head", "patch"), "attention that a patch receives, mean over the queries that can see it"),
    "vision/place": Variable("i4", ("patch", "place"), "image or tile in the encoder's order, row and column of the patch, -1 where none"),
    "methods/report": Variable("str", ("method",), "name and own report of each decoding-time method, as JSON"),
    "tam/logit": Variable("f2", ("step", "token"), "logit of the step's token at every position up to its query"),
    "tam/prompt": Variable("f2", ("user_token", "visual"), "logit of each user token's own id at the visual positions"),
}  # fmt: skip

DIMS = tuple(dict.fromkeys(dim for variable in VARIABLES.values() for dim in variable.dims))


_Name = Annotated[Text, Field(max_length=5000)]  # a path has at most 4096; figures repeat a name
_Message = Annotated[Text, AfterValidator(shorten)]


class _ModelConfig(JsonRecord):
    name: _Name
    source: _Name = ""
    revision: _Name | None = None
    family: _Name = ""
    dtype: _Name = ""
    layers: int = 0


class _CaptureConfig(JsonRecord):
    datasets: list[str] = []
    layers: list[int] | None = None


class RunConfig(JsonRecord):
    """The content of run.json."""

    format: int
    order: list[Id]
    model: _ModelConfig
    capture: _CaptureConfig = _CaptureConfig()
    generate: dict[str, Any] = {}
    engine: _Name = ""
    versions: dict[str, _Name] = {}


class Failure(JsonRecord):
    """A line of failures.jsonl: a sample that failed, the error's class and its message, shortened."""

    id: Text
    error: _Message = ""
    message: _Message = ""


class Label(JsonRecord):
    """A line of labels.jsonl: whether the answer to a sample is faithful, and where a reader said so, whether it is right.

    `margin` is of closed questions that were read by likelihood: the log-probability of the right answer less that of the
    most probable other, in nat.
    """

    id: str
    faithful: bool | None
    correct: bool | None = None
    margin: float | None = None


class Format(JsonRecord):
    """The part of run.json that every version has."""

    format: int


class FailureList(RootModel[list[Failure]]):
    """The failures of a packed run."""


class LabelList(RootModel[list[Label]]):
    """The labels of a packed run."""
