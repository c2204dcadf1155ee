"""A TCP proxy in a process of its own, with one link per client, that cuts, swallows and holds back.

It takes commands on standard input, one JSON object a line, and answers each with a line: the number of connections it
directions it touched. It ends with its standard input.

    {"do": "cut",  "links": [0, 3]}                  end the connections
    {"do": "hold", "links": [0], "way": "up"}        keep back what the present connections send from now on
    {"do": "drop", "links": [0], "way": "both"}      swallow it instead, on new connections too
    {"do": "heal", "links": [0]}                     pass on what was held, also when its sender has gone by now;
                                                     connections that lost something are ended

"up" is towards the server. To its sender what is held looks sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import subprocess
import sys
from pathlib import Path

_CHUNK = 1 << 16


class Proxy:
    """The harness's side. One thread at a time.

    Attributes:
        endpoints: one a link, ``127.0.0.1:port``.
    """

    def __init__(self, targets: list[str]) -> None:
        command = [sys.executable, str(Path(__file__)), *targets]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoints: list[str] = json.loads(self._process.stdout.readline())

    def cut(self, links: list[int]) -> int:
        return self._ask("cut", links)

    def hold(self, links: list[int], way: str) -> int:
        return self._ask("hold", links, way)

    def drop(self, links: list[int], way: str) -> int:
        return self._ask("drop", links, way)

    def heal(self, links: list[int]) -> int:
        return self._ask("heal", links)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _ask(self, what: str, links: list[int], way: str = "both") -> int:
        self._process.stdin.write(json.dumps({"do": what, "links": links, "way": way}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class _Pipe:
    """One direction of a connection."""

    def __init__(self, link: int, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.link = link
        self.way = way
        self.open = asyncio.Event()  # clear: what arrives is held back
        self.open.set()
        self.lossy = False
        self.writer = writer
        self._reader = reader

    async def run(self, dropped: set[str]) -> None:
        with contextlib.suppress(OSError):
            while chunk := await self._reader.read(_CHUNK):
                await self.open.wait()
                if self.way in dropped:
                    self.lossy = True
                    continue
                self.writer.write(chunk)
                await self.writer.drain()
        await self.open.wait()
        self.writer.close()


class _Server:
    def __init__(self, targets: list[str]) -> None:
        self._targets = [(host, int(port)) for host, _, port in (target.rpartition(":") for target in targets)]
        self._dropped: list[set[str]] = [set() for _ in targets]
        self._pipes: set[_Pipe] = set()
        self._over = asyncio.Event()

    async def run(self) -> None:
        servers = [
            await asyncio.start_server(functools.partial(self._accept, link), "127.0.0.1", 0)
            for link in range(len(self._targets))
        ]
        print(json.dumps([f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]), flush=True)
        asyncio.get_running_loop().add_reader(sys.stdin, self._command)
        await self._over.wait()

    async def _accept(self, link: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.wait_for(asyncio.open_connection(*self._targets[link]), 1.0)
        except (OSError, asyncio.TimeoutError):
            writer.close()
            return
        pipes = [_Pipe(link, "up", reader, far_writer), _Pipe(link, "down", far_reader, writer)]
        self._pipes.update(pipes)
        await asyncio.gather(*(pipe.run(self._dropped[link]) for pipe in pipes), return_exceptions=True)
        self._pipes.difference_update(pipes)

    def _command(self) -> None:
        line = sys.stdin.readline()
        if not line:
            self._over.set()
            return
        asked = json.loads(line)
        ways = {"up", "down"} if asked["way"] == "both" else {asked["way"]}
        pipes = [pipe for pipe in self._pipes if pipe.link in asked["links"] and pipe.way in ways]
        for link in asked["links"]:
            if asked["do"] == "drop":
                self._dropped[link].update(ways)
            elif asked["do"] == "heal":
                self._dropped[link].clear()
        for pipe in pipes:
            if asked["do"] == "hold":
                pipe.open.clear()
            elif asked["do"] == "cut" or pipe.lossy:
                pipe.open.set()
                pipe.writer.transport.abort()
            elif asked["do"] == "heal":
                pipe.open.set()
        print(len(pipes), flush=True)


if __name__ == "__main__":
    asyncio.run(_Server(sys.argv[1:]).run())
