"""Hooks of mkdocs: the reference from the packages' public names, the demo's reports, and links to code."""

from __future__ import annotations

import ast
import logging
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / "build" / "reports"
PACKAGES = (
    "mmprobe",
    "models",
    "traces",
    "cache",
    "analyses",
    "probes",
    "interventions",
    "benchmarks",
    "diagnosis",
    "viz",
)
SPLIT = ("probes",)  # packages whose folders have a page each
log = logging.getLogger("mkdocs.hooks")  # --strict stops at its warnings
REQUESTS = re.compile(r' data-md-component="source"|<script src="https:[^>]*></script>')
LINK = re.compile(r"(\]\()(\.\./[^)#\s]*)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference, and the reports that `make site` wrote."""
    from mkdocs.structure.files import File

    for name, content in reference_pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    for report in sorted(REPORTS.glob("*.html")):
        files.append(File.generated(config, f"reports/{report.name}", abs_src_path=str(report)))
    return files


def reference_pages() -> dict[str, str]:
    """Return the pages of the reference by name: one for each package, and for each folder of those that are split."""
    pages = {}
    for package in PACKAGES:
        name = package if package == "mmprobe" else f"mmprobe.{package}"
        parts: dict[str, list[str]] = {"": []}
        for origin in public_origins(ROOT / package, name):
            part = origin.removeprefix(f"{name}.").partition(".")[0]
            parts.setdefault(
                part if package in SPLIT and (ROOT / package / part).is_dir() else "", []
            ).append(origin)
        for part, origins in parts.items():
            pages[f"{package}-{part}" if part else package] = _reference_page(package, name, part, origins)
    return pages


def _reference_page(package: str, name: str, part: str, origins: list[str]) -> str:
    """Return a page with the docstring of each public name of a package, or of a folder of it."""
    source = (ROOT / package / part / "__init__.py").read_text(encoding="utf-8")
    summary = ast.get_docstring(ast.parse(source)) or ""
    title = f"{name}.{part}" if part else name
    lines = [f"# {title}", summary.partition("\n")[0]]
    for origin in origins:
        module, _, public = origin.rpartition(".")
        if package == "mmprobe" and module.removeprefix("mmprobe.") in PACKAGES:  # that package's page has it
            home = public_origins(ROOT / module.removeprefix("mmprobe."), module)
            target = next(each for each in home if each.endswith(f".{public}"))
            lines.append(f"- [`mp.{public}`][{target}]")
        elif module != "mmprobe":
            lines.append(f"::: {origin}")
    return "\n\n".join(lines) + "\n"


def public_origins(folder: Path, package: str) -> list[str]:
    """Return the full name of each function and class that a package's `__init__` offers."""
    stub = folder / "__init__.pyi"
    body = ast.parse((stub if stub.exists() else folder / "__init__.py").read_text(encoding="utf-8")).body
    public = next(
        (
            ast.literal_eval(node.value)
            for node in body
            if isinstance(node, ast.Assign) and _names(node) == ["__all__"]
        ),
        None,
    )
    origins = {}
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module:
            module = f"{package}.{node.module}" if node.level else node.module
            origins.update({alias.name: f"{module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.FunctionDef):
            origins[node.name] = f"{package}.{node.name}"
    return [origin for name, origin in origins.items() if public is None or name in public]


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave the folder of documents to the repository."""
    folder = posixpath.dirname(page.file.src_uri)

    def repository_link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        if path.startswith("docs/"):
            return match[0]
        return f"{match[1]}{config.repo_url}/blob/main/{path}"

    return LINK.sub(repository_link, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Check that a notebook shows its figures, and remove requests to other servers: for stars and for MathJax."""
    if page.file.src_uri.endswith(".ipynb") and "plotly-graph-div" not in output:
        log.warning("%s: shows no figure; make site sets PLOTLY_RENDERER", page.file.src_uri)
    return REQUESTS.sub("", output)
