"""How long ``import lossnav`` takes against the libraries it stands on.

Each import runs in a fresh interpreter, the two in turn, so that a busy moment of the machine
falls on both. The bound is on the ratio of medians.
"""

import statistics
import subprocess
import sys
import time

RUNS = 15
BOUND = 1.3
STATEMENTS = {
    "import lossnav": [],
    "import numpy, scipy.linalg, sympy": [],
}


def seconds(statement: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - began


def main() -> None:
    for statement in STATEMENTS:
        seconds(statement)  # the first run compiles and fills the disk cache
    for _ in range(RUNS):
        for statement, times in STATEMENTS.items():
            times.append(seconds(statement))
    medians = [statistics.median(times) for times in STATEMENTS.values()]
    for (statement, times), median in zip(STATEMENTS.items(), medians, strict=True):
        print(f"{statement:<36}{median:.3f} s  (from {min(times):.3f} to {max(times):.3f})")
    ratio = medians[0] / medians[1]
    print(f"ratio {ratio:.2f}, bound {BOUND}: {'holds' if ratio <= BOUND else 'BROKEN'}")


if __name__ == "__main__":
    main()
