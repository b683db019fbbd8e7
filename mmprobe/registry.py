"""One registry for everything that has a name: methods, families, analyses, benchmarks and the rest; and whose an error is."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from mmprobe.errors import InputError, unknown_name
from mmprobe.files import redact, write_atomic

T = TypeVar("T")

log = logging.getLogger("mmprobe")

_ENTRY = "entry point "


class WrongResult(TypeError):
    """What a thing returned has another type than things of its kind return.

    Attributes:
        plug_in: whose thing it is, in words.
    """

    def __init__(self, problem: str, plug_in: str):
        super().__init__(problem, plug_in)
        self.plug_in = plug_in

    def __str__(self) -> str:
        return str(self.args[0])


class Registry(Mapping[str, T]):
    """Things of one kind by name, in order: a mapping that imports a thing at its first use.

    It contains what ships with mmprobe, what `register` adds, and the entry points of other packages in the group
    `mmprobe.KINDS`. A name that does not exist raises an InputError that suggests similar names. A package that
    cannot be imported affects only its own names.

    Args:
        kind: the kind of the things, in messages, such as `method`.
        kinds: its plural: the name of the entry points' group, with `_` for spaces.
        shipped: the things that ship with mmprobe: objects, or texts `module:attribute` or `module`.
        form: place of the class of the things, as in `shipped`; by default they are functions.
        holds_classes: whether the things are subclasses of it, and not its objects.
        added_first: whether what is added comes before what ships with mmprobe, and may replace it. It does so in
            registries that are searched, such as that of the families.
        adapt: a function of the name and the thing that makes of each added thing what the registry returns.

    Attributes:
        shipped: what ships with mmprobe, by name.

    Example:
        >>> tools = Registry("tool", "tools", {"join": "os.path:join"})
        >>> tools["join"]("a", "b"), "split" in tools
        ('a/b', False)
    """

    def __init__(
        self,
        kind: str,
        kinds: str,
        shipped: Mapping[str, T | str],
        form: str | None = None,
        holds_classes: bool = False,
        added_first: bool = False,
        adapt: Callable[[str, T], T] | None = None,
    ) -> None:
        self.kind = kind
        self.group = f"mmprobe.{kinds}"
        self.shipped = dict(shipped)
        self._registered: dict[str, T] = {}
        self._form, self._holds_classes = form, holds_classes
        self._added_first = added_first
        self._adapt = adapt or (lambda name, thing: thing)

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
        thing = self._check(_load_entry(entry), entry) if isinstance(entry, EntryPoint) else entry
        return thing if name in self.shipped and not self._added_first else self._adapt(name, thing)

    def place(self, name: str) -> str | None:
        """Return where a thing of mmprobe is, as `module:name`, without importing it; None for any other thing."""
        entry = self._entries().get(name)
        return entry if isinstance(entry, str) else None

    def _check(self, thing: Any, entry: EntryPoint) -> T:
        """Return a thing of another package if it has the form of this registry's things."""
        if self._form is None:
            fits, wanted = callable(thing), "callable"
        else:
            form = load(self._form)
            fits = _is_subclass(thing, form) if self._holds_classes else isinstance(thing, form)
            wanted = f"a {'class of ' if self._holds_classes else ''}{form.__name__}"
        if not fits:
            raise InputError(_describe_entry(entry, f"is of type {type(thing).__name__}, not {wanted}"))
        return thing

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
        if name in self.shipped and not self._added_first:
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
        ordered = (added, self.shipped) if self._added_first else (self.shipped, added)
        return {**ordered[0], **{name: entry for name, entry in ordered[1].items() if name not in ordered[0]}}


def _is_subclass(thing: Any, form: type) -> bool:
    return isinstance(thing, type) and issubclass(thing, form)


@cache
def _entry_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points by name. Where the package importlib_metadata is imported, those that are found are of its own class."""
    return {
        entry.name: EntryPoint(entry.name, entry.value, entry.group) for entry in entry_points(group=group)
    }


@cache
def _load_entry(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:  # another package's code: anything can go wrong in it
        reason = str(error) if isinstance(error, ImportError) else describe_error(error)
        raise InputError(_describe_entry(entry, f"cannot be imported ({reason})")) from None


def _describe_entry(entry: EntryPoint, problem: str) -> str:
    return f"{_name_entry(entry)}: {problem}; repair or uninstall its package"


def _name_entry(entry: EntryPoint) -> str:
    return f"{_ENTRY}{entry.value} of {entry.group}"


def describe_error(error: BaseException) -> str:
    """Return the class and the message of an error on one line.

    Example:
        >>> describe_error(ValueError("two\\nlines")), describe_error(KeyError())
        ('ValueError: two lines', 'KeyError')
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".removesuffix(": ")


