"""What recording costs: a training loop with the recorder against the same loop without it.

Two copies of a model train side by side, a block of steps each in turn, so that a busy machine disturbs
both alike. A block is one whole period of the recorder, so that bursts, the steps between them and the
writing of the file all count. The ratio is that of the medians over blocks; the bound is 1.05.

    python benchmarks/record_cost.py [periods]
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

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


def block(optimizer, loss, steps):
    began = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return time.perf_counter() - began


def ratio(make, periods, every):
    loops = {}
    for name in ("plain", "recorded"):
        torch.manual_seed(0)
        model, loss = make()
        loops[name] = torch.optim.AdamW(model.parameters()), loss
    for optimizer, loss in loops.values():
        block(optimizer, loss, 20)  # warm up
    folder = Path(tempfile.mkdtemp())
    times = {name: [] for name in loops}
    with record(loops["recorded"][0], folder / "run.npz", every=every):
        for _ in range(periods):
            for name, (optimizer, loss) in loops.items():
                times[name].append(block(optimizer, loss, every))
    size = (folder / "run.npz").stat().st_size
    plain, recorded = (statistics.median(times[name]) for name in ("plain", "recorded"))
    return recorded / plain, 1e3 * plain / every, size


def main(periods):
    torch.set_num_threads(1)
    for make in (perceptron, transformer):
        value, step, size = ratio(make, periods, EVERY)
        verdict = "holds" if value <= BOUND else "MISSES"
        print(
            f"recorder, default sampling, {make.__name__:<14}{value:>8.4f}  <= {BOUND}  {verdict}  "
            f"(a step of {step:.2f} ms; {size / 1e6:.1f} MB after {periods} bursts)",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
