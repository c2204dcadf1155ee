"""An etcd whose answers take long is reached, if the timeout for connecting allows it."""

from __future__ import annotations

import time

import pytest

import latchwork
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
