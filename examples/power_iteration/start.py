"""Start the workers, kill one halfway with kill -9, restart it, and print the eigenvalue.

python start.py [URL]
"""

import subprocess
import sys
from pathlib import Path

import latchwork

POWER = Path(__file__).with_name("power.py")
WORKERS, VICTIM = 4, 2


def start(url, number):
    return subprocess.Popen([sys.executable, POWER, url, str(WORKERS), str(number)])


def main(url):
    processes = [start(url, number) for number in range(WORKERS)]
    with latchwork.connect(url) as store:
        with store.mirror("power/kept") as kept:
            kept.wait_until(lambda seen: len(seen) > 0, 60)  # some steps are done
        processes[VICTIM].kill()
        processes[VICTIM].wait()
        print(f"killed process {VICTIM}; restarting it with the same key")
        processes[VICTIM] = start(url, VICTIM)
        codes = [process.wait(120) for process in processes]
        print(f"exit codes {codes}, eigenvalue {float(store.get('power/eigenvalue').value):.9f}")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///power.db"))
