"""Write docs/causes.md: run its commands and Python in a folder, and put what they print below them.

python research/write_causes_doc.py --folder causes        # a few minutes on two CPU cores
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from page import fill

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "causes.md"
FIGURE = DOCS / "causes" / "circuit.png"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"^\n?```text\n.*?^```\n", re.MULTILINE | re.DOTALL)


def run_blocks(text: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return a page with each block's output below it, in place of an earlier one, and the variables of the Python blocks.

    Raises:
        RuntimeError: a command fails.
    """
    variables: dict[str, Any] = {}

    def run(match: re.Match[str]) -> str:
        language, code = match.groups()
        output = _run_shell(code) if language == "sh" else _run_python(code, variables)
        return match[0] + (f"\n```text\n{output.rstrip()}\n```\n" if output.strip() else "")

    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder):
        return BLOCK.sub(run, OUTPUT.sub("", text)), variables


def _run_shell(code: str) -> str:
    outputs = []
    for line in code.splitlines():
        command = [sys.executable, "-m", *shlex.split(line)]
        finished = subprocess.run(command, capture_output=True, text=True)
        if finished.returncode:
            raise RuntimeError(f"{line}: {finished.stderr}")
        outputs.append(finished.stdout)
    return "".join(outputs)


def _run_python(code: str, variables: dict[str, Any]) -> str:
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        exec(code, variables)
    return stdout.getvalue()


def draw_png(figure: go.Figure) -> bytes:
    """Return the figure as PNG, drawn in a browser."""
    from playwright.sync_api import sync_playwright
    from plotly.offline import get_plotlyjs

    size = {"format": "png", "width": 900, "height": figure.layout.height, "scale": 1}
    script = "([figure, size]) => Plotly.newPlot('plot', figure.data, figure.layout).then(p => Plotly.toImage(p, size))"
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_default_timeout(600_000)  # ms, on a busy machine
        page.set_content(f"<body><div id=plot></div><script>{get_plotlyjs()}</script>")
        uri = page.evaluate(script, [json.loads(figure.to_json()), size])
        browser.close()
    return base64.b64decode(uri.split(",", 1)[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="folder of pairs and runs; default: a temporary one")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp())
    text, variables = run_blocks(PAGE.read_text(encoding="utf-8"), folder)
    from mmprobe.viz.figures import figures  # here, since it takes long to import

    panel = figures(variables["ds"])[0]
    FIGURE.parent.mkdir(exist_ok=True)
    FIGURE.write_bytes(draw_png(panel.figure))
    shown = f"![{panel.title}]({FIGURE.parent.name}/{FIGURE.name})\n\n{panel.caption}"
    PAGE.write_text(fill(text, {"figure": shown}), encoding="utf-8")


if __name__ == "__main__":
    main()
