"""One registry for everything that has a name: methods, families, analyses, benchmarks and the rest."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from mmprobe.errors import InputError, unknown_name

T = TypeVar("T")

log = logging.getLogger("mmprobe")


class Registry(Mapping[str, T]):
    """Things of one kind by name, in order: a mapping that imports a thing at its first use.

    It contains what ships with mmprobe, what `register` adds, and the entry points of other packages in the group
    `mmprobe.KINDS`. A name that does not exist raises an InputError that suggests similar names. A package that
    cannot be imported affects only its own names.

    Args:
        kind: the kind of the things, in messages, such as `method`.
        kinds: its plural: the name of the entry points' group, with `_` for spaces.
        shipped: the things that ship with mmprobe: objects, or texts `module:attribute` or `module`.
        added_first: whether what is added comes before what ships with mmprobe, and may replace it. It does so in
            registries that are searched, such as that of the families.

    Example:
        >>> tools = Registry("tool", "tools", {"join": "os.path:join"})
        >>> tools["join"]("a", "b"), "split" in tools
        ('a/b', False)
    """

    def __init__(
        self, kind: str, kinds: str, shipped: Mapping[str, T | str], added_first: bool = False
    ) -> None:
        self.kind = kind
        self.group = f"mmprobe.{kinds}"
        self._shipped = dict(shipped)
        self._registered: dict[str, T] = {}
        self._added_first = added_first

    def __getitem__(self, name: str) -> T:
        """Return the thing of a name.

        Raises:
            InputError: there is none of this name, or the package that adds it cannot be imported.
        """
        entries = self._entries()
        if name not in entries:
            raise unknown_name(self.kind, name, entries)
        entry = entries[name]
        if isinstance(entry, str):
            return load(entry)
        return _load_entry(entry) if isinstance(entry, EntryPoint) else entry

    def __contains__(self, name: object) -> bool:
        return name in self._entries()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def get(self, name: str, default: Any = None) -> Any:
        """Return the thing of a name, or `default` if there is none of this name."""
        return self[name] if name in self else default  # noqa: SIM401, since this is `get`

    def register(self, name: str, thing: T) -> None:
        """Add a thing. A package does the same with an entry point of the group.

        Raises:
            InputError: another thing has this name.

        Example:
            >>> METHODS.register("mine", Mine)                                       # doctest: +SKIP
        """
        if name in self._shipped and not self._added_first:
            raise InputError(f"{self.kind} {name!r}: mmprobe has one of this name; choose another")
        if self._registered.get(name, thing) is not thing:
            raise InputError(f"{self.kind} {name!r} is registered already; choose another name")
        self._registered[name] = thing

    def working(self) -> Iterator[tuple[str, T]]:
        """Yield name and thing in order. A warning in the log names each that cannot be imported.

        Example:
            >>> [name for name, _ in FAMILIES.working()][:2]                         # doctest: +SKIP
            ['qwen2_vl', 'qwen2_5_vl']
        """
        for name in self:
            try:
                thing = self[name]
            except InputError as error:
                log.warning("%s", error)
            else:
                yield name, thing

    def about(self, name: str) -> str:
        """Return one line about a thing: its `about`, or the first line of its docstring, or of its module's.

        Example:
            >>> Registry("tool", "tools", {"exists": "os.path:exists"}).about("exists")
            'Test whether a path exists.  Returns False for broken symbolic links'
        """
        thing: Any = self[name]
        about = getattr(thing, "about", None)
        return about if isinstance(about, str) else first_line(thing)

    def _entries(self) -> dict[str, T | str | EntryPoint]:
        """Return the things by name, each an object or the place to import it from."""
        added: dict[str, T | str | EntryPoint] = {**_entry_points(self.group), **self._registered}
        ordered = (added, self._shipped) if self._added_first else (self._shipped, added)
        return {**ordered[0], **{name: entry for name, entry in ordered[1].items() if name not in ordered[0]}}


@cache
def _entry_points(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}


@cache
def _load_entry(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:  # another package's code: anything can go wrong in it
        raise InputError(
            f"entry point {entry.value} of {entry.group}: cannot be imported ({error}); repair or uninstall its package"
        ) from None


def load(place: str) -> Any:
    """Import an object by its place, `module:attribute`, or a module.

    Example:
        >>> load("os.path:join")("a", "b")
        'a/b'
    """
    return EntryPoint("", place, "").load()


def first_line(thing: Any) -> str:
    """Return the first line of the docstring of a function, class or module as a description.

    A function without a docstring has its module's. Other objects do not have one, so the line is empty.

    Example:
        >>> first_line(first_line)
        'The first line of the docstring of a function, class or module as a description.'
    """
    thing = thing.func if isinstance(thing, partial) else thing
    if not (inspect.isroutine(thing) or inspect.isclass(thing) or inspect.ismodule(thing)):
        return ""
    docstring = inspect.getdoc(thing) or inspect.getdoc(inspect.getmodule(thing)) or ""
    line = docstring.partition("\n")[0].replace("`", "").removeprefix("Return ")
    return line[:1].upper() + line[1:]
