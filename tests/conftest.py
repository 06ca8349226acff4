"""Settings that all tests share, and which of them are slow or numerical."""

import atexit
import gc
import os
import re
import shutil
import tempfile

import pytest
from hypothesis import settings

from chromium import MISSING

# As in `make test`: threads of several workers would fight over the cores, and sums in another order round differently.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Most of what JAX does here is to compile: a quarter of the time without optimizations and with XLA's older emitters. Kinds of
# `make portable` compile otherwise. PyTorch's inductor need not try out which vectors a compiler can make.
if os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") == "1":
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# Much is compiled more than once. Each worker has a folder of its own, since only a cache with a bound may be shared, and
# JAX then reads the whole folder each time it adds a file.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ or "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, _compiled, ignore_errors=True)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# SymPy and JAX keep millions of objects: by Python's own thresholds, looking through them again and again takes long.
gc.set_threshold(100_000, 20, 20)

# A check before merging must not depend on luck; at home, look for new examples each time. A busy machine fails no test.
settings.register_profile("merge", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("merge")

# A program of its own: read for doctests, it would change PyTorch's settings for all other tests.
collect_ignore = ["optim/distributed_worker.py"]

# How the names of the marked tests begin. `make check` leaves out the slow ones. `make portable` runs those whose
# numbers come from BLAS and NumPy, from PyTorch's kernels, or from code that XLA or Numba compiles.
MARKED = {
    "slow": r"""
        src/
        | tests/(explorer|paper)/
        | tests/test_(docs|examples)
        | tests/_base/test_jets.py::test_sums
        | tests/equations/test_(limits|nongradient|derivation.py::test_(eq|first_variation))
        | tests/inference/test_(infer|probes|record|assumptions|unexplained)
        | tests/optim/test_(contract|distributed|fused|optax|per_example|weight_uncertainty)
        | tests/optim/test_torch.py::test_(adamw|every_form)
        | tests/rules/(test_(local|lqg|uncertain|zoo)|\w+.py::test_frameworks_agree)
        | tests/solvers/test_(plane|ritz.py::test_every_kind)
        | tests/studies/test_(callbacks|continual|engines|execution|report|rulebook|statistics)
        | tests/studies/test_(store|streams|tasks|training)
    """,
    "blas": r"""
        tests/(problem|ranking|rules|solvers)/
        | tests/_base/test_jets
        | tests/paper/test_(equations|errata)
    """,
    "tensors": r"""
        tests/inference/test_(calibrate|infer|probes|assumptions|unexplained)
        | tests/optim/(?!test_distributed|\w*optax)
    """,
    # What `make test` runs a second time, as on the oldest processor.
    "quick": r"""
        tests/optim/test_(kronecker|torch.py)
        | tests/rules/test_(diagonal|matrix)
        | tests/solvers/test_(candidates|direct|feedback|riccati|ritz)
    """,
    "compiled": r"""
        tests/optim/(test_fused|\w*optax)
        | tests/solvers/test_plane
        | tests/studies/test_continual_compiled
    """,
    # The longest begin first, so that no worker is left alone with one of them.
    "long": r"""
        tests/optim/test_(distributed|contract.py::test_a_compiled_training)
        | tests/studies/test_(engines.py::test_(real|two)|execution.py::test_(kills|ctrl))
    """,
}
# Modules whose fixtures take long: one worker makes them for all of their tests.
TOGETHER = r"tests/(explorer/test_(browser|server)|paper/test_(ledger|reproduction))"
# Packages of the extras: without one, the tests that import it are skipped.
OPTIONAL = "jax|numba|optax|pytorch_optimizer|schemathesis|torch|uvicorn"


def missing(text):
    """The optional package that an error found missing, or None."""
    found = re.search(rf"(?:No module named '|needs the package )({OPTIONAL})\b", text)
    return found and f"{found[1]} is not installed"


def pytest_collection_modifyitems(items):
    for item in items:
        for marker, names in MARKED.items():
            if re.match(names, item.nodeid, re.VERBOSE):
                item.add_marker(marker)
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Spread single tests, and the modules of `TOGETHER` whole (pytest 9.2 hides xdist_group)."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            module = re.match(TOGETHER, nodeid)
            return module[0] if module else nodeid

    config.option.loadscopereorder = False  # keeps the longest first
    return Scheduler(config, log)


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
