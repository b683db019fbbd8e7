"""Traces that somebody crafted: edits through h5py, with checksums that match."""

from __future__ import annotations

import random
import resource
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np

from mmprobe.cache import Trace, open_run, pack, verify
from mmprobe.cache.hdf5 import append_checksums
from mmprobe.cache.schema import VARIABLES
from mmprobe.errors import InputError, NotCaptured

Edit = Callable[[h5py.Group], None]

HUGE = 2**40
_ROOT_ATTRIBUTES = ("sample", "answer", "neurons", "mmprobe_format", "id")


def craft(source: Path, target: Path, edit: Edit, group: str = "/") -> None:
    """Copy a trace or a packed run, edit a trace in it, and write new checksums."""
    target.write_bytes(source.read_bytes())
    with h5py.File(target, "r+", libver=("v110", "v110")) as file:
        edit(file[group])
    with h5py.File(target, "r") as file:
        size = file.id.get_filesize()
    with open(target, "r+b") as content:
        content.truncate(size)
        append_checksums(content)


def list_edits(names: list[str], dims: list[str], seed: int) -> Iterator[tuple[str, Edit]]:
    """Yield edits with a label each. The first word of a label is the class of the edit.

    Args:
        names: data sets of the trace.
        dims: dimension scales of the trace.
        seed: seed of what is drawn at random.
    """
    rng = random.Random(seed)
    for name in names:
        yield f"huge {name}", _replace(name, lambda shape: (HUGE, *shape[1:]), chunked=True)
        yield f"unwritten {name}", _replace(name, lambda shape: (2**33, *shape[1:]))
        yield f"shape {name}", _replace(name, lambda shape: (shape[0] + rng.choice((-1, 1, 7)), *shape[1:]))
        yield f"rank {name}", _replace(name, lambda shape: (*shape, 2) if rng.random() < 0.5 else ())
        kind = rng.choice(list(_TYPES))
        yield f"type {name} {kind}", _replace(name, lambda shape: shape, dtype=_TYPES[kind])
        kind = rng.choice(list(_LINKS))
        yield f"link {name} {kind}", _relink(name, _LINKS[kind])
        kind = rng.choice(list(_LAYOUTS))
        yield f"layout {name} {kind}", _LAYOUTS[kind](name)
        yield f"group {name}", _relink(name, lambda root, name: root.create_group(name))
    for kind, dtype in _TYPES.items():
        name = rng.choice(names)
        yield f"type {name} {kind}", _replace(name, lambda shape: shape, dtype=dtype)
    for group in dict.fromkeys(name.split("/")[0] for name in names):
        for kind, link in _LINKS.items():
            yield f"link {group} {kind}", _relink(group, link)
        yield f"group {group} is data", _relink(group, lambda root, name: root.create_dataset(name, data=3))
        yield f"unknown {group}", lambda root, group=group: _assign(root, f"{group}/evil", np.arange(3))
        yield f"cycle {group}", lambda root, group=group: _assign(root, f"{group}/loop", root)
    for dim in dims:
        yield f"scale {dim} huge", _replace(dim, lambda shape: (HUGE,), chunked=True)
        yield f"scale {dim} short", _replace(dim, lambda shape: (max(shape[0] - 1, 0),))
        yield f"scale {dim} missing", lambda root, dim=dim: root.__delitem__(dim)
        kind = rng.choice(list(_TYPES))
        yield f"scale {dim} {kind}", _replace(dim, lambda shape: shape, dtype=_TYPES[kind])
        yield f"scale {dim} link", _relink(dim, rng.choice(list(_LINKS.values())))
        yield f"scale {dim} repeats", lambda root, dim=dim: _fill(root[dim])
    yield "unknown at the root", lambda root: _assign(root, "evil", np.arange(3))
    yield "unknown type at the root", lambda root: _assign(root, "evil", np.dtype("i4"))
    for name in _ROOT_ATTRIBUTES:
        for kind, value in _attribute_values().items():
            yield f"attribute {name} {kind}", lambda root, name=name, value=value: _set(root, name, value)
    for text in ("", "9" * 5000, str(HUGE), "-8", "1e3", "0", "12.5", "nine"):
        yield f"attribute neurons {text[:20]!r}", lambda root, text=text: _set(root, "neurons", text)
    for text in ("[" * 5000, '{"id":' * 900, "{}", "null", '{"id": 1}', '{"id": "\\ud800"}'):
        yield f"attribute sample {text[:9]!r}", lambda root, text=text: _set(root, "sample", text)
    for name in ("tokens/text", "attention/mass"):
        for attribute in ("CLASS", "DIMENSION_LIST", "long_name", "NAME"):
            for kind in ("number", "numbers", "reference", "empty"):
                value = _attribute_values()[kind]
                yield (
                    f"mark {name} {attribute} {kind}",
                    lambda root, name=name, attribute=attribute, value=value: _set(
                        root[name], attribute, value
                    ),
                )


