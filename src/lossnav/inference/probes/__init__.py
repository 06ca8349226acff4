"""An optimizer of any kind, run on chosen gradients again and again from its start.

Several tensors run side by side, each with gradients of its own. Weights are put back after each
step unless they are free to move, so that a step shows the effect of the gradients alone.
"""

from __future__ import annotations

import contextlib
import math
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.adapters import WrongStep, adapt, kind_of
from lossnav.inference.time_limit import Watch


class ProbeError(ValueError):
    """The optimizer did something that no probe can use; the message says what."""


class ProbedOptimizer:
    """An optimizer with the conditions under which it is probed.

    Args:
        optimizer: Anything that `lossnav.adapters.adapt` takes.
        shape: Shape of each tensor.
        name: Name for reports; by default the optimizer's own.
        seed: Seed of the gradients.
        watch: Notified of each step that begins; it may end the work there.

    Attributes:
        size: Size of the gradients of probes.
        slack: Relative random difference of two runs on the same gradients.
        rest: Weights at which a probe holds the tensors by default.
        decay: Known weight decay of a step; subtracted from steps at `rest`.
        together: Whether one optimizer runs all tensors; False if they influence each other.

    Examples:
        >>> probed = ProbedOptimizer(lambda grad, theta: -0.1 * grad, (2,))
        >>> probed.run(np.ones((1, 1, 2)))
        array([[[-0.1, -0.1]]])
    """

    def __init__(
        self,
        optimizer: Any,
        shape: tuple[int, ...],
        name: str | None = None,
        seed: int = 0,
        watch: Watch | None = None,
    ) -> None:
        self.watch = watch or Watch()
        self.optimizer, self.shape = optimizer, tuple(shape)
        self.rng = np.random.default_rng(seed)
        self.size, self.slack = 1.0, 0.0
        self.rest: FloatArray = np.zeros(self.shape)
        self.decay = 0.0
        self.together = True
        kind_of(optimizer)  # a TypeError for anything that is no optimizer
        self.name = label_of(optimizer)
        try:
            self._adapter = adapt(optimizer, self.shape)
        except (Exception, SystemExit) as error:
            raise self._refusal(error) from error
        own = self._adapter.name
        self.name = name or ("the optax transformation" if own == "optax" else own)
        self._alone = own == "optax" and self._tensors_are_alone()

    @property
    def random(self) -> bool:
        """Whether the steps have noise of their own."""
        return self.slack > 0

    @property
    def has_rate(self) -> bool:
        """Whether the learning rate can be scaled by ``run(rate=...)``."""
        return self._adapter.has_rate

    def _tensors_are_alone(self) -> bool:
        """Whether each tensor gets the same steps if an optax rule is compiled for one tensor."""
        rng, runs = np.random.default_rng(0), []
        size = np.array([1.0, 100.0]).reshape(-1, *[1] * len(self.shape))
        g = size * rng.standard_normal((12, 2, *self.shape))
        theta = np.broadcast_to(rng.standard_normal((2, *self.shape)), g.shape)
        for self._alone in (False, True):
            try:
                runs.append(self._moves(g, theta, free=False, rate=1.0))
            except ProbeError:  # it branches on values, or fails; a probe will say how
                return False
        listed, mapped = runs
        return bool(np.allclose(listed, mapped, rtol=1e-9, atol=0.0, equal_nan=True))

    def run(
        self,
        grads: FloatArray,
        theta: FloatArray | None = None,
        *,
        free: bool = False,
        rate: float = 1.0,
    ) -> FloatArray:
        """The steps ``(T, P, *shape)`` that follow gradients of that shape.

        Args:
            grads: One gradient for each step and each of P tensors.
            theta: Weights ``(P, *shape)``, or one set for each step; `rest` by default.
            free: Let the weights move, starting at ``theta``.
            rate: Factor of the learning rate.
        """
        grads = np.ascontiguousarray(grads, dtype=np.float64)
        weights = np.broadcast_to(self.rest if theta is None else theta, grads.shape)
        each = [slice(i, i + 1) for i in range(grads.shape[1])]
        runs = [
            self._moves(grads[:, part], weights[:, part], free, rate)
            for part in ([slice(None)] if self.together else each)
        ]
        moves = np.concatenate(runs, axis=1)
        if theta is None and self.decay:
            moves = moves + self.decay * self.rest
        if not np.isfinite(moves).all():
            t, *where = np.argwhere(~np.isfinite(moves))[0]
            size = np.abs(grads[: t + 1, where[0]])
            raise ProbeError(
                f"{self.name} returned {moves[t][tuple(where)]} at step {t + 1}, after gradients "
                f"of size {size.min():.3g} to {size.max():.3g}."
            )
        return moves

    def _moves(self, grads: FloatArray, weights: FloatArray, free: bool, rate: float) -> FloatArray:
        moves, theta = np.empty_like(grads), np.array(weights[0])
        t = None
        try:
            with self._quietly():
                self.watch.begin_step(0)
                step = self._adapter.start(theta, rate=rate, alone=self._alone)
                for t, grad in enumerate(grads):
                    self.watch.begin_step(t + 1)
                    theta = theta if free else np.array(weights[t])
                    moves[t] = step(lambda _, grad=grad: (math.nan, grad), theta)  # type: ignore[misc]
                    theta = theta + moves[t]
        except (Exception, SystemExit) as error:
            raise self._refusal(error, t) from error
        return moves

    def _refusal(self, error: BaseException, step: int | None = None) -> ProbeError:
        """The sentence for an error that the optimizer raised."""
        if isinstance(error, ProbeError):
            return error
        if isinstance(error, WrongStep):
            return ProbeError(f"{self.name} cannot be probed: {error}")
        text = " ".join(str(error).split())[:200].rstrip(".")
        line = traceback.extract_tb(error.__traceback__)[-1].line or ""
        if step is not None and ("closure" in text or "closure" in line):
            return ProbeError(
                f"{self.name} needs a closure that computes the loss again, and a probe has "
                "gradients but no loss: it cannot be inferred."
            )
        if "does not require grad" in text or "create_graph" in text:
            return ProbeError(
                f"{self.name} needs second derivatives of the loss, and a probe has gradients but "
                "no loss: it cannot be inferred."
            )
        when = "when it was made" if step is None else f"at step {step + 1}"
        what = f"{type(error).__name__} {when}" + (f": {text}" if text else "")
        return ProbeError(f"{self.name} raised {what}.")

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """No warnings, and torch on one thread: for small tensors more cost more than they save."""
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._adapter.kind != "torch":
                yield
                return
            import torch

            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                # In half precision oneDNN takes a hundred times as long as the plain product.
                with torch.backends.mkldnn.flags(enabled=False):
                    yield
            finally:
                torch.set_num_threads(threads)


