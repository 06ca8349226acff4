"""What recording costs: a training loop with the recorder against the same loop without it.

Two copies of a model train side by side, a step each in turn, so that a busy machine disturbs both alike. A period
is one of the recorder's, so that bursts, the steps between them and the writing of the file all count. The ratio is
the median over periods; the bound is 1.05. What the same loop twice, without a recorder, comes to is printed as well:
how far it is from one is how far the machine lets the ratio be known.

    python benchmarks/record_cost.py [periods]
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import contextlib  # noqa: E402
import inspect  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402

from lossnav.inference import record  # noqa: E402
from lossnav.studies.tasks.text import Transformer  # noqa: E402

BOUND = 1.05
EVERY = inspect.signature(record).parameters["every"].default


def perceptron():
    """Few small tensors: a step so quick that any addition shows."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    x, y = torch.randn(64, 64), torch.randint(10, (64,))
    return model, lambda: torch.nn.functional.cross_entropy(model(x), y)


def transformer():
    """Many tensors, as models have them."""
    model = Transformer(65, layers=4, width=64, heads=4, context=32)
    codes = torch.randint(65, (4, 33))

    def loss():
        scores = model(codes[:, :-1]).flatten(0, 1)
        return torch.nn.functional.cross_entropy(scores, codes[:, 1:].flatten())

    return model, loss


def step(optimizer, loss):
    began = time.perf_counter()
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
    return time.perf_counter() - began


def ratio(make, periods, every, recorded=True):
    """The second loop's time over the first's, its time for a step in ms, and the bytes of the record."""
    loops = []
    for _ in range(2):
        torch.manual_seed(0)
        model, loss = make()
        loops.append((torch.optim.AdamW(model.parameters()), loss))
    for optimizer, loss in 20 * loops:  # warm up
        step(optimizer, loss)
    file = Path(tempfile.mkdtemp()) / "run.npz"
    ratios, plain = [], []
    with record(loops[1][0], file, every=every) if recorded else contextlib.nullcontext():
        for _ in range(periods):
            times = [0.0, 0.0]
            for turn in range(every):
                for i in (0, 1) if turn % 2 else (1, 0):
                    times[i] += step(*loops[i])
            ratios.append(times[1] / times[0])
            plain.append(times[0])
    size = file.stat().st_size if recorded else 0
    return statistics.median(ratios), 1e3 * statistics.median(plain) / every, size


def main(periods):
    torch.set_num_threads(1)
    for make in (perceptron, transformer):
        value, one, size = ratio(make, periods, EVERY)
        twice, _, _ = ratio(make, periods, EVERY, recorded=False)
        verdict = "holds" if value <= BOUND else "MISSES"
        print(
            f"recorder, default sampling, {make.__name__:<14}{value:>8.4f}  <= {BOUND}  {verdict}  "
            f"(a step of {one:.2f} ms; {size / 1e6:.1f} MB after {periods} bursts; the loop twice: {twice:.4f})",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
