"""Mutation testing: change one thing at a time in the source, and see whether a test notices.

    PYTHONPATH=FOLDER_WITH_COVERAGE python tools/mutants.py --count 300 --out mutants.json

The mutants come from the syntax trees of the modules under ``--paths``, in random order: any prefix
of the results is a fair sample. Each is applied alone, in a copy of one git revision, never in the
checkout. Which tests execute which line is measured once, with the package ``coverage``, and kept in
``--map``, without tests over ``--slow`` seconds. A mutant meets the tests that execute its line, in
the six files with most of them, quick ones first, then the others of these files (what is cached, or
a fixture, runs only once), for ``--budget`` seconds. It is killed by a test or import that fails or
hangs, "not covered" if no test executes its line. Lines that numba compiles are not seen and take
the tests of the modules that import theirs. A second run continues the first.
"""

import argparse
import ast
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

PATHS = [f"src/lossnav/{p}" for p in ("solvers", "rules", "optim", "inference", "studies")]
TESTS = r"test_(?!examples|docs|browser|server|distributed|engines)"
SWAPS: Any = {ast.Add: ast.Sub, ast.Mult: ast.Div, ast.And: ast.Or, ast.Lt: ast.GtE}
SWAPS |= {ast.LtE: ast.Gt, ast.Eq: ast.NotEq, "min": "max", "minimum": "maximum"}
SWAPS |= {"argmin": "argmax", "argmax": "argmin"} | {after: key for key, after in SWAPS.items()}
# Messages, types, what is for the reader, sums of strings and paths: nothing in them is changed.
SILENT = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.pattern)
SILENT_TEXT = re.compile(r"if TYPE_CHECKING|def __(re|st)|warnings\.|.*( [+/] f?'|' [+/] )")
SILENT_FIELDS = ("annotation", "returns", "decorator_list")
STATES = {0: "survived"} | dict.fromkeys((1, 2, -9, 137), "killed")  # by pytest's exit code


def variants(node: Any) -> Iterator[Any]:
    """What may stand in the place of a node."""
    match node:
        case ast.BinOp(op=ast.Pow()) if not isinstance(node.right, ast.Constant):
            yield ast.BinOp(node.left, node.op, ast.BinOp(node.right, ast.Add(), ast.Constant(1)))
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp() if type(node.op) in SWAPS:
            yield type(node)(**vars(node) | {"op": SWAPS[type(node.op)]()})
            if isinstance(node.op, ast.Mult | ast.Div) and isinstance(node, ast.BinOp):
                yield ast.BinOp(node.left, node.op, ast.UnaryOp(ast.USub(), node.right))
        case ast.Compare() if type(node.ops[0]) in SWAPS:
            yield ast.Compare(**vars(node) | {"ops": [SWAPS[type(node.ops[0])](), *node.ops[1:]]})
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield node.operand
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            yield ast.Constant(value + 1 if isinstance(value, int) else 2 * value or 1.0)
        case ast.Call(func=ast.Name(id=name)) if name in SWAPS:
            yield ast.Call(**vars(node) | {"func": ast.Name(SWAPS[name])})
        case ast.Call(func=ast.Attribute(attr=name)) if name in SWAPS:
            yield ast.Call(**vars(node) | {"func": ast.Attribute(node.func.value, SWAPS[name])})
        case ast.Return(value=ast.expr()) if ast.unparse(node) != "return None":
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def mutants_of(path: str, source: str) -> Iterator[dict[str, Any]]:
    """All mutants of a module: which bytes change, into what, and the lines to be executed."""
    starts = [0, *accumulate(len(line) for line in source.encode().splitlines(keepends=True))]
    compiled = bool(re.search(r"^import numba|^    numba,", source, re.MULTILINE))

    def walk(node: Any, stmt: Any, function: Any) -> Iterator[dict[str, Any]]:
        stmt = node if isinstance(node, ast.stmt) else stmt
        text = ast.unparse(node) if isinstance(node, ast.stmt | ast.BinOp) else ""
        if isinstance(node, SILENT) or SILENT_TEXT.match(text):
            return
        for new in variants(node):
            lines = [stmt.lineno, stmt.body[0].lineno if hasattr(stmt, "body") else stmt.end_lineno]
            if not function or stmt is function:  # executed on import: all that uses it counts
                lines = [function.lineno, function.end_lineno] if function else [0, 10**9]
            begin, end = starts[node.lineno - 1], starts[node.end_lineno - 1] + node.end_col_offset
            text = f"({ast.unparse(new)})" if isinstance(node, ast.expr) else ast.unparse(new)
            yield {"path": path, "line": node.lineno, "before": ast.unparse(node), "after": text,
                   "place": [begin + node.col_offset, end], "lines": lines, "compiled": compiled}  # fmt: skip
        function = node if isinstance(node, ast.FunctionDef) else function
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and field not in SILENT_FIELDS:
                    yield from walk(child, stmt, function)

    yield from walk(ast.parse(source), None, None)


