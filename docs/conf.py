"""Sphinx configuration."""

import inspect
from typing import Any

import lossnav

project = "lossnav"
author = "The lossnav developers"
project_copyright = author
version = release = lossnav.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"lossnav {version}"
default_role = "code"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
napoleon_google_docstring = True
napoleon_use_ivar = True  # attributes are described once, in the class
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False


def api_reference() -> str:
    """The body of the API page: every public name, by the module it lives in."""
    lines = []
    homes = {
        **lossnav._HOME,
        "problems": ["Problem", "ProblemError", "builtin_problems", "problem"],
    }
    for module, names in homes.items():
        home = f"lossnav.{module}" if module == "problems" else "lossnav"
        lines += [f"## {module}", "", "```{eval-rst}", f".. currentmodule:: {home}", ""]
        source = __import__(home, fromlist=names)
        for name in sorted(names):
            kind = "autoclass" if inspect.isclass(getattr(source, name)) else "autofunction"
            lines += [f".. {kind}:: {name}", *(["   :members:"] if kind == "autoclass" else []), ""]
        lines += ["```", ""]
    for module in lossnav._SUBMODULES:
        lines += [f"## {module}", "", "```{eval-rst}", f".. automodule:: lossnav.{module}"]
        lines += ["   :members:", "```", ""]
    return "\n".join(lines)


def fill_api_page(app: Any, docname: str, source: list[str]) -> None:
    if docname == "api":
        source[0] += api_reference()


def setup(app: Any) -> None:
    app.connect("source-read", fill_api_page)
