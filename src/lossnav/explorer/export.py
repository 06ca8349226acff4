"""The page as plain files that open from disk, with precomputed answers for a grid of settings.

A page from disk may not fetch files, so each part of the answers is a script that passes them on;
a part is loaded when it is first shown. Numbers have five digits, those of a picture four, and
paths every second point, which is more than a screen can show.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from lossnav.explorer import api, paths
from lossnav.explorer.api import STORIES
from lossnav.explorer.landscapes import LANDSCAPES, SLICE, Landscape
from lossnav.explorer.server import assets
from lossnav.explorer.workers import warm_processes

GAMMAS = (0.1, 0.6, 2.0, 8.0)
RULES = ("ours", "flow", "momentum", "adam")
VARIANTS = (
    {"metric": "euclidean", "drift": "none"},
    {"metric": "anisotropic", "drift": "none"},
    {"metric": "euclidean", "drift": "decay"},
    {"metric": "euclidean", "drift": "rotation"},
)
MANY = 24
"""Number of settings from which several processes are worth their start."""
GridTask = tuple[str, dict[str, Any], list[list[float]]]
"""A name, a request and the starts to answer it for."""
DIGITS, PICTURE_DIGITS = 5, 4
_NOTE = "Made by lossnav: this folder is replaced by the next export.\n"
_MARK = "lossnav-explorer.txt"


def export(
    folder: Path,
    say: Callable[[str], None] = lambda text: None,
    *,
    landscapes: Sequence[str] = tuple(LANDSCAPES),
    gammas: Sequence[float] = GAMMAS,
    variants: Sequence[dict[str, str]] = VARIANTS,
    starts: int = 5,
    stories: Sequence[str] = tuple(STORIES),
    offered: Sequence[Landscape] = (),
) -> int:
    """Write the page and its answers; return their size in bytes.

    Args:
        folder: Created if needed; refused if it holds anything else than an export.
        say: Called with the progress.
        landscapes: Names of landscapes.
        gammas: Discount rates, besides the landscape's own.
        variants: Metrics and drifts.
        starts: Number of starts, from 1 to 5.
        stories: Names of stories; those about other landscapes are left out.
        offered: The slice of the user's model; then the page is about it alone.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--export is {folder}, but that is a file: give a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARK).exists():
        raise ValueError(
            f"--export is {folder}, but there are other things in it: give an empty or a new "
            "folder."
        )
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"--export is {folder}, but there is no folder {folder.parent}.")
    if offered:
        paths.offer(*offered)
        landscapes = [SLICE]
    made = Path(tempfile.mkdtemp(prefix=".explorer-", dir=folder.absolute().parent))
    try:
        grid = {name: _grid(LANDSCAPES[name], gammas, variants, starts) for name in landscapes}
        of_paths = [name for name in stories if STORIES[name].view == "paths"]
        shown = [name for name in of_paths if STORIES[name].settings["landscape"] in landscapes]
        size = _write(made, say, {"landscapes": grid, "stories": shown, "rules": RULES}, offered)
        made.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(made, folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return size


def _write(
    folder: Path, say: Callable[[str], None], grid: dict[str, Any], offered: Sequence[Landscape]
) -> int:
    (folder / "static").mkdir()
    (folder / "data").mkdir()
    (folder / _MARK).write_text(_NOTE, encoding="utf-8")
    for name, asset in assets().items():
        place = folder if name == "index.html" else folder / "static"
        (place / name).write_bytes(asset.body)
    catalogue = api.catalogue()
    shown = {rule for name in grid["stories"] for rule in STORIES[name].settings.get("rules", ())}
    for name in catalogue["rules"].keys() - {*RULES, *shown}:
        del catalogue["rules"][name]
    for name, story in STORIES.items():
        if name not in grid["stories"] and story.view == "paths":
            del catalogue["stories"][name]
    stored = json.dumps({"catalogue": catalogue, "grid": grid}, separators=(",", ":"))
    script = f'"use strict";\nExplorer.stored = {stored};\n'
    (folder / "static" / "manifest.js").write_text(script, encoding="utf-8")
    for key, answer in _answers(grid, say, offered):
        digits = PICTURE_DIGITS if key.startswith("landscape-") else DIGITS
        text = json.dumps(_short(answer, digits), separators=(",", ":"), allow_nan=False)
        script = f'Explorer.keep("{key}", {text});\n'
        (folder / "data" / f"{key}.js").write_text(script, encoding="utf-8")
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _grid(
    landscape: Landscape, gammas: Sequence[float], variants: Sequence[dict[str, str]], starts: int
) -> dict[str, Any]:
    """The settings of one landscape that are precomputed."""
    x0, x1, y0, y1 = landscape.box
    sides = [[round(a + u * (b - a), 3) for u in (0.22, 0.78)] for a, b in ((x0, x1), (y0, y1))]
    if landscape.positive:
        variants = ({"metric": "fisher", "drift": "none"}, VARIANTS[0])
    return {
        "gammas": sorted({landscape.settings["gamma"], *gammas}),
        "starts": [landscape.start, *map(list, itertools.product(*sides))][:starts],
        "variants": list(variants),
        "width": x1 - x0,
        "height": y1 - y0,
    }


def _answers(
    grid: dict[str, Any], say: Callable[[str], None], offered: Sequence[Landscape]
) -> Iterator[tuple[str, Any]]:
    yield "beliefs", api.answer("beliefs", {})
    yield "uncertainty", api.answer("uncertainty", {})
    tasks: list[GridTask] = []
    for name, here in grid["landscapes"].items():
        yield f"landscape-{name}", api.answer("landscape", {"landscape": name})
        for g, gamma in enumerate(here["gammas"]):
            for v, variant in enumerate(here["variants"]):
                request = {"landscape": name, "gamma": gamma, **variant}
                tasks.append((f"{name}-{g}-{v}", request, here["starts"]))
    for name in grid["stories"]:
        request = STORIES[name].settings
        tasks.append((f"story-{name}", request, [LANDSCAPES[request["landscape"]].start]))
    for done, (task, parts) in enumerate(zip(tasks, _computed(tasks, offered), strict=True), 1):
        for part, answer in parts.items():
            yield f"{task[0]}-{part}", answer
        if done % 10 == 0 or done == len(tasks):
            say(f"{done} of {len(tasks)} settings")


def _computed(tasks: Sequence[GridTask], offered: Sequence[Landscape]) -> Iterator[Any]:
    """The answers to all tasks, in their order; on all cores where they are many."""
    if len(tasks) < MANY:
        yield from map(_setting, tasks)
        return
    pool = ProcessPoolExecutor(
        min(os.cpu_count() or 1, len(tasks)),
        mp_context=warm_processes(),
        initializer=paths.offer,
        initargs=tuple(offered),
    )
    try:
        yield from pool.map(_setting, tasks)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _setting(task: GridTask) -> dict[str, Any]:
    """Everything shown for one setting of the learner, and from each start."""
    _, request, starts = task
    own = {question: _answer(question, request) for question in ("field", "equations")}
    return own | {str(i): _start(request | {"x": x, "y": y}) for i, (x, y) in enumerate(starts)}


def _start(request: dict[str, Any]) -> dict[str, Any]:
    """Everything that depends on the start."""
    path = _answer("basins", request)
    rules = _answer("rules", {"rules": list(RULES)} | request)
    for one in (path, *path.get("candidates", ()), *rules.get("rows", ())):
        _thin(one)
    code = _answer("equations", request)
    words = {name: code[name] for name in ("python", "toml") if name in code}
    return {"path": path, "rules": rules, "words": words}


def _answer(question: str, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return api.answer(question, request)
    except api.Refused as error:
        return {"error": str(error)}


def _thin(one: dict[str, Any]) -> None:
    """Keep every second point and the last one; the page does not show the discount."""
    one.pop("discount", None)
    for name in ("t", "x", "y", "loss", "kinetic", "potential"):
        values = one.get(name)
        if isinstance(values, list):
            one[name] = values[:-1:2] + values[-1:]


def _short(value: Any, digits: int) -> Any:
    """The same with shorter numbers."""
    if isinstance(value, dict):
        return {key: _short(inner, digits) for key, inner in value.items()}
    if isinstance(value, list):
        return [_short(inner, digits) for inner in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