def replace_link(root: h5py.Group, name: str, target: object) -> None:
    """Put a link, a data set or an array in place of an entry."""
    del root[name]
    root[name] = target


def _assign(root: h5py.Group, name: str, value: object) -> None:
    root[name] = value


def _set(target: h5py.Group | h5py.Dataset, name: str, value: object) -> None:
    if name in target.attrs:
        del target.attrs[name]
    if isinstance(value, str) and value == "reference":
        value = target.file["/"].ref
    if isinstance(value, bytes) and value == b"\xff":  # not UTF-8
        target.attrs.create(name, value, dtype=h5py.string_dtype())
    elif value is not None:
        target.attrs[name] = value


def _attribute_values() -> dict[str, object]:
    return {
        "missing": None,
        "number": 7,
        "fraction": 0.5,
        "numbers": np.arange(3),
        "many": np.zeros(7000, "f8"),
        "reference": "reference",
        "empty": h5py.Empty("S9"),
        "bytes": np.bytes_(b"a"),
        "broken text": b"\xff",
        "texts": ["a", "b"],
        "truth": True,
        "pair": np.array((1, 2.0), "i4,f4"),
    }


def _replace(
    name: str,
    reshape: Callable[[tuple[int, ...]], tuple[int, ...]],
    dtype: object = None,
    chunked: bool = False,
) -> Edit:
    """Return an edit that puts another data set in place of one. Nothing is written to a huge one."""

    def edit(root: h5py.Group) -> None:
        old = root[name]
        shape, kind = reshape(old.shape), old.dtype if dtype is None else dtype
        del root[name]
        chunks = (4096, *(1 for _ in shape[1:])) if chunked else None
        new = root.create_dataset(name, shape, kind, chunks=chunks)
        if new.size < 2**20 and new.dtype.kind in "iuf":
            new[...] = 1

    return edit


def _relink(name: str, link: Callable[[h5py.Group, str], object]) -> Edit:
    def edit(root: h5py.Group) -> None:
        del root[name]
        link(root, name)

    return edit


def _link_to(target: Callable[[h5py.Group, str], object]) -> Callable[[h5py.Group, str], object]:
    return lambda root, name: _assign(root, name, target(root, name))


_LINKS: dict[str, Callable[[h5py.Group, str], object]] = {
    "soft": _link_to(lambda root, name: h5py.SoftLink(f"{root.name}/layer")),
    "soft cycle": _link_to(lambda root, name: h5py.SoftLink(f"{root.name}/{name}".replace("//", "/"))),
    "dangling": _link_to(lambda root, name: h5py.SoftLink("/nowhere")),
    "external": _link_to(lambda root, name: h5py.ExternalLink("other.h5", "/layer")),
    "external to itself": _link_to(lambda root, name: h5py.ExternalLink(root.file.filename, name)),
    "external to a device": _link_to(lambda root, name: h5py.ExternalLink("/dev/zero", name)),
    "root": _link_to(lambda root, name: root),
    "scale": _link_to(lambda root, name: root["layer"]),
}

_TYPES: dict[str, object] = {
    "object references": h5py.ref_dtype,
    "region references": h5py.regionref_dtype,
    "lists": h5py.vlen_dtype(np.dtype("i4")),
    "texts": h5py.string_dtype(),
    "fixed texts": np.dtype("S8"),
    "records": np.dtype([("a", "i4"), ("b", "f8")]),
    "opaque": np.dtype("V16"),
    "doubles": np.dtype("f8"),
    "longs": np.dtype("i8"),
    "complex": np.dtype("c8"),
    "big-endian": np.dtype(">i4"),
    "truth": np.dtype(bool),
    "arrays": np.dtype(("f4", (3,))),
    "enum": h5py.enum_dtype({"a": 0, "b": 1}),
}


