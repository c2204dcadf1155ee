"""Certificates of a cluster: each member has one of its own, which must name the host of its URL."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import latchwork
from backends.etcd.authority import Authority
from latchwork.errors import ConnectFailed
from latchwork_testkit.servers import EtcdCluster, Tls

CALL_TIMEOUT_S = 10.0
NAMES = {"localhost": "DNS:localhost", "127.0.0.1": "IP:127.0.0.1"}


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A certificate for each name, signed by one authority."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder)
    for name, subject in NAMES.items():
        authority.sign(name, f"subjectAltName={subject}")
    return {name: Tls(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key") for name in NAMES}


@pytest.fixture
def cluster(tls):
    """Three members with certificates for localhost, 127.0.0.1 and localhost."""
    with EtcdCluster(3, tls=[tls[name] for name in ("localhost", "127.0.0.1", "localhost")]) as started:
        yield started


def host(member, name):
    return f"{name}:{member.endpoint.rpartition(':')[2]}"


def url(tls, *hosts):
    return f"etcd://{','.join(hosts)}/app?tls_ca={tls['localhost'].ca_file}"


def put_in_time(store, value):
    """Put until the answer is known; each call ends by its deadline."""
    for _ in range(3):
        before = time.monotonic()
        try:
            store.put("k", value)
        except latchwork.OutcomeUnknown:
            continue
        finally:
            assert time.monotonic() < before + CALL_TIMEOUT_S + 1.0
        return
    raise AssertionError("no put has an answer")


def test_each_member_is_used_when_others_with_other_names_are_gone(tls, cluster):
    first, second, third = cluster.members
    hosts = [host(first, "localhost"), host(second, "127.0.0.1"), host(third, "localhost")]
    with latchwork.connect(url(tls, *hosts), session_ttl_s=60, call_timeout_s=CALL_TIMEOUT_S) as store:
        store.put("k", b"0")
        session = store.session
        with store.mirror("") as seen:
            for number, gone in enumerate((first, second), start=1):
                gone.kill()
                put_in_time(store, b"%d" % number)
                seen.wait_until(lambda state, value=b"%d" % number: state["k"].value == value, 20)
                gone.start()
            assert store.session is session
    for rotated in (hosts[1:] + hosts[:1], hosts[2:] + hosts[:2]):
        with latchwork.connect(url(tls, *rotated)) as store:
            assert store.get("k").value == b"2"


def test_a_certificate_that_names_only_another_host_of_the_url_is_refused(tls, cluster):
    first, second, _ = cluster.members
    wrong = host(second, "localhost")
    with pytest.raises(ConnectFailed, match="TLS"):
        latchwork.connect(url(tls, wrong), connect_timeout_s=2)
    with pytest.raises(ConnectFailed, match="TLS"):
        latchwork.connect(url(tls, "127.0.0.1:1", wrong), connect_timeout_s=2)  # no server is at the first
    with latchwork.connect(url(tls, wrong, host(first, "localhost"))) as store:
        assert store.get("k") is None


def test_the_connection_uses_the_same_contents_of_the_files_as_the_choice_of_a_shared_one(
    tls, cluster, tmp_path, monkeypatch
):
    ca = tmp_path / "ca.pem"
    ca.write_bytes(Path(tls["localhost"].ca_file).read_bytes())
    read_bytes = Path.read_bytes

    def replaced_after_reading(path):
        contents = read_bytes(path)
        if path == ca:
            ca.write_bytes(b"another authority")
        return contents

    monkeypatch.setattr(Path, "read_bytes", replaced_after_reading)
    with latchwork.connect(f"etcd://{host(cluster.members[0], 'localhost')}/app?tls_ca={ca}") as store:
        store.put("k", b"1")
