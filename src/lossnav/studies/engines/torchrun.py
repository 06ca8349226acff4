"""One trial at a time, each trained by several processes on parts of every batch.

For each trial the engine starts ``python -m torch.distributed.run ... -m`` with this module; `main`
is the program of each of those processes. Only rank 0 writes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils._pytree import tree_flatten, tree_map

from lossnav._base.files import write_whole
from lossnav.studies import engines
from lossnav.studies.engines import Engine, RunContext, deferred
from lossnav.studies.progress import Progress
from lossnav.studies.store import packed, scratch, unpacked
from lossnav.studies.tasks import Split, Task
from lossnav.studies.trial import Result, Trial


@dataclass(frozen=True)
class Torchrun(Engine):
    """Data-parallel training through torchrun: ``processes`` on this machine for each trial."""

    context: RunContext
    processes: int = 2

    def run(self, trials: Sequence[Trial], progress: Progress) -> Generator[Result, None, None]:
        for trial in trials:
            for _ in range(engines.ATTEMPTS):
                result = self._attempt(trial, progress)
                if result is not None:
                    break
            yield result or engines.died(trial)

    def _attempt(self, trial: Trial, progress: Progress) -> Result | None:
        """The result, or None if the processes died without one."""
        with scratch(self.context.folder) as name:
            place = Path(name)
            spec = {"trial": asdict(trial), "context": asdict(self.context), "starter": os.getpid()}
            (place / "spec.json").write_text(json.dumps(spec))
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command += [f"--nproc-per-node={self.processes}", "-m", __name__, name]
            environment = {**os.environ, "OMP_NUM_THREADS": str(trial.threads)}
            with deferred() as check_for_ctrl_c:
                with open(place / "log", "wb") as log:
                    group = subprocess.Popen(
                        command, stdout=log, stderr=log, env=environment, start_new_session=True
                    )
                try:
                    while group.poll() is None:
                        check_for_ctrl_c()
                        time.sleep(0.1)
                        engines.pass_on_progress(place / "progress", trial, progress)
                finally:
                    _stop(group)
            return _result(place, trial)


def _stop(group: subprocess.Popen[bytes]) -> None:
    """Kill all processes of a session."""
    if os.name == "nt":
        group.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group.pid, signal.SIGKILL)
    group.wait()


def _result(place: Path, trial: Trial) -> Result | None:
    """The failure of any process, or else the result of rank 0."""
    results = []
    for path in sorted(place.glob("result-*.json")):
        line = json.loads(path.read_text())
        results.append(Result.from_json(line, unpacked(path.with_suffix(".npz"), line["sha256"])))
    for result in results:
        if result.status == "failed":
            return engines.failed(trial, result.reason)
    return results[0] if results else None


def main(name: str) -> None:
    """The program of each process."""
    place = Path(name)
    spec = json.loads((place / "spec.json").read_text())
    engines.exit_with(spec["starter"], parent=False)
    trial, context = Trial(**spec["trial"]), RunContext(**spec["context"])
    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
    report = functools.partial(engines.write_progress, place / "progress") if first else None
    if not first:
        context = replace(context, callbacks=())
    result = engines.perform(trial, context, report, wrap=SharedTask)
    if first or result.status == "failed":
        raw = packed(result.curves)
        path = place / f"result-{dist.get_rank()}.npz"
        write_whole(path, raw)
        line = {**result.to_json(), "sha256": hashlib.sha256(raw).hexdigest()}
        write_whole(path.with_suffix(".json"), json.dumps(line, allow_nan=False).encode())
    if result.status == "failed":
        os._exit(1)  # the others may wait for this one, and are stopped by torchrun
    dist.barrier()
    dist.destroy_process_group()


class SharedTask(Task):
    """A task whose batches are split over processes, and whose gradients are summed over them.

    Each process takes its part of every batch. A loss that is a mean over examples is the mean of
    the parts' losses weighted by their sizes, and so is its gradient: every process takes the step
    that one process alone would take. Models whose examples interact in training (batch
    normalization) are not covered.
    """

    def __init__(self, task: Task, kind: str) -> None:
        self.task, self.kind = task, kind
        self.metric, self.better, self.splits = task.metric, task.better, task.splits
        self.watchable = False  # a process has only its part of a batch
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.asked = self.added = 0
        self.checked = False

    def model(self) -> torch.nn.Module:
        """The task's model, the same in each process."""
        model = self.task.model()
        for values in (*model.parameters(), *model.buffers()):
            _collective(dist.broadcast, values.data, 0)
        for theta in model.parameters():
            theta.register_post_accumulate_grad_hook(self._add)
        return model

    def _add(self, theta: Tensor) -> None:
        _collective(dist.all_reduce, theta.grad)
        self.added += 1

    def batch_count(self) -> int:
        return self.task.batch_count()

    def batches(self, rng: torch.Generator) -> Iterator[Any]:
        return iter(self.task.batches(rng))

    def loss(self, model: torch.nn.Module, batch: Any) -> Tensor:
        """The loss of the whole batch, with the gradient of this process's share of it."""
        if not self.checked:
            self._check(model, batch)
            self.checked = True
        if self.asked > 1 and not self.added:
            raise RuntimeError("Gradients were taken without backward(), and so were not added up.")
        self.asked += 1
        part, weight = share(batch, self.rank, self.world)
        mine = self.task.loss(model, part) * weight
        whole = mine.detach().clone()
        _collective(dist.all_reduce, whole)
        return mine + (whole - mine.detach())

    def evaluate(self, model: torch.nn.Module, split: Split) -> dict[str, float]:
        """Computed by rank 0 and sent to the other processes."""
        metrics = [self.task.evaluate(model, split) if self.rank == 0 else None]
        _collective(dist.broadcast_object_list, metrics, 0)
        return metrics[0] or {}

    def _check(self, model: torch.nn.Module, batch: Any) -> None:
        """Raise an error for a loss that is not a mean over the examples of a batch."""
        frozen = copy.deepcopy(model).eval()  # without dropout, which differs from part to part
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            try:
                whole = float(self.task.loss(frozen, batch))
                pieces = [share(batch, rank, self.world) for rank in range(self.world)]
                parts = sum(float(self.task.loss(frozen, part)) * w for part, w in pieces)
            except (RuntimeError, IndexError, TypeError) as error:
                raise ValueError(
                    f"The batches of the task {self.kind!r} cannot be split over processes "
                    f"({' '.join(str(error).split())[:200]}): use --engine joblib."
                ) from None
        if abs(whole - parts) > 1e-3 * max(abs(whole), 1e-6):
            raise ValueError(
                f"The loss of the task {self.kind!r} is {whole:.6g} for a batch but {parts:.6g} as "
                "the mean of its parts: only a mean over examples can be split. Use --engine "
                "joblib."
            )


def share(batch: Any, rank: int, world: int) -> tuple[Any, float]:
    """The part of a batch for one process, and its size as a fraction of the whole.

    A process without an example gets the first one, with weight zero.

    Examples:
        >>> share((torch.arange(5), torch.arange(5) * 10), 1, 2)
        ((tensor([2, 3, 4]), tensor([20, 30, 40])), 0.6)
    """
    tensors, _ = tree_flatten(batch)
    if others := [x for x in tensors if not isinstance(x, Tensor)]:
        raise TypeError(f"there is a {type(others[0]).__name__} in them")
    sizes = {len(x) if x.ndim else 0 for x in tensors}
    if len(sizes) != 1 or 0 in sizes:
        raise TypeError(f"its tensors have {sorted(sizes)} examples, which must be one number")
    (size,) = sizes
    start, stop = size * rank // world, size * (rank + 1) // world
    weight = (stop - start) / size
    return tree_map(lambda x: x[start:stop] if weight else x[:1], batch), weight


def _collective(collective: Callable[..., Any], *args: Any) -> None:
    """Call a collective. If another process has died, exit: the trial is then run again."""
    try:
        collective(*args)
    except RuntimeError:
        os._exit(75)


if __name__ == "__main__":
    main(sys.argv[1])
