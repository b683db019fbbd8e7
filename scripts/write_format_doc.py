"""Fill the table of docs/trace-format.md from the schema.

python scripts/write_format_doc.py
"""

from __future__ import annotations

from page import PageParts, fill_pages

from mmprobe.cache.schema import FORMAT_VERSION, VARIABLES
from mmprobe.notebook import markdown_table
from mmprobe.traces import load_capture

COLUMNS = ("data set", "type", "dimensions", "meaning", "unit", "captured by")


def pages() -> dict[str, PageParts]:
    """Return the parts of the page."""
    captures = {name: set(load_capture(name).datasets) for name in ("default", "full")}
    rows = []
    for name, variable in VARIABLES.items():
        always = name.split("/")[0] in ("tokens", "images", "steps")
        captured_by = [capture for capture, datasets in captures.items() if name in datasets]
        rows.append(
            (
                f"`{name}`",
                variable.dtype,
                ", ".join(variable.dims),
                variable.long_name,
                variable.units,
                "always" if always else ", ".join(captured_by),
            )
        )
    return {"docs/trace-format.md": {"version": FORMAT_VERSION, "rows": markdown_table(COLUMNS, rows)}}


if __name__ == "__main__":
    fill_pages(pages())
