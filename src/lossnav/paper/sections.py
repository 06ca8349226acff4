"""The page: one self-contained HTML file, readable on a phone, in print and without a network.

Its parts are figures, stored results, exact paths, and equations.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import hashlib
import json
import platform
import re
import tomllib
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import sympy
from markupsafe import Markup, escape

import lossnav
from lossnav._base.checks import FloatArray
from lossnav._base.files import write_whole
from lossnav.equations import derive
from lossnav.equations.notation import mathml, pieces
from lossnav.paper import cache, figures
from lossnav.paper.cache import Section
from lossnav.paper.figures import PaperFigure, quadratic, training_panels
from lossnav.paper.figures.double_well import basins, fig1
from lossnav.paper.figures.uncertainty import noise, transients
from lossnav.paper.ledger import Entry, Verdict, ledger, one_thread, summary
from lossnav.problem.belief import adaptive, weight_uncertainty
from lossnav.problem.geometry import Decay, Rotation
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective
from lossnav.solvers import solve
from lossnav.solvers.discrete import Discrete
from lossnav.studies.data import DataError

PAPER, WORDS = "Figures of the paper", "What the paper says in words"
BEYOND, EQUATIONS = "Beyond the paper", "Equations"
STORED = {
    "training": ("benchmarks/training/results", "*_summary.csv"),
    "fingerprints": ("docs", "fingerprints.md"),
}
"""Results of long computations, stored in the source tree: folder and file names."""


@dataclass(frozen=True)
class Job:
    """A run of `reproduce`: output folder, whether to train in full, and the progress callback."""

    out: Path
    full: bool
    progress: Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """One part of the page.

    Attributes:
        group: The heading of its group.
        build: Writes its files and returns its section.
        inputs: Its inputs besides the package, by name, for a full or a quick run.
        uses: Folders of code that this part depends on but most parts do not.
    """

    group: str
    build: Callable[[Job], Section]
    inputs: Callable[[bool], dict[str, Any]] = lambda full: {}
    uses: tuple[str, ...] = ()

    def key(self, name: str, full: bool) -> str:
        """The key of this part in the cache."""
        return cache.key(name, self.inputs(full) | {"full": full}, self.uses)


def _figure(group: str, figure: PaperFigure, uses: tuple[str, ...] = ()) -> Part:
    return Part(group, lambda job: drawn(job, figure, figure.data()), uses=uses)


def drawn(
    job: Job, figure: PaperFigure, tables: figures.Tables, notes: Sequence[str] = ()
) -> Section:
    """Write a figure with its tables, and return it as a section."""
    with cache.writing(job.out):
        files = [path.name for path in figures.save(figure.draw(tables), job.out, figure.name)]
        for table, columns in tables.items():
            files.append(figures.save_csv(columns, job.out, table.replace(" ", "_")).name)
    svg = b64encode((job.out / f"{figure.name}.svg").read_bytes()).decode("ascii")
    texts = resources.files("lossnav.paper").joinpath("templates/figures.toml").read_text("utf-8")
    text = tomllib.loads(texts)[figure.name]
    notes = [*filter(None, [text.get("note")]), *notes]
    body = fragment("figure", figure.name, text["caption"], svg, files, notes)
    return Section(figure.name, text["title"], body, tuple(files))


def _training_panels(job: Job) -> Section:
    figure = training_panels.fig2ef
    tables = figure.data(job.full, job.out / "training", job.progress)
    return drawn(job, figure, tables, training_panels.notes(job.full))


def _trained_on(full: bool) -> dict[str, Any]:
    plans = {letter: str(training_panels.plan(letter, full)) for letter in "ef"}
    return plans | {name: cache.data_checksums(name) for name in ("mnist", "cifar10")}


def stored_files(name: str) -> list[Path]:
    """The stored files of a part; none in an installed package."""
    folder, pattern = STORED[name]
    return sorted((Path(lossnav.__file__).parents[2] / folder).glob(pattern))


def _stored(group: str, name: str, section: Callable[[], Section]) -> Part:
    def inputs(full: bool) -> dict[str, Any]:
        files = stored_files(name)
        raw = b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in files)
        return {"files": hashlib.sha256(raw).hexdigest()}

    return Part(group, lambda job: section(), inputs)


def training_studies() -> Section:
    """A table for each study: every rule's test metric, with the interval of its mean."""
    studies = []
    for path in stored_files("training"):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if rows:
            name = path.name.removesuffix("_summary.csv").replace("_", " ")
            studies.append((name, *_study_table(rows)))
    return Section("training", "Training studies", fragment("training", studies))


