"""Fingerprints notice what changed in an optimizer, and conversions recover settings."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from lossnav.cli import commands
from lossnav.inference import Assumptions, Estimate, comparison, infer
from lossnav.inference.assumptions import Discount, Memory, WeightDrift
from lossnav.inference.comparison import convert
from lossnav.rules import zoo

ADAMW = "torch.optim.AdamW"


def run(*words):
    return CliRunner().invoke(commands.app, ["infer", *words])


def test_a_fingerprint_notices_a_change_and_says_which(tmp_path):
    file = str(tmp_path / "adamw.json")
    result = run(
        ADAMW, "lr=1e-3", "--shape", "4,3", "--seed", "5", "--save", file, "--size", "line"
    )
    assert result.exit_code == 0, result.output
    assert "AdamW(lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01)" in result.stdout
    assert json.loads((tmp_path / "adamw.json").read_text())["options"] == {
        "shape": [4, 3],
        "seed": 5,
        "budget": 1,
    }
    same = run(ADAMW, "lr=1e-3", "--check", file)  # with the shape and the seed of the file
    assert (same.exit_code, "is the same as in" in same.stdout) == (0, True)
    other = run(
        "torch.optim.Adam", "lr=1e-3", "betas=(0.9,0.99)", "weight_decay=0.01", "--check", file
    )
    assert other.exit_code == 1
    assert "beta2 0.999 -> 0.99; decay now coupled (was decoupled)" in other.stdout
    assert "lr 0.001" not in other.stdout


def test_changes_are_beyond_the_intervals():
    def of(lr, **more):
        return Assumptions("a", Discount("ballistic", lr=lr), **more)

    base = of(Estimate(0.1, 0.09, 0.11))
    assert comparison.changes(base, of(Estimate(0.105, 0.1, 0.12))) == []
    assert comparison.changes(base, of(Estimate(0.2, 0.19, 0.21))) == ["lr 0.1 -> 0.2"]
    assert comparison.changes(base, replace(base, mechanisms=("cautious mask",))) == [
        "now with cautious mask"
    ]
    ahead = replace(base, memory=Memory(look_ahead=True))
    behind = replace(base, memory=Memory(look_ahead=False))
    assert comparison.changes(ahead, behind) == ["no longer with look-ahead (Nesterov)"]
    decay = replace(base, drift=WeightDrift("coupled", weight_decay=Estimate.exactly(0.1)))
    assert comparison.changes(base, decay) == [
        "weight_decay none -> 0.1", "decay now coupled (was unknown)"
    ]  # fmt: skip


def test_lr_of_momentum_is_torchs():
    """A change of momentum alone is not reported as one of lr, which is torch's."""
    found = [
        infer(lambda p, m=m: torch.optim.SGD(p, lr=0.1, momentum=m), shape=(4, 3))
        for m in (0.9, 0.8)
    ]
    assert comparison.changes(*found) == ["beta1 0.9 -> 0.8"]
    assert any("1 = 0.1 / (1 - 0.9)" in note for note in found[0].notes)


def test_a_fingerprint_is_read_as_it_was_written(tmp_path):
    found = infer(zoo.Lion(1e-3), shape=(4, 3))
    comparison.save(tmp_path / "lion.json", found, {"shape": (4, 3)})
    again, options = comparison.load(tmp_path / "lion.json")
    assert options == {"shape": (4, 3)}
    assert comparison.changes(found, again) == []
    assert again.mechanisms == ("sign",)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--check", "gone.json"], "There is no fingerprint at gone.json"),
        (["--check", "text.json"], "text.json is not a fingerprint"),
        (["--check", "list.json"], "list.json is not a fingerprint"),
        (["--save", "x.txt"], "--save is x.txt, but its name must end in .json"),
        (["--size", "long"], "'long'"),
        (["--convert"], "--convert needs two optimizers"),
        (["torch.optim.SGD", "--compare", "--save", "a.json"], "take one optimizer"),
    ],
)
def test_the_command_refuses_in_a_sentence(tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_text("no json")
    (tmp_path / "list.json").write_text("[1]")
    result = run(ADAMW, *words)
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("source", "make", "start", "truth"),
    [
        (zoo.AdamW(2e-3, betas=(0.8, 0.95), weight_decay=0.1), zoo.AdamW,
         {"lr": 1e-2, "betas": (0.9, 0.999), "weight_decay": 0.01},
         {"lr": 2e-3, "betas": (0.8, 0.95), "weight_decay": 0.1}),
        (lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.7), zoo.SGD, {"lr": 1e-3, "momentum": 0.9},
         {"lr": 0.3, "momentum": 0.7}),
    ],
)  # fmt: skip
def test_a_conversion_into_itself_recovers_the_settings(source, make, start, truth):
    found = convert(source, lambda s: make(**s), start, shape=(4, 3))
    assert found.distance < 5e-3
    assert set(found.settings) == set(truth)
    for name, value in truth.items():
        assert np.ravel(found.settings[name]) == pytest.approx(np.ravel(value), rel=0.02)


def test_the_command_converts():
    result = run("--convert", ADAMW, "lr=1e-3", "lossnav.zoo:Lion", "--shape", "4,3", "--json")
    found = json.loads(result.stdout)
    assert set(found["settings"]) == {"lr", "betas", "weight_decay"}
    # Signs lose weight as fast as before, and are another rule.
    assert found["settings"]["lr"] * found["settings"]["weight_decay"] == pytest.approx(
        1e-5, rel=0.01
    )
    assert found["distance"] > 0.1
