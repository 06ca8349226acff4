"""A path through the 10,000 parameters of a small network, against gradient descent.

Printed: J of the best gradient-descent path (of five rates) and of ours on the same horizon, and our
time over that of 200 full-batch gradients for each point of the mesh. Bounds: J below, ratio <= 1.
"""

import time

import numpy as np
import torch

import lossnav as ln
from lossnav.solvers.direct import MatrixFree, _Preconditioned

STEPS, HORIZON = 20, 3.0


def network_loss():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x[:500] / 16.0), torch.tensor(y[:500])
    shapes = [(64, 135), (135,), (135, 10), (10,)]
    sizes = [int(np.prod(s)) for s in shapes]

    def fn(theta):
        w1, b1, w2, b2 = (p.reshape(s) for p, s in zip(theta.split(sizes), shapes, strict=True))
        return torch.nn.functional.cross_entropy(torch.tanh(x @ w1 + b1) @ w2 + b2, y)

    rng = np.random.default_rng(0)
    parts = [rng.normal(size=s) / np.sqrt(s[0]) if len(s) == 2 else np.zeros(s) for s in shapes]
    return ln.TorchLoss(fn), np.concatenate([p.ravel() for p in parts])


def main():
    torch.set_num_threads(1)
    loss, theta0 = network_loss()
    objective = ln.Objective(loss, eta=30.0, gamma=0.1)
    sums = _Preconditioned(objective, theta0, None, HORIZON, STEPS)
    descent = sums.cost(sums.descent())[0]
    gradients, ours = [], []
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(40):
            loss.grad(theta0)
        gradients.append((time.perf_counter() - begin) / 40)
        begin = time.perf_counter()
        path = ln.solve(objective, theta0, HORIZON, method=MatrixFree(steps=STEPS))
        ours.append(time.perf_counter() - begin)
    allowed = 200 * min(gradients) * (STEPS + 1)
    print(f"parameters {len(theta0):,}; {path.status.value}")
    print(
        f"J: gradient descent {descent:.4f}, ours {path.J:.4f}: {'below' if path.J < descent else 'NOT below'}"
    )
    print(f"time / 200 gradients a point: {min(ours) / allowed:.2f}, bound 1")


if __name__ == "__main__":
    main()
