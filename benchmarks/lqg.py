"""How far known rules are from the best causal rule, on noisy quadratics where that one is known.

A coordinate of curvature h is pushed about by noise, and its gradient is seen through noise of variance V.
The best of all rules that see only the gradients so far is a Kalman filter and a linear feedback (LQG). All
rules here are linear once V is known, so their mean cost is exact, from a Lyapunov equation: nothing is
simulated. Curvature is in proportion to V, as the learners believe; it goes over five decades, and a step's
own time scale sqrt(h) dt from 0.01 to 3.

Each rule has one setting for all curvatures: its learning rate, its gain and its look-ahead are those of
the least geometric mean of J / J_LQG. The last row is not tuned: its numbers are those of the theory.

    python benchmarks/lqg.py
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

CURVATURES = np.logspace(-4, 1, 21)  # eta = k = dt = kappa = 1, so V is the same
PUSHES = {  # variance of the push in a step, by curvature
    "the mean gradient wanders in proportion to its noise": lambda h: 0.01 / h,
    "... by the square root of that": lambda h: 1e-3 / np.sqrt(h),
    "all coordinates are pushed alike": lambda h: 1e-3 + 0 * h,
}


@dataclass
class Rule:
    """Step = -feedback * (m + ahead K (g - m)), m = s + K (g - s), and the next s = expected * m."""

    finite: bool = False
    ahead: bool = False
    foresight: bool = False
    straight: bool = False

    def cost(self, h, push, lr, K, n):
        """The mean cost of a step; infinite where the rule is unstable."""
        z = np.sqrt(h) * lr
        left = 1 / (1 + z) if self.straight else np.exp(-z)  # of the way to the minimum
        feedback = (1 - left) / h if self.finite else lr / np.sqrt(h)
        expected = left if self.foresight else 1.0
        n = n if self.ahead else 0.0
        old, new = (1 - K) * (1 - n * K), K * (1 + n * (1 - K))
        move = -feedback * np.array([new * h, old])  # of the state (x, s)
        noise = -feedback * new  # of the noise in the gradient
        A = np.array([[1 + move[0], move[1]], [expected * K * h, expected * (1 - K)]])
        if np.abs(np.linalg.eigvals(A)).max() >= 1:
            return np.inf
        inputs = np.array([[noise, 1.0], [expected * K, 0.0]])
        spread = inputs @ np.diag([h, push]) @ inputs.T
        S = np.linalg.solve(np.eye(4) - np.kron(A, A), spread.ravel()).reshape(2, 2)
        moved, mixed = move @ S @ move + noise**2 * h, S[0] @ move
        return moved / 2 + h / 2 * (S[0, 0] + mixed + moved / 3)  # straight between two steps


def best(h, push):
    """The least cost of any causal rule, and the gain of its filter."""
    P = np.sqrt(h + h**2 / 12)  # of the Riccati equation of straight pieces
    before = (push + np.sqrt(push**2 + 4 * push / h)) / 2
    gain = before / (before + 1 / h)
    return (P * push + h * (1 - gain) * before) / 2, gain


RULES = {
    "Adam": Rule(),
    "Adam with Nesterov's look-ahead": Rule(ahead=True),
    "finite step": Rule(finite=True),
    "finite step and look-ahead": Rule(finite=True, ahead=True),
    "straight step and look-ahead (Navigator)": Rule(finite=True, ahead=True, straight=True),
    "finite step that foresees its own effect": Rule(finite=True, foresight=True),
    "straight step that foresees its own effect": Rule(finite=True, foresight=True, straight=True),
}


def unpacked(x):
    return np.exp(x[0]), 1 / (1 + np.exp(-x[1])), 1 / (1 + np.exp(-x[2]))


def tuned(rule, pushes, least):
    def gap(x):
        costs = [rule.cost(h, p, *unpacked(x)) for h, p in zip(CURVATURES, pushes, strict=True)]
        return np.log(np.array(costs) / least).mean()

    starts = [(a, b, 0.0) for a in (-2.0, -0.5) for b in (-2.5, -0.5)]
    return min((minimize(gap, x, method="Nelder-Mead") for x in starts), key=lambda f: f.fun)


def main():
    for what, push in PUSHES.items():
        pushes = push(CURVATURES)
        least, gains = np.transpose([best(h, p) for h, p in zip(CURVATURES, pushes, strict=True)])
        print(f"\n{what} (the best gains go from {gains.min():.3g} to {gains.max():.3g})")
        print(f"  {'J / J of the best causal rule':<48}{'lr':>8}{'gain':>8}{'ahead':>8}")
        for name, rule in RULES.items():
            found = tuned(rule, pushes, least)
            lr, K, n = unpacked(found.x)
            ahead = f"{n:8.2f}" if rule.ahead else ""
            print(f"  {name:<42}{np.exp(found.fun):6.3f}{lr:8.3f}{K:8.3f}{ahead}")
        theory = Rule(finite=True, foresight=True)
        costs = [
            theory.cost(h, p, 1.0, K, 0) for h, p, K in zip(CURVATURES, pushes, gains, strict=True)
        ]
        ratio = np.exp(np.log(np.array(costs) / least).mean())
        print(f"  {'the same by theory: each its own gain':<42}{ratio:6.3f}{1:8.3f}")


if __name__ == "__main__":
    main()