def _create_external(name: str) -> Edit:
    """Put the numbers of a data set into another file."""

    def edit(root: h5py.Group) -> None:
        shape, dtype = root[name].shape, root[name].dtype
        del root[name]
        if dtype.kind == "O":
            dtype = np.dtype("i4")
        root.create_dataset(name, shape, dtype, external=[("/dev/zero", 0, h5py.h5f.UNLIMITED)])

    return edit


def _create_virtual(name: str) -> Edit:
    def edit(root: h5py.Group) -> None:
        shape, dtype = root[name].shape, root[name].dtype
        del root[name]
        layout = h5py.VirtualLayout(shape, np.dtype("i4") if dtype.kind == "O" else dtype)
        layout[...] = h5py.VirtualSource("other.h5", "layer", shape)
        root.create_virtual_dataset(name, layout)

    return edit


def _create_filtered(name: str) -> Edit:
    """Compress a data set of zeros, which fits a small file."""

    def edit(root: h5py.Group) -> None:
        shape, dtype = root[name].shape, root[name].dtype
        del root[name]
        shape = (2**14, *(1 for _ in shape[2:]), 2**12) if len(shape) > 1 else (2**26,)
        data = root.create_dataset(name, shape, dtype, compression="gzip", chunks=shape)
        if dtype.kind != "O":
            data[...] = 0

    return edit


_LAYOUTS: dict[str, Callable[[str], Edit]] = {
    "external": _create_external,
    "virtual": _create_virtual,
    "compressed": _create_filtered,
}


def _fill(data: h5py.Dataset) -> None:
    data[...] = data[0] if len(data) else 0


def read_names(path: Path, group: str = "/") -> tuple[list[str], list[str]]:
    """Return the data sets and the dimension scales of a trace."""
    with h5py.File(path, "r") as file:
        root = file[group]
        names = [name for name in VARIABLES if name in root]
        return names, [name for name in root if isinstance(root[name], h5py.Dataset)]


def read_everything(folder: Path) -> int:
    """Read everything in a run of one trace, verify it and pack it. Return the number of refusals.

    Raises:
        AssertionError: values are not those that h5py reads, a message has several lines, or a trace that `verify`
            names is packed.
    """
    run = open_run(folder)
    (trace,) = run
    problems = verify(folder)
    assert not any("\n" in problem for problem in problems), problems
    refusals = len(problems)
    refusals += _is_refused(
        lambda: (trace.sample, trace.answer, trace.tokens.load(), trace.images.load(), trace.steps.load())
    )
    refusals += sum(map(_is_refused, (lambda: repr(trace), lambda: trace.captured, lambda: trace.ffn_active)))
    refusals += _is_refused(lambda: trace.array("attention/mass")[:2].values)
    with suppress(InputError), run[run.ids[0]].keep_open() as opened:
        refusals += sum(_is_refused(lambda name=name: _compare(opened, name)) for name in VARIABLES)
    if not run.packed:
        packed = folder / "packed.h5"
        refused = _is_refused(lambda: pack(folder, packed))
        assert refused == bool(problems), f"verify: {problems}"
        refusals += read_everything(packed) if not refused else 1
    return refusals


def _is_refused(read: Callable[[], object]) -> bool:
    try:
        read()
    except InputError as error:
        assert "\n" not in str(error), error
        return not isinstance(error, NotCaptured)
    return False


def _compare(trace: Trace, name: str) -> None:
    values = trace.array(name).values
    with h5py.File(trace.file, "r") as file:
        expected = file[trace.group][name]
        expected = expected.asstr()[...] if expected.dtype == object else expected[...]
    np.testing.assert_array_equal(values, expected)


def main(folder: Path) -> None:
    """Read the runs in a folder, and print a line for each: its name, and the number of refused readings."""
    limit = 8 * 2**30  # a data set of a huge shape must not take all memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for path in sorted(folder.iterdir()):
        print(path.name, end=" ", flush=True)
        try:
            print("ok", read_everything(path), flush=True)
        except InputError as error:
            print("several lines" if "\n" in str(error) else "ok 1", flush=True)
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            print(f"{type(error).__name__}: {str(error)[:200]!r}, {place.name} {place.lineno}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
