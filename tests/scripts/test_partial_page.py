"""`--only NAME…`: the parts of some names of a page are written, and the rest of it stays."""

from __future__ import annotations

import doctest

import partial_page
import pytest
from partial_page import merge_pages, write_page

OLD = """\
# Page

old text

| method | value |
|---|---|
| plain | 1 |
| sage | 1 |
| | more of sage, 1 |
| sage-like | 1 |

- **sage**: 1
- **vcd**: 1

## pope

old pope

### part of pope

old part

## mme

| sage | 1 |
"""
NEW = OLD.replace("old", "new").replace("1", "2").replace("| sage-like", "| added | 2 |\n| sage-like")


def test_rows_items_and_sections_of_a_name_are_written():
    expected = OLD.replace("| sage | 1 |\n| | more of sage, 1 |", "| sage | 2 |\n| | more of sage, 2 |")
    expected = expected.replace("- **sage**: 1", "- **sage**: 2").replace(
        "## mme\n\n| sage | 1 |", "## mme\n\n| sage | 2 |"
    )
    assert merge_pages(OLD, NEW, ["sage"]) == expected
    expected = OLD.replace("old pope", "new pope").replace("old part", "new part")
    assert merge_pages(OLD, NEW, ["pope"]) == expected


def test_a_new_name_comes_at_the_end_of_its_table():
    assert merge_pages(OLD, NEW, ["added"]) == OLD.replace(
        "| sage-like | 1 |\n", "| sage-like | 1 |\n| added | 2 |\n"
    )


def test_all_names_are_the_whole_new_page_but_its_text(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(OLD)
    write_page(page, NEW, ["plain", "sage", "sage-like", "vcd", "pope", "mme"])
    assert "old text" in page.read_text() and " 1" not in page.read_text()
    write_page(page, NEW)
    assert page.read_text() == NEW


def test_a_name_without_a_part_is_refused():
    with pytest.raises(SystemExit, match="--only popes: the page has no part of this name"):
        merge_pages(OLD, NEW, ["popes"])


def test_examples():
    assert doctest.testmod(partial_page).failed == 0
