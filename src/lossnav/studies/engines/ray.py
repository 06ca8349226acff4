"""Trials on a Ray cluster: an existing one, or one on this machine for as long as the study runs.

Every machine of the cluster needs the same lossnav and PyTorch, and the user's modules and the data
in the same folders as here: a cluster of several machines needs them on a network disk.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lossnav.studies.engines import ATTEMPTS, Engine, RunContext, died, failed, perform
from lossnav.studies.progress import Progress
from lossnav.studies.trial import Result, Trial


@dataclass(frozen=True)
class Ray(Engine):
    """A trial is a Ray task with a processor for each thread; Ray runs it again if its worker dies.

    Args:
        context: What all trials share.
        jobs: Processors of a cluster that is started here.
        address: ``"auto"``, ``host:port`` or ``ray://host:port`` of a cluster. Without one,
            ``RAY_ADDRESS`` decides, and without that a cluster is started here.
    """

    context: RunContext
    jobs: int = 1
    address: str | None = None
    mine: list[Any] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        """Raise an error if no server listens at the address: Ray itself would try for minutes."""
        place = (self.address or "").removeprefix("ray://")
        host, colon, port = place.rpartition(":")
        if not colon:
            return
        try:
            socket.create_connection((host, int(port)), timeout=5.0).close()
        except (OSError, ValueError, OverflowError) as error:
            raise _unreachable(place, error) from None

    def run(self, trials: Sequence[Trial], progress: Progress) -> Generator[Result, None, None]:
        if not trials:
            return
        import ray

        if not ray.is_initialized():
            self._connect(ray, max(trial.threads for trial in trials))
            self.mine.append(ray)
        board = ray.remote(num_cpus=0)(_Board).remote()
        task = ray.remote(max_retries=ATTEMPTS - 1)(_perform)
        by_key = {trial.key: trial for trial in trials}
        running: dict[Any, Trial] = {}
        try:
            for trial in trials:
                ref = task.options(num_cpus=trial.threads).remote(trial, self.context, board)
                running[ref] = trial
            while running:
                ended, _ = ray.wait([*running], num_returns=1, timeout=0.5)
                with contextlib.suppress(ray.exceptions.RayError):
                    for key, news in ray.get(board.take.remote()).items():
                        progress.step(by_key[key], *news)
                for ref in ended:
                    yield _result(ray, ref, running.pop(ref))
        finally:
            for ref in running:
                ray.cancel(ref, force=True)
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(board)

    def close(self) -> None:
        """Disconnect from the cluster, and stop it if it was started here."""
        while self.mine:
            self.mine.pop().shutdown()

    def _connect(self, ray: Any, threads: int) -> None:
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == "local":
            processors = self.jobs * threads
            ray.init(address="local", num_cpus=processors, include_dashboard=False, **quiet)
            return
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _unreachable(address, error) from None


def _unreachable(address: str, error: Exception) -> ValueError:
    return ValueError(
        f"No Ray cluster answers at {address!r} ({' '.join(str(error).split())[:200]}): start one "
        "with `ray start --head`, or leave out --address to use this machine."
    )


class _Board:
    """Holds the latest progress of each running trial, until it is taken."""

    def __init__(self) -> None:
        self.news: dict[str, tuple[int, int, float]] = {}

    def put(self, key: str, step: int, steps: int, loss: float) -> None:
        self.news[key] = (step, steps, loss)

    def take(self) -> dict[str, tuple[int, int, float]]:
        news, self.news = self.news, {}
        return news


def _perform(trial: Trial, context: RunContext, board: Any) -> Result:
    return perform(trial, context, functools.partial(board.put.remote, trial.key))


def _result(ray: Any, ref: Any, trial: Trial) -> Result:
    try:
        return ray.get(ref)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError):
        return died(trial)
    except ray.exceptions.RayError as error:
        return failed(trial, error)
