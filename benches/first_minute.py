"""Measures how long a new user needs from ``pip install`` to a finished workflow on a page, with a wheel and a new
environment.

    python benches/first_minute.py --wheel dist/latchwork-….whl [--port 18770]

The time runs from the creation of the environment to the page that shows the successful run. pip gets the dependencies
of latchwork from its usual index. ``make wheel`` builds the wheel.
"""

from __future__ import annotations

import argparse
import http.cookiejar
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

FLOWS = """
from latchwork_workflows import shell, task, workflow

@task
def extract(day: str) -> dict:
    return {"rows": len(day)}

@workflow(params={"day": "${logical_date}"})
def hello(day: str):
    got = extract(day)
    shell("echo $rows rows", name="report", after=[got])
"""
WAIT_S = 120.0


class Clock:
    """Prints how long each step took."""

    def __init__(self):
        self.begun = self.last = time.monotonic()

    def done(self, what):
        now = time.monotonic()
        print(f"{what:40}{now - self.last:7.1f} s {now - self.begun:7.1f} s", flush=True)
        self.last = now


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--port", type=int, default=18770)
    given = parser.parse_args()
    wheel = given.wheel.resolve()
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="latchwork-first-") as folder:
        walk(Path(folder), wheel, given.port)


def walk(folder, wheel, port):
    """Do all steps in a directory."""
    clock, here = Clock(), folder / "env" / "bin"
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    clock.done("an environment")
    subprocess.run(
        [here / "pip", "install", "--quiet", "--find-links", wheel.parent, f"{wheel}[workflows]"], check=True
    )
    clock.done('pip install "latchwork[workflows]"')
    (folder / "flows.py").write_text(FLOWS)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LATCHWORK"))}
    env = {**kept, "LATCHWORK_WORKFLOWS_HOME": str(folder / "home")}
    program = str(here / "latchwork")
    command = [program, "workflows", "serve", "--port", str(port)]
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as server:
        try:
            link = next(found[0] for line in server.stdout if (found := re.findall(r"http://\S+link=\S+", line)))
            clock.done("latchwork workflows serve")
            for words in (["deploy", "flows.py"], ["start", "hello", "-p", "day=2026-11-21"]):
                subprocess.run([program, "workflows", *words], cwd=folder, env=env, check=True, capture_output=True)
                clock.done(f"latchwork workflows {words[0]}")
            see(link, f"http://127.0.0.1:{port}/runs/1")
            clock.done("the page shows its success")
        finally:
            server.terminate()


def see(link, page):
    """Open the link and press its button, then request the page of the run until it shows success."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    here, _, word = link.partition("?link=")
    browser.open(here, urllib.parse.urlencode({"link": word}).encode(), timeout=10.0).close()
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        with browser.open(page, timeout=10.0) as answer:
            text = answer.read().decode()
        if re.search(r"state-success|>success<", text):
            return
        time.sleep(0.1)
    raise SystemExit(f"{page} never showed a success")


if __name__ == "__main__":
    main()
