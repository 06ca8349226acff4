"""Each example runs as a reader would run it, learns what it says, and needs no network.

An example ends with an assert of its own; here it is enough that it exits well and prints a result.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NEEDS = {
    "plain_loop": (["torch", "sklearn"], "resumed run equal: True"),
    "hugging_face_trainer": (["torch", "transformers", "accelerate"], "test loss"),
    "class_stream": (["torch", "sklearn"], "WeightUncertainty"),
    "lightning_loop": (["torch", "lightning", "sklearn"], "test accuracy"),
}
"""What each example here imports, and a part of its last line. Others have tests of their own."""

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONWARNINGS": "default",  # those of other packages are not ours to turn into errors
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
}
# The child cannot open a connection, whatever a package tries on import.
ALONE = """
import runpy, socket, sys
def refuse(*args, **kwargs):
    raise OSError("an example tried to reach the network")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_runs_offline_and_learns(name, tmp_path):
    packages, said = NEEDS[name]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'lossnav[torch,study,examples]'")
    run = subprocess.run(
        [sys.executable, "-c", ALONE, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path, env={**os.environ, **QUIET, "HF_HOME": str(tmp_path / "hub")},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert said in run.stdout.splitlines()[-1]
    assert run.stdout.isascii()
    left = [path.name for path in tmp_path.iterdir() if path.name != "hub"]
    assert left == [], "an example leaves files behind"


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_is_short_and_says_how_to_run_it(name):
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    assert f"    python examples/{name}.py\n" in text
    assert "\nassert " in text
