"""The launchers start real servers, hurt them on request, and leave nothing behind."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trustme
from kazoo.client import KazooClient

from backends_table import BY_NAME, SERVERS
from latchwork_testkit import server as _server
from latchwork_testkit.ports import reserve_port
from latchwork_testkit.servers import (
    EtcdCluster,
    EtcdServer,
    ServerFailed,
    ServerMissing,
    Tls,
    ZooKeeperEnsemble,
    ZooKeeperServer,
)
from patience import came_true


@pytest.fixture(params=SERVERS)
def server(request):
    with BY_NAME[request.param].launch() as started:
        yield started


def etcd_call(endpoint, path, body):
    connection = http.client.HTTPConnection(endpoint, timeout=2)
    try:
        connection.request("POST", path, body=json.dumps(body))
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def write(server, key, text):
    if isinstance(server, EtcdServer):
        etcd_call(server.endpoint, "/v3/kv/put", {"key": encoded(key), "value": encoded(text)})
        return
    client = KazooClient(server.endpoint)
    client.start(timeout=5)
    try:
        client.create(f"/{key}", text.encode())
    finally:
        client.stop()
        client.close()


def read(server, key):
    if isinstance(server, EtcdServer):
        answer = etcd_call(server.endpoint, "/v3/kv/range", {"key": encoded(key)})
        return base64.b64decode(answer["kvs"][0]["value"]).decode()
    client = KazooClient(server.endpoint)
    client.start(timeout=5)
    try:
        return client.get(f"/{key}")[0].decode()
    finally:
        client.stop()
        client.close()


def answers(server, timeout_s=0.5):
    host, _, port = server.endpoint.partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
            connection.sendall(b"srvr" if isinstance(server, ZooKeeperServer) else b"GET /version HTTP/1.0\r\n\r\n")
            return bool(connection.recv(1))
    except OSError:
        return False


def gone_within(pid, timeout_s):
    return came_true(lambda: not is_there(pid), timeout_s)


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_data_and_port_survive_kill_and_restart(server):
    endpoint, pid = server.endpoint, server.pid
    write(server, "kept", "before the kill")
    server.kill()
    assert not server.running
    assert not answers(server)
    assert gone_within(pid, 0.1)
    server.start()
    assert server.endpoint == endpoint
    assert read(server, "kept") == "before the kill"
    server.restart()
    assert server.endpoint == endpoint
    assert read(server, "kept") == "before the kill"


def test_paused_server_is_silent_until_it_resumes(server):
    assert answers(server)
    server.pause()
    assert server.running
    assert not answers(server)
    server.resume()
    assert answers(server, timeout_s=5)


def test_paused_server_can_be_stopped(server):
    pid = server.pid
    server.pause()
    server.stop(timeout_s=5)
    assert gone_within(pid, 0.1)


def test_starting_twice_is_refused_and_harmless(server):
    pid = server.pid
    with pytest.raises(ServerFailed, match="is already running; stop it"):
        server.start()
    assert server.pid == pid
    assert answers(server)


@pytest.mark.parametrize("kind", SERVERS)
def test_close_leaves_no_process_and_no_data(kind):
    server = BY_NAME[kind].launch()
    server.start()
    pid, data_dir = server.pid, server.data_dir
    server.close()
    server.close()
    assert gone_within(pid, 0.1)
    assert not data_dir.exists()
    with pytest.raises(ServerFailed, match="is not running; start it"):
        server.pause()


def test_given_data_directory_is_kept(tmp_path):
    with EtcdServer("3.5", data_dir=tmp_path / "data") as server:
        write(server, "kept", "for the next one")
    with EtcdServer("3.5", data_dir=tmp_path / "data") as server:
        assert read(server, "kept") == "for the next one"


def test_server_outlives_the_thread_that_started_it():
    server = EtcdServer("3.5")
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        assert not gone_within(server.pid, 0.3)
        assert answers(server)
    finally:
        server.close()


CHILD = """
import sys
from latchwork_testkit.servers import EtcdServer, ZooKeeperServer
server = ZooKeeperServer() if sys.argv[1] == "zookeeper" else EtcdServer(sys.argv[1])
server.start()
print(server.pid, server.data_dir, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["3.4", "zookeeper"])
def test_server_and_its_data_go_when_the_parent_is_killed(kind):
    parent = subprocess.Popen(
        [sys.executable, "-c", CHILD, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        pid, data_dir = parent.stdout.readline().split()
        assert not gone_within(int(pid), 0.1)
        parent.kill()
    assert gone_within(int(pid), 5)
    assert came_true(lambda: not Path(data_dir).exists(), 5)


def test_data_of_a_server_that_was_never_closed_go_with_the_parent():
    code = CHILD.replace("sys.stdin.read()", "server.kill()")
    output = subprocess.run([sys.executable, "-c", code, "3.5"], capture_output=True, text=True, check=True).stdout
    pid, data_dir = output.split()
    assert gone_within(int(pid), 0.1)
    assert not Path(data_dir).exists()


def test_server_goes_when_its_supervisor_is_killed(server):
    pid = server.pid
    stat = Path(f"/proc/{pid}/stat").read_text()
    supervisor_pid = int(stat.rpartition(")")[2].split()[1])
    assert supervisor_pid != os.getpid()
    os.kill(supervisor_pid, signal.SIGKILL)
    assert gone_within(pid, 5)
    assert not server.running


def test_ctrl_c_in_a_terminal_reaches_no_server(server):
    assert os.getsid(server.pid) != os.getsid(0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_three_members_elect_a_leader_and_another_when_it_is_killed(kind):
    with BY_NAME[kind].launch(3) as group:
        assert len(set(group.endpoint.split(","))) == 3
        first = group.leader()
        assert sum(member.is_leader() for member in group.members) == 1
        first.kill()
        second = group.leader(timeout_s=20)
        assert second is not first
        write(second, "kept", "by two of three")
        assert not group.running
        group.start()
        assert group.running
        assert group.leader() is second
        assert read(first, "kept") == "by two of three"


def test_group_without_majority_has_no_leader():
    with EtcdCluster(3) as cluster:
        for member in cluster.followers():
            member.kill()
        survivor = next(member for member in cluster.members if member.running)
        came_true(lambda: not survivor.is_leader(), 10)
        with pytest.raises(ServerFailed, match="a majority must be running"):
            cluster.leader(timeout_s=0.5)


def test_url_names_the_endpoint_the_root_and_the_options():
    server = EtcdServer("3.5")
    assert server.url() == f"etcd://{server.endpoint}/latchwork"
    assert server.url("/a/b", session_ttl_s=2) == f"etcd://{server.endpoint}/a/b?session_ttl_s=2"
    server.close()
    ensemble = ZooKeeperEnsemble(2)
    assert ensemble.url("x") == f"zk://{ensemble.members[0].endpoint},{ensemble.members[1].endpoint}/x"
    ensemble.close()


def test_failed_start_shows_the_end_of_the_log_and_leaves_no_process():
    server = EtcdServer("3.5", extra_args=["--no-such-flag"])
    with pytest.raises(ServerFailed, match=r"etcd 3\.5 on port \d+ ended with status \d+ before") as failure:
        server.start()
    assert "flag provided but not defined: -no-such-flag" in str(failure.value)
    assert not server.running
    server.close()


def test_start_that_takes_too_long_is_given_up():
    server = ZooKeeperServer()
    with pytest.raises(ServerFailed, match="did not answer in time"):
        server.start(timeout_s=0)
    assert not server.running
    server.close()


@pytest.mark.parametrize("kind", SERVERS)
def test_port_taken_by_a_stranger_is_replaced_on_first_start(kind, monkeypatch):
    with socket.socket() as stranger:
        while True:
            taken = reserve_port()
            try:
                stranger.bind(("127.0.0.1", taken.port))
                break
            except OSError:  # somebody who reserves nothing was faster
                taken.release()
        stranger.listen()
        offers = [taken]
        monkeypatch.setattr(_server, "reserve_port", lambda: offers.pop() if offers else reserve_port())
        with BY_NAME[kind].launch() as server:
            assert not offers
            assert not server.endpoint.endswith(f":{taken.port}")
            assert answers(server)


def test_two_processes_never_reserve_the_same_port():
    code = (
        "from latchwork_testkit.ports import reserve_port; ports = [reserve_port() for _ in range(300)]; "
        "print(*(p.port for p in ports), flush=True); input()"
    )
    command = [sys.executable, "-c", code]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    ports = [port for child in children for port in child.stdout.readline().split()]
    for child in children:
        child.communicate("\n")
    assert len(ports) == 600
    assert len(set(ports)) == 600


def test_reserved_port_is_offered_again_after_release():
    held = [reserve_port() for _ in range(50)]
    assert len({reservation.port for reservation in held}) == 50
    for reservation in held:
        reservation.release()
        reservation.release()


def test_etcd_settings_of_the_surroundings_do_not_matter(monkeypatch):
    monkeypatch.setenv("ETCD_NAME", "another")
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://127.0.0.1:1")
    with EtcdServer("3.5") as server:
        assert answers(server)


def test_etcd_serves_tls_with_the_given_certificate(tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    certificate.cert_chain_pems[0].write_to_path(files["cert"])
    certificate.private_key_pem.write_to_path(files["key"])
    with EtcdServer("3.5", tls=Tls(files["ca"], files["cert"], files["key"])) as server:
        context = ssl.create_default_context(cafile=files["ca"])
        connection = http.client.HTTPSConnection(server.endpoint, context=context, timeout=5)
        connection.request("GET", "/version")
        assert json.loads(connection.getresponse().read())["etcdserver"].startswith("3.5.")
        connection.close()
        assert server.url("/x").endswith("ca.pem")


def test_each_etcd_runs_the_version_asked_for():
    for version in ("3.4", "3.5"):
        with EtcdServer(version) as server:
            connection = http.client.HTTPConnection(server.endpoint, timeout=5)
            connection.request("GET", "/version")
            assert json.loads(connection.getresponse().read())["etcdserver"].startswith(version + ".")
            connection.close()


def test_missing_etcd_names_the_package_and_the_variable(monkeypatch):
    monkeypatch.setenv("LATCHWORK_ETCD34", "/nowhere/etcd")
    with pytest.raises(ServerMissing, match=r"etcd 3\.4 is not installed .*etcd-server.*LATCHWORK_ETCD34"):
        EtcdServer("3.4").start()


def test_etcd_of_another_version_is_not_taken_for_the_one_asked_for(monkeypatch):
    with EtcdServer("3.5") as server:
        other = str(Path(f"/proc/{server.pid}/exe").readlink())
    monkeypatch.setenv("LATCHWORK_ETCD34", other)
    with pytest.raises(ServerMissing, match=r"is 3\.5\."):
        EtcdServer("3.4").start()


def test_missing_java_and_zookeeper_name_the_packages(monkeypatch, tmp_path):
    monkeypatch.setattr("latchwork_testkit.binaries._DEBIAN_JARS", (str(tmp_path / "zookeeper.jar"),))
    with pytest.raises(ServerMissing, match="libzookeeper-java"):
        ZooKeeperServer().start()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerMissing, match="default-jre-headless"):
        ZooKeeperServer().start()


def test_unknown_etcd_version_is_refused():
    with pytest.raises(ValueError, match=r"'2\.3' has no launcher; use one of 3\.4, 3\.5"):
        EtcdServer("2.3").start()
