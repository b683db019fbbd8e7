"""Print the requirements of the core or of an extra, one a line, as pyproject.toml declares them."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
wanted = sys.argv[1]
print("\n".join(project["dependencies"] if wanted == "core" else project["optional-dependencies"][wanted]))
