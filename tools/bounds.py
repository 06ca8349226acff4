"""Print what holds pip to the lowest versions in pyproject.toml, or to the newest beside our torch: `make lowest newest`."""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]

if sys.argv[1:] == ["lowest"]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = sum(project["optional-dependencies"].values(), project["dependencies"])
    print(*(line.replace(">=", "==") for line in named if ">=" in line), sep="\n")
else:
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    print(*(line for line in pinned if line.startswith("torch==")), sep="\n")
