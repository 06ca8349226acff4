"""``lossnav infer``: an optimizer by name and settings, and what it assumes."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lossnav.inference import Assumptions


def infer(
    optimizer: Annotated[
        list[str],
        typer.Argument(
            help="Such as torch.optim.AdamW lr=1e-3, optax.adam lr=1e-3, lossnav.zoo:Lion, my_module:make, "
            "or run.npz, a training run that was recorded."
        ),
    ],
    compare: Annotated[
        bool, typer.Option("--compare", help="Show several optimizers side by side.")
    ] = False,
    shape: Annotated[str, typer.Option(help="Of the tensors to try it on, such as 8,6.")] = "8,6",
    seed: Annotated[int, typer.Option(help="Of the gradients.")] = 0,
    budget: Annotated[int, typer.Option(help="Lessons to learn from; more narrows intervals.")] = 1,
    html: Annotated[Path | None, typer.Option(help="Write a page with the curves.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Find what an optimizer assumes, by watching its steps after chosen gradients."""
    if html is not None:
        if html.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"--html is {html}, but its name must end in .html.")
        if not html.parent.is_dir():
            raise ValueError(f"--html is {html}, but there is no folder {html.parent}.")
    asked = _asked(optimizer)
    if len(asked) > 1 and not compare:
        names = " and ".join(kind for kind, _ in asked)
        raise ValueError(f"{names} are several optimizers: give one, or --compare them.")
    if compare and len(asked) < 2:
        raise ValueError("--compare needs two optimizers or more, each with its settings after it.")
    sizes = _sizes(shape)
    from lossnav.inference import infer as find
    from lossnav.inference import page, report

    founds = []
    with contextlib.redirect_stdout(sys.stderr):  # the user's own code may print
        for kind, settings in asked:
            name = " ".join([kind, *(f"{k}={v}" for k, v in settings.items())])
            if kind.endswith(".npz"):
                founds.append(_recorded(kind, settings))
                continue
            founds.append(
                find(_optimizer(kind, settings), shape=sizes, seed=seed, budget=budget, name=name)
            )
    if html is not None:
        html.write_text(page.written(founds), encoding="utf-8")
        typer.echo(f"Wrote {html}.", err=True)
    typer.echo(_shown(founds, compare, as_json, report))


def _shown(founds: Sequence[Assumptions], compare: bool, as_json: bool, report: Any) -> str:
    if as_json:
        dicts = [found.to_dict() for found in founds]
        return json.dumps(dicts if compare else dicts[0], indent=2)
    return str(report.compared(founds)) if compare else founds[0].report()


def _asked(words: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Names, each followed by its settings ``key=value``."""
    asked: list[tuple[str, dict[str, Any]]] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            asked.append((word, {}))
        elif not asked:
            raise ValueError(f"{word} comes before the name of an optimizer: give the name first.")
        elif not key.isidentifier():
            raise ValueError(f"{word} is not a setting: write it as name=value.")
        else:
            asked[-1][1][key] = _value(value)
    return asked


def _value(word: str) -> Any:
    """A number, a tuple, True, False, None, or else the word itself."""
    try:
        value = float(word) if word.lower() in ("nan", "inf", "-inf") else ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word
    return tuple(value) if isinstance(value, list) else value


def _sizes(shape: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in shape.split(","))
    except ValueError:
        raise ValueError(
            f"--shape is {shape!r}, but it must be whole numbers such as 8,6."
        ) from None


def _recorded(path: str, settings: dict[str, Any]) -> Assumptions:
    """What a recorded run tells, of its largest group of parameters or of ``group=``."""
    from lossnav.inference import infer_log
    from lossnav.studies.spec.names import check_settings

    check_settings(f"The record {path!r}", settings, ["group"])
    found = infer_log(path, **settings)
    return dataclasses.replace(found, name=f"{found.name} in {path}")


def _optimizer(kind: str, settings: dict[str, Any]) -> Any:
    """What a name stands for; a file beside the reader may be named as a module."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    from lossnav.inference.probes.steppers import Refusal
    from lossnav.studies.spec import names as _named
    from lossnav.studies.spec.rulebook import factory

    if ":" in kind:
        found = _named.locate(kind)
        if _named.needed(found, settings)[:1] in (["g"], ["grad"], ["gradient"]):
            _named.check_settings(f"The function {kind!r}", settings, _named.accepted(found))
            step = functools.partial(found, **settings)
            step.__name__ = kind  # type: ignore[attr-defined]
            return step
    maker = factory(kind, settings)

    def make(params: Any) -> Any:
        try:
            return maker(params)
        except ValueError as error:  # a sentence already
            raise Refusal(str(error)) from error

    return make