def find_plug_in(error: BaseException) -> str | None:
    """Return the entry point whose package an error came from, in words; None if no added package was at work."""
    if isinstance(error, WrongResult):
        return error.plug_in
    added = _added_packages()
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if entry := added.get(_package(str(frame.f_globals.get("__name__", "")))):
            return _name_entry(entry)
    return None


def check_made(maker: Any, made: Any, *forms: type) -> Any:
    """Return what a function of a registry's thing returned if it is of one of these types.

    Args:
        maker: the function, whose package the message names.

    Raises:
        WrongResult: it is of another type.

    Example:
        >>> check_made(len, len("abc"), int)
        3
    """
    if isinstance(made, forms):
        return made
    function = maker.func if isinstance(maker, partial) else maker
    module = str(getattr(function, "__module__", ""))
    entry = _added_packages().get(_package(module))
    whose = _name_entry(entry) if entry else f"{module}.{getattr(function, '__qualname__', function)}"
    wanted = " or ".join(form.__name__ for form in forms)
    raise WrongResult(f"it returned {type(made).__name__}, not {wanted}", whose)


def is_of_plug_in(reason: str) -> bool:
    """Return whether a reason, in words, begins with the name of a plug-in, as `find_plug_in` gives it.

    Example:
        >>> is_of_plug_in("entry point mine:THING of mmprobe.analyses: ValueError: no"), is_of_plug_in("no data")
        (True, False)
    """
    return reason.startswith(_ENTRY)


def _list_plug_ins_in_use() -> list[str]:
    """Return the entry points of other packages that were imported, in words: one of them may be why something fails."""
    added = _added_packages()
    return [_name_entry(entry) for package, entry in added.items() if package in sys.modules]


@contextmanager
def tolerate_plug_ins() -> Iterator[None]:
    """Within the block, an error of an added package, or its `sys.exit`, is a warning that names it, and ends the block.

    Example:
        >>> with tolerate_plug_ins():
        ...     raise ValueError("of mmprobe itself")
        Traceback (most recent call last):
        ValueError: of mmprobe itself
    """
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        plug_in = find_plug_in(error)
        if plug_in is None:
            raise
        log.warning("%s: %s; it is left out", plug_in, describe_error(error))


def _package(module: str) -> str:
    return module.partition(".")[0]


@cache
def _added_packages() -> dict[str, EntryPoint]:
    """Return an entry point of each package that adds something to mmprobe."""
    groups = [group for group in entry_points().groups if group.startswith("mmprobe.")]
    return {_package(entry.module): entry for group in groups for entry in entry_points(group=group)}


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
    return describe_docstring(inspect.getdoc(thing) or inspect.getdoc(inspect.getmodule(thing)) or "")


def describe_docstring(docstring: str) -> str:
    """Return the first line of a docstring as a description.

    Example:
        >>> describe_docstring("Return the `answer`.")
        'The answer.'
    """
    line = docstring.partition("\n")[0].replace("`", "").removeprefix("Return ")
    return line[:1].upper() + line[1:]


def report_unforeseen(error: BaseException) -> str:
    """Write the traceback of an error that nobody expected, and return a line about it: where it is, and whose it is.

    The file is in the folder that the command writes, or else in the user's cache.
    """
    plug_in, in_use = find_plug_in(error), ", ".join(_list_plug_ins_in_use())
    problem = f"{plug_in or 'unforeseen error'}: {redact(describe_error(error))}"
    problem += "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    if plug_in is None and in_use:
        problem += f" (in use: {in_use})"
    text = redact("".join(traceback.format_exception(error)))
    name = f"mmprobe-error-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmprobe"
    for folder in (_find_folder(sys.argv[1:]), cache, Path(tempfile.gettempdir())):
        with suppress(OSError, RuntimeError, InputError):
            if folder is cache:
                cache.mkdir(parents=True, exist_ok=True)
            if folder is not None:
                return f"{problem}; its traceback is in {write_atomic(folder / name, text)}"
    return f"{problem}; its traceback could be written nowhere"


def _find_folder(arguments: Sequence[str]) -> Path | None:
    """Return the folder that a command writes: that of `--out`, or of the run that it names; None if there is none."""
    named = [Path(value) for name, value in pairwise(arguments) if name == "--out"]
    named += [Path(word.removeprefix("--out=")) for word in arguments if word.startswith("--out=")]
    for place in (*named, *map(Path, arguments[1:2])):
        with suppress(OSError, ValueError):
            is_run = (place / "run.json").is_file()  # an argument may be a model's folder
            if is_run or (place in named and place.is_dir() and place.resolve() != Path.cwd()):
                return place
    return None
