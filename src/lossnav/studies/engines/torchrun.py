"""One trial at a time, each trained by several processes on parts of every batch.

For each trial the engine starts ``python -m torch.distributed.run ... -m lossnav.studies.engines.torchrun``; the
program at the end of this file is what each of those processes does. Only the first of them writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lossnav._base.files import write_whole
from lossnav.studies.engines import ATTEMPTS, Engine, Job, failed, follow, lost, perform
from lossnav.studies.progress import Progress
from lossnav.studies.store.files import packed, scratch, unpacked
from lossnav.studies.trial.records import Result, Trial


@dataclass(frozen=True)
class Torchrun(Engine):
    """Data-parallel training through torchrun, on this machine.

    Args:
        job: What all trials share.
        processes: How many processes train a trial; each has the trial's number of threads.
    """

    job: Job
    processes: int = 2

    def run(self, trials: Sequence[Trial], progress: Progress) -> Generator[Result, None, None]:
        for trial in trials:
            for _ in range(ATTEMPTS):
                result = self._attempt(trial, progress)
                if result is not None:
                    break
            yield result or lost(trial)

    def _attempt(self, trial: Trial, progress: Progress) -> Result | None:
        """The result, or None if the processes died without one."""
        with scratch(self.job.folder) as name:
            place = Path(name)
            spec = {"trial": asdict(trial), "job": asdict(self.job), "starter": os.getpid()}
            (place / "spec.json").write_text(json.dumps(spec))
            command = [
                sys.executable, "-m", "torch.distributed.run", "--standalone",
                f"--nproc-per-node={self.processes}", "-m", "lossnav.studies.engines.torchrun", name,
            ]  # fmt: skip
            environment = {**os.environ, "OMP_NUM_THREADS": str(trial.threads)}
            with open(place / "log", "wb") as log:
                group = subprocess.Popen(
                    command, stdout=log, stderr=log, env=environment, start_new_session=True
                )
            try:
                while group.poll() is None:
                    time.sleep(0.1)
                    _pass_on(place, trial, progress)
            finally:
                _stop(group)
            return _result(place, trial)


def _stop(group: subprocess.Popen[bytes]) -> None:
    """End all processes of a session, whatever they are doing."""
    if os.name == "nt":
        group.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group.pid, signal.SIGKILL)
    group.wait()


def _pass_on(place: Path, trial: Trial, progress: Progress) -> None:
    try:
        step, steps, loss = json.loads((place / "news.json").read_bytes())
    except (OSError, ValueError):
        return
    progress.step(trial, step, steps, loss)


def _result(place: Path, trial: Trial) -> Result | None:
    """A failure that any process wrote, or else what the first one wrote."""
    found = []
    for path in sorted(place.glob("result-*.json")):
        line = json.loads(path.read_text())
        found.append(Result.from_json(line, unpacked(path.with_suffix(".npz"), line["sha256"])))
    for result in found:
        if result.status == "failed":
            return failed(trial, result.reason)
    return found[0] if found else None


def main(name: str) -> None:
    """What each process does."""
    import hashlib

    from torch import distributed as dist

    place = Path(name)
    spec = json.loads((place / "spec.json").read_text())
    follow(spec["starter"], parent=False)
    trial, job = Trial(**spec["trial"]), Job(**spec["job"])
    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
    parts = {"kind": trial.task_kind, "settings": trial.task_settings}
    spread = replace(trial, task_kind="lossnav.studies.engines.sharing:shared", task_settings=parts)

    def tell(step: int, steps: int, loss: float) -> None:
        (place / "news.json").write_text(json.dumps([step, steps, loss]))

    if first:
        result = perform(spread, job, tell, shown=trial)
    else:
        result = perform(spread, replace(job, callbacks=()), shown=trial)
    if first or result.status == "failed":
        raw = packed(result.curves)
        path = place / f"result-{dist.get_rank()}.npz"
        write_whole(path, raw)
        line = {**result.to_json(), "sha256": hashlib.sha256(raw).hexdigest()}
        write_whole(path.with_suffix(".json"), json.dumps(line, allow_nan=False).encode())
    if result.status == "failed":
        os._exit(1)  # the others may wait for this one, and are ended by torchrun
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
