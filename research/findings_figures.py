"""The figures of docs/findings.md."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import plotly.graph_objects as go
import xarray as xr
from playwright.sync_api import Page, sync_playwright
from plotly.offline import get_plotlyjs

from mmprobe.viz.figures import figures

Datasets = dict[str, dict[str, xr.Dataset]]
"""Analyses by run and name."""

FIGURES = (
    ("steps", "attention_decay", 0),
    ("steps", "attention_decay", 4),
    ("steps", "attention_decay", 3),
    ("verdicts", "residual_drift", -1),
    ("steps", "sublayer_transitions", -1),
    ("steps", "neuron_activation", 1),
    ("steps", "attention_vs_activation", 0),
    ("steps", "attention_ratio", 0),
    ("steps", "attention_ratio", 1),
    ("steps", "failure_modes", 0),
    ("steps", "predict_unfaithful", 1),
    ("steps", "predict_unfaithful", 2),
    ("steps", "linear_probe", 0),
    ("steps", "logit_lens", 0),
    ("steps", "attention_knockout", 0),
)


def draw_figures(datasets: Datasets, folder: Path) -> list[str]:
    """Draw the figures as PNG files and return the lines of the page that show them."""
    lines, files = [], {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_page()
        page.set_default_timeout(600_000)  # milliseconds; a busy machine takes long to read plotly
        page.set_content(f"<body><div id=plot></div><script>{get_plotlyjs()}</script>")
        for run, name, number in FIGURES:
            if name not in datasets[run]:
                continue
            panel = figures(datasets[run][name])[number]
            file = folder / f"{run}-{name}-{number}.png".replace("_", "-").replace("--", "-last-")
            files[file] = draw_png(page, panel.figure)
            lines += [f"### {panel.title}", "", f"![{panel.title}]({folder.name}/{file.name})", ""]
            lines += [f"{run.capitalize()} run. {panel.caption}", ""]
        browser.close()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file, png in files.items():
        file.write_bytes(png)
    return lines


def draw_png(page: Page, figure: go.Figure) -> bytes:
    """Return a figure as a PNG."""
    size = {"format": "png", "width": 960, "height": figure.layout.height or 400, "scale": 1}
    script = "([figure, size]) => Plotly.newPlot('plot', figure.data, figure.layout).then(p => Plotly.toImage(p, size))"
    uri = page.evaluate(script, [json.loads(figure.to_json()), size])
    return base64.b64decode(uri.split(",", 1)[1])
