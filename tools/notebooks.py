"""Run the notebooks of the documentation and store their output.

    python tools/notebooks.py [NAME ...]

A small runner without Jupyter: one namespace for each notebook, the value of a cell's last line,
what it prints, and the figures it leaves open. `docs/conf.py` makes a page of each.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


def notebooks() -> list[Path]:
    """All notebooks, in order."""
    return sorted(FOLDER.glob("*.ipynb"))


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the output of each code cell."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    number = 0
    pyplot.close("all")
    with mpl.rc_context({"figure.dpi": 80, "savefig.dpi": 80, "font.size": 10}):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                outputs = _outputs("".join(cell["source"]), names, f"cell {number}")
                cell = {**cell, "execution_count": number, "outputs": outputs}
            cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, Any], where: str) -> list[dict[str, Any]]:
    from matplotlib import pyplot

    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed)})
    figures = [pyplot.figure(i) for i in pyplot.get_fignums()]
    silent = source.rstrip().endswith(";")
    if value is not None and not figures and not silent:
        outputs.append(
            {"output_type": "execute_result", "execution_count": None, "metadata": {},
             "data": _shown(value)}
        )  # fmt: skip
    for figure in figures:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", metadata={"Software": None})
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    pyplot.close("all")
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    plain = re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # addresses differ from run to run
    data = {"text/plain": plain.splitlines(keepends=True)}
    for kind, method in (("text/latex", "_repr_latex_"), ("text/html", "_repr_html_")):
        if hasattr(value, method):
            data[kind] = getattr(value, method)().splitlines(keepends=True)
    return data


def _lines(text: io.StringIO) -> list[str]:
    return text.getvalue().splitlines(keepends=True)


def markdown(notebook: dict[str, Any], name: str) -> str:
    """The notebook as a page of MyST markdown, with a link to the file itself."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            if len(parts) == 1:
                parts.append(f"*{{download}}`Download this notebook <{name}.ipynb>`*")
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [_page_output(output) for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def _page_output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return "```text\n" + "".join(output["text"]).rstrip() + "\n```"
    data = {kind: "".join(value) for kind, value in output["data"].items()}
    if "image/png" in data:
        return f"![Output of the cell above](data:image/png;base64,{data['image/png'].strip()})"
    if "text/latex" in data:
        return f"```{{math}}\n{data['text/latex'].strip().strip('$')}\n```"
    if "text/html" in data:
        return f'```{{raw}} html\n<div class="output">{data["text/html"]}</div>\n```'
    return f"```text\n{data['text/plain']}\n```"


def texts(notebook: dict[str, Any]) -> list[str]:
    """What the cells print and return, without pictures."""
    found = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            found.append("".join(output.get("text", data.get("text/plain", []))))
    return found


def main(wanted: list[str]) -> None:
    for path in notebooks():
        if wanted and path.stem not in wanted:
            continue
        done = run(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
