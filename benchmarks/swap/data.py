"""The images that a question is asked with in place of its own: another image of the set, a blank, a blurred and a cropped one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageFilter

from mmprobe.benchmarks.core.questions import KnownQuestion
from mmprobe.files import make_folders
from mmprobe.samples import hash_picture, read_image, write_image

GREY = 128  # of a blank image, our choice
BLUR = 1 / 16  # radius of the blur, as a share of the longer edge; our choice
KEPT = 1 / 4  # share of the edges that a crop keeps, at the lower right corner; our choice
EDITS = ("blank", "blurred", "cropped")


def edit(image: Image.Image, kind: str) -> Image.Image:
    """Return an image of the same size that shows nothing, or less.

    Example:
        >>> edit(Image.new("RGB", (8, 4), "red"), "blank").getpixel((0, 0))
        (128, 128, 128)
    """
    if kind == "blank":
        return Image.new("RGB", image.size, (GREY,) * 3)
    if kind == "blurred":
        return image.filter(ImageFilter.GaussianBlur(BLUR * max(image.size)))
    width, height = image.size
    corner = image.crop((round(width * (1 - KEPT)), round(height * (1 - KEPT)), width, height))
    return corner.resize(image.size)


def write_edits(images: Sequence[Path], kind: str, folder: Path) -> list[Path]:
    """Write the edited copies of images that are not there yet, and return their files."""
    make_folders(folder)
    files = []
    for path in images:
        file = folder / f"{kind}-{hash_picture(path)}.png"
        if not file.exists():
            write_image(edit(read_image(path, str(path)), kind), file)
        files.append(file)
    return files


def find_other(questions: Sequence[KnownQuestion], place: int) -> tuple[list[Path] | None, bool]:
    """Return the images of another question in place of those of one, and whether they call for another answer.

    The next question (around the end) with the same words and another answer comes first; then the next with as many images.
    None of the images is one of the question's own.

    Example:
        >>> from mmprobe.benchmarks.core.questions import make_question
        >>> from mmprobe.samples import Sample
        >>> lines = [("a", "yes", "1.png"), ("b", "yes", "2.png"), ("c", "no", "3.png")]
        >>> asked = [make_question(Sample(id=n, question="A star?", answer=t, images=[i])) for n, t, i in lines]
        >>> find_other(asked, 0)
        ([PosixPath('3.png')], True)
    """
    own = questions[place]
    apart = [
        each
        for each in [*questions[place + 1 :], *questions[:place]]
        if len(each.sample.images) == len(own.sample.images)
        and not set(each.sample.images) & set(own.sample.images)
    ]
    for each in apart:
        if (
            own.accepted
            and each.accepted
            and each.sample.question == own.sample.question
            and each.options == own.options
            and not set(each.accepted) & set(own.accepted)
        ):
            return list(each.sample.images), True
    return (list(apart[0].sample.images) if apart else None), False
