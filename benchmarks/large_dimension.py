"""The exact step at a million coordinates: what it costs beyond its Hessian-vector products.

The Hessian is a diagonal plus a low-rank part, known through products alone. Printed: how many
products the step took, the time of the whole step against the time of as many bare products (run
alternately), and the true error against the estimate.
"""

import time

import numpy as np

from lossnav.solvers.curvature import Dense, Lanczos, step_gain

D, RANK, ROUNDS = 1_000_000, 8, 5
SETTINGS = {"eta": 0.1, "k": 1.0, "gamma": 1.0, "dt": 1.0}


def main():
    rng = np.random.default_rng(0)
    # Coordinates in blocks of one curvature each, so that the exact answer is known: in the span
    # of the blocks' parts the whole problem is small and dense.
    curvature = np.repeat(np.geomspace(1e-3, 10.0, 20), D // 20)
    U = rng.normal(size=(D, RANK)) / np.sqrt(D)
    g = rng.normal(size=D)
    count = 0

    def product(v):
        nonlocal count
        count += 1
        return curvature * v + U @ (U.T @ v)

    lanczos = Lanczos(product, steps=60, tol=1e-8)
    whole, bare = [], []
    for _ in range(ROUNDS):
        count = 0
        start = time.perf_counter()
        step, estimate = lanczos.solve(lambda h: step_gain(h, **SETTINGS), g, lambda _: None)
        whole.append(time.perf_counter() - start)
        used = count
        start = time.perf_counter()
        for _ in range(used):
            product(g)
        bare.append(time.perf_counter() - start)
    blocks = [np.c_[U[i : i + D // 20], g[i : i + D // 20]] for i in range(0, D, D // 20)]
    bases = [np.linalg.qr(block)[0] for block in blocks]
    small = np.vstack([Q.T @ b[:, :RANK] for Q, b in zip(bases, blocks, strict=True)])
    values = np.repeat(np.geomspace(1e-3, 10.0, 20), RANK + 1)
    inner = np.concatenate([Q.T @ b[:, RANK] for Q, b in zip(bases, blocks, strict=True)])
    exact = Dense(np.diag(values) + small @ small.T).apply(
        lambda h: step_gain(h, **SETTINGS), inner
    )
    true = np.concatenate([Q @ part for Q, part in zip(bases, exact.reshape(20, -1), strict=True)])
    error = np.linalg.norm(step - true) / np.linalg.norm(true)
    print(f"coordinates {D:,}, Hessian-vector products {used}")
    print(
        f"step / bare products: {np.median(whole) / np.median(bare):.2f} (time, median of {ROUNDS})"
    )
    print(f"error {error:.1e}, estimate {estimate:.1e}")


if __name__ == "__main__":
    main()
