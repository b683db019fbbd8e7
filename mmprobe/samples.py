"""Samples: questions with their images, read from JSON lines and checked before anything runs."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from PIL import Image, UnidentifiedImageError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mmprobe.errors import InputError
from mmprobe.files import NewFile, Record, check_readable, hash_file, read_records, read_text, writing_error
from mmprobe.notebook import show_fields

if TYPE_CHECKING:
    import numpy as np

MAX_IMAGE_PIXELS = 100_000_000
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # others may start programs, as EPS does
Box = tuple[int, int, int, int]
"""x, y, width and height in pixels of an image."""
SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_id(value: str) -> str:
    """Return the id if it is a safe file name.

    Raises:
        ValueError: it is not. The message says what an id must be, and the caller adds the place.

    Example:
        >>> check_id("0001-same")
        '0001-same'
    """
    if not SAFE_ID.fullmatch(value) or ".." in value:
        raise ValueError(
            "must be 1 to 128 letters, digits, '.', '_' or '-', begin with a letter or digit and not contain '..'"
        )
    return value


Id = Annotated[str, AfterValidator(check_id)]
"""A string that is a safe file name."""


class Region(BaseModel):
    """A box on one image of a sample, in pixels of the original image."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: int = Field(ge=0, description="index into the sample's images")
    box: Box = Field(description="x, y, width, height")