def _study_table(rows: Sequence[dict[str, str]]) -> tuple[list[str], list[list[str]]]:
    def number(row: dict[str, str], column: str) -> str:
        return f"{float(row[column]):.4g}" if row[column] else "–"

    columns: dict[str, Callable[[dict[str, str]], str]] = {
        "task": lambda row: row["task"],
        "rule": lambda row: row["rule"],
        f"test {rows[0]['metric']}": lambda row: (
            f"{number(row, 'mean')} ± {float(row['sd'] or 0):.2g}"
        ),
        "interval": lambda row: f"{number(row, 'low')} to {number(row, 'high')}",
        "seeds": lambda row: row["n"],
        "points tried": lambda row: row["points_tried"] if row["points_tried"] != "0" else "1",
        "steps": lambda row: number(row, "steps"),
    }
    if len({row["task"] for row in rows}) == 1:
        del columns["task"]
    return list(columns), [[cell(row) for cell in columns.values()] for row in rows]


def fingerprints() -> Section:
    """The results of `infer` for each optimizer, from the page of docs/make_fingerprints.py."""
    rows = []
    for path in stored_files("fingerprints"):
        for block in path.read_text(encoding="utf-8").split("\n## ")[1:]:
            name, _, rest = block.partition("\n")
            match = re.search(r"^Given: (.*?)\. Found: (.*)\.$", rest, re.M)
            nearest = re.search(r"^Nearest member: `(.*?)`, at a distance of (.*)\.$", rest, re.M)
            if match:
                near = f"{nearest[1]} ({nearest[2]})" if nearest else "–"
                rows.append([name, match[1], match[2], near])
    return Section("fingerprints", "What optimizers assume", fragment("fingerprints", rows))


def exact_paths() -> list[dict[str, str]]:
    """The paper's quadratic examples: exact velocity, end and J, and a direct minimum of J."""
    panels = (("2a", quadratic.LINE, (0.0,)), ("2c", quadratic.PLANE, quadratic.PLANE_START))
    rows = [
        _path_row(f"Fig. {panel}, γ = {gamma:g}", Objective(loss, gamma=gamma), start)
        for panel, loss, start in panels
        for gamma in quadratic.GAMMAS
    ]
    tasks = quadratic.OBJECTIVES.items()
    return rows + [_path_row(f"Fig. 3{name}", task, quadratic.BOWL_START) for name, task in tasks]


def _path_row(name: str, objective: Objective, start: tuple[float, ...]) -> dict[str, str]:
    horizon = 2.0
    path, exact = solve(objective, start), solve(objective, start, horizon=horizon)
    gaps = {}
    for steps in (200, 400, 800):
        _, J = Discrete(objective, steps, horizon / steps, "midpoint").minimise(start)
        gaps[steps] = abs(J - exact.J) / max(abs(exact.J), 1e-300)
    order = np.log2(gaps[200] / gaps[400])  # one example reaches rounding error at 800 steps
    return {
        "example": name,
        "initial velocity": _vector(path.velocity0),
        "end": "does not rest" if path.end is None else _vector(path.end),
        "J": f"{path.J:.8g}",
        "J over t ≤ 2, exact": f"{exact.J:.10g}",
        "800 steps off by": f"{gaps[800]:.1e}",
        "order": f"{order:.2f}",
    }


def _vector(x: FloatArray) -> str:
    return ", ".join(f"{v:.6g}" for v in np.where(np.abs(x) < 5e-16, 0.0, x))


def _paths(job: Job) -> Section:
    rows = exact_paths()
    body = fragment("paths", list(rows[0]), [list(row.values()) for row in rows])
    return Section("paths", "Exact paths, checked", body)


