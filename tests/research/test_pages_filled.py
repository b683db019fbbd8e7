"""Pages are filled between their marks, and long tables in the page's record."""

from __future__ import annotations

import page
import pytest


def test_a_part_is_filled_where_its_marks_are(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "ROOT", tmp_path)
    monkeypatch.setattr(page, "RECORDS", tmp_path / "records")
    for folder, text in (
        ("docs", "We trace <!-- n -->2<!-- /n --> types."),
        ("records", "<!-- table --><!-- /table -->"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "models.md").write_text(text)
    page.fill_pages({"docs/models.md": {"n": 3, "table": "| type |\n|---|"}})
    assert (tmp_path / "docs" / "models.md").read_text() == "We trace <!-- n -->3<!-- /n --> types."
    assert "\n| type |\n" in (tmp_path / "records" / "models.md").read_text()
    with pytest.raises(SystemExit, match="'other'"):
        page.fill_pages({"docs/models.md": {"other": 1}})
