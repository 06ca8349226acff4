"""What `infer` says of a hundred optimizers of pytorch_optimizer, torch and optax, at their defaults.

    python benchmarks/infer_outside.py [name ...]      those named, or all
    python benchmarks/infer_outside.py --write FILE    the page docs/infer_outside.md, of what this printed before

Forty of them were held out: nothing was tuned on what is said of them.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import sys  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402

import optax  # noqa: E402
import pytorch_optimizer  # noqa: E402
import torch  # noqa: E402

from lossnav.inference import infer  # noqa: E402

PAGE = Path(__file__).parent.parent / "docs" / "infer_outside.md"
SETTINGS = {
    "torch": {"SGD": {"lr": 0.1, "momentum": 0.9}},
    "optax": {
        "dog": {"learning_rate": 1.0},
        "dowg": {"learning_rate": 1.0},
        "fromage": {"learning_rate": 1e-2},
        "lars": {"learning_rate": 1e-2},
        "noisy_sgd": {"learning_rate": 1e-2, "eta": 1e-6},
        "optimistic_gradient_descent": {"learning_rate": 1e-2},
        "sign_sgd": {"learning_rate": 1e-3},
        "sm3": {"learning_rate": 1e-2},
    },
    "pytorch_optimizer": {"GrokFastAdamW": {"grokfast_after_step": 0}},
}
NAMES = {
    "torch": "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax Muon NAdam RAdam RMSprop Rprop SGD",
    "optax": "adabelief adafactor adan amsgrad fromage lamb lars lion nadamw noisy_sgd novograd "
    "optimistic_gradient_descent sign_sgd sm3 yogi",
    "pytorch_optimizer": "ADOPT AdEMAMix AdaBound AdaMod AdamMini AdamP AggMo CAME DAdaptAdam DiffGrad Grams "
    "GrokFastAdamW Kron LaProp MADGRAD MARS PAdam Prodigy QHAdam QHM Ranger SGDW SOAP SWATS "
    "ScheduleFreeAdamW ScheduleFreeSGD Shampoo SophiaH StableAdamW Tiger Yogi Lookahead",
}
EVERY = [f"{library}.{name}" for library, names in NAMES.items() for name in names.split()]
FRESH = {
    "optax": "acprop adamaxw dog dowg galore optimistic_adam_v2 signum simplified_ademamix",
    "pytorch_optimizer": "A2Grad AdaGC AdaMuon AdaPNM AdaShift AdaTAM Adai Adalite Alice Amos Ano BCOS Conda "
    "DAdaptAdaGrad DAdaptAdan DAdaptSGD EmoLynx EmoNavi FOCUS FTRL GaLore Kate MSVAG Magma PID ROSE SGDSaI SRMM "
    "ScheduleFreeRAdam SpectralSphere TAM VSGD",
}
"""Held out: a hash of the name chose 40 of the 75 optimizers that were left in optax and pytorch_optimizer,
without those that need a closure, a model or several processes. Written down before any of them was run."""
HELD_OUT_WORDS = (
    "A hash of the name chose these from the optimizers of optax and pytorch_optimizer that were left; nothing was "
    "tuned on what is said of them, and they were run once. A test that existed before has DAdaptSGD in it. A member or "
    "a mechanism is named for a quarter: most of the others change several things at once. Doubtful are GaLore's second "
    "slow mean, whose weight is 5e-5, and Adagrad for FTRL, whose steps are like that only while its weights are put "
    "back. VSGD was refused by an error that has been mended since; SpectralSphere ran out of time on a busy machine."
)
HELD_OUT = [f"{library}.{name}" for library, names in FRESH.items() for name in names.split()]


def optimizer(name):
    """The optimizer at its defaults, or at `SETTINGS` where it has none."""
    library, kind = name.split(".")
    settings = SETTINGS[library].get(kind, {})
    if library == "optax":
        home = optax if hasattr(optax, kind) else optax.contrib
        return getattr(home, kind)(**({} if settings else {"learning_rate": 1e-3}), **settings)
    if kind == "Lookahead":
        return lambda params: pytorch_optimizer.Lookahead(torch.optim.Adam(params))
    made = getattr(torch.optim if library == "torch" else pytorch_optimizer, kind)
    return lambda params: made(params, **settings)


def said(name):
    """What is said of it in a line, the sentences, the distance from the nearest member, and CPU seconds."""
    began = time.process_time()
    try:
        found = infer(optimizer(name), name=name)
    except (ValueError, TypeError) as error:
        return Said(
            name,
            f"refused: {error}".replace(f"{name} ", "it "),
            seconds=time.process_time() - began,
        )
    near, line = found.nearest, found.report(size="line").partition(": ")[2]
    distance = None if near is None else near.distance
    return Said(name, line, found.outside, distance, found, time.process_time() - began)


@dataclass(frozen=True)
class Said:
    name: str
    line: str
    outside: tuple = ()
    distance: float | None = None
    found: object = None
    seconds: float = 0.0

    @property
    def verdict(self):
        """``member``, ``mechanism`` (named, less than a tenth of the steps left), ``part`` or ``unknown``."""
        if self.found is None:
            return "refused"
        left = self.found.unexplained
        if not self.found.outside:
            return "member"
        if self.found.mechanisms and left is not None and left < 0.1:
            return "mechanism"
        return "part" if self.found.mechanisms else "unknown"

    def row(self):
        distance = "" if self.distance is None else f"{self.distance:.2g}"
        return f"| `{self.name}` | {self.line} | {distance} | {self.verdict} | {self.seconds:.1f} |"


HEAD = """# A hundred optimizers, and what is said of them

