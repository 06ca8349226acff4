"""Problems from the literature: `solve` beside known values, IPOPT and SciPy's ``solve_bvp``.

Each value comes from a publication, a closed form, or a computation that does not use lossnav. The
peers get the same formulas and the same straight line to start from, and refine their meshes until J
settles: IPOPT minimises J over piecewise polynomials of degree 8 with eight Gauss points (Gauss
collocation with the controls eliminated) and splits rough elements; ``solve_bvp`` solves Hamilton's
equations with exact Jacobians at a tolerance of 1e-9. The three run in turn.

    python benchmarks/others.py [name ...] [--rounds 1] [--markdown]

A name is any part of a problem's name. ``--markdown`` writes the table into docs/others.md.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import argparse  # noqa: E402
import math  # noqa: E402
import signal  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402

from paths.cases import cases  # noqa: E402
from paths.page import PAGE, replace_block  # noqa: E402
from paths.peers import LIMIT, bvp, ipopt  # noqa: E402


def _late(*_):
    raise TimeoutError


def timed(run):
    """What ``run`` returns, or the error that it raises; and its time."""
    signal.signal(signal.SIGALRM, _late)
    began = time.perf_counter()
    signal.alarm(LIMIT + 30)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = run()
    except TimeoutError:
        result = f"over {LIMIT + 30} s"
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return result, time.perf_counter() - began


def row(case, rounds=1):
    """The cells of a problem."""
    runs = {"ours": case.ours, "ipopt": lambda: ipopt(case), "bvp": lambda: bvp(case)}
    runs = {name: run for name, run in runs.items() if name in ("ours", *case.peers)}
    best, results = dict.fromkeys(runs, math.inf), {}
    for _ in range(rounds):
        for name, run in runs.items():
            results[name], seconds = timed(run)
            best[name] = min(best[name], seconds)
    known, path = case.known(), results["ours"]
    cells = {"problem": case.name, "J known": f"{known:.10g}"}
    size = max(abs(known), 1e-300)
    if isinstance(path, str):
        status = "too slow" if path.startswith("over") else "refused"
        cells |= {"J": path[:60], "off": "", "error": "", "status": status}
    else:
        J = path.J * case.factor
        cells |= {
            "J": f"{J:.10g}",
            "off": f"{(J - known) / size:+.0e}",
            "error": f"{path.error:.0e}",
            "status": path.status.name,
        }
    cells["s"] = f"{best['ours']:.2f}"
    for name in ("ipopt", "bvp"):
        cells[name] = _peer(results.get(name, ""), known, case.factor)
        shown = name in best and not isinstance(path, str)
        cells[f"{name} / ours"] = f"{best[name] / best['ours']:.2g}" if shown else ""
    return cells


def _peer(found, known, factor):
    """A peer's relative difference from the known cost, or why there is none."""
    if isinstance(found, str):
        return "not installed" if "No module named" in found else found[:40]
    J, complaint = found
    off = (J * factor - known) / max(abs(known), 1e-300)
    return f"{off:+.0e} {complaint}".strip() if abs(off) < 1 or not complaint else complaint


def write(rows, chosen):
    """Replace the table of the page."""
    heads = ["Problem", "J known", "J computed", "off by", "error", "status", "s", "IPOPT off by", "time ratio", "`solve_bvp` off by", "time ratio", "source"]  # fmt: skip
    lines = [" | ".join(heads), " | ".join(["---"] * len(heads))]
    lines += [
        " | ".join([*cells.values(), case.source]) for cells, case in zip(rows, chosen, strict=True)
    ]
    table = "\n".join(f"| {line.replace('  ', ' ')} |" for line in lines)
    replace_block(PAGE, "table", table)


def main(arguments=None):
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("names", nargs="*")
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--markdown", action="store_true")
    given = options.parse_args(arguments)
    chosen = [
        c
        for c in cases()
        if not given.names or any(n.lower() in c.name.lower() for n in given.names)
    ]
    rows = []
    for case in chosen:
        rows.append(row(case, given.rounds))
        print("  ".join(f"{name} {text}" for name, text in rows[-1].items() if text), flush=True)
    if given.markdown:
        write(rows, chosen)


if __name__ == "__main__":
    main()
