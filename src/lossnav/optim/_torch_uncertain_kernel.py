"""The step of uncertain weights in one pass over memory, compiled by numba for the processor it runs on.

`lossnav.optim._torch_uncertain_step` says what is computed, for squares of the batch's gradient.
"""

from __future__ import annotations

from typing import Any

import numba as _numba  # type: ignore[import-untyped,import-not-found,unused-ignore]
import numpy as np

numba: Any = _numba  # it is typed in part, and not to be had everywhere
PART = 1 << 10


@numba.njit(  # type: ignore[untyped-decorator]
    fastmath={"arcp", "nsz", "contract", "reassoc"}, error_model="numpy", cache=True, nogil=True
)
def advance(X: Any, G: Any, H: Any, P: Any, S: Any, L: Any, n: Any) -> Any:
    """Advance one tensor in place; the sums of ``v g^2`` and of ``v g`` times the gradient before.

    Args:
        X, G, H, P, S: Parameter, gradient, curvature, mean of the prior, and start, flat.
        L: The gradient before, or nothing.
        n: What is kept of H and added to it for a unit of g^2; its weight c and
            1/v_0; the pull on a unit of distance and the length of a step, in units of K; the shares of
            the old mean of the prior, of the parameter and of the start in the new mean; the most of H.
    """
    kind = type(H[0])
    keep, add, c, least, pull = kind(n[0]), kind(n[1]), kind(n[2]), kind(n[3]), kind(n[4])
    size, old, follow, back, most = kind(n[5]), kind(n[6]), kind(n[7]), kind(n[8]), kind(n[9])
    one, paired = kind(1), len(L) > 0
    signal, pairs = 0.0, 0.0
    for start in range(0, len(H), PART):  # short sums, so that single precision is enough in each
        some, same = kind(0), kind(0)
        end = min(start + PART, len(H))
        for i in range(start, end):
            g = G[i]
            h = keep * H[i] + add * (g * g)
            h = h if h < most else most
            H[i] = h
            room = one / np.sqrt(c * h + least)
            v = room * room
            move = size * v * (g + pull * (X[i] - P[i]))
            move = move if move < room else room
            move = move if move > -room else -room
            x = X[i] - move
            X[i] = x
            P[i] = old * P[i] + follow * x + back * S[i]
            some += v * g * g
        if paired:
            for i in range(start, end):
                g = G[i]
                same += g / (c * H[i] + least) * L[i]
                L[i] = g
        signal += some
        pairs += same
    return signal, pairs