What [`infer`](infer.md) says of a hundred optimizers of torch, optax and pytorch_optimizer, run as black boxes at their
defaults. `benchmarks/infer_outside.py` generates this page.

*Distance* is that of the nearest member of the zoo; an optimizer is called by a member's name only below 0.1, or where a
member with the named mechanisms explains nine tenths of its steps. "A rule with ..." has no member of the zoo as a part. The
verdict is *member* (nothing outside the family), *mechanism* (what is outside has a name, and less than a tenth of the steps is
left unexplained), *part* (a mechanism is named, but more is left, or the share was not measured), *unknown* (no mechanism is
named) or *refused* (with a sentence). Seconds are CPU time of one core, with compilation for optax.

The first sixty were open while mechanisms were added. Thirty of them had been held out of an earlier version, where a member or
a mechanism was named for 16; after that report they became open. The rows come from several runs while the search for mechanisms
was finished; those of Kron and noisy_sgd are of the earlier version.
"""


def write(file):
    """The page, with those that were held out apart."""
    lines = [
        line for line in Path(file).read_text(encoding="utf-8").splitlines() if line[:3] == "| `"
    ]
    rows = {line.split("`")[1]: line for line in lines}
    text = [HEAD]
    for names, title, words in (
        (EVERY, "Open to development", "These were looked at while mechanisms were added."),
        (HELD_OUT, "Held out", HELD_OUT_WORDS),
    ):
        cells = [rows[name].split(" | ") for name in names]
        count, slowest = Counter(c[3] for c in cells), max(float(c[4].rstrip(" |")) for c in cells)
        kinds = ("member", "mechanism", "part", "unknown", "refused")
        total = ", ".join(f"{count[kind]} {kind}" for kind in kinds)
        text += [f"## {title}", "", f"{words} Of {len(cells)}: {total}.", ""]
        text += [
            "| optimizer | said | distance | verdict | seconds |",
            "| --- | --- | --- | --- | --- |",
        ]
        text += [*(rows[name] for name in names), ""]
        print(f"{title}: {total}; slowest {slowest:.0f} s")
    PAGE.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        sys.exit(write(sys.argv[2]))
    for name in sys.argv[1:] or EVERY + HELD_OUT:
        told = said(name)
        print(f"{told.row()}\n  - " + "\n  - ".join(told.outside), flush=True)
