"""Opening, closing and forking of stores."""

from __future__ import annotations

import os
import threading

import pytest

import latchwork
from latchwork import Closed, ForkedProcess


def test_a_closed_store_refuses_every_call_and_close_is_idempotent(backend_url):
    store = latchwork.connect(backend_url)
    store.close()
    store.close()
    for call in (
        lambda: store.get("k"),
        lambda: store.put("k", b""),
        lambda: store.list(""),
        lambda: store.commit([], []),
        lambda: store.watch("k"),
        lambda: store.session,
        lambda: store.open_session(5.0),
        lambda: store.pipeline().get("k"),
        lambda: store.transact(lambda tx: tx.get("k")),
    ):
        with pytest.raises(Closed):
            call()


def test_written_values_are_there_for_the_next_store(backend_url, store):
    with latchwork.connect(backend_url) as first:
        entry = first.put("kept", b"v")
    with latchwork.connect(backend_url) as second:
        assert second.get("kept") == entry


def test_closing_leaves_no_thread_behind(backend_url):
    with latchwork.connect(backend_url) as warm:
        warm.put("k", b"", session=warm.session)
        warm.mirror("k")
    before = {thread.name for thread in threading.enumerate()}
    with latchwork.connect(backend_url) as store:
        store.put("k", b"", session=store.session)
        store.watch("k").subscribe(lambda _batch: None)
        store.mirror("k")
    done = threading.Event()
    for _ in range(50):  # callback threads end by themselves a little later
        left = {thread.name for thread in threading.enumerate() if "latchwork" in thread.name} - before
        if not left:
            break
        done.wait(0.1)
    assert not left


def test_the_url_and_repr_say_where_it_is(store):
    assert store.url in repr(store)
    assert "namespace" not in repr(store)
    assert "'inner'" in repr(store.namespace("inner"))


def test_the_url_comes_from_the_environment_when_none_is_given(backend_url, monkeypatch):
    monkeypatch.setenv("LATCHWORK_URL", backend_url)
    with latchwork.connect() as store, latchwork.connect(backend_url) as same:
        store.put("k", b"from the environment")
        assert same.get("k").value == b"from the environment"
    monkeypatch.delenv("LATCHWORK_URL")
    with pytest.raises(latchwork.InvalidURL, match="LATCHWORK_URL"):
        latchwork.connect()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_a_clear_error_and_the_parent_continues(store):
    store.put("k", b"", session=store.session)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"no error"
        try:
            store.get("k")
        except ForkedProcess:
            answer = b"forked"
        except BaseException as error:
            answer = repr(error).encode()
        finally:
            store.close()
            os.write(write_end, answer)
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read_end, 1000) == b"forked"
    os.close(read_end)
    os.close(write_end)
    assert store.get("k").owner == store.session.id
