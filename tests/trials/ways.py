"""Ways from clients to servers that can be cut, held back and dropped: see ``latchwork_testkit.proxy``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from latchwork_testkit.proxy import Proxy
from trials.remote import Remote, Wire


class Ways:
    """Any number of ways, each with a *link* of its own to every server: a proxy. One thread at a time.

    The proxies are in a process of their own, so that their threads and those of clients do not hold each other up. The
    methods are those of a proxy, for the links named, or for all; they give the sum of what the proxies gave.

        ways.cut()
        ways.hold(ways.links(2), direction="answers")
    """

    def __init__(self, targets: list[str], count: int) -> None:
        self._width, self._count = len(targets), count
        self._remote = Remote("trials.ways:serve", targets * count)
        self._endpoints: list[str] = self._remote.endpoints()

    def __getattr__(self, method: str) -> Callable[..., int]:
        return lambda links=None, **how: self._remote.do(method, self.all() if links is None else links, how)

    def all(self) -> list[int]:
        """Every link."""
        return list(range(self._width * self._count))

    def links(self, way: int) -> list[int]:
        """Those of one way."""
        return self.all()[way * self._width : (way + 1) * self._width]

    def endpoint(self, way: int) -> str:
        """What a client of this way connects to."""
        return ",".join(self._endpoints[link] for link in self.links(way))

    def close(self) -> None:
        self._remote.close()


class _Proxies:
    def __init__(self, proxies: list[Proxy]) -> None:
        self._proxies = proxies

    def endpoints(self) -> list[str]:
        return [proxy.endpoint for proxy in self._proxies]

    def do(self, method: str, links: list[int], how: dict[str, Any]) -> int:
        found = [getattr(self._proxies[link], method) for link in links]
        return sum((each(**how) if callable(each) else each) or 0 for each in found)


def serve(wire: Wire, targets: list[str]) -> None:
    with contextlib.ExitStack() as opened:
        wire.serve(_Proxies([opened.enter_context(Proxy(target)) for target in targets]))
