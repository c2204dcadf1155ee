"""Stores on a full disk: each warns once that its watches are delayed, and says once that they are up to date again."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time

import pytest

import latchwork

STORES = 4
FULL_S = 8.0


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk can be made by root only")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_each_store_on_a_full_disk_warns_once_that_its_watches_are_delayed(disk, caplog, eventually):
    caplog.set_level(logging.INFO)
    url = f"sqlite:///{disk}/store.db?session_ttl_s=2"
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(latchwork.connect(url)) for _ in range(STORES)]
        for store in stores:
            store.open_session(2.0)
            stack.enter_context(store.watch("k"))
        with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while filler.write(bytes(512)):
                pass
        until = time.monotonic() + FULL_S
        while time.monotonic() < until:
            for store in stores:
                with contextlib.suppress(latchwork.LatchworkError):
                    store.put("k", os.urandom(2000))
            time.sleep(0.1)
        delayed = caplog.text.count("watches are delayed, retrying")
        assert 1 <= delayed <= STORES
        assert "watches are up to date again" not in caplog.text
        (disk / "filler").unlink()
        eventually(lambda: caplog.text.count("watches are up to date again") == delayed, 10)
        assert caplog.text.count("watches are delayed, retrying") == delayed
