"""Live streams in trouble: readers who may read no more, too many of them, slow looks, logs that cannot be read."""

import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request
import uuid
from contextlib import ExitStack

import pytest

from latchwork_workflows.app import make_web_app
from latchwork_workflows.state import Claimed
from latchwork_workflows.web import HttpServer, Role, live
from patience import eventually
from workflows.web.seeds import HALF


@pytest.fixture(scope="module")
def server(seeds):
    found = HttpServer(make_web_app(seeds.database, logs=seeds.logs))
    found.start()
    yield found
    found.close()


@pytest.fixture
def hub(server):
    found = server._app.state.site.live
    eventually(lambda: found.listeners == 0)
    yield found
    eventually(lambda: found.listeners == 0, 60.0, "all streams to end with their clients")


class Stream:
    """What a stream has sent, read by a thread."""

    def __init__(self, server, path, headers):
        request = urllib.request.Request(server.url + path, headers=headers)
        self.response = urllib.request.urlopen(request, timeout=30)
        self.seen = []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Go away, as a browser does whose page is left."""
        self.response.fp.raw._sock.shutdown(socket.SHUT_RDWR)
        self.thread.join(30)

    def _read(self):
        try:
            for line in self.response:
                self.seen.append(line.decode().rstrip("\n"))
        except (OSError, ValueError, http.client.HTTPException):
            pass

    @property
    def is_over(self):
        return not self.thread.is_alive()

    @property
    def text(self):
        return "".join(json.loads(each[6:]).get("text", "") for each in self.seen if each.startswith("data: {"))


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def a_log(seeds):
    """The stream of a log that is being written, and its file."""
    number = seeds.run([(0.1, [Claimed("extract-orders", 1)])])
    (task, _), file = next(reversed(seeds.files.items()))
    with seeds.database.read() as connection:
        claim = connection.exec_driver_sql(f"SELECT claim FROM attempt WHERE task = {task}").scalar()
    return number, f"/api/v1/attempts/{task}.1.{claim}/log/stream", file


@pytest.fixture
def reader(seeds):
    """Somebody who may see one project, with a token and a browser."""
    name = f"reader-{uuid.uuid4().hex[:8]}"
    seeds.accounts.create_account(name, None, by="test")
    seeds.accounts.set_role(name, "default", Role.VIEWER, by="test")
    number, token = seeds.accounts.create_token(name, "t", by="test")
    cookie = seeds.accounts.sign_in_by_link(seeds.accounts.create_sign_in_link(name, by="test")).cookie
    return name, number, bearer(token), {"Cookie": f"latchwork={cookie}"}, cookie


ENDS = {
    "its token is revoked": lambda accounts, reader: accounts.revoke_token(reader[1], by="test"),
    "its session is ended": lambda accounts, reader: accounts.sign_out(reader[4]),
    "its account is switched off": lambda accounts, reader: accounts.set_enabled(reader[0], False, by="test"),
    "its role is taken away": lambda accounts, reader: accounts.set_role(reader[0], "default", None, by="test"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_log_that_is_followed_shows_nothing_more_soon_after(server, seeds, hub, reader, end, monkeypatch):
    monkeypatch.setattr(live, "_ASK_S", 0.2)
    _, path, file = a_log(seeds)
    stream = Stream(server, path, reader[3] if "session" in end else reader[2])
    eventually(lambda: "read 1,200 rows" in stream.text)
    file.append(b"may be seen\n")
    eventually(lambda: stream.text.endswith("may be seen\n"))
    ENDS[end](seeds.accounts, reader)
    time.sleep(0.3)
    file.append(b"nobody's business\n")
    eventually(lambda: stream.is_over)
    assert "nobody's business" not in stream.text
    assert hub.listeners == 0


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("topic", ["all", "run"])
def test_changes_are_told_no_more_soon_after(server, seeds, hub, reader, end, topic, monkeypatch):
    if topic == "all" and "role" in end:
        return  # what changes is told without saying what, to anybody who is in
    for name, value in {"_ASK_S": 0.2, "_PING_S": 0.2}.items():
        monkeypatch.setattr(live, name, value)
    number = seeds.run(HALF)
    path = f"/api/v1/events?topic={'all' if topic == 'all' else f'run:{number}'}"
    stream = Stream(server, path, reader[3] if "session" in end else reader[2])
    eventually(lambda: ": ping" in stream.seen)
    assert not stream.is_over
    ENDS[end](seeds.accounts, reader)
    eventually(lambda: stream.is_over)


def test_one_stream_too_many_is_refused_with_when_to_come_back(server, seeds, hub, monkeypatch):
    monkeypatch.setattr(hub, "_max_listeners", 2)
    _, path, _ = a_log(seeds)
    admin = bearer(seeds.tokens["admin"])
    with ExitStack() as stack:
        for each in ("/api/v1/events", path):
            stack.enter_context(Stream(server, each, admin))
        for each in ("/api/v1/events", path):
            with pytest.raises(urllib.error.HTTPError) as refused:
                Stream(server, each, admin)
            assert (refused.value.code, refused.value.headers["Retry-After"]) == (503, "60")
            assert "too many live pages are open on this server" in json.load(refused.value)["detail"]
        assert hub.listeners == 2


def test_one_account_cannot_take_the_streams_of_others(server, seeds, hub, reader, monkeypatch):
    monkeypatch.setattr(live, "_MAX_OF_ONE", 2)
    admin = bearer(seeds.tokens["admin"])
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(Stream(server, "/api/v1/events", admin))
        with pytest.raises(urllib.error.HTTPError) as refused:
            Stream(server, "/api/v1/events", admin)
        assert (refused.value.code, refused.value.headers["Retry-After"]) == (429, "60")
        assert "your account has 2 live pages open" in json.load(refused.value)["detail"]
        stack.enter_context(Stream(server, "/api/v1/events", reader[2]))
        assert hub.listeners == 3


def test_a_look_for_streams_that_hangs_holds_up_no_page(server, seeds, hub, monkeypatch):
    go, asked = threading.Event(), threading.Event()

    def hang(topics):
        asked.set()
        go.wait(60)
        return dict.fromkeys(topics, 0)

    monkeypatch.setattr(hub, "_look", hang)
    monkeypatch.setattr(live, "_MAX_OF_ONE", 100)
    admin = bearer(seeds.tokens["admin"])
    with ExitStack() as stack:
        stack.callback(go.set)
        for _ in range(60):  # more than there are threads for pages
            stack.enter_context(Stream(server, "/api/v1/events?topic=all", admin))
        assert asked.wait(30)
        time.sleep(1.0)
        begun = time.monotonic()
        request = urllib.request.Request(f"{server.url}/", headers={**admin, "Accept": "text/html"})
        assert urllib.request.urlopen(request, timeout=30).status == 200
        assert time.monotonic() - begun < 10


def test_a_log_that_cannot_be_read_for_a_while_is_followed_on(server, seeds, hub, monkeypatch, caplog):
    _, path, file = a_log(seeds)
    stream = Stream(server, path, bearer(seeds.tokens["admin"]))
    eventually(lambda: "read 1,200 rows" in stream.text)
    with monkeypatch.context() as trouble:
        refusals = []

        def refuse(*_):
            refusals.append(1)
            raise OSError(5, "Input/output error")

        trouble.setattr(type(seeds.logs), "read", refuse)
        file.append(b"meanwhile\n")
        eventually(lambda: len(refusals) > 1)
    eventually(lambda: stream.text.endswith("meanwhile\n"))
    file.end()
    eventually(lambda: stream.is_over)
    assert "event: end" in stream.seen
    assert not caplog.records


def test_who_sends_too_much_is_told_so_and_not_cut_off(server, seeds):
    """The line was closed while it sent: it saw a connection that was reset, and no reason."""
    for size, code in ((6_000_000, 413), (40_000_000, 413)):
        request = urllib.request.Request(
            f"{server.url}/api/v1/workflows:validate",
            b" " * size,
            {**bearer(seeds.tokens["admin"]), "Content-Type": "application/json"},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        assert refused.value.code == code
        assert "larger than 5,000,000 bytes" in json.load(refused.value)["detail"]