class Sample(BaseModel):
    """One question with its images. The fields are those of a line of a samples file.

    `prefill` is text that the answer begins with. The model continues it, and the continuation is its answer.

    Example:
        >>> Sample(id="0001", question="What is this?").images
        []
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Id
    images: list[Path] = []
    question: str
    system: str | None = None
    prefill: str | None = None
    answer: str | None = None
    pair_id: str | None = None
    polarity: Literal["same", "different"] | None = None
    faithful: bool | None = None
    regions: list[Region] = []
    metadata: dict[str, Any] = {}

    def _repr_html_(self) -> str:
        return show_fields(self.model_dump(exclude={"images"}), self.images)


def set_keys(sample: Sample) -> list[str]:
    """Return what puts a sample into one set with others that have it: its images, its pair, its question's id.

    An image is known by its content, so copies of a file are one; by its path where it cannot be read. Images that were made
    of one original have its name in `metadata["original"]`. Where there are no image files, `metadata["image"]` names
    the image. A question without its images is in the
    set of the question with them (`metadata["with_picture"]`).

    Example:
        >>> set_keys(Sample(id="a", question="?", images=["1.png"], pair_id="x"))
        ['image 1.png', 'pair x', 'question a']
    """
    keys = [f"image {_image_name(image)}" for image in sample.images]
    if not keys and "image" in sample.metadata:
        keys = [f"image {sample.metadata.get('subtask')}/{sample.metadata['image']}"]
    if sample.pair_id is not None:
        keys.append(f"pair {sample.pair_id}")
    if "original" in sample.metadata:
        keys.append(f"original {sample.metadata['original']}")
    return [*keys, f"question {sample.metadata.get('with_picture', sample.id)}"]


def _image_name(path: Path) -> str:
    try:
        return hash_file(path)
    except OSError:
        return str(path)


def image_sets(samples: Iterable[Sample]) -> np.ndarray:
    """Return the number of each sample's set of images, int [sample] (`mmprobe.stats.sets`).

    Samples that share an image by its content, an original or a `pair_id` are one set.

    Example:
        >>> pairs = [Sample(id=name, question="?", pair_id=pair) for name, pair in zip("abc", "xyx")]
        >>> image_sets(pairs).tolist()
        [0, 1, 0]
    """
    from mmprobe.stats.sets import number_sets  # here, since `import mmprobe` is fast

    return number_sets(map(set_keys, samples))


def load_samples(path: str | Path) -> list[Sample]:
    """Read a samples file: one JSON object a line, with image paths relative to the file.

    Every line, id and image header is checked, so that a run does not fail half-way.

    Args:
        path: a `.jsonl` file. Blank lines are ignored.

    Raises:
        InputError: malformed JSON, an unknown or missing field, a duplicate or unsafe id, or an image that is
            missing, unreadable, over 100 megapixels or grey with over 8 bits. The message names file and
            line.

    Example:
        >>> load_samples("pairs/samples.jsonl")[0].question          # doctest: +SKIP
        'Are the two pictures the same?'
    """
    path = Path(path)
    text = read_text(path)
    if text.lstrip().startswith("["):
        raise InputError(f"{path}: is one JSON array; write one JSON object a line (jq -c '.[]' does it)")
    samples: list[Sample] = []
    line_of_id: dict[str, int] = {}
    checked: set[Path] = set()
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would split at U+2028 in a text
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        sample = _parse_line(line, where, path.parent)
        if sample.id in line_of_id:
            raise InputError(f"{where}: id {sample.id!r} was used in line {line_of_id[sample.id]} already")
        line_of_id[sample.id] = number
        for image in sample.images:
            if image not in checked:
                check_image(image, where)
                checked.add(image)
        samples.append(sample)
    if not samples:
        raise InputError(f"{path}: contains no samples")
    return samples


def samples_from(
    rows: Iterable[Mapping[str, Any]],
    folder: str | Path,
    *,
    question: str = "question",
    image: str | Sequence[str] = "image",
    id: str | None = None,
    **fields: str,
) -> list[Sample]:
    """Return samples from the rows of a `datasets.Dataset`, or of any table of images and questions.

    Args:
        rows: mappings. An image may be a `PIL.Image`, a path, or a list of them.
        folder: where images that are not files yet are written, as PNG.
        question: the column of the questions.
        image: the column of the images; several columns are images in this order. Rows may lack an image.
        id: the column of the ids; the default numbers the rows from 000000.
        fields: columns of further fields by name, such as `answer="label"`.

    Raises:
        InputError: a row lacks a column, or a value cannot be used. The message names row and column.

    Example:
        >>> samples_from([{"text": "What is this?", "gold": "a star"}], "images", question="text", answer="gold")
        [Sample(id='000000', images=[], question='What is this?', ... answer='a star', ...)]
    """
    columns = {"question": question, **({"id": id} if id else {}), **fields}
    image_columns = [image] if isinstance(image, str) else list(image)
    samples = []
    for number, row in enumerate(rows):
        where = f"row {number}"
        for column in columns.values():
            if column not in row:
                raise InputError(f"{where}: no column {column!r}; it has {', '.join(map(str, row))}")
        values = {"id": f"{number:06}"} | {field: row[column] for field, column in columns.items()}
        cells = [row.get(column) for column in image_columns]
        images = [each for cell in cells for each in (cell if isinstance(cell, list) else [cell])]
        paths = [
            _image_file(each, Path(folder) / f"{number:06}-{index}.png", where)
            for index, each in enumerate(images)
            if each is not None
        ]
        samples.append(_make_sample({**values, "id": str(values["id"]), "images": paths}, where))
    return samples


def _image_file(image: Any, file: Path, where: str) -> Path:
    """Return the file of an image. An image in memory is written to `file` first."""
    if isinstance(image, Image.Image):
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)
    elif isinstance(image, str | Path):
        file = Path(image).absolute()
    else:
        raise InputError(f"{where}: an image is a PIL image or a path, not a {type(image).__name__}")
    check_image(file, where)
    return file


def _make_sample(data: Any, where: str) -> Sample:
    try:
        sample = Sample.model_validate(data)
        Sample.model_validate_json(sample.model_dump_json())  # as a trace will store it
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "line"
        near = (
            get_close_matches(field, Sample.model_fields, n=1) if first["type"] == "extra_forbidden" else []
        )
        hint = f"; did you mean {near[0]!r}?" if near else ""
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{where}: field {field!r}: {message}{hint}") from None
    except ValueError:
        raise InputError(f"{where}: contains half a surrogate pair or is nested too deeply") from None
    return sample


def _parse_line(line: str, where: str, folder: Path) -> Sample:
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error.msg} at column {error.colno})") from None
    except (RecursionError, ValueError):
        raise InputError(
            f"{where}: not JSON that can be read (nested too deeply, or a number too long)"
        ) from None
    sample = _make_sample(data, where)
    for region in sample.regions:
        if region.image >= len(sample.images):
            raise InputError(f"{where}: field 'regions': image {region.image} of {len(sample.images)}")
        if min(region.box[2:]) < 0:
            box = list(region.box)
            raise InputError(f"{where}: field 'regions': box {box} has a negative width or height")
    return sample.model_copy(update={"images": [(folder / image).absolute() for image in sample.images]})


def open_image(source: Path | BytesIO) -> Image.Image:
    """Open an image of a user, a file or its bytes. Its content must be PNG, JPEG, WebP, GIF, BMP or TIFF, whatever its name.

    Raises:
        UnidentifiedImageError: it has another format.
        OSError: it is not a regular file, or cannot be read.
    """
    file = source if isinstance(source, BytesIO) else check_readable(source)
    return Image.open(file, formats=IMAGE_FORMATS)


def write_image(image: Image.Image, file: Path) -> None:
    """Write an image as PNG. The file appears when it is complete.

    Raises:
        InputError: it cannot be written.
        OSError: the disk is full.

    Example:
        >>> write_image(Image.new("RGB", (2, 2)), Path("out/a.png"))        # doctest: +SKIP
    """
    try:
        with NewFile(file) as new:
            image.save(new.part, format="PNG")
            new.sync()
            new.place()
    except OSError as error:
        raise writing_error(file, error) from None


def check_image(path: Path, where: str, any_depth: bool = False) -> tuple[int, int]:
    """Return the (height, width) of an image from its header, without decoding it.

    Args:
        path: the image.
        where: where the image is named, for messages.
        any_depth: accept grey images with more than 8 bits, such as maps that no model sees.

    Raises:
        InputError: the file is missing, is not an image, has another format than `open_image` reads, has over 100
            megapixels, or is grey with more than 8 bits.
    """
    location = (
        f"{where}: image {repr(str(path))[1:-1]}"  # a line break in the name must not break the message
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with open_image(path) as image:
                (width, height), mode = image.size, image.mode
    except FileNotFoundError:
        raise InputError(f"{location}: no such file") from None
    except Image.DecompressionBombError:
        raise InputError(f"{location}: over 100 megapixels; make it smaller") from None
    except UnidentifiedImageError:
        reason = "its content is not PNG, JPEG, WebP, GIF, BMP or TIFF; save it as one of them"
        if not path.stat().st_size:
            reason = "the file is empty"
        raise InputError(f"{location}: not a readable image ({reason})") from None
    except (OSError, ValueError, SyntaxError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise InputError(f"{location}: not a readable image ({reason})") from None
    if width * height > MAX_IMAGE_PIXELS:
        megapixels = width * height / 1e6
        raise InputError(f"{location}: {megapixels:.0f} megapixels, over 100; make it smaller")
    if mode[0] in "IF" and not any_depth:  # Pillow would make all above 255 white
        raise InputError(f"{location}: its greys have more than 8 bits (mode {mode}); save it with 8")
    return height, width


def load_with_images(path: str | Path, record_type: type[Record]) -> list[Record]:
    """Read records with a field `images`, relative to the file, as absolute paths that were checked."""
    records = []
    for number, record in read_records(path, record_type):
        images = [resolve_image(image, path, number, "images")[0] for image in getattr(record, "images", [])]
        records.append(record.model_copy(update={"images": images}))
    return records


def resolve_image(
    image: Path, file: str | Path, line: int, field: str, any_depth: bool = False
) -> tuple[Path, tuple[int, int]]:
    """Return an image's absolute path and (height, width). Raises InputError with line and field."""
    path = (Path(file).parent / image).absolute()
    return path, check_image(path, f"{file}, line {line}: field {field!r}", any_depth)


