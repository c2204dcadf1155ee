"""The calls of several clients on a few keys are linearizable: one order of them explains every answer."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time

import pytest

from latchwork_testkit.histories.calls import Call, History
from latchwork_testkit.histories.checker import check_history, format_timeline, minimize_history
from latchwork_testkit.histories.clients import Clients
from latchwork_testkit.histories.recorder import KEYS
from latchwork_testkit.proxy import Proxy

ROUND_S = 30.0 if os.environ.get("LATCHWORK_LONG_TESTS") else 4.0
CLIENTS = 4


def record_history(urls, inject_faults=lambda deadline: None):
    """Let clients make random calls, and return their history and a sentence for each unexpected error."""
    calls, mutex = {}, threading.Lock()

    def sink(call: Call) -> None:
        with mutex:
            calls[call.number] = call

    specs = [(f"c{number}", number * 1_000_000, url) for number, url in enumerate(urls)]
    clients = Clients(specs, sink, give_up_after_s=None, mean_pause_s=0.002)
    try:
        clients.start(seed=random.randrange(1 << 30))
        inject_faults(time.monotonic() + ROUND_S)
        time.sleep(0.5)
        clients.stop()
        problems = clients.finish()
    finally:
        clients.close()
    return History(KEYS, dict.fromkeys(KEYS), 0, list(calls.values())), problems


def check_linearizable(history, problems):
    assert problems == []
    assert len(history.calls) > 20
    result = check_history(history)
    assert result.is_linearizable, "\n".join([*result.problems, format_timeline(minimize_history(history))])


def test_a_history_without_faults_is_linearizable(backend_url):
    history, problems = record_history(
        [backend_url] * CLIENTS, lambda deadline: time.sleep(deadline - time.monotonic())
    )
    check_linearizable(history, problems)


def test_a_history_with_cut_connections_is_linearizable(conformance_server, backend_url):
    endpoint = getattr(conformance_server, "endpoint", "")
    if not endpoint:
        pytest.skip("no endpoint: the backend has no separate server")
    with contextlib.ExitStack() as opened:
        proxies = [opened.enter_context(Proxy(endpoint)) for _ in range(CLIENTS)]

        def inject_faults(deadline):
            rng = random.Random()
            while time.monotonic() < deadline:
                time.sleep(rng.uniform(0.1, 0.4))
                proxy = rng.choice(proxies)
                proxy.hold(rng.choice(["requests", "answers"]))
                time.sleep(rng.uniform(0.05, 0.2))
                proxy.cut()
                proxy.release()

        history, problems = record_history(
            [backend_url.replace(endpoint, proxy.endpoint) for proxy in proxies], inject_faults
        )
    check_linearizable(history, problems)
