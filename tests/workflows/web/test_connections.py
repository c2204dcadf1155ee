"""Slow, half-open and idle connections: the server closes them, and answers others meanwhile."""

import re
import resource
import socket
import ssl
import subprocess
import sys
import time
from contextlib import ExitStack

import httpx
import pytest
import trustme
from fastapi import FastAPI, Request
from fastapi.responses import Response

from latchwork.errors import LatchworkError
from latchwork_workflows.web import ConnectionLimits, HttpServer, load_tls_context
from patience import eventually

HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
BODY = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nx"
LARGE = b"x" * 20_000_000


def an_app():
    app = FastAPI()
    app.state.site = None

    @app.get("/")
    def get() -> str:
        return "answer"

    @app.post("/")
    async def post(request: Request) -> int:
        return len(await request.body())

    @app.get("/large")
    def large() -> Response:
        return Response(LARGE)

    return app


@pytest.fixture
def serve(request):
    def start(tls=None, **limits):
        made = HttpServer(an_app(), limits=ConnectionLimits(**limits), tls=tls)
        made.start()
        request.addfinalizer(made.close)
        return made

    return start


@pytest.fixture
def connect(request):
    def open_(server, sent=b""):
        made = socket.create_connection((server.host, server.port), timeout=30)
        request.addfinalizer(made.close)
        made.sendall(sent)
        return made

    return open_


def is_closed(connection):
    connection.settimeout(0)
    try:
        return connection.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("sent", [b"", HEAD, BODY], ids=["nothing", "half a head", "half a body"])
def test_connection_whose_request_does_not_come_in_time_is_closed(serve, connect, sent):
    server = serve(head_timeout_s=0.3, body_timeout_s=0.3)
    slow = connect(server, sent)
    eventually(lambda: is_closed(slow))


@pytest.mark.parametrize("sent", [HEAD, BODY], ids=["head", "body"])
def test_bytes_that_trickle_in_do_not_move_the_deadline(serve, connect, sent):
    server = serve(head_timeout_s=0.5, body_timeout_s=0.5)
    slow = connect(server, sent)
    began = time.monotonic()
    while not is_closed(slow):
        assert time.monotonic() - began < 20, "the connection is still open"
        try:
            slow.sendall(b"a")
        except OSError:
            break
        time.sleep(0.05)


def test_second_request_of_a_connection_has_a_deadline_of_its_own(serve, connect):
    server = serve(head_timeout_s=0.3)
    kept = connect(server, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert b"200 OK" in kept.recv(1 << 16)
    kept.sendall(HEAD)
    eventually(lambda: is_closed(kept))


def test_answer_that_takes_long_is_not_cut_off(serve):
    server = serve(head_timeout_s=0.2, body_timeout_s=0.2)

    @server._app.get("/slow")
    def slow() -> str:
        time.sleep(1)
        return "late"

    assert httpx.get(f"{server.url}/slow").json() == "late"


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["http", "https"])
def test_half_open_connections_beyond_the_limit_give_way_to_honest_ones(serve, connect, is_encrypted, certificate):
    server = serve(certificate.tls if is_encrypted else None, max_connections=10)
    held = [connect(server, b"" if is_encrypted else HEAD) for _ in range(40)]
    for _ in range(5):
        assert httpx.get(server.url, verify=certificate.client, timeout=10).json() == "answer"
    eventually(lambda: sum(not is_closed(each) for each in held) <= 10)


def test_connections_that_are_answered_keep_their_place(serve, connect):
    server = serve(max_connections=2)
    released = []

    @server._app.get("/slow")
    def slow() -> str:
        eventually(lambda: released)
        return "kept"

    busy = [connect(server, b"GET /slow HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") for _ in range(2)]
    with pytest.raises(httpx.HTTPError):
        eventually(lambda: httpx.get(server.url, timeout=5) and False)
    released.append(True)
    for each in busy:
        with each.makefile("rb") as answer:
            assert b"200 OK" in answer.readline()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux closes them")
def test_client_that_does_not_read_its_answer_is_cut_off(serve, connect):
    server = serve(unread_timeout_s=0.5, max_connections=1)
    connect(server, b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    eventually(lambda: _answers(server), 60.0)


def _answers(server):
    try:
        return httpx.get(server.url, timeout=5).json() == "answer"
    except httpx.HTTPError:
        return False


# TLS


class Certificate:
    def __init__(self, folder):
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        self.pem, self.key = folder / "cert.pem", folder / "key.pem"
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.pem.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        self.tls = load_tls_context(self.pem, self.key)
        self.client = ssl.create_default_context()
        authority.configure_trust(self.client)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("tls"))


def test_server_with_a_certificate_speaks_https_alone(serve, connect, certificate):
    server = serve(certificate.tls)
    assert server.url.startswith("https://")
    assert httpx.get(server.url, verify=certificate.client).json() == "answer"
    assert httpx.post(server.url, verify=certificate.client, content=b"x" * 100_000).json() == 100_000
    plain = connect(server, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert b"200 OK" not in plain.recv(1 << 16)


def test_old_versions_of_tls_are_refused(serve, certificate):
    server = serve(certificate.tls)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection((server.host, server.port)) as raw, pytest.raises(OSError, match=r".+"):
        old.wrap_socket(raw)


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("missing", "there is no file"),
        ("swapped", "are not a certificate and its key"),
        ("of another", "are not a certificate and its key"),
        ("text", "are not a certificate and its key"),
    ],
)
def test_certificate_that_cannot_be_used_is_one_clear_error(certificate, tmp_path, trouble, message):
    pem, key = certificate.pem, certificate.key
    if trouble == "missing":
        key = tmp_path / "nowhere.pem"
    elif trouble == "swapped":
        pem, key = key, pem
    elif trouble == "of another":
        key = Certificate(tmp_path).key
    else:
        (pem := tmp_path / "text.pem").write_text("no certificate\n")
    with pytest.raises(LatchworkError, match=message):
        load_tls_context(pem, key)


# A whole installation

SERVE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from latchwork.cli.entry import main
sys.argv = ["latchwork", "workflows", "serve", "--port", "0", "--slots", "1", "--home", sys.argv[1]]
main()
"""


def test_serve_runs_workflows_while_more_half_open_connections_come_than_it_may_open_files(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 500, f"this test opens 400 connections, and may open {soft} files of {hard}"
    latchwork = [sys.executable, "-c", "from latchwork.cli.entry import main; main()", "workflows"]
    (tmp_path / "flow.yaml").write_text("name: flow\ntasks: [{name: one, type: shell, params: {script: echo ran}}]\n")
    home = ["--home", str(tmp_path / "home")]
    with ExitStack() as stack:
        out = stack.enter_context((tmp_path / "out").open("w"))
        server = stack.enter_context(subprocess.Popen([sys.executable, "-c", SERVE, home[1]], stdout=out, stderr=out))
        stack.callback(server.terminate)
        eventually(lambda: "one-time sign-in link" in (tmp_path / "out").read_text(), 60.0)
        url = re.search(r"http://[^/\s]+", (tmp_path / "out").read_text())[0]
        port = int(url.rsplit(":", 1)[1])
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)).sendall(HEAD)
        assert httpx.get(f"{url}/healthz", timeout=30).json() == {"ok": True, "database": True}
        subprocess.run([*latchwork, "apply", str(tmp_path / "flow.yaml"), *home], check=True, timeout=60)
        ran = [*latchwork, "start", "flow", "--follow", *home]
        assert "ran" in subprocess.run(ran, check=True, capture_output=True, text=True, timeout=120).stdout
