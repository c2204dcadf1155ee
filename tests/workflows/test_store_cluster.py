"""The store as the API sees it, while the store does not answer."""

import time

import pytest

import latchwork
from latchwork.errors import LatchworkError
from latchwork_testkit.etcd import EtcdServer
from latchwork_workflows.cluster import StoreCluster
from latchwork_workflows.keys import Keys


def test_workers_of_a_store_that_does_not_answer_are_given_up_before_a_scrape_ends():
    with EtcdServer() as etcd, latchwork.connect(etcd.url("/flows")) as store:
        cluster = StoreCluster(store, Keys())
        assert cluster.workers() == []
        etcd.pause()
        try:
            began = time.monotonic()
            with pytest.raises(LatchworkError):
                cluster.workers()
            assert time.monotonic() - began < 8.0
        finally:
            etcd.resume()