# As a plugin of pytest: it measures into MUTANTS_MAP, or keeps what MUTANTS_TESTS lists, in order.
if __name__ != "__main__" and "MUTANTS_MAP" in os.environ:
    import coverage  # type: ignore[import-not-found,unused-ignore]

    tracer = coverage.Coverage(data_file=None, source=os.environ["MUTANTS_PATHS"].split())
    tracer.start()
    spent: dict[str, float] = {}

    def stop(*_: object) -> None:
        raise BaseException("too long")  # an Exception might be caught by what is tested

    def pytest_runtest_setup(item: Any) -> None:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, float(os.environ["MUTANTS_SLOW"]))
        tracer.switch_context(item.nodeid)

    def pytest_runtest_logreport(report: Any) -> None:
        if report.when == "teardown":
            signal.setitimer(signal.ITIMER_REAL, 0)
            tracer.switch_context("")
        seconds = spent.get(report.nodeid, 0.0) + report.duration
        spent[report.nodeid] = seconds if report.passed else -1e9

    def pytest_sessionfinish() -> None:
        tracer.stop()
        data, good = tracer.get_data(), {t: seconds for t, seconds in spent.items() if seconds >= 0}
        lines = {os.path.relpath(f): data.contexts_by_lineno(f) for f in data.measured_files()}
        Path(os.environ["MUTANTS_MAP"]).write_text(json.dumps([good, lines]))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    assert importlib.util.find_spec("lossnav").origin.startswith(os.getcwd()), "not the copy"
    if "MUTANTS_TESTS" in os.environ:
        order = Path(os.environ["MUTANTS_TESTS"]).read_text().split("\n")
        items[:] = [item for test in order for item in items if item.nodeid == test]


def pytest(tree: Path, tests: list[str], limit: float = 1800, **more: str) -> tuple[int, str]:
    """Exit code and output of a run in a copy; after the limit, all that it started ends, too."""
    more["PYTHONPATH"] = f"{tree}/src:{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '.')}"
    env = {"CI": "true", "PYTHONDONTWRITEBYTECODE": "1", "NUMBA_CACHE_DIR": f"{tree}/.numba"}
    env |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = ["timeout", "-s", "KILL", str(limit), sys.executable, "-m", "pytest", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "mutants", *["-x"] * ("MUTANTS_TESTS" in more)]
    command += dict.fromkeys(test.split("::")[0] for test in tests)
    done = subprocess.run(command, cwd=tree, env=os.environ | env | more, capture_output=True)
    return done.returncode, done.stdout.decode(errors="replace")


def measure(tree: Path, paths: list[str], slow: float) -> Iterator[Any]:
    """For each dozen files: the seconds of their tests, and which tests execute each line."""
    found = sorted((tree / "tests").rglob("test_*.py"))
    files = [path.relative_to(tree).as_posix() for path in found if re.match(TESTS, path.name)]
    more = {"MUTANTS_PATHS": " ".join(f"{tree}/{p}" for p in paths), "MUTANTS_SLOW": str(slow)}
    for group in [*(files[k : k + 12] for k in range(0, len(files), 12)), paths]:
        pytest(tree, group, **more, MUTANTS_MAP=f"{tree}/.map")
        yield json.loads((tree / ".map").read_text())


