"""Whether the optimizers train as their references do: a check of sanity, not a contest.

Each optimizer has the settings of a known one, and both train the same network on the same batches from
the same start, for several seeds. The figure is the distance of the two mean test losses, in standard
deviations of the reference over seeds; rounding alone makes two such runs part, so it is not zero.
Whether other settings train better is another question, and this says nothing of it.

    ours                    reference
    Navigator               torch.optim.Adam
    KroneckerNavigator      pytorch_optimizer's SOAP, refreshed as often (lossnav[test])
    Ballistic               RMSprop with eps under the root, written out below

The digits are scikit-learn's. The text is tinyshakespeare.txt in the folder that LOSSNAV_DATA names, if
there is one; otherwise the texts of Python's help(). A run of ``characters`` takes one to two minutes on
two free cores, and there are six for each seed; ``digits`` takes a second, on one core. Two or three seeds
tell little of a spread: believe a verdict from five on.

    python benchmarks/training_sanity.py [row ...] [--seeds N] [--steps N] [--threads N]

Rows: digits characters.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "2"

import argparse  # noqa: E402
import math  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from lossnav.optim.torch import Ballistic, KroneckerNavigator, Navigator  # noqa: E402


class RootInside(torch.optim.Optimizer):
    """RMSprop as the paper has it: eps is added to v, under the root."""

    def __init__(self, params, lr, beta2, eps=1e-8):
        super().__init__(params, {"lr": lr, "beta2": beta2, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                v = self.state[p].setdefault("v", torch.zeros_like(p))
                v.mul_(group["beta2"]).add_(p.grad**2, alpha=1 - group["beta2"])
                p.sub_(group["lr"] * p.grad / torch.sqrt(v + group["eps"]))


PLAIN = {"saturation": 0.0, "nesterov": False}
"""What makes our rules the known ones."""


def pairs(*, adam, soap, ballistic):
    """What is compared, with the learning rate of each pair."""
    found = [
        ("Navigator / torch Adam", lambda p: Navigator(p, adam, (0.9, 0.999), **PLAIN),
         lambda p: torch.optim.Adam(p, adam)),
        ("Ballistic / RMSprop, eps under the root", lambda p: Ballistic(p, ballistic, beta2=0.99),
         lambda p: RootInside(p, ballistic, beta2=0.99)),
    ]  # fmt: skip
    try:
        from pytorch_optimizer import SOAP
    except ImportError:
        print("pytorch_optimizer is not installed: pip install lossnav[test]. SOAP is left out.")
        return found
    kronecker = (
        "KroneckerNavigator / SOAP",
        lambda p: KroneckerNavigator(p, soap, (0.95, 0.95), refresh=10, **PLAIN),
        lambda p: SOAP(p, lr=soap, weight_decay=0.0, precondition_frequency=10),
    )
    return [found[0], kronecker, found[1]]


def say(what, value, bound, *, note=""):
    verdict = "holds" if value <= bound else "MISSES"
    print(f"{what:<62}{value:>12.4g}  <= {bound:<8g}{verdict}  {note}", flush=True)


def compared(task, what, train, seeds, ours, peer):
    """Train both for each seed in turn, and say how far apart the mean test losses are."""
    began = time.perf_counter()
    losses = {"ours": [], "peer": []}
    for seed in range(seeds):
        losses["ours"].append(train(seed, ours))
        losses["peer"].append(train(seed, peer))
    mean = {name: np.mean(values) for name, values in losses.items()}
    spread = {name: np.std(values, ddof=1) for name, values in losses.items()}
    said = {name: f"{mean[name]:.4f} +- {spread[name]:.4f}" for name in losses}
    taken = (time.perf_counter() - began) / (2 * seeds)
    note = f"{said['ours']} against {said['peer']}, {taken:.1f} s a run"
    off = abs(mean["ours"] - mean["peer"]) / spread["peer"]
    say(f"{task}, {what}", off, 1.0, note=note)


def fit(model, make, batches, steps):
    """Train with a schedule down to zero; ``batches`` gives inputs and targets for ever."""
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        inputs, targets = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(inputs).flatten(0, -2), targets.flatten()).backward()
        optimizer.step()
        schedule.step()


def digits(seeds, steps):
    """A network with one hidden layer on 8 x 8 digits, about ten epochs."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = (
        torch.as_tensor(part)
        for part in train_test_split((pixels / 16).astype(np.float32), labels, random_state=0)
    )

    def batches(seed):
        rng = torch.Generator().manual_seed(seed)
        while True:
            for batch in torch.randperm(len(x), generator=rng).split(64):
                yield x[batch], y[batch]

    def train(seed, make):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        fit(model, make, batches(seed), steps or 220)
        with torch.no_grad():
            return cross_entropy(model(x_test), y_test).item()

    print(f"  (digits, test loss after {steps or 220} steps; a guess has {math.log(10):.4f})")
    for what, ours, peer in pairs(adam=5e-3, soap=1e-2, ballistic=1e-3):
        compared("digits", what, train, seeds or 5, ours, peer)


