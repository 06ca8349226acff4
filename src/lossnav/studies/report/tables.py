"""The tables of the report in HTML. Every text is escaped on its way in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from lossnav.studies.report.data import TaskView
from lossnav.studies.report.settings import good_range
from lossnav.studies.report.words import number, settings, with_interval
from lossnav.studies.statistics import Interval
from lossnav.studies.statistics.targets import Reach
from lossnav.studies.trial.records import Result


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table; the first cell of each row names it. Texts are escaped here."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(_data(cell) for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    if not body:
        return ""
    return (
        f'<div class="wide" tabindex="0"><table><caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _data(cell: str) -> str:
    """A cell; a number is not broken at its minus sign."""
    whole = ' class="whole"' if len(cell) < 16 and " " not in cell else ""
    return f"<td{whole}>{escape(cell)}</td>"


def finals(task: TaskView) -> str:
    rows = [
        (
            view.name, settings(view.point), str(view.final.n), str(view.final.lost),
            with_interval(view.final) if not view.final.lost else f"lost; others {with_interval(view.finished)}",
            number(view.final.sd, 2), _method(view.final),
        )
        for view in task.rules if view.values
    ]  # fmt: skip
    head = ("rule", "chosen setting", "seeds", "lost", f"test {task.metric} [95 %]", "sd", "interval")  # fmt: skip
    return table(f"{task.name}: final test {task.metric}, from the best down", head, rows)


def _method(found: Interval) -> str:
    return {"t": "Student's t", "bootstrap-t": "studentised bootstrap"}.get(found.method, "none")


def pairs(task: TaskView) -> str:
    rows = [
        (
            f"{pair.second} − {pair.first}", str(pair.difference.n),
            with_interval(pair.difference, signed=True) if not pair.difference.lost else "a seed was lost",
            f"{pair.ahead} : {pair.equal} : {pair.behind}", number(pair.p), number(pair.p_holm),
            number(pair.p_t, 2), number(pair.p_t_holm, 2), "yes" if pair.apart else "no",
        )
        for pair in task.pairs
    ]  # fmt: skip
    head = (
        "pair", "seeds", "difference [95 %]", "ahead : equal : behind", "p sign-flip", "Holm", "p paired t", "Holm", "apart",
    )  # fmt: skip
    return table(f"{task.name}: every pair on the seeds that both have", head, rows)


def targets(task: TaskView) -> str:
    made = []
    for target in task.targets:
        rows = [
            (
                view.name, f"{target.steps[view.name].reached} of {target.steps[view.name].n}",
                _times(target.steps[view.name]), _times(target.seconds[view.name]),
            )
            for view in task.rules if view.name in target.steps
        ]  # fmt: skip
        caption = f"{task.name}: time to a test {task.metric} of {number(target.value, 4)}, {target.title}"  # fmt: skip
        made.append(table(caption, ("rule", "seeds that reached it", "steps", "seconds"), rows))
    return "".join(made)


def _times(found: Reach) -> str:
    if math.isfinite(found.mean.mean):
        return with_interval(found.mean)
    if math.isfinite(found.median):
        return f"median {number(found.median)}"
    return "not reached" if not found.reached else "not reached by half of the seeds"


def sensitivity(task: TaskView) -> str:
    rows = []
    for view in task.rules:
        found = good_range(task, view)
        if found is not None:
            ends = f"{'≤ ' if found.open_low else ''}{number(found.low)} to {'≥ ' if found.open_high else ''}{number(found.high)}"  # fmt: skip
            least = "at least " if found.open_low or found.open_high else ""
            lost = sum(any(math.isnan(v) for v in one.values) for one in view.grid)
            edge = ", ".join(f"{name}: {side}" for name, side in view.edges.items()) or "no"
            rows.append((view.name, settings(view.point), str(len(view.grid)), str(lost), ends, f"{least}×{number(found.factor, 2)}", edge))  # fmt: skip
    share = "10 %" if task.better == "lower" else "1 %"
    head = ("rule", "chosen", "points tried", "points that lost a seed", f"range within {share} of its best", "width", "chosen at the grid's edge")  # fmt: skip
    return table(f"{task.name}: how much the learning rate matters (validation {task.metric})", head, rows)  # fmt: skip


def costs(task: TaskView) -> str:
    rows = []
    for view in task.rules:
        if not view.status("done"):
            continue
        size = view.cost("parameters")
        rows.append((
            view.name, number(1e3 * view.cost("step_seconds")), number(1e3 * view.cost("optimizer_seconds")),
            number(view.cost("state_bytes") / size if size else math.nan), _whole(size), _whole(view.cost("steps")),
            number(view.cost("seconds")), number(view.cost("evaluation_seconds")), number(view.cost("peak_bytes") / 2**20),
        ))  # fmt: skip
    head = (
        "rule", "ms per step", "of it the rule's own", "bytes of memory per parameter", "parameters", "steps",
        "seconds of training", "seconds of evaluation", "peak MiB of the process",
    )  # fmt: skip
    return table(f"{task.name}: what a run costs, medians over the seeds that finished", head, rows)


def _whole(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}"


def losses(results: Iterable[Result], most: int = 100) -> str:
    """The trials that diverged or failed, with the reason."""
    lost = [result for result in results if result.status != "done"]
    rows = [
        (r.trial.task, r.trial.rule, settings(r.trial.point), r.trial.phase, str(r.trial.seed), r.status, r.reason)
        for r in lost[:most]
    ]  # fmt: skip
    rest = f" (the first {most}; all are in trials.jsonl)" if len(lost) > most else ""
    head = ("task", "rule", "setting", "phase", "seed", "status", "reason")
    return table(f"Trials that did not end well: {len(lost)}{rest}", head, rows)