def label_of(optimizer: Any) -> str:
    """Name of an unnamed optimizer: that of its class or function."""
    label = getattr(optimizer, "__name__", type(optimizer).__name__)
    return "the optimizer" if label in ("<lambda>", "partial") else str(label)


def averaged_run(probed: ProbedOptimizer, grads: FloatArray) -> FloatArray:
    """The steps, averaged over enough runs to make random differences small."""
    times = min(1 + int((probed.slack / 0.05) ** 2), 40)
    return np.mean([probed.run(grads) for _ in range(times)], axis=0)


def gap(a: FloatArray, b: FloatArray) -> float:
    """Root-mean-square difference relative to the size of ``a``."""
    size = float(np.sqrt((a**2).mean())) if a.size else 0.0
    return float(np.sqrt(((a - b) ** 2).mean())) / size if size else 0.0


def signs(rng: np.random.Generator, *size: int) -> FloatArray:
    """Random numbers -1.0 and 1.0."""
    return rng.choice([-1.0, 1.0], size=size)


def training_gradients(probed: ProbedOptimizer, sizes: FloatArray) -> FloatArray:
    """Gradients ``(240, len(sizes), *shape)`` to fit every number of the family to.

    Coordinates differ in noise by a decade and have means of their own; the scale jumps.
    """
    return _gradients(probed, sizes, 240, factors=(1.0, 6.0, 1.0))


def rough_gradients(probed: ProbedOptimizer, sizes: FloatArray, steps: int) -> FloatArray:
    """Rougher gradients to compare models on: with spikes, and with steps without a gradient."""
    g = _gradients(probed, sizes, steps, factors=(1.0, 0.3, 3.0, 1.0))
    g[probed.rng.random(g.shape) < 0.01] *= 20.0
    g[steps // 2 : steps // 2 + 3] = 0.0
    return g


def _gradients(
    probed: ProbedOptimizer, sizes: FloatArray, steps: int, factors: tuple[float, ...]
) -> FloatArray:
    rng, full = probed.rng, (steps, len(sizes), *probed.shape)
    spread = 10.0 ** rng.uniform(-0.5, 0.5, size=full[1:])
    mean = rng.standard_normal(full[1:])
    stage = np.repeat(factors, -(-steps // len(factors)))[:steps]
    scale = stage.reshape(-1, *[1] * (len(full) - 1)) * spread
    noise = rng.standard_normal(full)
    return scale * (noise + mean) * sizes.reshape(-1, *[1] * len(probed.shape))
