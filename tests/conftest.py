"""Settings that all tests share."""

import os

from hypothesis import settings

# As in `make test`: threads of several workers would fight over the cores, and sums in another order round differently.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# A check before merging must not depend on luck; at home, look for new examples each time.
settings.register_profile("merge", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("merge")

# A program of its own: read for doctests, it would change PyTorch's settings for all other tests.
collect_ignore = ["distributed_worker.py"]
