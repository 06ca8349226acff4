"""The report against its input: recomputed numbers, malicious texts, stopped studies."""

import csv
import json
import logging
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import study_maker as made
from lossnav import studies
from lossnav.studies import report
from lossnav.studies.report.data import GridPoint, TaskView, band, gather, training_loss
from lossnav.studies.trial import environment

VOID = {"meta", "br", "path", "use", "rect"}
ALLOWED = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "h1",
    "h2",
    "h3",
    "p",
    "div",
    "nav",
    "a",
    "section",
    "ul",
    "li",
    "strong",
    "figure",
    "figcaption",
    "table",
    "caption",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "pre",
    "svg",
    "g",
    "path",
    "defs",
    "use",
    "text",
    "tspan",
    "clippath",
    "rect",
}


class Page(HTMLParser):
    """Reads a page strictly: elements that are known, closed in order, with what each needs."""

    def __init__(self, path):
        super().__init__()
        self.open, self.ids, self.links, self.svgs, self.tables = [], [], [], [], []
        self.words = []
        raw = path.read_text(encoding="utf-8")
        self.raw = raw
        self.feed(raw)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in ALLOWED, tag
        attributes = dict(attrs)
        assert not any(name.startswith("on") for name in attributes)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "xlink:href", "src"):
                self.links.append(value)
        if tag == "svg" and attributes.get("aria-hidden") != "true":
            self.svgs.append(attributes["aria-label"])
        if tag == "table":
            self.tables.append("")
        if tag == "th":
            assert attributes["scope"] in ("row", "col")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "caption" in self.open:
            self.tables[-1] += data
        if not {"style", "svg"} & set(self.open):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def replaced(results, rule, seed, **changes):
    """The same results, but one reporting trial ended otherwise."""
    return [
        made.result(one.trial, **changes)
        if (one.trial.rule, one.trial.phase, one.trial.seed) == (rule, "reporting", seed)
        else one
        for one in results
    ]


def finals(results, rule):
    return np.array(
        [
            one.final["loss"]
            for one in results
            if one.trial.phase == "reporting" and one.trial.rule == rule
        ]
    )


@pytest.fixture(scope="module")
def whole():
    return made.study()


@pytest.fixture(scope="module")
def folder(whole, tmp_path_factory):
    """A study that is complete, with its report."""
    return report.write(made.write(tmp_path_factory.mktemp("whole") / "s", whole)).parent


@pytest.fixture(scope="module")
def page_of_whole(folder):
    return Page(folder / "report.html")


def test_the_verdict_has_the_numbers_of_scipy(whole, page_of_whole):
    best, second = finals(whole, "ballistic"), finals(whole, "adam")
    low, high = stats.t.interval(0.95, 4, best.mean(), stats.sem(best))
    gap = stats.ttest_rel(second, best)
    ends = gap.confidence_interval(0.95)
    assert gap.pvalue * 3 < 0.05  # so that Holm cannot undo it
    assert (
        f"ballistic has the lowest test loss: {best.mean():.3f} [{low:.3f}, {high:.3f}] over 5 "
        "seeds. "
        f"adam is {(second - best).mean():.4f} [{ends.low:.4f}, {ends.high:.4f}] above and sgd is"
    ) in page_of_whole.text
    assert "each statistically distinguishable on 5 seeds." in page_of_whole.text


def test_the_page_stands_alone(page_of_whole):
    page = page_of_whole
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    outside = set(re.findall(r"https?://[^\"' ]+", page.raw))
    assert outside == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"@import|url\((?!#)|<script|<link|<img", page.raw)
    assert "default-src 'none'" in page.raw
    assert "prefers-color-scheme: dark" in page.raw
    assert "@media print" in page.raw
    assert len(page.svgs) == 6
    assert all(len(text) > 20 for text in page.svgs)
    assert all(page.tables)


def test_colours_are_the_pages_own(page_of_whole):
    """No stand-in colour is left, and rules differ in more than colour."""
    figures = page_of_whole.raw.split("<h3>", 1)[1]
    assert not re.search(r"#01020[34]|#0a0b0", figures)
    assert {"var(--r0)", "var(--r1)", "var(--r2)", "currentColor"} <= set(
        re.findall(r"var\(--r\d\)|currentColor", figures)
    )
    assert len(set(re.findall(r"stroke-dasharray: [^;\"]*", figures))) >= 2


def test_the_page_says_how_to_repeat_it(page_of_whole):
    for fact in (
        "lossnav study quick.toml --out quick",
        "0123456789abcdef",
        "Some CPU",
        "2.13.0",
        "10, 11, 12, 13, 14",
        '[tasks.digits] kind = "digits"',
    ):
        assert fact in page_of_whole.text


