"""Sphinx configuration."""

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import latex2mathml.converter
from docutils.nodes import SkipNode

import lossnav

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import notebooks

project = "lossnav"
author = "The lossnav developers"
project_copyright = author
version = release = lossnav.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_math_renderer = "mathml"  # browsers draw it themselves: no script, no network
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext", ".ipynb": "markdown"}
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["formulas.css"]
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
    homes: dict[str, tuple[str, list[str]]] = {
        name: ("lossnav", names) for name, names in lossnav._HOME.items()
    }
    rooms = "inference", "problem.builtin", "optim", "optim.torch", "optim.optax", "plasticity"
    for name in (*rooms, "studies"):
        module = importlib.import_module(f"lossnav.{name}")
        homes[name] = (module.__name__, list(module.__all__))
    for title, (home, names) in homes.items():
        lines += [f"## {title}", "", "```{eval-rst}", f".. currentmodule:: {home}", ""]
        source = importlib.import_module(home)
        values = {name: getattr(source, name) for name in sorted(names)}
        # A module comes last: what follows it would be looked for in it.
        for name in sorted(values, key=lambda name: inspect.ismodule(values[name])):
            lines += [*_entry(name, values[name]), ""]
        lines += ["```", ""]
    for module, home in lossnav._SUBMODULES.items():
        if module == home:  # a room, whose names are above
            continue
        lines += [f"## {module}", "", "```{eval-rst}", f".. automodule:: lossnav.{home}"]
        lines += ["   :members:", "```", ""]
    return "\n".join(lines)


def _entry(name: str, value: Any) -> list[str]:
    if inspect.ismodule(value):
        return [f".. automodule:: {value.__name__}"]
    if inspect.isclass(value):
        return [f".. autoclass:: {name}", "   :members:"]
    return [f".. autofunction:: {name}"]


def fill_api_page(app: Any, docname: str, source: list[str]) -> None:
    if docname == "api":
        source[0] += api_reference()


def notebook_page(app: Any, docname: str, source: list[str]) -> None:
    """A stored notebook as a page; its output is shown as it is in the file."""
    if docname.startswith("notebooks/") and source[0].lstrip().startswith("{"):
        source[0] = notebooks.markdown(json.loads(source[0]), docname.removeprefix("notebooks/"))


def inline_formula(writer: Any, node: Any) -> None:
    writer.body.append(latex2mathml.converter.convert(node.astext()))
    raise SkipNode


def displayed_formula(writer: Any, node: Any) -> None:
    text = node.astext().replace("{aligned}", "{align*}")
    if r"\\" in text and r"\begin" not in text:
        text = rf"\begin{{align*}}{text}\end{{align*}}"
    formula = latex2mathml.converter.convert(text, display="block")
    writer.body.append(f'<div class="displayed">{formula}</div>')
    raise SkipNode


def live_explorer(app: Any, error: Exception | None) -> None:
    """The explorer with precomputed answers, for its page; kept until the library changes."""
    from lossnav.explorer.export import VARIANTS, export

    folder = Path(app.outdir) / "live"
    files = [file for file in Path(lossnav.__file__).parent.rglob("*.*") if file.suffix != ".pyc"]
    newest = max(file.stat().st_mtime for file in files)
    if error is not None or app.builder.format != "html":
        return
    if not folder.exists() or folder.stat().st_mtime < newest:
        shown = ["double-well", "bowl", "normal"]
        export(folder, landscapes=shown, gammas=[2.0], variants=VARIANTS[:1], starts=3)


def setup(app: Any) -> None:
    app.connect("build-finished", live_explorer)
    app.connect("source-read", fill_api_page)
    app.connect("source-read", notebook_page)
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
