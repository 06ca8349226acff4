"""Settings that all tests share."""

import os

from hypothesis import settings

# A check before merging must not depend on luck; at home, look for new examples each time.
settings.register_profile("merge", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("merge")

# A program of its own: read for doctests, it would change PyTorch's settings for all other tests.
collect_ignore = ["distributed_worker.py"]
