"""Settings that all tests share, and which of them are slow or numerical."""

import os
import re

import pytest
from hypothesis import settings

from chromium import MISSING

# As in `make test`: threads of several workers would fight over the cores, and sums in another order round differently.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# A check before merging must not depend on luck; at home, look for new examples each time. A busy machine fails no test.
settings.register_profile("merge", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("merge")

# A program of its own: read for doctests, it would change PyTorch's settings for all other tests.
collect_ignore = ["distributed_worker.py"]

# How the names of the marked tests begin. `make check` leaves out the slow ones; `make portable` runs the numerical ones.
MARKED = {
    "slow": r"""
        src/
        | tests/test_(continual|docs|examples|explorer|figures|infer|ledger|limits|lqg|nongradient|policy|record)
        | tests/test_(reproduction|streams|weight_uncertainty|zoo)
        | tests/test_(optim_(distributed|fused|optax|torch_contract)|rules_local)
        | tests/test_studies_(callbacks|engines|report|rulebook|running|statistics|store|tasks|training)
        | tests/test_derivation.py::test_(eq|first_variation)
        | tests/test_jets.py::test_sums
        | tests/test_optim_torch.py::test_(adamw|every_form)
        | tests/test_ritz.py::test_every_kind
        | tests/test_rules_\w+.py::test_frameworks_agree
    """,
    "numerical": r"""
        tests/test_(affine_assembly|belief|chain|collocation|contest|curvature|direct|discrete|elimination|errata)
        | tests/test_(feedback|geometry|jets|landscapes|lqg|matrixfree|mesh|paper_equations|policy|ranking|receding)
        | tests/test_(riccati|ritz|rules|weight_uncertainty|zoo)
        | tests/test_(calibrate|continual_compiled|infer|optim_(?!distributed))
    """,
}
# Packages of the extras: without one, the tests that import it are skipped.
OPTIONAL = "jax|numba|optax|schemathesis|torch|uvicorn"


def missing(text):
    """The optional package that an error found missing, or None."""
    found = re.search(rf"(?:No module named '|needs the package )({OPTIONAL})\b", text)
    return found and f"{found[1]} is not installed"


def pytest_collection_modifyitems(items):
    for item in items:
        for marker, names in MARKED.items():
            if re.match(names, item.nodeid, re.VERBOSE):
                item.add_marker(marker)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if report.failed and (reason := missing(report.longreprtext)):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {reason}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    try:
        return (yield)
    except ImportError as error:
        if reason := missing(str(error)):
            pytest.skip(reason)
        raise


def pytest_unconfigure(config):
    """The last line of all says what was left out for want of a browser, and what would help."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if missed := sum(MISSING in str(report.longrepr) for report in skipped):
        reporter.write_line(
            f"{missed} browser tests were not run, since {MISSING}: apt install chromium"
        )