def examples() -> list[tuple[str, str, Objective, str]]:
    """The paper's objectives in the order of its text: section, title, objective and note."""
    L, G, f1, f2 = (sympy.Function(name) for name in ("L", "G", "f1", "f2"))
    h, target, q, low = sympy.symbols("h theta_* q L_min", real=True)
    plane, line = ["theta1", "theta2"], ["theta"]
    anything = Function(lambda x: L(*x), names=plane)
    any_line = Function(lambda x: L(x[0]), names=line)
    parabola = Function(lambda x: h / 2 * (x[0] - target) ** 2, names=line)
    bowl = Function(lambda x: h / 2 * (x**2).sum(), names=plane)
    wells = Function(
        lambda x: h / 4 * (x[0] ** 2 - target**2) ** 2 - q / 3 * x[0] ** 3 - low, names=line
    )
    speed = mathml(derive(Objective(wells)).energy().velocity(0)[0])
    metric = Objective(any_line, metric=lambda x: [[G(x[0])]])
    drift = Objective(anything, drift=lambda x: np.array([f1(*x), f2(*x)], dtype=object))
    return [
        ("Sec. 3, App. E", "Momentum", Objective(anything), ""),
        ("App. C", "Quadratic loss", Objective(parabola), ""),
        ("App. C", "Double well", Objective(wells), "At γ = 0 the energy is conserved, and its "
         f"least level gives the rule θ̇ = ±{speed}."),
        ("Sec. 4, App. F", "Metric that depends on the parameter", metric, "The main text's form "
         "holds for a constant metric only (errata 10); this one is general."),
        ("Sec. 4, App. G", "Any drift", drift, ""),
        ("App. G", "Rotation", Objective(bowl, drift=Rotation(1.0)), ""),
        ("App. G", "Weight decay", Objective(parabola, drift=Decay(0.5)),
         "The decay enters as j(j + γ); the paper prints j(j − γ) (errata 1)."),
        ("Sec. 5", "Beliefs about gradient and curvature", adaptive([0.0]),
         "The m-equation has a second observation term that the paper omits (errata 6)."),
        ("App. H", "The fuller observation model", adaptive([0.0], observation="gaussian"),
         "The v-equation has (g − m)²/(2v²); the paper prints /(4v²) in one place (errata 7)."),
        ("Sec. 6, App. I", "Weight uncertainty", weight_uncertainty(parabola), ""),
    ]  # fmt: skip


def _equations(job: Job) -> Section:
    """The ledger of all displays, with its files, after the examples with their equations."""
    entries = ledger(progress=job.progress)
    with cache.writing(job.out):
        files = write_ledger(entries, job.out)
    job.progress(f"  {summary(entries)}")
    shown: list[dict[str, Any]] = []
    for where, title, objective, note in examples():
        equations = derive(objective)
        example = {"where": where, "title": title, "note": note, "mathml": equations.mathml()}
        shown.append(example | {"limits": []})
        if title in ("Momentum", "Weight decay"):
            rules = equations.limits()
            limits = {
                "optimal step over Δt": rules.update,
                "Δt → ∞: Newton": rules.newton,
                "velocity": rules.continuous,
                "γ → ∞: gradient descent": rules.gradient_descent,
                "γ = 0: ballistic": rules.ballistic,
            }
            shown[-1]["limits"] = [
                (k, mathml(rule)) for k, rule in limits.items() if rule is not None
            ]
    values = ledger_values(entries) | {"summary": summary(entries), "examples": shown}
    body = render("equations.html.j2", **values)
    return Section("equations", "Every equation, checked", body, tuple(files))


def ledger_values(entries: Sequence[Entry]) -> dict[str, Any]:
    """The values of the ledger's template."""
    counts = Counter(entry.verdict for entry in entries)
    return {
        "entries": entries,
        "counts": [(kind.value, counts[kind]) for kind in Verdict if counts[kind]],
        "sections": [(k, list(own)) for k, own in groupby(entries, key=lambda e: e.section)],
    }


def write_ledger(entries: Sequence[Entry], folder: Path) -> list[str]:
    """Write ``ledger.json``, ``ledger.csv`` and the checks' code as ``ledger/*.html``."""
    texts = {"ledger.json": _json(entries)}
    for file in sorted({entry.code.rsplit("/", 1)[1].split("#")[0] for entry in entries}):
        source = resources.files("lossnav.paper.ledger").joinpath(file).read_text("utf-8")
        page = render("code.html.j2", file=file, lines=source.splitlines())
        texts[f"ledger/{Path(file).stem}.html"] = page
    (folder / "ledger").mkdir(exist_ok=True)
    for name, text in texts.items():
        write_whole(folder / name, text.encode())
    columns = {
        "display": [entry.id for entry in entries],
        "equation": [" ".join(map(str, entry.number)) for entry in entries],
        "verdict": [entry.verdict.value for entry in entries],
        "reached": [entry.reached for entry in entries],
        "right form reached": [entry.right.reached if entry.right else "" for entry in entries],
        "LaTeX evaluated on": [entry.read for entry in entries],
        "checked": [entry.checked for entry in entries],
        "code": [entry.code for entry in entries],
    }
    return [*texts, figures.save_csv(columns, folder, "ledger").name]


