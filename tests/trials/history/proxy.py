"""Proxies in a process of their own, one a link, so that the clients' threads and theirs do not hold each other up.

It takes commands on standard input, one a line, a JSON list of method, links and arguments, and answers each with the
number of connections it touched. It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

from latchwork_testbed.proxy import Proxy


class Proxies:
    """The harness's side. One thread at a time. See ``latchwork_testbed.proxy`` for what is done to a link.

    Attributes:
        endpoints: one a link, ``127.0.0.1:port``.
    """

    def __init__(self, targets: list[str]) -> None:
        command = [sys.executable, __file__, *targets]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoints: list[str] = json.loads(self._process.stdout.readline())

    def cut(self, links: list[int]) -> int:
        return self._ask("cut", links)

    def hold_present(self, links: list[int], way: str) -> int:
        """Only what the present connections send."""
        return self._ask("hold", links, way=way, present_only=True)

    def drop(self, links: list[int], way: str) -> int:
        return self._ask("drop", links, way=way)

    def release(self, links: list[int]) -> int:
        return self._ask("release", links)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _ask(self, method: str, links: list[int], **arguments: object) -> int:
        self._process.stdin.write(json.dumps([method, links, arguments]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def main(targets: list[str]) -> None:
    with contextlib.ExitStack() as open_ones:
        proxies = [open_ones.enter_context(Proxy(target)) for target in targets]
        print(json.dumps([proxy.endpoint for proxy in proxies]), flush=True)
        for line in sys.stdin:
            method, links, arguments = json.loads(line)
            print(sum(getattr(proxies[link], method)(**arguments) or 0 for link in links), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
