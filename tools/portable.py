"""Run numerical tests as on other kinds of processor: `make portable`.

Libraries choose their kernels by the processor, and each kernel rounds in its own way. Environment variables choose
for them here, one library at a time, so that a failure names its cause. OpenBLAS, NumPy, PyTorch, XLA and Numba are covered.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
OLDEST = ("numpy-baseline", "openblas-nehalem", "torch-default", "jit-baseline")


def kinds() -> dict[str, dict[str, str]]:
    """The environment variables of each kind of processor that this one can stand for."""
    from numpy._core import _multiarray_umath as numpy_core

    has = numpy_core.__cpu_features__
    dispatched = " ".join(name for name in numpy_core.__cpu_dispatch__ if has[name])
    found = {"two-threads": dict.fromkeys(THREADS, "2")}
    found["numpy-baseline"] = {"NPY_DISABLE_CPU_FEATURES": dispatched}
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return found
    cores = ["Nehalem", "Sandybridge", "Haswell"]  # Zen has Haswell's kernels in NumPy's wheels
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and "avx512f" in cpuinfo.read_text():
        cores.append("SkylakeX")
    found |= {f"openblas-{core.lower()}": {"OPENBLAS_CORETYPE": core} for core in cores}
    for aten, mkl, onednn in (("default", "COMPATIBLE", "SSE41"), ("avx2", "AVX2", "AVX2")):
        found[f"torch-{aten}"] = {
            "ATEN_CPU_CAPABILITY": aten,
            "MKL_CBWR": mkl,
            "ONEDNN_MAX_CPU_ISA": onednn,
        }
    # Below AVX, this XLA cannot link its conversions of half precision.
    found["jit-baseline"] = {"XLA_FLAGS": "--xla_cpu_max_isa=AVX", "NUMBA_CPU_NAME": "generic"}
    found["jit-optimized"] = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    return found


def marks(kind: str) -> str:
    """The tests whose numbers a kind can change."""
    return {"torch": "tensors", "jit": "compiled"}.get(kind.partition("-")[0], "blas")


def run(variables: dict[str, str], chosen: str, quick: bool) -> tuple[bool, str, str]:
    """Whether the tests passed, the counts, and all that pytest said."""
    folders = ["tests/optim", "tests/rules", "tests/solvers"] if quick else ["tests"]
    # CI=1 draws the same examples for each kind.
    environment = os.environ | dict.fromkeys(THREADS, "1") | {"CI": "1"} | variables
    workers = str(max(1, (os.cpu_count() or 1) // int(environment[THREADS[0]])))
    options = f"-m pytest -q -rfE --tb=short -n {workers} -m".split()
    done = subprocess.run(
        [sys.executable, *options, chosen, *folders],
        env=environment,
        capture_output=True,
        text=True,
    )
    last = done.stdout.rstrip().rpartition("\n")[2]
    counts = ", ".join(re.findall(r"\d+ (?:passed|failed|errors?|skipped)\b", last))
    return done.returncode == 0, counts or f"exit code {done.returncode}", done.stdout + done.stderr


def main() -> int:
    known = kinds()
    known["oldest"] = {k: v for kind in OLDEST if kind in known for k, v in known[kind].items()}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=known,
        metavar="KIND",
        default=[kind for kind in known if kind != "oldest"],
        help=f"some of {', '.join(known)}",
    )
    parser.add_argument(
        "--quick", action="store_true", help="all that is old at once, without the slow tests"
    )
    asked = parser.parse_args()
    all_passed = True
    for kind in ["oldest"] if asked.quick else asked.kinds:
        begun = time.monotonic()
        chosen = "quick and not slow" if asked.quick else marks(kind)
        passed, counts, text = run(known[kind], chosen, asked.quick)
        print(f"{kind:22} {counts}, {time.monotonic() - begun:.0f} s", flush=True)
        if not passed:
            all_passed = False
            print(*(f"{k}={v!r}" for k, v in known[kind].items()), f"\n{text}", flush=True)
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main())
