"""Build the wheel, install it alone into an empty environment, and use it there: `make wheel`."""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
COMMANDS = (
    ("derive double-well", 0, "theta1''"),
    ("solve double-well --plot path.png", 0, "J"),
    ("rank quadratic --steps 50", 0, "adam"),
    ("reproduce fig1 --out results", 0, "index.html"),
    ("speedrun", 0, "Built-in entries: adamw,"),
    ("speedrun adamw", 2, "lossnav[torch]"),
    ("explore --no-open", 2, "lossnav[explore]"),
)


def run(*command: object, cwd: Path = ROOT, code: int = 0) -> str:
    """What a command prints; anything but the exit code it should have ends the check."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=clean, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    if done.returncode != code:
        sys.exit(
            f"{' '.join(map(str, command))} ended with {done.returncode}, not {code}:\n{done.stdout}"
        )
    return done.stdout


def contents(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(
            sys.executable, "-m", "build", "--outdir", place / "sdist"
        )  # an sdist, and the wheel made of it
        run(sys.executable, "-m", "build", "--wheel", "--outdir", place / "tree")
        (wheel,), (other,) = (place / "sdist").glob("*.whl"), (place / "tree").glob("*.whl")
        if wheel.name != other.name or contents(wheel) != contents(other):
            differing = sorted(dict(contents(wheel).items() ^ contents(other).items()))
            sys.exit(
                f"The wheel made of the sdist differs from the one made of the tree: {differing}"
            )
        print(
            f"{wheel.name}: {len(contents(wheel))} files, the same from the sdist and from the tree"
        )

        venv.create(place / "env")
        pip = (
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--python",
            place / "env",
        )
        run(*pip, "install", "--quiet", wheel)
        print(run(*pip, "check").strip())
        lossnav = place / "env" / ("Scripts" if os.name == "nt" else "bin") / "lossnav"
        desk = place / "desk"
        desk.mkdir()
        for arguments, code, expected in COMMANDS:
            said = run(lossnav, *arguments.split(), cwd=desk, code=code)
            if expected not in said:
                sys.exit(f"lossnav {arguments} does not say {expected!r}:\n{said}")
            print(f"$ lossnav {arguments}\n{said.rstrip()}\n[exit code {code}]")
        for made in ("path.png", "results/index.html"):
            if not (desk / made).stat().st_size:
                sys.exit(f"{made} is empty.")


if __name__ == "__main__":
    main()
