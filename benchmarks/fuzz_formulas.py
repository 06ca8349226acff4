"""Fuzz the formula parser: random formulas and damaged ones, from text to derivatives and
equations.

    python benchmarks/fuzz_formulas.py [COUNT] [--seed SEED]

Half of the inputs are drawn from the grammar (nested functions, towers of powers, long numbers),
half are formulas with characters inserted, deleted, swapped or repeated. Each goes all the way that
a user's formula goes: parse, value, gradient and Hessian at a few points, Euler-Lagrange equations
as LaTeX. It must work or be refused with a ValueError, within one second of CPU time. What breaks
this promise is printed, and the exit code is 1.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import random
import signal
import subprocess
import sys
import warnings

import numpy as np

LIMIT = 1.0
CHUNK = 500
NAMES = ["x", "y"]
FUNCTIONS = [
    "exp", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "abs",
]  # fmt: skip
NUMBERS = [
    "0", "1", "2", "3", "7", "64", "65", "0.5", ".57657", "1e-3", "1e20", "1e30", "1e99", "1e-99", "1e100",
    "1e101", "12345678901234567890", "3.14159265358979", "9999999", "9" * 30, "7" * 64, "0." + "3" * 40,
]  # fmt: skip
SEEDS = [
    "(x**2 - 1)**2 + y**2 - x/2", "x**2 + y**2 + 3*abs(x - 1)", "abs(log(x))", "log(1e30)*x**2", "(1e20)**x",
    "exp(-x**2)*tanh(y)/(1 + cosh(log(1 + x**2)))", "sqrt(x**2 + 1e-3)", "9**9**9", "x**y**x", "((x + 9) - x)**9",
    "exp(3*log(x) + y)", "tan(asin(atan(sin(x))))", f"{'7' * 64}**.57657*x**2", "1/(x - x)", "(-8)**(1/3) + x",
]  # fmt: skip
ALPHABET = "xy0123456789.e+-*/() ,_^%'\"[]{}=<>!&|~:;@#abcdefgh\\\n\t"


def drawn(rng, depth):
    """A formula of the grammar."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(NAMES) if rng.random() < 0.6 else rng.choice(NUMBERS)
    kind = rng.random()
    if kind < 0.4:
        nest = rng.choice(FUNCTIONS) if rng.random() < 0.9 else "abs(log"
        return f"{nest}({drawn(rng, depth - 1)})" + ")" * nest.count("(")
    if kind < 0.85:
        left, right = (drawn(rng, rng.randrange(depth)) for _ in range(2))
        return f"({left}){rng.choice('+-*/')}({right})"
    if kind < 0.97:
        return f"({drawn(rng, depth - 1)})**({drawn(rng, rng.randrange(min(depth, 2)))})"
    return f"-({drawn(rng, depth - 1)})"


def deep(rng):
    """Functions of functions, 5 to 45 deep."""
    text = rng.choice(["x", "x*y", "x + y", "x**2 + 1"])
    for _ in range(rng.randrange(5, 46)):
        text = f"{rng.choice(FUNCTIONS)}({text}{rng.choice(['', '', ' + 1', '*y', '/3', ' - x'])})"
    return text


def damaged(rng):
    """A formula with one to six random edits."""
    text = rng.choice(SEEDS) if rng.random() < 0.5 else drawn(rng, 4)
    for _ in range(rng.randrange(1, 7)):
        i = rng.randrange(len(text) + 1)
        edit = rng.randrange(4)
        if edit == 0:
            text = text[:i] + rng.choice(ALPHABET) + text[i:]
        elif edit == 1:
            text = text[:i] + text[i + 1 :]
        elif edit == 2:
            j = rng.randrange(len(text) + 1)
            text = text[:i] + text[min(i, j) : max(i, j)] + text[i:]
        else:
            text = text[:i] + rng.choice(NUMBERS + FUNCTIONS) + text[i:]
    return text[:2100]


def formula(rng):
    kind = rng.random()
    if kind < 0.05:
        return deep(rng)
    return drawn(rng, rng.randrange(1, 8)) if kind < 0.5 else damaged(rng)


class TooSlow(BaseException):
    """The CPU time is up; no `except Exception` may swallow it."""


def stop(*_):
    raise TooSlow


def outcome(text):
    """What became of one formula: "works", "refused", or a sentence on what went wrong."""
    import lossnav as ln

    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        loss = ln.Expression(text, NAMES)
        points = np.array([[0.5, -0.25], [1.0, 2.0], [-3.0, 0.1]])
        with np.errstate(all="ignore"):
            for theta in points:
                loss(theta), loss.grad(theta), loss.hess(theta)
        ln.derive(ln.Objective(loss, gamma=0.5)).latex()
    except ValueError as error:
        return "refused" if str(error) and "\n" not in str(error) else f"no sentence: {error!r}"
    except TooSlow:
        return f"over {LIMIT:g} s"
    except BaseException as error:
        return f"{type(error).__name__}: {error!s:.120}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "works"


def chunk(seed):
    """The formulas of one seed with their outcomes, one JSON line each."""
    warnings.simplefilter("error")
    signal.signal(signal.SIGPROF, stop)
    rng = random.Random(seed)
    for _ in range(CHUNK):
        text = formula(rng)
        print(json.dumps([text, "began"]), flush=True)
        print(json.dumps([text, outcome(text)]), flush=True)


def run(seed):
    """The outcomes of one seed, from a process of its own: one that hangs or dies is an outcome, too."""
    command = [sys.executable, __file__, "--chunk", str(seed)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=3 * CHUNK)
        output, end = done.stdout, f"exit code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        output, end = (error.stdout or b"").decode(), "hangs"
    results = [json.loads(line) for line in output.splitlines()]
    if results and results[-1][1] == "began":
        results.append([results[-1][0], end])
    return [(text, what) for text, what in results if what != "began"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", nargs="?", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--chunk", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.chunk is not None:
        return chunk(asked.chunk)
    counts = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        seeds = range(asked.seed * 10**6, asked.seed * 10**6 + -(-asked.count // CHUNK))
        for results in pool.map(run, seeds):
            for text, what in results:
                fine = what in ("works", "refused")
                counts[what if fine else what.partition(":")[0]] += 1
                if not fine:
                    print(f"{what}\n    {text!r:.300}", flush=True)
    print(", ".join(f"{what}: {n}" for what, n in counts.most_common()))
    return int(not set(counts) <= {"works", "refused"})


if __name__ == "__main__":
    sys.exit(main())
