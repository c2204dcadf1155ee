"""A child process of a benchmark that plays one role, and exchanges lines with the benchmark."""

from __future__ import annotations

import json
import subprocess
import sys


class Child:
    """Runs the calling program again as `--role role --options {…}`. It answers with lines of JSON."""

    def __init__(self, program, role, **options):
        command = [sys.executable, program, "--role", role, "--options", json.dumps(options)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a process of the benchmark has ended; see above")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait(120)


def answer(**what):
    """Print one line of JSON for the parent process."""
    print(json.dumps(what), flush=True)
