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
    """The line of the report, the distance from the nearest member, and the CPU time."""
    began = time.process_time()
    try:
        found = infer(optimizer(name), name=name)
    except (ValueError, TypeError) as error:
        return f"refused: {error}", None, time.process_time() - began, None
    near = found.nearest
    seconds = time.process_time() - began
    return (
        found.report(size="line").partition(": ")[2],
        near.distance if near else None,
        seconds,
        found,
    )


if __name__ == "__main__":
    for name in sys.argv[1:] or [name for name in EVERY if name not in HELD_OUT]:
        words, distance, seconds, found = said(name)
        print(f"{name}  [{seconds:.1f} s]\n  {words}")
        if found:
            print("  =", found.mechanisms, found.unexplained)
        for sentence in found.outside if found else ():
            print("   -", sentence)
        sys.stdout.flush()