def test_summary_csv(whole, folder):
    rows = read(folder / "summary.csv")
    assert [row["rule"] for row in rows] == ["ballistic", "adam", "sgd"]
    for row in rows:
        values = finals(whole, row["rule"])
        low, high = stats.t.interval(0.95, 4, values.mean(), stats.sem(values))
        assert float(row["mean"]) == pytest.approx(values.mean(), rel=1e-12)
        assert (float(row["low"]), float(row["high"])) == pytest.approx((low, high), rel=1e-9)
        assert (row["n"], row["diverged"], row["missing"], row["interval"]) == ("5", "0", "0", "t")
        assert row["state_bytes"] == "38480.0"
    assert json.loads(rows[1]["point"]) == {"lr": 0.01}
    assert rows[2]["edge"] == "lr=highest"


def test_curves_csv_gives_back_every_evaluation(whole, folder):
    rows = read(folder / "curves.csv")
    assert len(rows) == sum(len(one.curves["step"]) for one in whole)
    one = whole[-1]
    own = [row for row in rows if row["key"] == one.trial.key]
    assert [float(row["value"]) for row in own] == one.curves["loss"].tolist()
    assert [int(row["step"]) for row in own] == one.curves["step"].tolist()


def test_comparisons_csv(whole, folder):
    rows = read(folder / "comparisons.csv")
    assert len(rows) == 3
    row = rows[0]
    gap = finals(whole, row["second"]) - finals(whole, row["first"])
    assert float(row["difference"]) == pytest.approx(gap.mean())
    assert float(row["p_t"]) == pytest.approx(stats.ttest_1samp(gap, 0).pvalue)
    assert float(row["p_sign_flip"]) == 2 / 32
    assert int(row["ahead"]) == (gap > 0).sum()


def test_a_lost_seed_puts_a_rule_last(whole, tmp_path):
    """The best rule, but for one seed that diverged: it has no mean and no first place."""
    reason = "The training loss was nan at step 51."
    results = replaced(whole, "ballistic", 12, status="diverged", reason=reason)
    page = Page(report.write(made.write(tmp_path / "s", results)))
    assert "adam has the lowest test loss" in page.text
    assert (
        "ballistic diverged on 1 of 5 seeds, so it ranks after every rule that finished"
        in page.text
    )
    assert reason in page.text
    row = read(tmp_path / "s" / "summary.csv")[-1]
    assert (row["rule"], row["mean"], row["diverged"], row["n"]) == ("ballistic", "", "1", "5")
    assert float(row["mean_of_finished"]) == pytest.approx(
        np.delete(finals(whole, "ballistic"), 2).mean()
    )


def test_every_seed_lost(whole, tmp_path):
    results = [made.result(one.trial, status="failed", reason="no") for one in whole]
    page = Page(report.write(made.write(tmp_path / "s", results)))
    assert "No rule finished any of its seeds" in page.text
    assert "Trials that diverged or failed: 39" in page.text


def test_higher_is_better(tmp_path):
    ends = {"a": 0.9, "b": 0.95, "c": 0.85}
    results = made.study(rules=tuple(ends), metric="accuracy", ends=ends, top=0.1)
    folder = made.write(tmp_path / "s", results, metrics={"digits": ["accuracy", "higher"]})
    page = Page(report.write(folder))
    assert "b has the highest test accuracy" in page.text
    assert re.search(r"a is 0\.\d+ \[-?0\.\d+, 0\.\d+\] below", page.text)
    assert [row["rule"] for row in read(folder / "summary.csv")] == ["b", "a", "c"]


def test_times_to_the_target(whole, page_of_whole):
    """Where each seed's curve passes the target, by search on a fine line."""
    page = page_of_whole
    level = max(finals(whole, rule).max() for rule in ("ballistic", "adam", "sgd"))
    reached = []
    for one in whole:
        if one.trial.phase == "reporting" and one.trial.rule == "ballistic":
            fine = np.linspace(10, 100, 900_001)
            line = np.interp(fine, one.curves["step"], one.curves["loss"])
            reached.append(fine[np.argmax(line <= level)])
    assert f"time to a test loss of {level:.4g}" in " ".join(page.tables)
    low, high = stats.t.interval(0.95, 4, np.mean(reached), stats.sem(reached))
    assert f"ballistic 5 of 5 {np.mean(reached):.1f} [{low:.1f}, {high:.1f}]" in page.text


def test_the_whole_grid_is_drawn(tmp_path):
    """Other settings have lines of their own; ranges say if they are open."""
    page = Page(report.write(made.write(tmp_path / "s", made.study(axes={"beta": (0.9, 0.99)}))))
    grids = [text for text in page.svgs if text.startswith("Validation")]
    assert len(grids) == 4
    assert "a line for each of 2 combinations" in grids[1]
    assert "beta = 0.9" in page.raw
    assert "the best lr of sgd is the highest of its grid" in page.text
    assert re.search(r"to ≥ 0\.1 at least ×", page.text)


