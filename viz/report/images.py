"""Images of the report: each is embedded once, whatever number of answers shows it."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from mmprobe.errors import InputError
from mmprobe.samples import read_frames, read_picture
from mmprobe.viz.report.elements import data_block, dump_json

MAX_IMAGE_SIDE = 448
THUMBNAIL_SIDE = 96
MAX_THUMBNAIL_BYTES = 2_000_000  # of all thumbnails of a report; our choice

Crop = tuple[float, float, float, float]
"""Left, top, right and bottom of a part of an image, in pixels."""


class Images:
    """The images of a report, in the order in which they were added.

    Example:
        >>> images = Images()
        >>> images.add(Path("none.png"))
        (None, 'none.png no longer exists')
    """

    def __init__(self) -> None:
        self._names: dict[tuple[Path, Crop | None, int, int | None], tuple[str | None, str | None]] = {}
        self._sources: list[str] = []
        self._left = MAX_THUMBNAIL_BYTES

    def add(
        self, path: Path, box: Crop | None = None, side: int = MAX_IMAGE_SIDE, frame: int | None = None
    ) -> tuple[str | None, str | None]:
        """Return the id of an image's data block, or of a video's frame; or None, and the reason why it cannot be shown."""
        key = (path, box, side, frame)
        if key not in self._names:
            source, problem = embed_image(path, box, side, frame)
            if source is not None:
                self._sources.append(source)
            self._names[key] = (None if source is None else f"image-{len(self._sources) - 1}", problem)
        return self._names[key]

    def thumbnail(self, path: Path) -> str | None:
        """Return the id of the image's data block if the report has it, or of a small copy; None if there is none."""
        whole = [name for (known, *_), (name, _) in self._names.items() if known == path]
        if whole or self._left <= 0:
            return whole[0] if whole else None
        name, _ = self.add(path, side=THUMBNAIL_SIDE)
        self._left -= len(self._sources[-1]) if name is not None else 0
        return name

    @property
    def size(self) -> int:
        """Number of characters of all images."""
        return sum(map(len, self._sources))

    def blocks(self) -> list[str]:
        """Return a data block for each image."""
        return [
            data_block(f"image-{number}", dump_json(source)) for number, source in enumerate(self._sources)
        ]


def embed_image(
    path: Path, box: Crop | None = None, side: int = MAX_IMAGE_SIDE, frame: int | None = None
) -> tuple[str | None, str | None]:
    """Return an image as a PNG data URI of at most `side` pixels a side, or None and the reason.

    Args:
        box: the part to show; None for the whole image.
        frame: the index of a frame, where the file is a video.
    """
    try:
        if frame is None:
            image = read_picture(path)
        else:
            (image,) = read_frames(path, [frame], "report")
    except InputError as error:
        return None, str(error)
    except FileNotFoundError:
        return None, f"{path.name} no longer exists"
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError):
        return None, f"{path.name} can no longer be read"
    if box is not None:
        image = image.crop(tuple(round(edge) for edge in box))  # type: ignore[arg-type]
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    png = io.BytesIO()
    image.save(png, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode("ascii"), None
