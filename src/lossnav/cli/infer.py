"""``lossnav infer``: an optimizer by name and settings, and what it assumes."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lossnav.cli import AsJson, check_output, located, print_json, say

if TYPE_CHECKING:
    from lossnav.inference import Assumptions


def infer(
    optimizer: Annotated[
        list[str],
        typer.Argument(
            help="Such as torch.optim.AdamW lr=1e-3, optax.adam lr=1e-3, lossnav.zoo:Lion, "
            "my_module:make, or run.npz, a training run that was recorded."
        ),
    ],
    compare: Annotated[
        bool, typer.Option("--compare", help="Show several optimizers side by side.")
    ] = False,
    shape: Annotated[str, typer.Option(help="Shape of the tensors to test it on.")] = "8,6",
    seed: Annotated[int, typer.Option(help="Seed of the gradients.")] = 0,
    budget: Annotated[int, typer.Option(help="Training sets; more narrow the intervals.")] = 1,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which an optimizer is given up.")
    ] = 300.0,
    html: Annotated[Path | None, typer.Option(help="Write a page with the curves.")] = None,
    size: Annotated[str, typer.Option(help="Of the report: line, screen or all.")] = "all",
    save: Annotated[Path | None, typer.Option(help="Write a fingerprint, for --check.")] = None,
    check: Annotated[
        Path | None, typer.Option(help="Exit with 1 if it has changed since that fingerprint.")
    ] = None,
    convert: Annotated[
        bool, typer.Option("--convert", help="Settings of the second that act as the first.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find what an optimizer assumes, by watching its steps after chosen gradients."""
    check_output("--html", html, [".html", ".htm"])
    check_output("--save", save, [".json"])
    asked = _asked(optimizer)
    if convert:
        _convert(asked, {"shape": _sizes(shape), "seed": seed}, as_json=as_json)
        return
    if len(asked) > 1 and not compare:
        names = " and ".join(kind for kind, _ in asked)
        raise ValueError(f"{names} are several optimizers: give one, or --compare them.")
    if compare and len(asked) < 2:
        raise ValueError("--compare needs two optimizers or more, each with its settings after it.")
    from lossnav._base import checks
    from lossnav.inference import comparison, report

    checks.choice("--size", size, report.SIZES)
    if compare and (save or check):
        raise ValueError("--save and --check take one optimizer: leave out --compare.")
    options = {"shape": _sizes(shape), "seed": seed, "budget": budget, "timeout": timeout}
    if check is not None:
        before, used = comparison.load(check)
        options |= used

    with contextlib.redirect_stdout(sys.stderr):  # the user's own code may print
        results = [_inferred(kind, settings, options) for kind, settings in asked]
    one = results[0]
    if html is not None:
        html.write_text(report.page(results), encoding="utf-8")
        say(f"Wrote {html}.")
    if save is not None:
        used = {name: options[name] for name in comparison.OPTIONS}
        comparison.save(save, one, used)
        say(f"Wrote {save}.")
    if check is not None:
        changed = comparison.changes(before, one)
        text = f"{one.name} is the same as in {check}."
        if changed:
            text = f"{one.name} has changed since {check}: {'; '.join(changed)}."
        print_json({"changes": changed}) if as_json else typer.echo(text)
        raise typer.Exit(1 if changed else 0)
    if as_json:
        print_json([each.to_dict() for each in results] if compare else one.to_dict())
    else:
        typer.echo(report.compared(results) if compare else one.report(size=size))


def _convert(
    asked: list[tuple[str, dict[str, Any]]], options: dict[str, Any], *, as_json: bool
) -> None:
    """Print the settings of the second optimizer under which it acts as the first."""
    from lossnav.inference import comparison
    from lossnav.studies.spec import lookup
    from lossnav.studies.spec.rulebook import OURS

    if len(asked) != 2:
        raise ValueError("--convert needs two optimizers: the one to replace, and the other.")
    (source, settings), (target, given) = asked
    made = OURS.get(target) or lookup.locate(target)
    start = {"lr": 1e-3} | lookup.defaults(made, comparison.TUNED) | given
    with contextlib.redirect_stdout(sys.stderr):
        converted = comparison.convert(
            _optimizer(source, settings), lambda s: _optimizer(target, s), start, **options
        )
    if as_json:
        print_json({"settings": converted.settings, "distance": converted.distance})
    else:
        typer.echo(converted.report(" ".join([source, *_words(settings)]), target))


def _words(settings: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


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
        sentence = f"--shape is {shape!r}, but it must be whole numbers such as 8,6."
        raise ValueError(sentence) from None


def _inferred(kind: str, settings: dict[str, Any], options: dict[str, Any]) -> Assumptions:
    """The assumptions of an optimizer, or of a recorded run (its largest group or ``group=``)."""
    from lossnav.inference import infer as infer_optimizer
    from lossnav.inference import infer_log
    from lossnav.studies.spec import lookup

    if kind.endswith(".npz"):
        lookup.check_settings(f"The record {kind!r}", settings, ["group"])
        assumptions = infer_log(kind, **settings)
        return dataclasses.replace(assumptions, name=f"{assumptions.name} in {kind}")
    name = " ".join([kind, *_words(settings)])
    return infer_optimizer(_optimizer(kind, settings), name=name, **options)


def _optimizer(kind: str, settings: dict[str, Any]) -> Any:
    """The optimizer of that name; a module may be a file in the working directory."""
    from lossnav.inference.probes import ProbeError
    from lossnav.rules.zoo import Member
    from lossnav.studies.spec import lookup
    from lossnav.studies.spec.rulebook import factory

    if ":" in kind:
        function = located(kind)
        if lookup.needed(function, settings)[:1] in (["g"], ["grad"], ["gradient"]):
            lookup.check_settings(f"The function {kind!r}", settings, lookup.accepted(function))
            step = functools.partial(function, **settings)
            step.__name__ = kind  # type: ignore[attr-defined]
            return step
    maker = factory(kind, settings)
    if ":" in kind and isinstance(function, Member):
        return function(**settings)  # as a rule, several times as fast as in PyTorch

    def make(params: Any) -> Any:
        try:
            return maker(params)
        except ValueError as error:  # a sentence already
            raise ProbeError(str(error)) from error

    return make
