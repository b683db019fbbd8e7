"""Check each part of a trace's file against the schema before it is read.

Checksums find damage. They do not find forgery, since whoever changes a file can compute them again. Through HDF5 a
file can lead to other files, and it can declare more data than it contains. So links, types, shapes and stored sizes
are checked here, and so is that tokens, views and images agree with each other.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t, h5z

from mmprobe.cache.hdf5 import hdf5_type
from mmprobe.cache.schema import (
    DIM_SIZES,
    DIMS,
    GROUP_NAMES,
    READ_VERSIONS,
    TEXT_ATTRIBUTES,
    VARIABLES,
)
from mmprobe.errors import InputError, option
from mmprobe.samples import MAX_IMAGE_PIXELS

if TYPE_CHECKING:
    from mmprobe.cache.packs import TraceGroup

_GROUPS = {name.partition("/")[0] for name in VARIABLES}
_COORDINATE = np.dtype("i4")
_NO_COMPRESSION = {h5z.FILTER_FLETCHER32, h5z.FILTER_SHUFFLE}
_MAX_CHUNK_BYTES = 2**24  # of a compressed chunk, once it is read
_MAX_RATIO = 1000  # of compressed numbers
_UNWRITTEN_RATIO = 4  # rows grow, so up to half of the chunks are empty
_SPARE_BYTES = 2**16


class CheckedGroup:
    """The open group of a trace. Each method checks what it returns.

    Args:
        file: path of the file, for messages.
        root: the open file.
        group: path of the trace's group; `/` unless the run is packed.
        sample_id: id of the sample that the trace must belong to.

    Raises:
        InputError: the trace has another format or belongs to another sample.
    """

    def __init__(self, file: Path, root: h5py.File, group: str, sample_id: str):
        self.file, self.root = file, root.id
        self.file_bytes = root.id.get_filesize()
        try:
            for name in group.split("/")[1:] if group != "/" else ():
                self.root = open_group(self.root, name)
        except ValueError as error:
            raise self.error(group, str(error)) from None
        self.links = self.root.links
        self.datasets: dict[str, tuple[h5d.DatasetID, np.dtype]] = {}
        self.scales: dict[str, h5d.DatasetID] = {}
        self.sizes: dict[str, int] = {dim: sizes[-1] for dim, sizes in DIM_SIZES.items()}
        self.attributes: dict[str, str] = {}
        self.sizes["group"] = READ_VERSIONS[self._check_version()]
        self._check_id(sample_id)

    def error(self, name: str, problem: str) -> InputError:
        """Return an error that names the file, an entry and its problem."""
        remedy = f"mmprobe did not write this, so delete it and trace again with {option('resume')}"
        return InputError(f"{self.file}: {name} {problem}; {remedy}")

    def _check_version(self) -> int:
        """Return the version of the format."""
        version, known = np.zeros((), "i8"), " and ".join(map(str, READ_VERSIONS))
        if not h5a.exists(self.root, b"mmprobe_format"):
            raise InputError(f"{self.file}: trace format None, this mmprobe reads {known}")
        attribute = h5a.open(self.root, b"mmprobe_format")
        if not isinstance(attribute.get_type(), h5t.TypeIntegerID) or attribute.shape != ():
            raise self.error("attribute mmprobe_format", "is not an integer")
        attribute.read(version)
        if int(version) not in READ_VERSIONS:
            raise InputError(f"{self.file}: trace format {version}, this mmprobe reads {known}")
        return int(version)

    def _check_id(self, expected: str) -> None:
        stored = self.text("id")
        if stored is None:  # the file is older than this attribute
            try:
                stored = json.loads(self.text("sample") or "")["id"]
            except (KeyError, RecursionError, TypeError, ValueError):
                return  # `Trace.sample` raises an error that says what is wrong
        if stored != expected:
            raise InputError(
                f"{self.file}: contains the trace of sample {stored!r}, not of {expected!r}; "
                f"delete it and trace again with {option('resume')}"
            )

    def text(self, name: str) -> str | None:
        """Return a text attribute of the trace; None if it is missing."""
        if name not in self.attributes:
            if not h5a.exists(self.root, name.encode()):
                return None
            try:
                self.attributes[name] = read_text_attribute(self.root, name)
            except ValueError as error:
                raise self.error(f"attribute {name}", f"is not text ({error})") from None
        return self.attributes[name]

    def dataset(self, path: str) -> tuple[h5d.DatasetID, np.dtype] | None:
        """Return a data set of the schema and its numpy type; None if the trace does not have it."""
        if path not in self.datasets:
            if not self._has_link(path.partition("/")[0]) or not self._has_link(path):
                return None
            data = self._open(path)
            variable = VARIABLES[path]
            dtypes = ["f2", "f4"] if variable.dtype == "f2" else [variable.dtype]
            dtype = self._check_type(path, data, [np.dtype(object if t == "str" else t) for t in dtypes])
            self._check_shape(path, data, variable.dims)
            self._check_storage(path, data, dtype)
            self.datasets[path] = data, dtype
        return self.datasets[path]

    def describe(self, path: str) -> tuple[tuple[int, ...], np.dtype] | None:
        """Return the shape and the numpy type of a data set of the schema; None if the trace does not have it."""
        stored = self.dataset(path)
        return None if stored is None else (stored[0].shape, stored[1])

    def read(self, path: str, key: tuple[Any, ...] | None = None) -> np.ndarray:
        """Return the values of a data set that the trace has, or a part of them."""
        stored = self.dataset(path)
        assert stored is not None
        data, dtype = stored
        if key is not None:
            part = h5py.Dataset(data)
            return part.asstr()[key] if dtype.kind == "O" else part[key]
        values = np.empty(data.shape, dtype)
        data.read(h5s.ALL, h5s.ALL, values)  # takes a third of the calls of h5py's upper layer
        if dtype.kind == "O":
            values[...] = [text.decode() for text in values]
        return values

    def coordinate(self, dim: str) -> list[int] | list[str]:
        """Return the values of a dimension, such as the captured layers; all groups, also those of later versions."""
        data = self._scale(dim)
        if data is None:
            raise self.error(dim, "is missing")
        dtype = self._check_type(dim, data, [np.dtype(object) if dim == "group" else _COORDINATE])
        self._check_shape(dim, data, (dim,))
        self._check_storage(dim, data, dtype)
        stored = np.empty(data.shape, dtype)
        data.read(h5s.ALL, h5s.ALL, stored)
        values = [text.decode(errors="replace") for text in stored] if dim == "group" else stored.tolist()
        names = list(GROUP_NAMES[: self.sizes["group"]])
        if dim == "group" and values != names or len(set(values)) < len(values):
            raise self.error(dim, "has wrong or repeated values")
        return list(GROUP_NAMES) if dim == "group" else values

    def size(self, dim: str) -> int | None:
        """Return the size of a dimension; None if the trace does not have it."""
        scale = self._scale(dim)
        return None if scale is None or len(scale.shape or ()) != 1 else scale.shape[0]

    def check_all(self) -> None:
        """Check every attribute and every data set.

        Raises:
            InputError: something is not in the schema, or differs from it.
        """
        for name in TEXT_ATTRIBUTES:
            self.text(name)
        for path in self.paths():
            if path not in VARIABLES:
                raise self.error(path, "is not in the trace format")
            self.dataset(path)
            for dim in VARIABLES[path].dims:
                if self._scale(dim) is None:
                    raise self.error(dim, "is missing")
        for name in list_names(self.root):
            if name in DIMS:
                self.coordinate(name)
            elif name not in _GROUPS:
                raise self.error(name, "is not in the trace format")

    def paths(self) -> list[str]:
        """Return the paths of all entries in the groups of the schema."""
        paths = []
        for group in list_names(self.root):
            if group in _GROUPS:
                try:
                    paths += [f"{group}/{name}" for name in list_names(open_group(self.root, group))]
                except ValueError as error:
                    raise self.error(group, str(error)) from None
        return paths

    def _has_link(self, name: str) -> bool:
        """Return whether a link exists. Soft and external links are refused, since they can leave the file."""
        try:
            return _has_hard_link(self.links, name)
        except ValueError as error:
            raise self.error(name, str(error)) from None

    def _open(self, name: str) -> h5d.DatasetID:
        try:
            return h5d.open(self.root, name.encode())
        except (KeyError, ValueError) as error:  # it is a group or a type
            raise self.error(name, f"is not a readable data set ({error})") from None

    def _scale(self, dim: str) -> h5d.DatasetID | None:
        """Return the dimension scale, which contains the values of a dimension; None if it is missing."""
        if dim not in self.scales and self._has_link(dim):
            self.scales[dim] = self._open(dim)
        return self.scales.get(dim)

    def _check_type(self, name: str, data: h5d.DatasetID, dtypes: list[np.dtype]) -> np.dtype:
        stored = data.get_type()
        for dtype in dtypes:
            if dtype.kind == "O":
                if isinstance(stored, h5t.TypeStringID) and stored.is_variable_str():
                    return dtype
            elif stored.equal(hdf5_type(dtype)):
                return dtype
        raise self.error(name, f"has another type than {' or '.join(map(str, dtypes))}")

    def _check_shape(self, name: str, data: h5d.DatasetID, dims: tuple[str, ...]) -> None:
        """Compare the shape with the dimension scales, or with other data sets if a scale is missing."""
        shape = data.shape
        if shape is None or len(shape) != len(dims):
            raise self.error(name, f"has not the dimensions {', '.join(dims)}")
        for dim, size in zip(dims, shape, strict=True):
            if dim not in self.sizes and (scale := self._scale(dim)) is not None:
                self.sizes[dim] = scale.shape[0] if scale.shape and scale.rank == 1 else -1
            if self.sizes.setdefault(dim, size) != size:
                raise self.error(name, f"has {size} along {dim}, not {self.sizes[dim]}")

    def _check_storage(self, name: str, data: h5d.DatasetID, dtype: np.dtype) -> None:
        """Raise InputError if the data set extends past the end of the file, or declares more than is stored."""
        itemsize = 16 if dtype.kind == "O" else dtype.itemsize  # HDF5 stores a text's address in 16 bytes
        declared, stored = math.prod(data.shape) * itemsize, data.get_storage_size()
        if data.get_offset() is not None and declared == stored:
            return  # in one piece, in this file
        layout = data.get_create_plist()
        possible = stored * _UNWRITTEN_RATIO + _SPARE_BYTES
        if layout.get_layout() == h5d.CHUNKED:
            filters = {layout.get_filter(index)[0] for index in range(layout.get_nfilters())}
            if filters - _NO_COMPRESSION:
                possible = stored * _MAX_RATIO + _SPARE_BYTES
                if math.prod(layout.get_chunk()) * itemsize > _MAX_CHUNK_BYTES:
                    raise self.error(name, "has chunks that are too large")
        elif layout.get_layout() not in (h5d.COMPACT, h5d.CONTIGUOUS) or layout.get_external_count():
            raise self.error(name, "is stored in another file")
        if declared > possible or stored > self.file_bytes:
            raise self.error(name, f"declares {declared:,} bytes and stores {stored:,}")


def open_group(parent: h5g.GroupID, name: str) -> h5g.GroupID:
    """Open a group in a group.

    Raises:
        ValueError: the group is missing, or is a link to another place.
    """
    if not _has_hard_link(parent.links, name):
        raise ValueError(f"{name} is missing")
    if h5o.get_info(parent, name.encode()).type != h5o.TYPE_GROUP:
        raise ValueError(f"{name} is not a group")
    return h5g.open(parent, name.encode())


def open_hard_link(parent: h5g.GroupID, name: str) -> h5d.DatasetID:
    """Open a data set in a group.

    Raises:
        ValueError: the data set is missing, or is a link to another place.
    """
    if not _has_hard_link(parent.links, name):
        raise ValueError(f"{name} is missing")
    try:
        return h5d.open(parent, name.encode())
    except KeyError as error:  # it is a group or a type
        raise ValueError(f"is not a readable data set ({error})") from None


def list_names(group: h5g.GroupID) -> list[str]:
    """Return the names in a group."""
    return [name.decode(errors="replace") for name in group]


def read_text_attribute(root: h5g.GroupID, name: str) -> str:
    """Return a text attribute.

    Raises:
        ValueError: it is missing, or is not a single text in UTF-8.
    """
    if not h5a.exists(root, name.encode()):
        raise ValueError(f"attribute {name} is missing")
    attribute = h5a.open(root, name.encode())
    stored_type = attribute.get_type()
    if not isinstance(stored_type, h5t.TypeStringID) or not stored_type.is_variable_str():
        raise ValueError(f"attribute {name} has another type")
    if attribute.shape != ():
        raise ValueError(f"attribute {name} is not a scalar")
    stored = np.empty((), object)
    attribute.read(stored)
    return bytes(stored[()] or b"").decode()


def _has_hard_link(links: h5l.LinkProxy, name: str) -> bool:
    """Return whether a link exists.

    Raises:
        ValueError: it is a soft or an external link.
    """
    if not links.exists(name.encode()):
        return False
    if links.get_info(name.encode()).type != h5l.TYPE_HARD:
        raise ValueError("is a link to another place")
    return True


def add_groups(values: np.ndarray) -> np.ndarray:
    """Return attention by token group [..., group] with the groups that later versions added, on which it is 0."""
    missing = len(GROUP_NAMES) - values.shape[-1]
    return values if not missing else np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])


VIEW_PATHS = (
    "images/grid",
    "images/source",
    "images/box",
    "images/video",
    "images/frames",
    "tokens/image",
    "tokens/group",
)
_MAX_BOX = 1.5 * MAX_IMAGE_PIXELS  # a part may reach over its image, where a family pads it


def check_views(root: TraceGroup) -> None:
    """Check the groups of the tokens, and what `images` and `tokens/image` say about the same visual tokens.

    The visual tokens of a prompt show the cells of all views, view by view. Tokens that end a row or a tile show
    no cell. In families with cross-attention no token does, and `visual` still counts the cells of all views.

    Raises:
        InputError: they contradict each other.
    """
    grid, shown = _read(root, "images/grid"), _read(root, "tokens/image")
    if grid is not None:
        if (grid < 1).any():
            raise root.error("images/grid", "contains a view without visual tokens")
        cells = grid.astype("f8").prod(1)  # integers could overflow
        size = root.size("visual")
        if size not in (None, cells.sum()):
            raise root.error("images/grid", f"has {cells.sum():,.0f} cells for {size:,} visual tokens")
        visual = shown[shown != -1] if shown is not None else ()
        if len(visual) and not (
            len(visual) == cells.sum()
            and np.array_equal(visual, np.repeat(np.arange(len(cells)), cells.astype("i8")))
        ):
            raise root.error("tokens/image", "does not count the cells of images/grid")
    group = _read(root, "tokens/group")
    if group is not None and (group >= len(GROUP_NAMES)).any():
        raise root.error("tokens/group", f"contains a number over {len(GROUP_NAMES) - 1}")
    if group is not None:
        users, size = int((group == GROUP_NAMES.index("user")).sum()), root.size("user_token")
        if size not in (None, users):
            raise root.error("tam/prompt", f"has {size:,} tokens of the user, and tokens/group {users:,}")
    box = _read(root, "images/box")
    if box is not None and not (
        np.isfinite(box).all()
        and (box[:, 2:] > 0).all()
        and (box[:, 2:].astype("f8").prod(1) <= _MAX_BOX).all()
    ):
        raise root.error("images/box", "contains a part that no image can have")
    source = _read(root, "images/source")
    if source is not None and source.size:
        n_images, n_videos = _count_pictures(root)
        if source.min() < 0 or (n_images is not None and source.max() >= n_images):
            raise root.error("images/source", f"names an image that is not among the sample's {n_images}")
        video, frames = _read(root, "images/video"), _read(root, "images/frames")
        if video is not None and (video.min() < -1 or (n_videos is not None and video.max() >= n_videos)):
            raise root.error("images/video", f"names a video that is not among the sample's {n_videos}")
        if frames is not None and ((frames < -1).any() or (frames[:, 0] > frames[:, 1]).any()):
            raise root.error("images/frames", "contains a frame that no video has")


def _read(root: TraceGroup, path: str) -> np.ndarray | None:
    stored = root.dataset(path)
    if stored is None:
        return None
    data, dtype = stored
    values = np.empty(data.shape, dtype)
    data.read(h5s.ALL, h5s.ALL, values)
    return values


def _count_pictures(root: TraceGroup) -> tuple[int | None, int | None]:
    """Return the numbers of the sample's images with listed frames, and of its videos.

    None if the sample cannot be read, which `Trace.sample` says; or if a video is a file, of which the model chose frames.
    """
    with suppress(RecursionError, TypeError, ValueError, KeyError):
        sample = json.loads(root.text("sample") or "")
        videos = sample.get("videos", [])
        listed = [each.get("frames") if isinstance(each, dict) else each for each in videos]
        frames = [len(each) for each in listed if isinstance(each, list)]
        return len(sample["images"]) + sum(frames) if len(frames) == len(videos) else None, len(videos)
    return None, None
