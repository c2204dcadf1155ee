"""The store as the API sees it, while the store does not answer."""

import time

import pytest

import latchwork
from latchwork.errors import LatchworkError
from latchwork.testing import Fault, FaultyStore
from latchwork_testkit.etcd import EtcdServer
from latchwork_workflows.cluster import StoreCluster
from latchwork_workflows.keys import Keys


def test_workers_of_a_store_that_does_not_answer_are_given_up_before_a_scrape_ends():
    with EtcdServer() as etcd, latchwork.connect(etcd.url("/flows")) as store:
        cluster = StoreCluster(store, Keys())
        assert cluster.list_workers() == []
        etcd.pause()
        try:
            began = time.monotonic()
            with pytest.raises(LatchworkError):
                cluster.list_workers()
            assert time.monotonic() - began < 8.0
        finally:
            etcd.resume()


def test_workers_are_given_up_if_only_the_second_read_is_not_answered():
    with FaultyStore(latchwork.connect("memory://second-read", call_timeout_s=30.0)) as store:
        store.add(Fault("drop", op="list", nth=2))
        began = time.monotonic()
        with pytest.raises(LatchworkError):
            StoreCluster(store, Keys()).list_workers()
        assert time.monotonic() - began < 8.0
        assert [(call.op, call.fault is not None) for call in store.calls] == [("list", False), ("list", True)]
