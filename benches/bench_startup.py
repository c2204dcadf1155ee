"""Measure the processor time of `import latchwork` and of the command line: user and system, median of 20 processes."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

LATCHWORK = str(Path(sysconfig.get_path("scripts")) / "latchwork")
#: What is started, with the limit in seconds.
STARTS = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "import latchwork": ([sys.executable, "-c", "import latchwork"], 0.030),
    "latchwork --version": ([LATCHWORK, "--version"], 0.100),
    "latchwork --help": ([LATCHWORK, "--help"], 0.250),
    "latchwork status --help": ([LATCHWORK, "status", "--help"], None),
    "latchwork workflows --help": ([LATCHWORK, "workflows", "--help"], None),
}


def cpu_s(command: list[str], environment: dict[str, str]) -> float:
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, command
    return usage.ru_utime + usage.ru_stime


def install(folder: Path, count: int) -> None:
    """Make distributions with metadata and nothing else, every third of them with entry points."""
    for number in range(count):
        info = folder / f"dist_{number}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist-{number}\nVersion: 1.0\n")
        if number % 3 == 0:
            (info / "entry_points.txt").write_text(f"[console_scripts]\nd{number} = d{number}:main\n")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=20, help="processes of each")
    options.add_argument("--distributions", type=int, default=1000, help="of the larger environment")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), given.distributions)
        more = f"{given.distributions:,} more distributions"
        for name, path in (("this environment", ""), (more, folder)):
            environment = {**os.environ, "PYTHONPATH": path}
            print(name)
            for what, (command, limit_s) in STARTS.items():
                median_ms = 1000 * statistics.median(cpu_s(command, environment) for _ in range(given.runs))
                goal = "" if limit_s is None else f"   goal {1000 * limit_s:4.0f} ms"
                print(f"  {what:28} {median_ms:6.1f} ms{goal}")


if __name__ == "__main__":
    main()