def _json(entries: Sequence[Entry]) -> str:
    rows = []
    for entry in entries:
        fields = dataclasses.asdict(entry) | {"verdict": entry.verdict.value}
        for form in (fields, fields["right"] or {}):
            form.pop("mathml", None)
        rows.append(fields)
    data = {"summary": summary(entries), "displays": rows}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


PARTS: dict[str, Part] = {
    "fig1": _figure(PAPER, fig1),
    "fig2": _figure(PAPER, quadratic.fig2),
    "fig2ef": Part(PAPER, _training_panels, _trained_on, ("studies", "optim")),
    "fig3": _figure(PAPER, quadratic.fig3),
    "basins": _figure(WORDS, basins),
    "mixed": _figure(WORDS, quadratic.mixed),
    "spiral": _figure(WORDS, quadratic.spiral),
    "noise": _figure(WORDS, noise, ("studies",)),
    "transients": _figure(WORDS, transients),
    "regret": _figure(BEYOND, quadratic.regret),
    "training": _stored(BEYOND, "training", training_studies),
    "fingerprints": _stored(BEYOND, "fingerprints", fingerprints),
    "paths": Part(EQUATIONS, _paths),
    "equations": Part(EQUATIONS, _equations),
}
"""Every part by name."""


def built(name: str, job: Job) -> Section:
    """The part's section: from the cache if it is current, else built and cached."""
    part = PARTS[name]
    wanted = part.key(name, job.full)
    section = cache.find(job.out, name, wanted)
    if section is not None:
        job.progress(f"  {name} is unchanged since the last run")
        return section
    try:
        with one_thread():
            section = part.build(job)._replace(group=part.group)
    except (DataError, ImportError) as missing:  # not cached, so that the next run tries again
        job.progress(f"  left out: {missing}")
        return Section(name, name, fragment("note", missing), group=part.group)
    with cache.writing(job.out):
        cache.keep(job.out, name, wanted, section)
    return section


def finished(name: str, job: Job) -> Section | None:
    """The part from an earlier run in the folder, full or quick; None if there is none."""
    keys = (PARTS[name].key(name, full) for full in (job.full, not job.full))
    return next(filter(None, (cache.find(job.out, name, key) for key in keys)), None)


# HTML

_NAMES = "alpha eps eta gamma kappa lambda mu phi sigma tau theta xi"
LETTERS = dict(zip(_NAMES.split(), "αεηγκλμφστθξ", strict=True))


def prettified(text: str) -> Markup:
    """Plain text as HTML, with Greek letters for their names and powers of ten.

    Examples:
        >>> prettified("a < b, theta_0, agrees to 1e-9")
        Markup('a &lt; b, θ₀, agrees to 10<sup>−9</sup>')
    """
    text = re.sub(rf"\b({'|'.join(LETTERS)})(?=\b|_)", lambda name: LETTERS[name[0]], text)
    html = str(escape(text.replace("_0", "\u2080")))
    return Markup(re.sub(r"\b1e-(\d+)", "10<sup>\u2212\\1</sup>", html))


def wrapped(formulas: str) -> Markup:
    """Formulas as pieces between which a browser breaks lines.

    Examples:
        >>> html = wrapped('<math><mi>a</mi><mo>=</mo><mi>b</mi><mo>+</mo><mi>c</mi></math>')
        >>> html.count("<math")
        3
    """
    return Markup(fragment("formula", pieces(formulas)))


@functools.cache
def _templates() -> jinja2.Environment:
    loader = jinja2.PackageLoader("lossnav.paper")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    environment.filters |= {"prettified": prettified, "wrapped": wrapped}
    return environment


def render(template: str, **values: Any) -> str:
    """Fill in one of the templates; values are escaped unless the template marks them safe."""
    return _templates().get_template(template).render(values)


def fragment(name: str, *values: Any) -> str:
    """Fill in one of the macros of ``fragments.html.j2``, in the same way."""
    macros: Any = _templates().get_template("fragments.html.j2").module
    return str(getattr(macros, name)(*values))


def write_page(folder: Path, sections: Sequence[Section]) -> Path:
    """Write ``index.html`` atomically."""
    html = render(
        "page.html.j2",
        groups=[(group, list(own)) for group, own in groupby(sections, key=lambda s: s.group)],
        verdicts=[verdict.value for verdict in Verdict],
        version=lossnav.__version__,
        python=platform.python_version(),
        packages=[(name, version(name)) for name in ("numpy", "scipy", "sympy", "matplotlib")],
    )
    write_whole(folder / "index.html", html.encode())
    return folder / "index.html"