def corpus():
    """A text, and where it is from."""
    folder = os.environ.get("LOSSNAV_DATA")
    if folder and (path := Path(folder) / "tinyshakespeare.txt").exists():
        return path.read_text(encoding="ascii"), path.name
    from pydoc_data.topics import topics

    text = "".join(topics[name] for name in sorted(topics))
    return text.encode("ascii", "ignore").decode(), "the texts of Python's help()"


class Transformer(nn.Module):
    """A small transformer that sees only what came before."""

    def __init__(self, letters, width=128, depth=4, length=128):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, codes):
        length = codes.shape[1]
        future = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.letter(codes) + self.place(torch.arange(length))
        for layer in self.layers:
            x = layer(x, future, is_causal=True)
        return self.head(self.norm(x))


def characters(seeds, steps):
    """A transformer of 0.8 million parameters on the characters of a text."""
    text, source = corpus()
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    codes = torch.tensor([number[letter] for letter in text])
    cut, length = len(codes) * 9 // 10, 128
    held_out = codes[cut:].unfold(0, length + 1, length)[:64]
    steps = steps or 400

    def batches(seed):
        rng = torch.Generator().manual_seed(seed)
        while True:
            starts = torch.randint(cut - length, (16, 1), generator=rng)
            windows = codes[starts + torch.arange(length + 1)]
            yield windows[:, :-1], windows[:, 1:]

    def train(seed, make):
        torch.manual_seed(seed)
        model = Transformer(len(letters), length=length)
        fit(model, make, batches(seed), steps)
        with torch.no_grad():
            found = model(held_out[:, :-1])
            return cross_entropy(found.flatten(0, 1), held_out[:, 1:].flatten()).item()

    print(
        f"  (characters of {source}, test loss after {steps} steps; a guess among {len(letters)} has "
        f"{math.log(len(letters)):.4f})"
    )
    for what, ours, peer in pairs(adam=2e-3, soap=3e-3, ballistic=1e-3):
        compared("characters", what, train, seeds or 5, ours, peer)


ROWS = {f.__name__: f for f in (digits, characters)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="row", help=f"some of {', '.join(ROWS)}; all")
    parser.add_argument("--seeds", type=int, help="at least 2; 5")
    parser.add_argument("--steps", type=int, help="220 for digits and 400 for characters")
    parser.add_argument("--threads", type=int, default=2, help="for characters; 2")
    wanted = parser.parse_args()
    unknown = [name for name in wanted.rows if name not in ROWS]
    if unknown:
        parser.error(f"there is no row {unknown[0]!r}; rows: {', '.join(ROWS)}")
    if wanted.seeds is not None and wanted.seeds < 2:
        parser.error(f"--seeds is {wanted.seeds}, but a spread needs two or more")
    for name in wanted.rows or ROWS:
        torch.set_num_threads(1 if name == "digits" else wanted.threads)
        ROWS[name](wanted.seeds, wanted.steps)


if __name__ == "__main__":
    main()