def test_curves_over_seeds_by_hand(whole):
    """Median and extremes at each evaluation; a seed that diverged is worst from where it ended."""
    results = replaced(whole, "ballistic", 12, status="diverged", reason="x")
    (task,) = gather({"rules": {"ballistic": {}}}, results)
    found = band(task.rules[0], "loss", "lower")
    own = [
        one for one in results if (one.trial.rule, one.trial.phase) == ("ballistic", "reporting")
    ]
    for i, step in enumerate(range(10, 101, 10)):
        each = [one.curves["loss"][i] if i < len(one.curves["loss"]) else math.inf for one in own]
        assert found.step[i] == step
        assert (found.low[i], found.middle[i], found.high[i]) == pytest.approx(
            (min(each), sorted(each)[2], max(each))
        )
    steps, loss = training_loss(task.rules[0], bins=20)
    sums = [one.curves["training_loss"].astype(float).reshape(-1, 5).mean(axis=1) for one in own]
    assert steps.tolist() == [3.0 + 5 * i for i in range(20)]
    assert loss[0] == pytest.approx(sorted(one[0] for one in sums)[2])
    assert loss[15] == pytest.approx(
        sorted([*(one[15] for one in sums if len(one) > 15), math.inf])[2]
    )


def test_the_line_over_learning_rates_by_hand():
    """The best of the other settings for each rate; no number where all of them lost a seed."""
    grid = [
        GridPoint({"lr": 0.1, "beta": 0.9}, (1.0, 3.0)),
        GridPoint({"lr": 0.1, "beta": 0.5}, (1.0, 2.0)),
        GridPoint({"lr": 0.01, "beta": 0.9}, (4.0, math.nan)),
        GridPoint({"lr": 0.01, "beta": 0.5}, (6.0, 8.0)),
        GridPoint({"lr": 1.0, "beta": 0.9}, (math.nan, 1.0)),
    ]
    task = TaskView("t", "", "loss", "lower", [], [], [])
    rates, means = zip(*task.best_line(grid, "lr"), strict=True)
    assert rates == (0.01, 0.1, 1.0)
    np.testing.assert_array_equal(means, [7.0, 1.5, math.nan])


@pytest.mark.parametrize("kept", [0, 1, 9, 22])
def test_a_study_that_stopped(whole, tmp_path, kept):
    planned = [one.trial.key for one in whole]
    seeds = {"tuning": [0, 1], "reporting": [10, 11, 12, 13, 14]}
    folder = made.write(
        tmp_path / "s",
        whole[:kept],
        planned=planned,
        seeds=seeds,
        tasks=["digits"],
        rules=["ballistic", "adam", "sgd"],
    )
    page = Page(report.write(folder))
    assert "This study is not complete" in page.text
    assert f"Not ended yet: {39 - kept} of 39 planned trials." in page.text
    assert len(read(folder / "summary.csv")) == 3


def test_results_of_an_older_study_file_do_not_count(whole, tmp_path):
    old = [
        made.result(made.trial("digits", "adam", {"lr": 9.0}, seed, "reporting"), end=1e-9)
        for seed in range(10, 15)
    ]
    planned = [one.trial.key for one in whole]
    page = Page(report.write(made.write(tmp_path / "s", [*old, *whole], planned=planned)))
    assert "ballistic has the lowest test loss" in page.text


def test_one_seed_and_equal_seeds(tmp_path):
    one = Page(report.write(made.write(tmp_path / "one", made.study(seeds=1, tuning=1))))
    assert "which one seed cannot test" in one.text
    assert "only 1 seed for a rule, so there are no intervals" in one.text
    assert "Settings were chosen on a single tuning seed" in one.text
    same = [
        made.result(made.trial("digits", rule, {}, seed, "reporting"), end=0.25)
        for rule in ("a", "b")
        for seed in range(3)
    ]
    equal = Page(report.write(made.write(tmp_path / "same", same)))
    assert "b is exactly equal on 3 seeds" in equal.text
    assert "every seed of a gave the same number" in equal.text


def test_texts_of_the_user_are_only_texts(tmp_path):
    """Names, reasons, settings and files that would be markup, formulas or links unescaped."""
    bad = "<script>alert(1)</script>&\"'$\\frac{1}$"
    results = made.study(rules=(bad, "<b>b"), task="</section><img src=x onerror=y>", seeds=3)
    results = replaced(results, "<b>b", 11, status="failed", reason="</td><script>no</script>")
    folder = made.write(
        tmp_path / "s",
        results,
        name="</title><script>",
        text="</pre><script>x</script>",
        environment={"command": "<script>", "versions": {"</th>": "<i>"}},
        notes=["<u>note"],
    )
    page = Page(report.write(folder))
    assert bad in page.text
    assert "</pre><script>x</script>" in page.text
    assert "<u>note" in page.text
    assert {row["rule"] for row in read(folder / "summary.csv")} == {bad, "<b>b"}


