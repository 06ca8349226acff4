"""Optimizers on two and three processes (DDP, FSDP2, DTensor, distributed checkpoints), and the example.

The checks themselves are in `distributed_worker.py`. A start of several processes takes seconds, so each
number of processes is started once, and all checks run one after the other inside.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch.distributed

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this PyTorch was built without gloo", allow_module_level=True)

HERE = Path(__file__).parent
PATIENCE = 240  # seconds; a busy machine takes some of it
QUIET = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "CUDA_VISIBLE_DEVICES": "",
}
if sys.platform != "linux":
    QUIET.pop("GLOO_SOCKET_IFNAME")  # the loopback has other names elsewhere


def started(world, folder):
    processes = []
    for rank in range(world):
        with open(folder / f"log-{world}-{rank}", "w") as log:
            command = [sys.executable, str(HERE / "distributed_worker.py")]
            processes.append(
                subprocess.Popen(
                    [*command, str(rank), str(world), str(folder)],
                    stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **QUIET},
                )
            )  # fmt: skip
    return processes


def finished(world, folder, processes):
    """What came of each check. Once one process has died, the others get little time to follow."""
    end = time.monotonic() + PATIENCE
    try:
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                end = min(end, time.monotonic() + 5)
            if time.monotonic() > end:
                break
            time.sleep(0.05)
    finally:
        hung = [process.poll() is None for process in processes]
        for process in processes:
            process.kill()
            process.wait()
    if any(hung) or any(process.returncode for process in processes):
        logs = [(folder / f"log-{world}-{rank}").read_text()[-3000:] for rank in range(world)]
        said = "\n".join(f"--- process {rank}:\n{log}" for rank, log in enumerate(logs))
        pytest.fail(
            f"{sum(hung)} of {world} processes hung, or one died. Their last words:\n{said}"
        )
    return json.loads((folder / f"result-{world}-0.json").read_text())


def test_processes_that_share_a_model_do_what_one_would(tmp_path):
    """Two processes train and save; then one and three take up what they saved."""
    results = {2: finished(2, tmp_path, started(2, tmp_path))}
    both = {world: started(world, tmp_path) for world in (1, 3)}
    results |= {world: finished(world, tmp_path, found) for world, found in both.items()}
    assert {world: len(found) for world, found in results.items()} == {1: 5, 2: 74, 3: 43}
    wrong = {
        f"{world} processes, {name}": said
        for world, found in results.items()
        for name, said in found.items()
        if said
    }
    assert not wrong, "\n\n".join(f"{name}\n{said}" for name, said in wrong.items())


def test_a_worker_that_hangs_is_ended_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE", 1)
    (tmp_path / "log-1-0").write_text("shards: navigator")
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(pytest.fail.Exception, match="1 of 1 processes hung"):
        finished(1, tmp_path, [sleeper])
    assert sleeper.poll() is not None


def test_the_example_learns_and_resumes(tmp_path):
    example = HERE.parents[1] / "examples" / "fsdp_torchrun.py"
    text = example.read_text(encoding="utf-8")
    assert "    torchrun --nproc-per-node 2 examples/fsdp_torchrun.py\n" in text
    assert len(text.splitlines()) <= 80
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    run = subprocess.run(
        [*launch, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, **QUIET, "PYTHONWARNINGS": "default"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "resumed run off by" in run.stdout.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
