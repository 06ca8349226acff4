"""What a release needs: one version, and hints that name extras there are, quoted for any shell."""

import re
import tomllib
from pathlib import Path

import lossnav

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_the_same_everywhere():
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {lossnav.__version__}\n" in cited
    assert f'\n__version__ = "{lossnav.__version__}"\n' in Path(lossnav.__file__).read_text(
        encoding="utf-8"
    )  # as the release workflow looks for it


def test_hints_to_install_are_quoted_and_name_extras_there_are():
    found = []
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"pip install [\"]?lossnav\[", text), file
        found += re.findall(r"'lossnav\[([a-z,]+)\]'", text)
    assert len(found) > 5
    assert {extra for names in found for extra in names.split(",")} <= set(
        PROJECT["optional-dependencies"]
    )