def test_odd_numbers_draw_something(tmp_path):
    """Zero, negative and huge values, a curve with NaN, and a trial without evaluations."""
    results = []
    for rule, end in (("zero", 0.0), ("negative", -5.0), ("huge", 1e30), ("tiny", 1e-30)):
        results += [
            made.result(
                made.trial("digits", rule, {"lr": 0.1}, seed, "reporting"),
                end=end * (1 + 0.1 * seed),
            )
            for seed in range(3)
        ]
    hole = results[0].curves["loss"].copy()
    hole[3] = math.nan
    results[0].curves["loss"] = hole
    empty = made.result(made.trial("digits", "empty", {"lr": 0.1}, 0, "reporting"))
    empty.curves.clear()
    page = Page(report.write(made.write(tmp_path / "s", [*results, empty])))
    assert "negative has the lowest test loss" in page.text


def test_the_same_folder_makes_the_same_bytes_and_leaves_nothing_else(folder, caplog):
    """Whatever the user's own settings of matplotlib are."""
    import matplotlib as mpl

    first = (folder / "report.html").read_bytes()
    with mpl.rc_context({"font.size": 33, "axes.facecolor": "red", "svg.fonttype": "path"}):
        settings = dict(mpl.rcParams)
        with caplog.at_level(logging.WARNING):
            assert report.write(folder).read_bytes() == first
        assert dict(mpl.rcParams) == settings
    assert caplog.records == []
    assert {path.name for path in folder.iterdir()} == {
        "report.html",
        "summary.csv",
        "comparisons.csv",
        "curves.csv",
        "study.json",
        "study.toml",
        "environment.json",
        "trials.jsonl",
        "curves",
        "lock",
    }


def test_the_page_of_a_large_study_stays_small(tmp_path):
    """Ten rules, twenty seeds, a thousand steps, each evaluated."""
    rules = [f"rule {i}" for i in range(10)]
    results = made.study(
        rules=rules, seeds=20, tuning=1, lrs=(1e-3, 1e-2), steps=1000, evaluations=1000
    )
    folder = made.write(tmp_path / "s", results)
    path = report.write(folder)
    assert path.stat().st_size < 1_000_000
    assert len(Page(path).svgs) == 6


def test_the_task_of_the_documentation_runs(tmp_path):
    """The files of docs/studies.md, written as they stand there, make a report."""
    docs = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    files = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", docs, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["my_tasks.py", "my_study.toml"]
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    page = Page(studies.run(tmp_path / "my_study.toml", tmp_path / "out", engine="serial"))
    assert "This study is not complete" not in page.text
    assert re.search(
        r"has the lowest test error: 0\.\d+ \[0\.\d+, 0\.\d+\] over 5 seeds", page.text
    )
    assert "None: every trial finished." in page.text


def test_torch_is_not_imported(whole, tmp_path):
    folder = made.write(tmp_path / "s", whole[:4])
    code = (
        "import sys; from lossnav.studies import report\n"
        "from lossnav.studies.trial import environment\n"
        "environment.record(); report.write(sys.argv[1])\n"
        "assert not {'torch', 'jax', 'sklearn', 'matplotlib.pyplot'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_other_versions_are_said(whole, tmp_path):
    earlier = {"versions": {"numpy": "2.3.0", "torch": "2.13.0", "jax": None}}
    both = {**made.ENVIRONMENT, "earlier": [earlier]}
    page = Page(report.write(made.write(tmp_path / "s", whole[:9], environment=both)))
    assert "ran with other versions: numpy 2.3.0 then 2.4.6." in page.text


def test_the_environment_is_recorded_without_names(tmp_path, monkeypatch):
    """Commit and changes against git itself; the home folder is nowhere."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    study = tmp_path / "study.toml"
    study.write_text("name = 'x'\n")
    assert environment.record(study)["commit"] is None
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *arguments], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "/home/someone/.venv/bin/lossnav",
            "study",
            "/home/someone/a b.toml",
            "--out=/home/someone",
            "/home/someone2/x",
        ],
    )
    found = environment.record(study)
    assert (found["commit"], found["changed"]) == (head.stdout.strip(), False)
    study.write_text("name = 'y'\n")
    assert environment.record(study)["changed"] is True
    assert found["command"] == "lossnav study '~/a b.toml' '--out=~' /home/someone2/x"
    assert "/home/someone/" not in json.dumps(found, allow_nan=False)
    assert found["versions"]["scipy"]
    assert found["cpus"] >= 1
    assert found["memory_bytes"] > 2**20
    assert environment.record(Path("no/such/folder/study.toml"))["commit"] is None
