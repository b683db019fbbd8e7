"""Name the packages of mmprobe: each folder with code in the folders that pyproject.toml maps to packages."""

import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
FOLDERS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
    "package-dir"
]


def find_packages() -> list[str]:
    """Return the names of the packages."""
    return sorted(
        ".".join([package, *file.parent.relative_to(ROOT / folder).parts])
        for package, folder in FOLDERS.items()
        for file in (ROOT / folder).rglob("__init__.py")
    )


if __name__ == "__main__":
    setup(packages=find_packages())
