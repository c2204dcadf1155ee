"""An etcd whose answers take long is reached, if the timeout for connecting allows it."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, contextmanager

import pytest

import latchwork
from backends.etcd.authority import Authority
from latchwork_testkit.proxy import Proxy


@pytest.mark.parametrize("delay_s", [0.6, 1.2])
def test_a_server_whose_first_answer_takes_longer_than_a_second_is_reached(etcd35, delay_s):
    with Proxy(etcd35.endpoint) as proxy:
        proxy.delay(delay_s, "answers")
        with latchwork.connect(f"etcd://{proxy.endpoint}/slow?connect_timeout_s=20&call_timeout_s=20") as store:
            assert store.get("key") is None


def test_an_unreachable_server_is_given_up_in_time(etcd35):
    with Proxy(etcd35.endpoint) as proxy:
        proxy.drop()
        begun = time.monotonic()
        with pytest.raises(latchwork.ConnectFailed):
            latchwork.connect(f"etcd://{proxy.endpoint}/slow?connect_timeout_s=2")
        assert time.monotonic() - begun < 4.0


@contextmanager
def listening(backlog):
    """A server that answers nothing; without a backlog it drops every SYN from the third on, as a lossy link does."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(backlog)
        for _ in range(0 if backlog else 3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


def refusal(where, timeout_s=2):
    with pytest.raises(latchwork.ConnectFailed) as refused:
        latchwork.connect(f"etcd://{where}{'&' if '?' in where else '?'}connect_timeout_s={timeout_s}")
    return str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("timeout_s", [1.5, 4])
def test_error_of_connecting_names_the_phase_that_took_too_long(tmp_path, timeout_s):
    ca = Authority(tmp_path).folder / "ca.pem"
    assert "no further than the name lookup" in refusal("no-such-host.invalid:2379/r", timeout_s)
    with listening(0) as deaf:
        assert "no further than the TCP connection" in refusal(f"{deaf}/r", timeout_s)
    with listening(50) as silent:
        assert "no further than the first answer" in refusal(f"{silent}/r", timeout_s)
        assert "no further than the TLS handshake" in refusal(f"{silent}/r?tls_ca={ca}", timeout_s)
