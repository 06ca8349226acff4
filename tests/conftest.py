"""Settings that all tests share."""

import os

from hypothesis import settings

# A check before merging must not depend on luck; at home, look for new examples each time.
settings.register_profile("merge", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("merge")
