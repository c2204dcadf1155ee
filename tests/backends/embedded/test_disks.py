"""A store file on a disk that becomes read-only, and on one whose fsync is slow. The disk is real, in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

import latchwork
from latchwork import LatchworkError

SLOW_SYNC = """
#include <unistd.h>
#include <sys/syscall.h>
int fsync(int fd) { usleep(300000); return syscall(SYS_fsync, fd); }
int fdatasync(int fd) { usleep(300000); return syscall(SYS_fdatasync, fd); }
"""
SLOW_LIFE = """
import sys, time, latchwork
from latchwork.primitives import Lock
with latchwork.connect(sys.argv[1], session_ttl_s=4) as store:
    with Lock(store, "lock") as fence:
        began = time.monotonic()
        for number in range(20):
            store.commit([fence], [latchwork.Put(f"key/{number}", b"v")])
        print(time.monotonic() - began, store.session.state)
"""


@contextmanager
def ext4(tmp_path):
    """A file system whose journal can be aborted, as the kernel does when a disk fails; skipped where none can be."""
    image, folder = tmp_path / "disk.img", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(16 * 2**20)
    mount = f"mkfs.ext4 -q -F {image} && mount -o loop {image} {folder}"
    if os.geteuid() != 0 or subprocess.run(mount, shell=True, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_becomes_read_only_refuses_writes_and_loses_nothing(tmp_path):
    with ext4(tmp_path) as folder:
        url = f"sqlite:///{folder}/store.db?call_timeout_s=2"
        with latchwork.connect(url) as store:
            store.put("before", b"v")
            subprocess.run(["mount", "-o", "remount,abort", str(folder)], check=True)
            for _ in range(3):
                with pytest.raises(LatchworkError, match=r"store\.db"):
                    store.put("after", b"v")
            found = store.get("before")
            assert found is not None
            assert found.value == b"v"
            assert store.get("after") is None


def test_a_session_outlasts_commits_whose_fsync_takes_long(tmp_path):
    source, library = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text(SLOW_SYNC)
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    done = subprocess.run(
        [sys.executable, "-c", SLOW_LIFE, f"sqlite:///{tmp_path}/store.db?sync=full"],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    took_s, state = done.stdout.split()
    assert float(took_s) >= 20 * 0.3
    assert state == "active"
