"""Random problems: does `solve` find the best path, and is its stated error true?

Each problem is drawn from its number: a polynomial, trigonometric or exponential loss in one to four
coordinates, a metric, a drift, a discount, a horizon and an end. Its answer is compared with an
independent one, which shares no code with lossnav's solvers: J is minimised over piecewise cubic
paths with continuous velocity, by Newton's method from many starts, on meshes refined until J settles.
Every such path is admissible, so its J bounds the least one from above: where ours is higher by more
than ten times the stated error, a better path is known. The cost of our own path is integrated anew;
where the stated J differs from it, the J is false.

    python benchmarks/random_problems.py [--count 2000] [--seed 0] [--jobs 1] [--out results.jsonl]
    python benchmarks/random_problems.py --only 17        one problem, as a script that repeats it

With ``--out`` each result is kept, and a second run goes on where the first stopped.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import argparse  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import multiprocessing  # noqa: E402
import signal  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
import warnings  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
from paths.page import PAGE, replace_block  # noqa: E402
from paths.reference import Reference, Unbounded  # noqa: E402

import lossnav as ln  # noqa: E402

SOURCE = Path(ln.__file__).parent
PATIENCE = 60  # seconds for one solve
CLASSES = {
    "crash": "an error that is not ours",
    "too slow": f"stopped after {PATIENCE} s",
    "false J": "status ok, but J is not the cost of the path",
    "better known": "status ok, but a better path is known",
    "unbounded": "status ok, but J is unbounded below",
    "refused": "refused with a reason",
    "refused wrongly": "called unbounded, but the reference is bounded",
    "not ok": "a path with a status that is not ok",
    "ok": "ok, and no lower J is known",
}
WRONG = ("false J", "better known", "unbounded")


# The problems.


def draw(number, seed=0):
    """Problem ``number`` as text and numbers: see `objective` for the meaning."""
    rng = np.random.default_rng([seed, number])
    dim = int(rng.choice([1, 2, 3, 4], p=[0.3, 0.35, 0.2, 0.15]))
    x = [f"x{i}" for i in range(dim)]
    horizon = math.inf if rng.random() < 0.35 else _round(10 ** rng.uniform(-0.5, 1.5))
    gamma = 0.0 if rng.random() < 0.3 else _round(10 ** rng.uniform(-2, 1))
    bound = rng.random() > 0.04  # a few losses are not bounded below
    return {
        "loss": _loss(rng, x, bound),
        "metric": _metric(rng, x),
        "drift": _drift(rng, x),
        "eta": _round(10 ** rng.uniform(-0.5, 0.5)),
        "k": _round(10 ** rng.uniform(-0.5, 0.5)),
        "gamma": gamma,
        "horizon": horizon,
        "start": [_round(a) for a in rng.normal(size=dim) * 1.2],
        "end": [_round(a) for a in rng.normal(size=dim) * 1.2]
        if math.isfinite(horizon) and rng.random() < 0.5
        else None,
    }


def _round(value):
    return float(f"{value:.3g}")


def _sum(terms):
    return " + ".join(f"({_round(a)})*{term}" for a, term in terms if _round(a))


def _linear(rng, x, size=1.0):
    return (
        "("
        + _sum((a, name) for a, name in zip(rng.normal(size=len(x)) * size, x, strict=True))
        + ")"
    )


def _loss(rng, x, bound):
    kind = rng.choice(
        ["polynomial", "trigonometric", "exponential", "quadratic"], p=[0.4, 0.25, 0.25, 0.1]
    )
    bowl = [
        (10 ** rng.uniform(-1, 0.3), f"({name} - ({_round(c)}))**2")
        for name, c in zip(x, rng.normal(size=len(x)), strict=True)
    ]
    if kind == "quadratic":
        signs = np.ones(len(x)) if bound else rng.choice([-1, 1], size=len(x))
        return _sum(
            [(s * a, term) for s, (a, term) in zip(signs, bowl, strict=True)]
            + [(rng.normal() / 4, f"{x[0]}*{x[-1]}")] * (len(x) > 1)
        )
    if kind == "polynomial":
        terms = [(10 ** rng.uniform(-1, 0), f"{name}**4") for name in x] if bound else []
        for _ in range(int(rng.integers(1, 2 + 2 * len(x)))):
            chosen = rng.choice(x, size=int(rng.integers(1, 4)))
            terms.append((rng.normal(), "*".join(chosen)))
        return _sum(terms + bowl[: int(rng.integers(0, len(x) + 1))]) or "0.5*x0**2"
    if kind == "trigonometric":
        waves = [
            (
                rng.normal(),
                f"{rng.choice(['sin', 'cos'])}({_linear(rng, x, 1.5)} + ({_round(rng.normal())}))",
            )
            for _ in range(int(rng.integers(1, 4)))
        ]
        return _sum(waves + (bowl if rng.random() < 0.7 else []))
    shape = rng.choice(["wells", "softplus", "cosh"])
    if shape == "wells":
        wells = []
        for _ in range(int(rng.integers(1, 4))):
            square = " + ".join(
                f"({name} - ({_round(c)}))**2"
                for name, c in zip(x, 1.5 * rng.normal(size=len(x)), strict=True)
            )
            wells.append(
                (-rng.uniform(0.5, 4), f"exp(-({square})/({_round(rng.uniform(0.3, 2))}))")
            )
        return _sum(wells + [(0.2 * a, term) for a, term in bowl])
    if shape == "softplus":
        parts = [
            (rng.uniform(0.5, 2), f"log(1 + exp({_linear(rng, x, 2)}))")
            for _ in range(2 * len(x) + 1)
        ]
        return _sum(parts + ([(0.1 * a, term) for a, term in bowl] if rng.random() < 0.5 else []))
    return _sum(
        [
            (a, f"(exp({name}) + exp(-({_round(rng.uniform(0.3, 2))})*{name}))")
            for (a, _), name in zip(bowl, x, strict=True)
        ]
    )


def _metric(rng, x):
    kind, dim = (
        rng.choice(
            ["none", "constant", "rational", "wavy", "conformal"], p=[0.45, 0.15, 0.15, 0.15, 0.1]
        ),
        len(x),
    )
    if kind == "none":
        return None
    if kind == "constant":
        A = rng.normal(size=(dim, dim))
        return [[str(_round(a)) for a in row] for row in A @ A.T / dim + 0.3 * np.eye(dim)]
    if kind == "rational":
        diagonal = [f"1 + ({_round(rng.uniform(0.1, 2))})*{rng.choice(x)}**2" for _ in x]
    elif kind == "wavy":
        diagonal = [f"exp(({_round(rng.uniform(-1, 1))})*sin({_linear(rng, x)}))" for _ in x]
    else:
        diagonal = [
            f"1/(({_round(rng.uniform(0.3, 2))}) + " + " + ".join(f"{n}**2" for n in x) + ")"
        ] * dim
    return [[diagonal[i] if i == j else "0" for j in range(dim)] for i in range(dim)]


def _drift(rng, x):
    kind = rng.choice(["none", "linear", "wavy", "cubic"], p=[0.5, 0.25, 0.15, 0.1])
    if kind == "none":
        return None
    if kind == "linear":
        return [f"{_linear(rng, x)} + ({_round(rng.normal() / 2)})" for _ in x]
    if kind == "wavy":
        return [
            f"({_round(rng.normal())})*sin({_linear(rng, x)} + ({_round(rng.normal())}))" for _ in x
        ]
    return [f"{name} - {name}**3 + ({_round(rng.normal() / 2)})*{rng.choice(x)}" for name in x]


def objective(spec):
    x = [f"x{i}" for i in range(len(spec["start"]))]

    def traced(rows):
        return lambda theta: [
            traced(row)(theta)
            if isinstance(row, list)
            else eval(
                row,
                {"sin": np.sin, "cos": np.cos, "exp": np.exp, "log": np.log},
                dict(zip(x, theta, strict=True)),
            )
            for row in rows
        ]

    metric, drift = spec["metric"], spec["drift"]
    if metric is not None:
        try:
            metric = np.array(metric, dtype=float)
        except ValueError:
            metric = traced(metric)
    return ln.Objective(
        ln.Expression(spec["loss"], x),
        metric,
        None if drift is None else traced(drift),
        eta=spec["eta"],
        k=spec["k"],
        gamma=spec["gamma"],
    )


def script(spec):
    """The problem as a program."""
    names = ", ".join(f"x{i}" for i in range(len(spec["start"])))
    traced = lambda rows: str(rows).replace("'", "")  # noqa: E731
    lines = ["import numpy as np", "from numpy import cos, exp, log, sin", "import lossnav as ln"]
    inputs = []
    for what in ("metric", "drift"):
        if spec[what] is not None:
            lines += [f"def {what}(x):", f"    {names}, = x", f"    return {traced(spec[what])}"]
            inputs.append(
                f"{what}={what}"
                if "x" in str(spec[what])
                else f"{what}=np.array({what}({spec['start']}))"
            )
    inputs += [f"{name}={spec[name]}" for name in ("eta", "k", "gamma")]
    lines += [
        f'loss = ln.Expression("{spec["loss"]}", {names.split(", ")})',
        f"objective = ln.Objective(loss, {', '.join(inputs)})",
    ]
    horizon = "np.inf" if math.isinf(spec["horizon"]) else spec["horizon"]
    return "\n".join(
        [
            *lines,
            f"path = ln.solve(objective, {spec['start']}, {horizon}, {spec['end']})",
            "print(path)",
        ]
    )


# The comparison.


def late(*_):
    raise TimeoutError(f"longer than {PATIENCE} s")


def compare(number, seed=0):
    """Solve one problem twice: a record of what was found."""
    spec = draw(number, seed)
    record = {"number": number, "seed": seed, "class": "ok"}
    path, reason = None, None
    signal.signal(signal.SIGALRM, late)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        began = time.perf_counter()
        signal.alarm(PATIENCE)
        try:
            path = ln.solve(objective(spec), spec["start"], spec["horizon"], spec["end"])
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            frame = traceback.extract_tb(error.__traceback__)[-1]
            ours = type(error) is ValueError and SOURCE in Path(frame.filename).parents
            kind = "refused" if ours else "crash"
            record |= {
                "class": "too slow" if isinstance(error, TimeoutError) else kind,
                "reason": f"{reason} ({Path(frame.filename).name}:{frame.lineno})",
            }
        finally:
            signal.alarm(0)
        record["seconds"] = round(time.perf_counter() - began, 3)
    if said:
        record["warning"] = str(said[0].message)[:100]
    if path is not None:
        record |= {"J": path.J, "error": path.error, "status": path.status.name}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return record | _judged(spec, path, reason)


def _judged(spec, path, reason):
    """How an answer compares with the reference."""
    reference = Reference(spec)
    began = time.perf_counter()
    try:
        least, error = reference.solve(path and (lambda t: path.at(np.minimum(t, path.t[-1]))))
    except Unbounded:
        least, error = -math.inf, 0.0
    except ValueError as problem:
        least, error = math.nan, math.inf
        print(f"  the reference failed: {problem}", flush=True)
    known = {
        "reference": least,
        "reference_error": error,
        "reference_seconds": round(time.perf_counter() - began, 1),
    }
    if path is None:
        wrong = "unbounded" in reason and np.isfinite(least)
        return known | ({"class": "refused wrongly"} if wrong else {})
    if math.isinf(spec["horizon"]) and not spec["gamma"]:
        known |= {"rest": path.rest, "reference_rest": reference.rest}
        if reference.rest < path.rest - 1e-7 * (1 + abs(path.rest)):
            least = -math.inf  # any path to a lower cost of rest is better
        elif reference.rest > path.rest + 1e-7 * (1 + abs(path.rest)):
            least = math.inf
    own, slack = reference.cost_of(path)
    known["own"] = own
    allowed = 10 * path.error * abs(path.J)
    rounding = 1e-12 * (1 + abs(path.J))
    if not path.status.ok:
        return known | {
            "class": "not ok",
            "no lower": not least < path.J - 1e-6 * abs(path.J) - error,
        }
    if abs(own - path.J) > allowed + 10 * slack + 1e-9 * abs(own) + rounding:
        return known | {"class": "false J"}
    if least == -math.inf:
        return known | {
            "class": "unbounded"
            if "rest" not in known or known["reference_rest"] >= path.rest
            else "better known"
        }
    if path.J - least > allowed + error + rounding:
        return known | {"class": "better known", "excess": path.J - least}
    return known


def shown(record):
    parts = {k: v for k, v in record.items() if k not in ("number", "seed", "class")}
    values = ", ".join(
        f"{k} {v:.9g}" if isinstance(v, float) else f"{k} {v}" for k, v in parts.items()
    )
    return f"{record['number']:>5}  {record['class']:<16} {values}"


def summary(records):
    count, tally = len(records), dict.fromkeys(CLASSES, 0)
    for record in records:
        tally[record["class"]] += 1
    lines = [f"{count} problems"] + [f"{n:>6}  {CLASSES[name]}" for name, n in tally.items()]
    told = [r for r in records if r["reference"] == -math.inf and _says_unbounded(r)]
    posed = max(count - len(told), 1)
    fine = tally["ok"] + sum(tally[name] for name in WRONG)
    least = tally["ok"] + tally["false J"] + sum(r.get("no lower", False) for r in records)
    times = [r["seconds"] for r in records]
    slowest = records[int(np.argmax(times))]["number"]
    return "\n".join(
        [
            *lines,
            f"status ok: {fine / posed:.1%} of the {posed} with an optimal path (aim 97 %)",
            f"no lower J known: {least / posed:.1%} of them (aim 98 %)",
            f"status ok and wrong: {sum(tally[name] for name in WRONG)} (aim 0)",
            f"errors that are not ours: {tally['crash']} (aim 0)",
            f"with a warning: {sum('warning' in r for r in records)}",
            f"slowest: {max(times):.1f} s, number {slowest} (aim 10 s); median {np.median(times):.2f} s",
        ]
    )


def _says_unbounded(record):
    return record["class"] == "refused" or record.get("status") == "UNBOUNDED"


def main(arguments=None):
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--count", type=int, default=2000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--only", type=int, help="one number: print it as a script, and solve it")
    options.add_argument(
        "--markdown", action="store_true", help="write the summary into docs/others.md"
    )
    options.add_argument("--out", type=Path, help="a file of results to keep, and to go on from")
    given = options.parse_args(arguments)
    if given.only is not None:
        print(script(draw(given.only, given.seed)))
        print(shown(compare(given.only, given.seed)))
        return
    records = []
    if given.out is not None and given.out.exists():
        records = [json.loads(line) for line in given.out.read_text(encoding="utf-8").splitlines()]
        records = [r for r in records if r["seed"] == given.seed and r["number"] < given.count]
    done = {r["number"] for r in records}
    left = [number for number in range(given.count) if number not in done]
    work = partial(compare, seed=given.seed)
    with multiprocessing.Pool(given.jobs) if given.jobs > 1 else _Here() as pool:
        for record in pool.imap_unordered(work, left):
            records.append(record)
            if record["class"] != "ok" or record["seconds"] > 10:
                print(shown(record), flush=True)
            if given.out is not None:
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
    print(summary(records))
    if given.markdown:
        lines = "\n".join(f"- {' '.join(line.split())}" for line in summary(records).splitlines())
        replace_block(PAGE, "random", lines)


class _Here:
    """One process, with the interface of a pool."""

    imap_unordered = staticmethod(map)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


if __name__ == "__main__":
    main()