def choose(tree: Path, parts: list[Any], mutant: Any, budget: float) -> dict[str, float]:
    """The tests for a mutant, in order, and how long each takes."""
    paths, (begin, end) = {mutant["path"]}, mutant["lines"]
    if mutant["compiled"]:
        begin, end, name = 0, 10**9, rf"import .*\b{Path(mutant['path']).stem}\b"
        paths |= {p for _, f in parts for p in f if re.search(name, (tree / p).read_text())}
    seconds = {test: spent for part, _ in parts for test, spent in part.items()}
    lines = [item for _, f in parts for path in paths for item in f.get(path, {}).items()]
    hits = {t for line, tests in lines if begin <= int(line) <= end for t in tests if t in seconds}
    few = dict(Counter(t.split("::")[0] for t in hits).most_common(6))
    tests = [t for t in seconds if t.split("::")[0] in few]
    tests.sort(key=lambda t: (t not in hits, seconds[t]))
    totals = accumulate(seconds[t] for t in tests)
    return {t: seconds[t] for t, total in zip(tests, totals, strict=True) if total <= budget}


def judge(tree: Path, tests: dict[str, float], mutant: Any, timeout: float) -> Any:
    """Put one mutant into the copy, run its tests, and see what becomes of it."""
    if not tests:
        return mutant | {"state": "not covered", "by": ""}
    file, (begin, end) = tree / mutant["path"], mutant["place"]
    whole = file.read_bytes()
    file.write_bytes(whole[:begin] + mutant["after"].encode() + whole[end:])
    (tree / ".tests").write_text("\n".join(tests))
    limit = 3 * (20 + sum(tests.values())) + timeout + 200 * mutant["compiled"]
    more = {"NUMBA_CACHE_DIR": tempfile.mkdtemp(dir=tree)} if mutant["compiled"] else {}
    code, said = pytest(tree, [*tests], limit, MUTANTS_TESTS=f"{tree}/.tests", **more)
    file.write_bytes(whole)
    by = [*re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", said, re.MULTILINE), ""][0]
    return mutant | {"state": STATES.get(code, f"exit code {code}"), "by": by, "tests": len(tests)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default, said in (
        ("count", 300, "how many mutants"), ("seed", 0, "of their random order"),
        ("revision", "HEAD", "the tree to copy"), ("out", Path("mutants.json"), "the results"),
        ("map", Path("mutants-map.json"), "which tests execute what; made if it is not there"),
        ("slow", 5.0, "longest test, in seconds"), ("budget", 30.0, "seconds for a mutant"),
        ("timeout", 10.0, "seconds beyond three times the usual before a hang is one"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=type(default), default=default, help=said)
    parser.add_argument("--paths", nargs="+", default=PATHS, help="folders of modules to change")
    asked = parser.parse_args()
    done = json.loads(asked.out.read_text()) if asked.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        command = f"git -C {Path(__file__).parents[1]} archive {asked.revision} | tar -x -C {tree}"
        subprocess.run(command, shell=True, check=True)
        if not asked.map.exists():
            asked.map.write_text(json.dumps([*measure(tree, asked.paths, asked.slow)]))
        parts = json.loads(asked.map.read_text())
        files = [f for p in asked.paths for f in sorted((tree / p).rglob("*.py"))]
        drawn = [m for f in files for m in mutants_of(str(f.relative_to(tree)), f.read_text())]
        random.Random(asked.seed).shuffle(drawn)
        for mutant in drawn[len(done) : asked.count]:
            tests = choose(tree, parts, mutant, asked.budget)
            done += [judge(tree, tests, mutant, asked.timeout)]
            asked.out.write_text(json.dumps(done, indent=1))
            print(*(done[-1][k] for k in ("state", "path", "line", "before", "after", "by")))
    for name in ("src", *asked.paths):
        n = Counter(mutant["state"] for mutant in done if mutant["path"].startswith(name))
        print(f"{name}: {dict(n)}, {n['killed'] / max(n.total() - n['not covered'], 1):.1%} killed")


if __name__ == "__main__":
    main()
