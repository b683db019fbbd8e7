"""One registry: lazy, in order, with what other packages add, and errors of one line."""

from __future__ import annotations

import sys
from functools import partial
from importlib.metadata import EntryPoint

import pytest

from mmprobe import registry as registry_module
from mmprobe.errors import InputError
from mmprobe.registry import Registry, WrongResult, check_made, find_plug_in


@pytest.fixture
def entered(monkeypatch):
    """Return a dict of entry points that every group has."""
    entries: dict[str, EntryPoint] = {}
    monkeypatch.setattr(registry_module, "_entry_points", lambda group: entries)
    return entries


def make(**options: bool) -> Registry:
    return Registry("tool", "tools", {"join": "posixpath:join", "plain": "this", "kept": len}, **options)


def test_a_thing_is_imported_when_it_is_used(entered, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    tools = make()
    assert list(tools) == ["join", "plain", "kept"] and len(tools) == 3
    assert "plain" in tools and "this" not in sys.modules
    assert tools["plain"] is sys.modules["this"], "a module without an attribute"
    assert tools["join"]("a", "b") == "a/b" and tools["kept"] is len
    assert tools.get("none") is None and tools.get("kept") is len


def test_an_unknown_name_suggests_similar_ones_among_all(entered):
    entered["joined"] = EntryPoint("joined", "posixpath:join", "mmprobe.tools")
    with pytest.raises(InputError, match=r"^tool 'joint': .* join or joined\?$"):
        make()["joint"]


def test_what_is_added_comes_after_what_ships_and_cannot_replace_it(entered):
    tools = make()
    entered |= {name: EntryPoint(name, "posixpath:split", "mmprobe.tools") for name in ("split", "join")}
    tools.register("mine", print)
    tools.register("mine", print)
    assert list(tools) == ["join", "plain", "kept", "split", "mine"]
    assert tools["join"].__name__ == "join" and tools["split"].__name__ == "split"
    with pytest.raises(InputError, match="tool 'mine'"):
        tools.register("mine", len)
    with pytest.raises(InputError, match="tool 'kept'"):
        tools.register("kept", print)


def test_what_is_added_comes_first_where_things_are_searched(entered):
    tools = make(added_first=True)
    tools.register("mine", print)
    tools.register("kept", max)
    assert list(tools) == ["mine", "kept", "join", "plain"] and tools["kept"] is max


def test_a_broken_package_breaks_its_own_names_alone(entered, caplog):
    entered["broken"] = EntryPoint("broken", "no_such_package:thing", "mmprobe.tools")
    tools = make(added_first=True)
    assert tools["kept"] is len and "broken" in tools
    with pytest.raises(InputError) as caught:
        tools["broken"]
    said = str(caught.value)
    assert said.startswith("entry point no_such_package:thing of mmprobe.tools: ")
    assert "(No module named 'no_such_package')" in said
    assert [name for name, _ in tools.working()] == ["join", "plain", "kept"]
    assert caplog.messages == [str(caught.value)]


def test_a_broken_module_of_mmprobe_is_an_error_of_its_own(entered):
    with pytest.raises(ModuleNotFoundError):
        Registry("tool", "tools", {"broken": "no_such_package:thing"})["broken"]


class Described:
    """A class: its objects have no line of their own."""

    def __init__(self, about: str | None = None) -> None:
        if about is not None:
            self.about = about


def count(n: int) -> int:
    """Return the `count`.

    More."""
    return n


@pytest.mark.parametrize(
    ("thing", "about"),
    [
        (count, "The count."),
        (partial(count, 1), "The count."),
        (Described, "A class: its objects have no line of their own."),
        (Described("Mine."), "Mine."),
        (Described(), ""),
        (lambda: None, "One registry: lazy, in order, with what other packages add, and errors of one line."),
        (pytest, "Pytest: unit and functional testing with Python."),
    ],
)
def test_a_thing_says_what_it_is_in_one_line(entered, thing, about):
    assert Registry("tool", "tools", {"thing": thing}).about("thing") == about


def test_a_result_of_another_type_names_the_package_that_made_it(monkeypatch):
    entry = EntryPoint("mine", "made_up_package:count", "mmprobe.tools")
    monkeypatch.setattr(registry_module, "_added_packages", lambda: {"made_up_package": entry})

    def count() -> str:
        return "three"

    with pytest.raises(WrongResult, match="str, not int") as caught:
        check_made(count, count(), int)
    assert find_plug_in(caught.value) == f"{__name__}.{count.__qualname__}", "no package added it"
    count.__module__ = "made_up_package.counting"
    with pytest.raises(WrongResult, match="not int or float") as caught:
        check_made(partial(count), count(), int, float)
    assert find_plug_in(caught.value) == "entry point made_up_package:count of mmprobe.tools"
    assert check_made(count, count(), str) == "three"
