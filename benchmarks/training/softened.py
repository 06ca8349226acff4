r"""The polar step softened by the noise of the mean: derived, checked, and behind Muon (see docs/training.md).

Muon's step for a gradient matrix with mean M is V^(-1/2) M with V = M M^T: the mean is taken as known, and a direction that is
noise moves as far as all others. A learner who knows how uncertain the mean is has another V. M is an average of gradients with weights
w_i. If their entries have independent noise of variance s^2, those of M have s^2 sum(w_i^2), and under a flat prior the true mean T, of r
rows and c >= r columns, has

    E[T T^T | M] = M M^T + nu^2 I,     nu^2 = c s^2 sum(w_i^2) ~ E|G|^2 sum(w_i^2) / r,

where the last form takes all of the second moment for noise, as Adam's v does. The sum is (1 - beta) / (1 + beta) for an average with decay rate
beta, and more with look-ahead. A singular value sigma of M becomes sigma / sqrt(sigma^2 + nu^2).

Newton-Schulz after k iterations is a softened step as well: of x = sigma / |M| it computes a curve with slope a^k at zero, a = 3.4445, that bends
at x ~ a^(-k) and then stays between 0.7 and 1.2. That is nu = |M| / 485 after five iterations, |M| / 41 after three and |M| / 12 after two, whatever the
noise is. With a known nu the eigenvalues of V are bounded from below, and two iterations on V are as good as five on M.

    python benchmarks/training/softened.py      check both against singular values in float64, and print the curves
"""

import math
from dataclasses import dataclass

import numpy as np

from lossnav.rules.base import Rule, array_namespace, lerp, one_minus_power
from lossnav.rules.gains import Betas
from lossnav.rules.matrix import COEFFICIENTS, newton_schulz


def softened(M, nu, steps=2, coefficients=COEFFICIENTS):
    """(M M^T + nu^2 I)^(-1/2) M by products of small matrices: Newton-Schulz on M M^T + nu^2 I."""
    xp = array_namespace(M)
    if M.shape[0] > M.shape[1]:
        return softened(M.T, nu, steps, coefficients).T
    a, b, c = coefficients
    one = xp.eye(M.shape[0], dtype=M.dtype)
    A = M @ M.T + nu**2 * one
    size = xp.linalg.vector_norm(A)  # bounds the largest eigenvalue closer than the trace does
    A, product = A / size, one
    for i in range(steps):
        P = a * one + b * A + c * (A @ A)
        product = P @ product if i else P
        A = P @ A @ P if i + 1 < steps else A  # all of these commute
    return (product / size**0.5) @ M


def exactly(M, nu):
    """The same by singular values."""
    xp = array_namespace(M)
    U, s, Vt = xp.linalg.svd(M, full_matrices=False)
    return (U * (s / xp.sqrt(s * s + nu * nu))) @ Vt


@dataclass(frozen=True)
class SoftenedPolar(Rule):
    """Muon's step with bias correction and look-ahead, softened by ``softening`` times nu.

    The step is 0.2 sqrt(the longer side) times the softened polar factor. ``steps`` are iterations of Newton-Schulz; None takes singular values.
    """

    beta1: float = 0.8
    beta2: float = 0.99
    softening: float = 1.0
    steps: int | None = 2

    def init(self, theta):
        xp = array_namespace(theta)
        return {"t": 0.0, "m": xp.zeros_like(theta), "square": 0.0}

    def update(self, grad, state, theta):
        xp = array_namespace(theta)
        gain = Betas(self.beta1)
        t = state["t"] + 1
        m = lerp(state["m"], grad, 1 - self.beta1)
        weight, look = gain.estimate(t, ahead=True, diffuse=True)
        used = weight * lerp(m, grad, look)
        square = self.beta2 * state["square"] + (1 - self.beta2) * xp.sum(grad * grad)
        nu = 0.0
        if self.softening:
            noise = noise_of_mean(self.beta1, t) * square / one_minus_power(self.beta2, t)
            nu = self.softening * (noise / min(theta.shape)) ** 0.5
        if self.steps is None:
            level = exactly(used, nu)
        elif self.softening:
            level = softened(used, nu, self.steps)
        else:
            level = newton_schulz(used, steps=self.steps)
        move = -self.dt * 0.2 * math.sqrt(max(theta.shape)) * level
        return move, {"t": t, "m": m, "square": square}


def noise_of_mean(beta, t):
    """The sum of squared weights of the gradients in the look-ahead mean at step t."""
    weight, look = Betas(beta).estimate(t, ahead=True, diffuse=True)
    stored = (1 - beta) * one_minus_power(beta, 2 * t) / (1 + beta)
    return weight**2 * ((1 - look) ** 2 * stored + 2 * (1 - look) * look * (1 - beta) + look**2)


def main():
    rng = np.random.default_rng(0)
    convergent = (15 / 8, -5 / 4, 3 / 8)
    for shape in ((64, 64), (256, 64), (64, 192)):
        M = rng.normal(size=shape)
        for nu in (2.0, 8.0):
            gap = np.abs(softened(M, nu, 30, convergent) - exactly(M, nu)).max()
            assert gap < 1e-12, gap
    beta, t = 0.8, 7
    weights = np.zeros(t)
    for i in range(t):  # the mean of unit gradients one by one
        gradients = np.eye(t)[i]
        state, rule = {"m": 0.0}, Betas(beta)
        for k, g in enumerate(gradients, 1):
            state["m"] += (1 - beta) * (g - state["m"])
            weight, look = rule.estimate(k, ahead=True, diffuse=True)
            weights[i] = weight * (state["m"] + look * (g - state["m"]))
    assert abs(noise_of_mean(beta, t) - (weights**2).sum()) < 1e-12
    print("both agree with singular values and with weights counted one by one")
    xs = np.array([0.001, 0.003, 0.01, 0.03, 0.1, 0.3])
    print("| sigma / norm of M | " + " | ".join(f"{x:g}" for x in xs) + " |")
    print("| --- |" + " --- |" * len(xs))
    for steps in (2, 3, 5):
        curve = xs
        a, b, c = COEFFICIENTS
        for _ in range(steps):
            curve = a * curve + b * curve**3 + c * curve**5
        print(f"| {steps} iterations | " + " | ".join(f"{f:.2f}" for f in curve) + " |")
    for part in (1.0, 0.5):
        nu = part / 8  # noise alone, 64 rows: the root mean square of sigma
        curve = xs / np.hypot(xs, nu)
        print(f"| softened by {part:g} nu | " + " | ".join(f"{f:.2f}" for f in curve) + " |")


if __name__ == "__main__":
    main()
