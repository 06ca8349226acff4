"""Mutation testing of the ledger: flip one sign, factor or operator, and see whether a check notices.

    python tools/ledger_mutants.py --out mutants.json [--only E.12 G.30] [--latex | --python]

The mutants are of the paper's LaTeX, which the checks evaluate, and of the formulas in the modules
of the ledger. A mutant of a display meets the check of that display; one in a module meets the
checks that run its function, in a process of its own. It is killed if a verdict changes or if the
check raises an error or takes over a minute. A second run continues the first.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import random
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mutants import mutants_of

# What may survive: display or module, the piece with its change or the line, and the reason.
EQUIVALENT = (
    (r"B\.6", r".*\|2 ", "only a direction is displayed"),
    (r"H\.5", r".*\\vec\{\\mu\}.*\|(- |2 )", "theta~ has the mean mu, so one of two factors may be off by it"),
    (r"I\.9", r".*\{\\mu\}_t - \\vec\{\\mu\}_0.*\|(\+|2 )", "g.mu_0 is constant, and constants are left out"),
    (r"(H\.7|H\.11|I\.9)", r".*\\text\{const.*\|-", "a constant that is left out has any sign"),
    (r"(E\.11|G\.18)", r".*(c_i|c) e\^.*\|(2 |- ?)", "the constant is any"),
    (r"5\.2", r".*\\xi.*\|-", "noise has no sign"),
    (r"H\.7", r".*\\log\( 2 \\pi v_i.*\|(3|2 )", "a factor in a logarithm is a constant term"),
    (r"G\.28", r".*\\cos\(t\).*\|- ", "a cosine is even"),
    (r"I\.2", r".*\\mu\}_t \+ \\dot.*\|-", "a divergence is even in the change of the mean"),
    (r"(6\.1|I\.1|I\.3)", r".*\\mu.*\|2 ", "an entropy does not depend on the mean"),
    (r"[a-z].*", r".*\bx\[\d\].*", "a test problem, which both sides are given"),
    (r"[a-z].*", r".*(theta0=\[|adaptive\(|Quadratic\(spd|uniform|normal\(|direction|E, start|state, speed|"
     r"np\.arange|minimum\(side|6\.0, 9\.0|Ritz\(ends|A\.T|size \* np|"
     r"theta, eta, k = |brentq|theta\[-1\]|share =|swapaxes).*", "a point, path or step of a test"),
    (r"[a-z].*", r".*([Nn]odes|NODES|\bgrid\b).*", "a quadrature's nodes are symmetric, or more than are needed"),
    (r"[a-z].*", r".*\[(1|T) / \w+ for.*", "an order does not depend on the scale of steps"),
    (r"[a-z].*", r".*(1 \+ there|p\.g \+ picture|left - right|0j|S\.One \+|subs\(TIME, 0\)|1 \+ spare|1\.0 \+ float|"
     r"1 \+ sympy\.expand|0 \* (eye|p\.g)).*", "one term is zero"),
    ("appendix_h", r".*linalg\.cholesky\(cov.*", "points are taken with both signs"),
    ("appendix_h", r".*2 \* np\.pi.*", "a constant of a density is left out"),
    ("appendix_h", r".*noise\.append.*", "only the square enters"),
    ("appendix_c", r".*diff\(term, TIME\) / term.*", "the term is one there"),
    ("problems", r".*T \* np\.linspace.*", "a quadrature's nodes are symmetric, or more than are needed"),
    ("appendix_a", r".*sum\(a \* term.*", "a test problem, which both sides are given"),
    ("appendix_[bchi]", r"(.*_speeds\(form, -|START, MINIMUM|G = np\.array|    cubes -=|.*path = solve\(task|"
     r".*wide \* v\[2:\]).*", "a point, path or step of a test"),
    (r"[a-z].*", r".*(\.kinetic\(|mu \+ dmu \* dt|x \* mean|-spread).*", "only the square enters"),
    (r"[a-z].*", r".*(np|sympy)\.sqrt\(2\).*|.*\.real for sign.*", "an eigenvector has any length and phase"),
)  # fmt: skip
HOME = "lossnav.paper.ledger"
SHARED = ("problems", "symbols")
LIMIT = 60  # seconds
_TOKEN = re.compile(r"\\text\{[^}]*\}|\\(?:begin|end|hspace)\{[^}]*\}|\\[A-Za-z]+|\\.|[0-9]+|\S")
_LETTER = re.compile(r"[A-Za-z]|\\(vec|dot|ddot|tilde|hat|mathcal|Delta|nabla|sqrt|frac|log|exp|sum|"
                     r"alpha|beta|gamma|eta|theta|kappa|lambda|mu|xi|pi|sigma|tau|phi)")  # fmt: skip


def latex_mutants(latex: str) -> Iterator[tuple[int, int, str]]:
    """Begin and end of a piece of a display, and what may stand in its place."""
    tokens = [(found.start(), found.end(), found.group()) for found in _TOKEN.finditer(latex)]
    skip_to, fresh = 0, True
    for n, (begin, end, token) in enumerate(tokens):
        before = tokens[n - 1][2] if n else ""
        if begin < skip_to:
            continue
        if token == r"\text{ for }":
            return
        if token == "&" and re.match(r"&\s*\\text", latex[begin:]):  # when a case applies, in words
            skip_to = begin + re.search(r"\\\\|\\end", latex[begin:]).start()  # type: ignore
            continue
        if before == "_" or token in ("\\mathbb", "\\textcolor", "\\xrightarrow"):
            skip_to = _group_end(latex, end if before != "_" else begin)  # an index, or a name
            continue
        if token == "+" and not fresh:
            yield begin, end, "-"
        elif token in ("-", "\\pm"):
            yield begin, end, "+"
        elif token == "/":
            yield begin, end, " "
        elif token.isdigit():
            yield begin, end, str(int(token) + 1)
        elif token == "T" and before == "^":
            yield tokens[n - 1][0], end, ""
        elif _LETTER.fullmatch(token) and not (token == "d" and latex[end : end + 1] == "t"):
            operator = re.match(r"\\frac\{\s*(d|\\partial)[ }]", latex[begin:])
            alone = re.match(r"\(\s*\\Delta t\)\^2", latex[tokens[n - 1][0] :])  # squared
            if fresh and before not in ("", "&", "\\\\") and not alone:  # the first term's sign
                yield begin, begin, "- "
            if before not in ("^", "\\partial") and not (before == "d" and token == "t"):
                yield begin, begin, "2 "
            if token == "\\sqrt":
                yield begin, end, ""
            elif token == "\\frac" and not operator:
                yield begin, end, ""  # a product for a quotient
            if operator:
                skip_to = _group_end(latex, _group_end(latex, end))
            elif token in ("\\vec", "\\dot", "\\ddot", "\\tilde", "\\hat", "\\mathcal"):
                skip_to = _group_end(latex, end)
            elif token == "\\Delta":
                skip_to = tokens[n + 1][1] if tokens[n + 1][2] != "\\vec" else _group_end(
                    latex, tokens[n + 1][1])  # fmt: skip
        fresh = token in ("=", "(", "[", "\\{", "\\approx", "&", "\\\\") or (
            fresh and token in ("\\ ", "\\left")
        )


def _group_end(latex: str, begin: int) -> int:
    """Where the braced group, or the one token, at a place ends."""
    begin += len(latex[begin:]) - len(latex[begin:].lstrip())
    if latex[begin] != "{":
        found = _TOKEN.match(latex, begin)
        return found.end() if found else begin
    depth = 0
    for place in range(begin, len(latex)):
        depth += {"{": 1, "}": -1}.get(latex[place], 0)
        if depth == 0:
            return place + 1
    return len(latex)


def python_mutants(module: str) -> Iterator[dict[str, Any]]:
    """The mutants of `mutants.py` that are in a sum, product or power."""
    path = Path(str(import_module(f"{HOME}.{module}").__file__))
    source = path.read_text(encoding="utf-8")
    inside = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp | ast.UnaryOp | ast.AugAssign):
            for part in (node, *ast.iter_child_nodes(node)):
                if isinstance(part, ast.BinOp | ast.UnaryOp | ast.AugAssign | ast.Constant):
                    inside.add((part.lineno, part.col_offset, part.end_col_offset))
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for mutant in mutants_of(str(path), source):
        begin, end = mutant["place"]
        row = mutant["line"]
        if (row, begin - starts[row - 1], end - starts[_row(starts, end) - 1]) in inside:
            yield mutant | {"module": module}


def _row(starts: list[int], place: int) -> int:
    return next(n for n, begin in enumerate(starts) if begin >= place) or 1


def verdicts() -> dict[str, tuple[Any, ...]]:
    """What each check finds, the functions of the ledger that it runs, and its seconds."""
    found = {}
    folder = str(Path(str(import_module(HOME).__file__)).parent)
    for name in import_module(HOME).checks():

        def run(name: str = name) -> Any:
            called = set()

            def trace(frame: Any, *_: Any) -> None:
                if frame.f_code.co_filename.startswith(folder):
                    called.add((Path(frame.f_code.co_filename).stem, frame.f_code.co_firstlineno))

            sys.settrace(trace)
            begun = time.perf_counter()
            verdict = import_module(HOME).checks()[name].run().verdict.value
            sys.settrace(None)
            return verdict, sorted(called), time.perf_counter() - begun

        found[name] = apart(run)
    return found


def apart(run: Callable[[], Any]) -> Any:
    """The result of a function in a process of its own; "error" or "too long" if it has none."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        signal.alarm(LIMIT)
        try:
            text = json.dumps(run())
        except BaseException as error:
            text = json.dumps(f"error: {type(error).__name__}")
        os.write(into, text.encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else "error: too long"


def with_latex(name: str, latex: str) -> str:
    """The verdict of a display's check with another LaTeX."""
    from lossnav.paper.ledger.form import Form

    of, form = Form.of, Form.of(name)
    wrong = Form(name, latex, form.edits)
    Form.of = staticmethod(lambda one: wrong if one == name else of(one))  # type: ignore
    return str(import_module(HOME).checks()[name].run().verdict.value)


def with_python(mutant: dict[str, Any], names: list[str], known: dict[str, Any]) -> Any:
    """The first check whose verdict changes with a module's mutant, and its verdict."""
    path, (begin, end) = Path(mutant["path"]), mutant["place"]
    whole = path.read_bytes()
    source = (whole[:begin] + mutant["after"].encode() + whole[end:]).decode()
    ledger = import_module(HOME)
    checks = import_module(f"{HOME}.comparison").CHECKS
    checks.clear()
    modules = (*SHARED, *ledger.MODULES)
    for name in modules:
        sys.modules.pop(f"{HOME}.{name}", None)
        if hasattr(ledger, name):
            delattr(ledger, name)
    spec = import_module("importlib.util").spec_from_file_location(
        f"{HOME}.{mutant['module']}", path
    )
    spec.loader.get_code = lambda _: compile(source, str(path), "exec")
    module = import_module("importlib.util").module_from_spec(spec)
    sys.modules[f"{HOME}.{mutant['module']}"] = module
    spec.loader.exec_module(module)
    setattr(ledger, mutant["module"], module)
    found = ledger.checks()
    for name in names:
        try:
            verdict = found[name].run().verdict.value
        except Exception as error:
            return f"error: {type(error).__name__} in {name}"
        if verdict != known[name][0]:
            return f"{verdict} in {name}"
    return "survived"


def checks_of(mutant: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """The checks that run the function of a mutant, quick ones first; of a module, all of its own."""
    source = Path(mutant["path"]).read_text(encoding="utf-8")
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    around = [f for f in functions if f.lineno <= mutant["line"] <= (f.end_lineno or 0)]
    if around:
        begins = [f.decorator_list[0].lineno if f.decorator_list else f.lineno for f in around[:1]]
        names = [k for k, v in known.items() if [mutant["module"], begins[0]] in v[1]]
    else:
        names = [k for k, v in known.items() if any(m == mutant["module"] for m, _ in v[1])]
    return sorted(names, key=lambda name: known[name][2])


def same_as(key: tuple[Any, ...], display: str, change: str) -> bool:
    """Whether a mutant is one of those that change nothing."""
    text = f"{key[2]}|{key[3]}"
    if key[0][0].islower():  # a module: the line
        path = Path(str(import_module(f"{HOME}.{key[0]}").__file__))
        text = path.read_text(encoding="utf-8").splitlines()[key[1] - 1]
    return bool(re.fullmatch(display, key[0]) and re.fullmatch(change, text, re.DOTALL))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("ledger-mutants.json"))
    parser.add_argument("--only", nargs="*", default=[], help="displays or modules")
    parser.add_argument("--latex", action="store_true", help="only mutants of displays")
    parser.add_argument("--python", action="store_true", help="only mutants of modules")
    parser.add_argument("--count", type=int, default=0, help="how many mutants; all by default")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    ledger = import_module(HOME)
    runs = asked.out.with_suffix(".runs.json")  # which check runs which function; made once
    if asked.latex:  # what is cached then need not be computed for each mutant of a display
        known = {k: [c.run().verdict.value] for k, c in ledger.checks().items()}
    else:
        if not runs.exists():
            runs.write_text(json.dumps(verdicts()))
        known = json.loads(runs.read_text())
    done = {tuple(row["key"]): row for row in json.loads(asked.out.read_text())} if asked.out.exists() else {}  # fmt: skip
    jobs: list[tuple[tuple[Any, ...], Callable[[], Any]]] = []
    if not asked.python and hasattr(ledger, "right_form"):
        for display in ledger.displays():
            name, latex = display["id"], display["latex"]
            for begin, end, instead in latex_mutants(latex):
                wrong = latex[:begin] + instead + latex[end:]
                key = (name, begin, latex[max(0, begin - 12) : end + 12], instead)
                jobs.append((key, functools.partial(with_latex, name, wrong)))
    if not asked.latex:
        for module in (*SHARED, *ledger.MODULES):
            for mutant in python_mutants(module):
                key = (module, mutant["line"], mutant["before"], mutant["after"])
                names = checks_of(mutant, known)
                jobs.append((key, functools.partial(with_python, mutant, names, known)))
    jobs = [job for job in jobs if not asked.only or job[0][0] in asked.only]
    random.Random(0).shuffle(jobs)  # so that any part of the results is a fair sample
    jobs = jobs[: asked.count or None]
    for key, run in jobs:
        if key not in done:
            found = apart(run)
            same = found == known.get(key[0], ("survived",))[0]
            done[key] = {"key": key, "found": found, "killed": not same}
            asked.out.write_text(json.dumps(list(done.values()), indent=0))
            if same:
                print("survived", *key, flush=True)
    reasons = {k: [e[2] for e in EQUIVALENT if same_as(k, *e[:2])] for k in done}
    left = [key for key, row in done.items() if not row["killed"] and reasons[key]]
    print(f"{len(left)} survived that change nothing:", dict(Counter(reasons[k][0] for k in left)))
    rows = [(key, row) for key, row in done.items() if key not in left]
    counts = Counter((key[0] in known, row["killed"]) for key, row in rows)
    for of_displays, word in ((True, "displays"), (False, "modules")):
        killed, total = (
            counts[of_displays, True],
            counts[of_displays, True] + counts[of_displays, False],
        )
        if total:
            print(f"{word}: {killed} of {total} killed, {killed / total:.1%}")


if __name__ == "__main__":
    main()
