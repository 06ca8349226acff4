"""How much work something is, without a clock, which would tell of the machine and its other programs."""

import contextlib
import faulthandler
import math
import sys

import pytest
from sympy.core.cache import clear_cache


def calls(work, most=math.inf):
    """How many functions Python calls while ``work()`` runs, with an empty cache of SymPy; a failure beyond ``most``."""
    count = 0

    def counted(frame, event, argument):
        nonlocal count
        count += event == "call"
        if count > most:
            pytest.fail(f"More than {most:,} calls were made.")

    clear_cache()
    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@contextlib.contextmanager
def watched(minutes=3):
    """End the run, with the place where it stands, if what is inside never ends.

    It takes the whole process along: arithmetic with numbers of a billion digits hears no signal.
    """
    faulthandler.dump_traceback_later(60 * minutes, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
