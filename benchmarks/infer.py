"""What `infer` finds of optimizers whose settings are known: relative errors, structure, nearest, seconds.

    python benchmarks/infer.py [name ...]             all, or those named (sgd, heavy_ball, ..., muon, navigator)
    python benchmarks/infer.py --intervals [N]        how often 95 % intervals hold the truth, over N (200) repeats

Bounds: lr and weight decay 1 %, memories 1/(1-beta) 3 %, rotation and decay of a rule of our own 1 %, the
metric and the nearest member right, 10 s for a diagonal optimizer and 60 s for a matrix one on one core (CPU
time on a single thread, which other work on the machine does not lengthen).
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import sys  # noqa: E402
import time  # noqa: E402
from dataclasses import dataclass  # noqa: E402

import numpy as np  # noqa: E402
import pytorch_optimizer as more  # noqa: E402
import torch  # noqa: E402

from lossnav.inference import infer  # noqa: E402
from lossnav.optim.torch import Ballistic, KroneckerNavigator, Navigator  # noqa: E402
from lossnav.rules import zoo  # noqa: E402
from lossnav.rules.base import Rule  # noqa: E402

LR, MEMORY, DECAY = 0.01, 0.03, 0.01
DIAGONAL_SECONDS, MATRIX_SECONDS = 10, 60


@dataclass(frozen=True)
class Turning(Rule):
    """Gradient descent whose weights turn and decay by themselves."""

    omega: float = 2.0
    j: float = 0.3

    def init(self, theta):
        return {}

    def update(self, grad, state, theta):
        J = np.array([[-self.j, -self.omega], [self.omega, -self.j]])
        return self.dt * (J @ theta - grad), state


def torch_maker(kind, **settings):
    return lambda params: kind(params, **settings)


def sgd(lr, momentum=0.0, nesterov=False, weight_decay=0.0):
    settings = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    truth = {"lr": lr, "memory": 1 / (1 - momentum)}
    if weight_decay:
        truth["weight_decay"] = weight_decay
    return torch_maker(torch.optim.SGD, lr=lr, **settings), truth, "isotropic", "SGD"


def adam_like(
    kind, near, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0, structure="diagonal", **others
):
    settings = {"lr": lr, "betas": betas, **others}
    truth = {"lr": lr, "memory": 1 / (1 - betas[0]), "variance": 1 / (1 - betas[1])}
    if weight_decay:
        truth["weight_decay"] = settings["weight_decay"] = weight_decay
    if "gamma" in others:
        truth["gamma"] = others["gamma"]
    return torch_maker(kind, **settings), truth, structure, near


def rmsprop(lr, alpha):
    truth = {"lr": lr, "memory": 1.0, "variance": 1 / (1 - alpha)}
    return torch_maker(torch.optim.RMSprop, lr=lr, alpha=alpha), truth, "diagonal", "RMSprop"


def adafactor(lr, beta2_decay, weight_decay):
    truth = {"lr": lr, "memory": 1.0, "growth": -beta2_decay}
    if weight_decay:
        truth["weight_decay"] = weight_decay
    made = torch_maker(
        torch.optim.Adafactor, lr=lr, beta2_decay=beta2_decay, weight_decay=weight_decay
    )
    return made, truth, "factored", None


def lion(lr, betas, weight_decay):
    truth = {"lr": lr, "memory": 1 / (1 - betas[1]), "used": betas[0]}
    if weight_decay:
        truth["weight_decay"] = weight_decay
    return (
        torch_maker(more.Lion, lr=lr, betas=betas, weight_decay=weight_decay, weight_decouple=True),
        truth,
        "diagonal",
        "Lion",
    )


def muon(lr, momentum, weight_decay, **others):
    truth = {"lr": lr, "memory": 1 / (1 - momentum), "weight_decay": weight_decay}
    made = torch_maker(
        torch.optim.Muon, lr=lr, momentum=momentum, weight_decay=weight_decay, **others
    )
    return made, truth, "orthogonal", "Muon"


def ballistic(lr, beta2, weight_decay=0.0):
    truth = {"lr": lr, "memory": 1.0, "variance": 1 / (1 - beta2)}
    if weight_decay:
        truth["weight_decay"] = weight_decay
    made = torch_maker(Ballistic, lr=lr, beta2=beta2, weight_decay=weight_decay)
    return made, truth, "diagonal", None


def soap(lr, betas, weight_decay, frequency):
    truth = {"lr": lr, "memory": 1 / (1 - betas[0]), "variance": 1 / (1 - betas[1])}
    rule = zoo.SOAP(lr, betas=betas, weight_decay=weight_decay, precondition_frequency=frequency)
    return rule, truth | {"weight_decay": weight_decay}, "kronecker", "SOAP"


A, W, N = torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam
CASES = {
    "sgd": [sgd(0.1), sgd(1e-3), sgd(0.03, weight_decay=1e-2)],
    "heavy_ball": [sgd(0.1, 0.9), sgd(0.01, 0.99), sgd(0.5, 0.5, weight_decay=1e-3)],
    "nesterov": [sgd(0.1, 0.9, True), sgd(0.01, 0.95, True), sgd(0.3, 0.6, True)],
    "rmsprop": [rmsprop(1e-2, 0.99), rmsprop(1e-3, 0.9), rmsprop(3e-4, 0.999)],
    "adam": [adam_like(A, "Adam"), adam_like(A, "Adam", 1e-2, (0.5, 0.9)),
             adam_like(A, "Adam", 3e-4, (0.95, 0.98), eps=1e-3)],
    "adamw": [adam_like(W, "AdamW", weight_decay=0.1), adam_like(W, "AdamW", 3e-3, (0.8, 0.95), 1e-2),
              adam_like(W, "AdamW", 1e-4, (0.95, 0.9999), 1.0)],
    "nadam": [adam_like(N, None), adam_like(N, None, 1e-2, (0.8, 0.99)),
              adam_like(N, None, 3e-4, (0.95, 0.9))],
    "adabelief": [adam_like(more.AdaBelief, "AdaBelief", rectify=False),
                  adam_like(more.AdaBelief, "AdaBelief", 1e-2, (0.8, 0.95), rectify=False),
                  adam_like(more.AdaBelief, "AdaBelief", 3e-4, (0.95, 0.99), 0.1, rectify=False)],
    "adafactor": [adafactor(1e-2, -0.8, 0.0), adafactor(1e-3, -0.5, 0.1), adafactor(3e-3, -0.9, 0.01)],
    "lion": [lion(1e-4, (0.9, 0.99), 0.0), lion(1e-3, (0.95, 0.98), 0.1), lion(3e-4, (0.8, 0.9), 1.0)],
    "muon": [muon(1e-3, 0.95, 0.1), muon(0.02, 0.9, 0.01, nesterov=False),
             muon(3e-3, 0.8, 1.0, adjust_lr_fn="match_rms_adamw")],
    "soap": [soap(3e-3, (0.95, 0.95), 1e-2, 10), soap(1e-2, (0.9, 0.99), 0.1, 5),
             soap(1e-3, (0.8, 0.9), 1e-3, 1)],
    "navigator": [adam_like(Navigator, None, gamma=0.5),
                  adam_like(Navigator, None, 1e-2, (0.95, 0.99), 0.1, gain="kalman", saturation=0, nesterov=False),
                  adam_like(Navigator, None, 3e-3, (0.8, 0.98), gamma=1e-3, centered=True, nesterov=True)],
    "ballistic": [ballistic(5e-4, 0.999), ballistic(1e-2, 0.9), ballistic(1e-3, 0.99, 0.1)],
    "kronecker": [adam_like(KroneckerNavigator, "SOAP", 3e-3, (0.95, 0.95), structure="kronecker", saturation=0,
                            nesterov=False),
                  adam_like(KroneckerNavigator, "SOAP", 1e-2, (0.9, 0.98), 0.1, "kronecker", refresh=5),
                  adam_like(KroneckerNavigator, None, 1e-3, (0.9, 0.95), structure="kronecker", gamma=0.1)],
}  # fmt: skip


def found_numbers(found):
    """What was found, by the names of the truths."""
    value = {name: number.value for name, number in found.settings.items()}
    numbers = {"lr": value.get("lr"), "weight_decay": value.get("weight_decay")}
    numbers["gamma"] = value.get("gamma")
    if found.memory.gradient is not None:
        numbers["memory"] = found.memory.gradient.value
    for name in ("growth", "used"):
        estimate = getattr(found.memory, name)
        numbers[name] = None if estimate is None else estimate.value
    if found.memory.curvature is not None:
        numbers["variance"] = found.memory.curvature.value
    near = found.nearest
    if near is not None and near.name == "SGD":
        numbers["lr"] = near.settings["lr"]  # torch's, which counts the sum of gradients
    return numbers


def timed(optimizer, **options):
    """What is found, and the CPU time that it took."""
    began = time.process_time()
    return infer(optimizer, **options), time.process_time() - began


def error(found, truth):
    return np.inf if found is None else abs(found / truth - 1)


def accuracy(names):
    """The table; returns how many bounds were broken."""
    print(f"{'optimizer':<12} {'lr':>8} {'memory':>8} {'variance':>8} {'decay':>8} {'other':>8}  "
          f"{'structure':<11} {'nearest':<12} {'distance':>8} {'cpu s':>5}")  # fmt: skip
    broken = 0
    for name in names or CASES:
        for make, truth, structure, near in CASES[name]:
            found, seconds = timed(make)
            numbers = found_numbers(found)
            errors = {key: error(numbers.get(key), value) for key, value in truth.items()}
            bounds = {"lr": LR, "weight_decay": DECAY, "used": LR}
            bad = [key for key, e in errors.items() if e > bounds.get(key, MEMORY)]
            bad += ["structure"] if found.metric.kind != structure else []
            got = found.nearest.name if found.nearest is not None else "-"
            bad += ["nearest"] if near is not None and got != near else []
            limit = MATRIX_SECONDS if structure in ("orthogonal", "kronecker") else DIAGONAL_SECONDS
            bad += ["seconds"] if seconds > limit else []
            cells = [errors.get(key) for key in ("lr", "memory", "variance", "weight_decay")]
            cells.append(
                max(
                    (e for k, e in errors.items() if k in ("gamma", "used", "growth")), default=None
                )
            )
            shown = " ".join(f"{'-' if e is None else f'{e:.1e}':>8}" for e in cells)
            apart = found.nearest.distance if found.nearest is not None else np.nan
            print(f"{name:<12} {shown}  {found.metric.kind:<11} {got:<12} {apart:8.1e} {seconds:5.1f}"
                  f"{'  BAD: ' + ', '.join(bad) if bad else ''}", flush=True)  # fmt: skip
            broken += len(bad)
    if not names or "turning" in names:
        for omega, j, dt in ((2.0, 0.3, 0.01), (0.5, 1.0, 0.1), (10.0, 0.1, 0.003)):
            found, seconds = timed(Turning(dt, omega, j), shape=(2,))
            turn, loss = found.drift.rotation, found.drift.decay
            errors = [error(x and x.value, t) for x, t in ((turn, omega * dt), (loss, j * dt))]
            bad = max(errors) > DECAY
            print(f"turning      rotation {errors[0]:.1e}  decay {errors[1]:.1e}  {found.drift.form} "
                  f"{seconds:.1f} s{'  BAD' if bad else ''}")  # fmt: skip
            broken += bad
    print(f"{broken} bounds broken.")
    return broken


def noisy(kind, noise, seed, **settings):
    """A maker of a torch optimizer whose steps have noise of their own: intervals then have a width."""
    rng = torch.Generator().manual_seed(seed)

    def make(params):
        def shake(*_):
            z = torch.randn(len(params), *params[0].shape, generator=rng, dtype=params[0].dtype)
            torch._foreach_add_([p.data for p in params], list(noise * z))

        optimizer = kind(params, **settings)
        optimizer.register_step_post_hook(shake)
        return optimizer

    return make


def intervals(repeats):
    """How often intervals hold the truth; returns how many shares are not within 0.90 and 0.99."""
    T = torch.optim
    cases = {
        "SGD, momentum": (T.SGD, 0.003, {"lr": 0.1, "momentum": 0.9}, {"lr": 1.0, "beta1": 0.9}),
        "AdamW": (T.AdamW, 1e-5, {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.5},
                  {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.5}),
        "RMSprop": (T.RMSprop, 2e-4, {"lr": 1e-2, "alpha": 0.95}, {"lr": 1e-2, "beta2": 0.95, "eps": 1e-8}),
    }  # fmt: skip
    broken = 0
    for name, (kind, noise, given, truth) in cases.items():
        held = dict.fromkeys(truth, 0)
        widths = {key: [] for key in truth}
        for seed in range(repeats):
            make = noisy(kind, noise, seed + 10_000, **given)
            found = infer(make, shape=(4, 3), seed=seed).settings
            for key, value in truth.items():
                held[key] += key in found and found[key].holds(value)
                if key in found:
                    widths[key].append((found[key].high - found[key].low) / value)
        for key, count in held.items():
            share = count / repeats
            good = 0.9 <= share <= 0.99
            broken += not good
            print(f"{name:<15} {key:<13} holds {share:6.1%} of {repeats}, median width {np.median(widths[key]):.1e}"
                  f"{'' if good else '  BAD'}", flush=True)  # fmt: skip
    return broken


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[:1] == ["--intervals"]:
        sys.exit(intervals(int(given[1]) if len(given) > 1 else 200) > 0)
    sys.exit(accuracy(given) > 0)
