"""Join finished traces during a run, so that a long run needs few files."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from mmprobe.cache import Trace, open_run
from mmprobe.cache.packs import PACKS, join_traces, packed_names
from mmprobe.errors import InputError
from mmprobe.files import make_folder

log = logging.getLogger("mmprobe")


class Packer:
    """Joins the finished traces of a run's folder in files of so many traces, in `packs/`.

    The traces' own files are removed when the joined file is whole, so a process that is killed loses nothing.

    Args:
        folder: the run's folder. One process may pack into it at a time.
        every: number of traces in a file; None to leave each trace in its own file.

    Raises:
        InputError: the number is less than 1.
    """

    def __init__(self, folder: Path, every: int | None):
        if every is not None and every < 1:
            raise InputError(f"pack_every {every}: must be 1 or more")
        self.folder, self.every = folder, every
        self.n_new = 0

    def count(self, n_samples: int) -> None:
        """Count samples that were worked on, and join traces if there are enough."""
        self.n_new += n_samples
        if self.every is not None and self.n_new >= self.every:
            self._join(self.every)

    def finish(self) -> None:
        """Join the traces that are left at the end of a run."""
        if self.every is not None:
            self._join(1)

    def _join(self, least: int) -> None:
        """Join traces that have their own files, while there are at least so many."""
        assert self.every is not None
        files = sorted(
            (self.folder / "samples").glob("*.h5"), key=lambda path: (path.stat().st_mtime_ns, path)
        )
        while len(files) >= least and files:
            joined, files = files[: self.every], files[self.every :]
            make_folder(self.folder / PACKS)
            join_traces(map(Trace, joined), self._next_file())
            for path in joined:
                path.unlink()
        self.n_new = len(files)

    def _next_file(self) -> Path:
        numbers = [int(path.stem) for path in (self.folder / PACKS).glob("*.h5") if path.stem.isdecimal()]
        return self.folder / PACKS / f"{max(numbers, default=0) + 1:06}.h5"


def remove_unreadable(folder: Path) -> None:
    """Remove files of joined traces that do not even say which traces they contain."""
    for file in (folder / PACKS).glob("*.h5"):
        try:
            packed_names(file)
        except InputError as error:
            log.warning("%s", error)
            file.unlink()


def keep_packed(folder: Path, kept: Iterable[str]) -> None:
    """Remove all other traces from the files of joined traces, and second copies of those that stay."""
    run, ids = open_run(folder), set(kept)
    names_of: dict[Path, list[str]] = {}
    for trace, name in zip(run, run.ids, strict=True):
        names_of.setdefault(trace.file, []).append(name)
    for file in (folder / PACKS).glob("*.h5"):
        names = names_of.get(file, [])
        sound = [name for name in names if name in ids]
        if not sound:
            file.unlink()
        elif len(sound) < len(names):
            join_traces((run[name] for name in sound), file)
        for name in sound:
            (folder / "samples" / f"{name}.h5").unlink(missing_ok=True)