def check_derived_ids(where: str | Path, ids: Iterable[str], derived: Iterable[tuple[str, str]]) -> None:
    """Raise InputError where an id derived from an original is taken already, or is not valid.

    Example:
        >>> check_derived_ids("questions.jsonl", ["1"], [("1", "1--text")])
    """
    taken = set(ids)
    for original, derived_id in derived:
        if derived_id in taken or not SAFE_ID.fullmatch(derived_id):
            reason = "is taken" if derived_id in taken else "is too long"
            raise InputError(
                f"{where}: id {original!r}: {derived_id!r}, which is derived from it, {reason}; rename one"
            )
        taken.add(derived_id)


Lengths = int | Mapping[str, int]
"""The longest answer in tokens: of all questions, or by the `type` in their metadata, with `other` for the rest."""


def length_of(sample: Sample, lengths: Lengths) -> int:
    """Return the longest answer to a question, in tokens.

    Example:
        >>> length_of(Sample(id="1", question="?", metadata={"type": "steps"}), {"steps": 512, "other": 128})
        512
    """
    if isinstance(lengths, int):
        return lengths
    return lengths.get(str(sample.metadata.get("type")), lengths["other"])


def longest(lengths: Lengths) -> int:
    """Return the longest answer to any question, in tokens.

    Example:
        >>> longest({"steps": 512, "other": 128})
        512
    """
    return lengths if isinstance(lengths, int) else max(lengths.values())


class Sampling(NamedTuple):
    """How the answer to one question is sampled."""

    temperature: float
    seed: int


def sampling_of(sample: Sample) -> Sampling | None:
    """Return how a question is sampled, as `metadata["sampling"]` says; None for the usual greedy answer.

    Example:
        >>> sampling_of(Sample(id="1", question="?", metadata={"sampling": {"temperature": 1.0, "seed": 3}}))
        Sampling(temperature=1.0, seed=3)
    """
    sampling = sample.metadata.get("sampling")
    return None if sampling is None else Sampling(**sampling)


class Answer(str):
    """The text of an answer.

    Attributes:
        truncated: whether it was cut off at the longest length; None if nobody knows.
        token_ids: ids of its tokens, where a model that is loaded gave it.

    Example:
        >>> Answer("Yes.", truncated=False).truncated
        False
    """

    truncated: bool | None
    token_ids: list[int] | None

    def __new__(cls, text: str, truncated: bool | None = None, token_ids: list[int] | None = None) -> Answer:
        answer = super().__new__(cls, text)
        answer.truncated, answer.token_ids = truncated, token_ids
        return answer
