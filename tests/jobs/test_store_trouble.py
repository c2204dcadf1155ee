"""A store that becomes full or read-only under a node: stated behaviour, a log line that helps, and the way back.

Nothing is patched: the servers, the file system and the accounts are real.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import subprocess

import grpc
import pytest

import latchwork
from latchwork_testkit.etcd_rpc import Stub, pb
from latchwork_testkit.servers import EtcdServer

QUOTA_BYTES = 8 * 2**20


class FullEtcd:
    """An etcd of a small quota, freed as an operator would: delete, compact, defragment, disarm."""

    def __init__(self, _tmp_path):
        self._server = EtcdServer("3.5", extra_args=("--quota-backend-bytes", str(QUOTA_BYTES)))
        self._server.start()
        self._channel = grpc.insecure_channel(f"ipv4:{self._server.endpoint}")
        self._kv, self._maintenance = Stub(self._channel, "KV"), Stub(self._channel, "Maintenance")
        self.url = self._server.url("app", session_ttl_s=3)

    def fill(self):
        """Until the server refuses even a small value."""
        with pytest.raises(grpc.RpcError, match="database space exceeded"):
            for number in range(4 * QUOTA_BYTES // 2**16):  # some room beyond the quota was there from the start
                self._kv.Put(pb.PutRequest(key=b"filler/%d" % number, value=bytes(2**16)), timeout=10)

    def free(self):
        """Make room and say so."""
        gone = self._kv.DeleteRange(pb.DeleteRangeRequest(key=b"filler/", range_end=b"filler0"), timeout=10)
        self._kv.Compact(pb.CompactionRequest(revision=gone.header.revision, physical=True), timeout=20)
        self._maintenance.Defragment(pb.DefragmentRequest(), timeout=20)
        alarms = self._maintenance.Alarm(pb.AlarmRequest(action=pb.AlarmRequest.GET), timeout=10).alarms
        for alarm in alarms:
            disarm = pb.AlarmRequest(action=pb.AlarmRequest.DEACTIVATE, memberID=alarm.memberID, alarm=alarm.alarm)
            self._maintenance.Alarm(disarm, timeout=10)

    def close(self):
        self._channel.close()
        self._server.close()


class FullDisk:
    """SQLite on a small disk of its own, which another file fills."""

    def __init__(self, tmp_path):
        self._disk = tmp_path / "disk"
        self._disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(self._disk)]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            pytest.skip("a small disk can be made by root only")
        self.url = f"sqlite:///{self._disk}/store.db?session_ttl_s=3"

    def fill(self):
        """To the last byte."""
        with (self._disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while filler.write(bytes(512)):
                pass

    def free(self):
        """Delete the file."""
        (self._disk / "filler").unlink()

    def close(self):
        subprocess.run(["umount", "--lazy", str(self._disk)], check=True)


@pytest.fixture(params=[FullEtcd, FullDisk])
def small(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    made.close()


def test_a_store_that_becomes_full_stops_the_runs_before_their_locks_end_and_they_go_on_when_there_is_room(
    small, cluster, eventually, caplog
):
    margins = []
    job = cluster.endless(items=["a", "b"], on_stop=lambda context: margins.append(context.remaining_s()))
    with latchwork.connect(small.url) as store:
        node = cluster.node(store, "n1", job, session_ttl_s=3.0, lock_ttl_s=3.0)
        eventually(lambda: len(cluster.log.owners()) == 2, 20)
        small.fill()
        eventually(lambda: not cluster.log.owners(), 20)
        assert len(margins) == 2
        assert min(margins) > 0
        assert "the runs are asked to stop" in caplog.text
        assert any(word in caplog.text for word in ("free space on its disk", "compact and defragment"))
        eventually(lambda: caplog.text.count("is full; writes fail until space is freed") == 1, 20)
        assert "has space again" not in caplog.text
        small.free()
        eventually(lambda: len(cluster.log.owners()) == 2, 30)
        eventually(lambda: caplog.text.count("has space again") == 1, 20)  # said after the next write
        eventually(lambda: node.health().ok, 20)
        node.close()
        assert not list_repeated_warnings(caplog)


def list_repeated_warnings(caplog):
    """Return the texts, without their values, of the warnings that were logged more than once."""
    counts = collections.Counter(record.msg for record in caplog.records if record.levelno >= logging.WARNING)
    return {text: count for text, count in counts.items() if count > 1}


def test_an_outage_is_one_warning_per_loop_and_one_message_that_it_is_over(cluster, eventually, caplog):
    caplog.set_level(logging.INFO)
    with EtcdServer("3.5") as server, latchwork.connect(server.url("app", call_timeout_s=1)) as store:
        job = cluster.endless(items=["a", "b"], pool_check_period_s=0.5)
        node = cluster.node(store, "n1", job, session_ttl_s=2.0, lock_ttl_s=2.0)
        eventually(lambda: len(cluster.log.owners()) == 2, 20)
        server.kill()
        store.clock.wait(node._closed, 10.0)
        assert not list_repeated_warnings(caplog)
        assert "node n1 is not registered yet" in caplog.text
        server.start()
        eventually(lambda: len(cluster.log.owners()) == 2, 30)
        eventually(lambda: caplog.text.count("node n1 is registered again") == 1, 20)
        node.close()


@pytest.mark.parametrize(("session_ttl_s", "go_on"), [(6.0, True), (4.0, False)])
def test_runs_go_on_while_an_etcd_is_read_only_if_their_locks_are_renewed_by_the_session(
    cluster, eventually, caplog, session_ttl_s, go_on
):
    with EtcdServer("3.5") as server, Rights(server) as rights:
        url = server.url("app", session_ttl_s=3).replace("etcd://", "etcd://app:app-secret@")
        with latchwork.connect(url) as store:
            margins = []
            job = cluster.endless(items=["a", "b"], on_stop=lambda context: margins.append(context.remaining_s()))
            node = cluster.node(store, "n1", job, session_ttl_s=session_ttl_s, lock_ttl_s=6.0)
            eventually(lambda: len(cluster.log.owners()) == 2, 20)
            rights.grant(pb.Permission.READ)
            if go_on:
                store.clock.wait(node._closed, 12.0)
                assert len(cluster.log.owners()) == 2
                assert not margins
            else:
                eventually(lambda: not cluster.log.owners(), 20)
                assert min(margins) > 0
                assert "grant it read and write on the prefix of the store's root" in caplog.text
                assert "the runs are asked to stop" in caplog.text
            rights.grant(pb.Permission.READWRITE)
            eventually(lambda: len(cluster.log.owners()) == 2, 30)
            eventually(lambda: node.health().ok, 20)
            node.close()


class Rights:
    """What the account ``app`` of a server may do below /app/; at first everything."""

    def __init__(self, server):
        self._channel = grpc.insecure_channel(f"ipv4:{server.endpoint}")
        self._auth = Stub(self._channel, "Auth")
        for user in ("root", "app"):
            self._auth.UserAdd(pb.AuthUserAddRequest(name=user, password=f"{user}-secret"), timeout=5)
            self._auth.RoleAdd(pb.AuthRoleAddRequest(name=user), timeout=5)
            self._auth.UserGrantRole(pb.AuthUserGrantRoleRequest(user=user, role=user), timeout=5)
        self._as_root = ()
        self.grant(pb.Permission.READWRITE)
        self._auth.AuthEnable(pb.AuthEnableRequest(), timeout=5)

    def grant(self, kind):
        """From now on it may do this, and nothing else."""
        with contextlib.suppress(grpc.RpcError):  # not enabled yet
            asked = pb.AuthenticateRequest(name="root", password="root-secret")
            self._as_root = (("token", self._auth.Authenticate(asked, timeout=5).token),)
        perm = pb.Permission(permType=kind, key=b"/app/", range_end=b"/app0")
        request = pb.AuthRoleGrantPermissionRequest(name="app", perm=perm)
        self._auth.RoleGrantPermission(request, timeout=5, metadata=self._as_root)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._channel.close()
