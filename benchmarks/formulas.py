"""How long formulas take: `derive` against SymPy's Euler equations, and `parse` against SymPy's parser.

Each pair takes turns with an empty cache, so that a busy moment of the machine falls on both, and medians are
compared. `derive` also orders its equations and writes them as LaTeX; SymPy's parser evaluates text as Python, which
`parse` never does, and has no bound on the powers and numbers that come of it.
"""

import statistics
import time

import sympy
from sympy.calculus.euler import euler_equations
from sympy.core.cache import clear_cache
from sympy.parsing.sympy_parser import parse_expr

import lossnav as ln
from lossnav._base.expressions import parse

ROUNDS = 5
t = sympy.Symbol("t")
X, Y = sympy.symbols("x y", real=True)
FORMULAS = {
    "a double well": "(x**2 - 1)**2 + y**2 - x/2",
    "functions of functions": "exp(-x**2)*tanh(y)/(1 + cosh(log(1 + x**2)))",
    "a sum of 20 terms": " + ".join(f"{i}.5*sin({i}*x)*y**{i % 9}" for i in range(1, 21)),
}


def by_sympy(loss):
    """The Euler equations of exp(-t) (|v|^2/2 + L), written as LaTeX."""
    theta = [sympy.Function(name)(t) for name in loss.names]
    running = sum(x.diff(t) ** 2 for x in theta) / 2 + loss.expression(theta)
    return sympy.latex(euler_equations(sympy.exp(-t) * running, theta, [t]))


def seconds(work):
    clear_cache()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(title, ours, theirs):
    times = [(seconds(ours), seconds(theirs)) for _ in range(ROUNDS + 1)][1:]
    mine, other = (1e3 * statistics.median(each) for each in zip(*times, strict=True))
    print(f"{title:<36}{mine:>9.1f} ms{other:>12.1f} ms{mine / other:>9.2f}", flush=True)


def main():
    print(f"{'derive':<36}{'lossnav':>12}{'SymPy':>15}{'ratio':>9}")
    losses = {"double well": ln.DoubleWell()} | {
        f"Rosenbrock, {D} coordinates": ln.Rosenbrock(D) for D in (2, 5, 10, 20)
    }
    for name, loss in losses.items():
        compare(
            name,
            lambda loss=loss: ln.derive(ln.Objective(loss, gamma=1.0)).latex(),
            lambda loss=loss: by_sympy(loss),
        )
    print("parse")
    symbols = {"x": X, "y": Y}
    for name, text in FORMULAS.items():
        compare(
            name,
            lambda text=text: parse(text, symbols),
            lambda text=text: parse_expr(text, symbols),
        )


if __name__ == "__main__":
    main()
