"""The time of a step of WeightUncertainty against PyTorch's Adam, on the networks of the streams and a large one.

Each ratio is of minima over many steps, taken in turn in one process on one thread. The peer is Adam as it
comes; rows in parentheses have no bound: Adam's compiled step, and whole training steps, in which curvature that
is measured ("ggn") costs a second pass back.

    python benchmarks/uncertain_step.py
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

from itertools import pairwise  # noqa: E402

import torch  # noqa: E402
from optimizer_step import interleaved  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from lossnav.optim.torch import WeightUncertainty  # noqa: E402

NETWORKS = {
    "A, B: 196-50-50-10": [196, 50, 50, 10],
    "C: 20-5-1": [20, 5, 1],
    "D: 784-300-150-10": [784, 300, 150, 10],
    "784-2000-2000-10": [784, 2000, 2000, 10],
}
BATCH = 16


def network(sides):
    torch.manual_seed(0)
    layers = []
    for a, b in pairwise(sides):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def step(sides, make):
    """The optimizer's step alone."""
    model = network(sides)
    optimizer = make(model.parameters())
    for p in model.parameters():
        p.grad = 0.01 * torch.randn(p.shape)
    return optimizer.step


def training(sides, make, watched=False):
    """Passes forward and back, and the step."""
    model = network(sides)
    optimizer = make(model.parameters())
    if watched:
        optimizer.watch(model, "cross_entropy")
    x, y = torch.randn(BATCH, sides[0]), torch.randint(sides[-1], (BATCH,))

    def run():
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    return run


def ours(curvature):
    return lambda params: WeightUncertainty(params, batch_size=BATCH, curvature=curvature)


def main():
    for name, sides in NETWORKS.items():
        rounds = 20 if max(sides) > 1000 else 300
        times = interleaved(
            rounds,
            adam=step(sides, torch.optim.Adam),
            fused=step(sides, lambda params: torch.optim.Adam(params, fused=True)),
            ours=step(sides, ours("squared-batch")),
        )
        ratio = times["ours"] / times["adam"]
        verdict = "holds" if ratio <= 1.5 else "MISSES"
        note = f"{1e6 * times['ours']:.0f} us against {1e6 * times['adam']:.0f} us"
        print(f"{name:<22} step, squared-batch / Adam  {ratio:8.2f}  <= 1.5  {verdict}  {note}")
        whole = interleaved(
            rounds,
            adam=training(sides, torch.optim.Adam),
            squared=training(sides, ours("squared-batch")),
            ggn=training(sides, ours("ggn"), watched=True),
        )
        print(
            f"  (against fused Adam {times['ours'] / times['fused']:.2f}; with the passes, against Adam: "
            f"squared-batch {whole['squared'] / whole['adam']:.2f}, ggn {whole['ggn'] / whole['adam']:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
