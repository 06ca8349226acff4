"""The page as plain files that open from disk, with precomputed answers for a grid of settings.

A page from disk may not fetch files, so each part of the answers is a script that passes them on;
a part is loaded when it is first shown. Numbers have five digits, those of a picture four, and
paths every second point, which is more than a screen can show.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from lossnav.explorer import api, paths
from lossnav.explorer.landscapes import LANDSCAPES, SLICE, Landscape
from lossnav.explorer.server import assets
from lossnav.explorer.stories import STORIES
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
    for one in offered:
        paths.offer(one)
        landscapes = [SLICE]
    made = Path(tempfile.mkdtemp(prefix=".explorer-", dir=folder.absolute().parent))
    try:
        grid = {name: _grid(LANDSCAPES[name], gammas, variants, starts) for name in landscapes}
        paths_told = [name for name in stories if STORIES[name].view == "paths"]
        told = [name for name in paths_told if STORIES[name].settings["landscape"] in landscapes]
        size = _write(made, say, {"landscapes": grid, "stories": told, "rules": RULES}, offered)
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
    catalogue["rules"] = {
        name: title for name, title in catalogue["rules"].items() if name in (*RULES, *shown)
    }
    catalogue["stories"] = {
        name: story
        for name, story in catalogue["stories"].items()
        if name in grid["stories"] or story["view"] != "paths"
    }
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
    corners = [
        [round(x0 + u * (x1 - x0), 3), round(y0 + v * (y1 - y0), 3)]
        for u in (0.22, 0.78)
        for v in (0.22, 0.78)
    ]
    if landscape.positive:
        variants = ({"metric": "fisher", "drift": "none"}, VARIANTS[0])
    return {
        "gammas": sorted({landscape.settings["gamma"], *gammas}),
        "starts": [[landscape.settings["x"], landscape.settings["y"]], *corners][:starts],
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
        tasks.append((f"story-{name}", request, [_own_start(request["landscape"])]))
    for done, (task, answer) in enumerate(zip(tasks, _computed(tasks, offered), strict=True), 1):
        for part, found in answer.items():
            yield f"{task[0]}-{part}", found
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
        initializer=_offer_all,
        initargs=(tuple(offered),),
    )
    try:
        yield from pool.map(_setting, tasks)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _offer_all(offered: Sequence[Landscape]) -> None:
    for one in offered:
        paths.offer(one)


def _setting(task: GridTask) -> dict[str, Any]:
    """Everything shown for one setting of the learner, and from each start."""
    _, request, starts = task
    return {
        "field": _answer("field", request),
        "equations": _answer("equations", request),
    } | {str(i): _start(request | {"x": x, "y": y}) for i, (x, y) in enumerate(starts)}


def _own_start(landscape: str) -> list[float]:
    settings = LANDSCAPES[landscape].settings
    return [settings["x"], settings["y"]]


def _start(request: dict[str, Any]) -> dict[str, Any]:
    """Everything that depends on the start."""
    path = _answer("basins", request)
    for one in (path, *path.get("candidates", ())):
        _thin(one)
        one.pop("discount", None)
    rules = _answer("rules", {"rules": list(RULES)} | request)
    for one in rules.get("rows", ()):
        _thin(one)
    words = _answer("equations", request)
    return {
        "path": path,
        "rules": rules,
        "words": {name: words[name] for name in ("python", "toml") if name in words},
    }


def _answer(question: str, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return api.answer(question, request)
    except api.Refused as error:
        return {"error": str(error)}


def _thin(one: dict[str, Any]) -> None:
    """Every second point, and the last one."""
    for name in ("t", "x", "y", "loss", "kinetic", "potential", "discount"):
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
