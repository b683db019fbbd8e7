"""Parts of pages are filled, and the prose around them stays."""

from __future__ import annotations

import pytest
from page import fill


def test_parts_are_filled_wherever_their_marks_stand():
    page = "a <!-- n --><!-- /n --> b <!-- n -->1<!-- /n --> c\n<!-- rows -->\nold\n<!-- /rows -->\nend\n"
    filled = fill(page, {"n": 2, "rows": "| x |\n|---|\n| \\1 |"})
    rows = "<!-- rows -->\n| x |\n|---|\n| \\1 |\n<!-- /rows -->"
    assert filled == f"a <!-- n -->2<!-- /n --> b <!-- n -->2<!-- /n --> c\n{rows}\nend\n"
    assert fill(filled, {"n": 2, "rows": "| x |\n|---|\n| \\1 |"}) == filled


def test_a_part_without_marks_is_named():
    with pytest.raises(SystemExit, match="other"):
        fill("<!-- n -->1<!-- /n -->", {"other": 1})
