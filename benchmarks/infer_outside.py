"""What `infer` says of sixty optimizers of pytorch_optimizer, torch and optax, at their defaults.

    python benchmarks/infer_outside.py [name ...]    those named, or all that were open to development
    python benchmarks/infer_outside.py --write       all sixty, into docs/infer_outside.md

Half of them were held out: nothing was tuned on what is said of them. A hash of the name chose them from those on
which no report existed when the work began (`REPORTED` were known).
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import hashlib  # noqa: E402
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
REPORTED = [
    "torch.Adafactor",
    "pytorch_optimizer.ADOPT",
    "pytorch_optimizer.AdEMAMix",
    "pytorch_optimizer.AdaMod",
    "pytorch_optimizer.CAME",
    "pytorch_optimizer.GrokFastAdamW",
    "pytorch_optimizer.LaProp",
    "pytorch_optimizer.MARS",
    "pytorch_optimizer.Prodigy",
    "pytorch_optimizer.ScheduleFreeAdamW",
    "pytorch_optimizer.SophiaH",
    "pytorch_optimizer.StableAdamW",
    "pytorch_optimizer.Tiger",
    "pytorch_optimizer.Yogi",
]
EVERY = [f"{library}.{name}" for library, names in NAMES.items() for name in names.split()]
HELD_OUT = sorted(
    (name for name in EVERY if name not in REPORTED),
    key=lambda name: hashlib.sha256(name.encode()).hexdigest(),
)[:30]

HELD_OUT_WORDS = (
    "A hash of the name chose these; nothing was tuned on what is said of them. Two of them had been seen before "
    "the end by mistake: torch.SGD was run once, and a test that existed before has torch.Adamax in it. Tests of the "
    "library also cover torch's AdamW, NAdam, RAdam and RMSprop."
)


def optimizer(name):
    """The optimizer at its defaults, or at `SETTINGS` where it has none."""
    library, kind = name.split(".")
    settings = SETTINGS[library].get(kind, {})
    if library == "optax":
        return getattr(optax, kind)(**({} if settings else {"learning_rate": 1e-3}), **settings)
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


HEAD = """# Sixty optimizers, and what is said of them

What [`infer`](infer.md) says of sixty optimizers of torch, optax and pytorch_optimizer, run as black boxes at their defaults.
`python benchmarks/infer_outside.py --write` generates this page.

*Distance* is that of the nearest member of the zoo; an optimizer is called by a member's name only below 0.1, or where a
member with the named mechanisms explains nine tenths of its steps. The verdict is *member* (nothing outside the
family), *mechanism* (what is outside has a name, and less than a tenth of the steps is left unexplained), *part* (a
mechanism is named, but more is left, or the share was not measured), *unknown* (no mechanism is named) or *refused* (with a
sentence). Seconds are CPU time of one core, with compilation for optax.

No optimizer gets a wrong name beyond a distance of 0.1. A mechanism may be named wrongly where several act together: Adan's steps
are told to warm up, and `AggMo` is called SGD at 0.067 while the fit of the family explains little of it. On the held-out half a
member or a mechanism is named for about half of the optimizers, on the other for two thirds.
The rule that counts an unmeasured share as *part* was made after both halves had been run; it moved seven rows down.
"""


def write():
    """The page, with the held-out half apart."""
    text = [HEAD]
    for held, title, words in (
        (False, "Open to development", "These were looked at while mechanisms were added."),
        (True, "Held out", HELD_OUT_WORDS),
    ):
        rows = [said(name) for name in EVERY if (name in HELD_OUT) == held]
        count = Counter(row.verdict for row in rows)
        total = ", ".join(
            f"{count[kind]} {kind}"
            for kind in ("member", "mechanism", "part", "unknown", "refused")
        )
        text += [f"## {title}", "", f"{words} Of {len(rows)}: {total}.", ""]
        text += [
            "| optimizer | said | distance | verdict | seconds |",
            "| --- | --- | --- | --- | --- |",
        ]
        text += [row.row() for row in rows]
        text += [""]
        print(f"{title}: {total}; slowest {max(row.seconds for row in rows):.0f} s", flush=True)
    PAGE.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        sys.exit(write())
    for name in sys.argv[1:] or [name for name in EVERY if name not in HELD_OUT]:
        told = said(name)
        print(f"{told.row()}\n  - " + "\n  - ".join(told.outside), flush=True)
