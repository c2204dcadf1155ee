"""A password shows nowhere: not in what is printed, logged or raised, whatever goes wrong."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import traceback
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

import latchwork
from backends_table import BY_NAME, ETCD
from latchwork import LatchworkError
from latchwork.backends.url import parse_url
from latchwork_testkit.servers import ZooKeeperServer
from levels import LONG
from security.accounts import Accounts, sasl_server

#: With everything that has a meaning in a URL, and in what wraps URLs; no part of it may show either.
CANARY = "kanarien/vogel?zwitsch@9f3a#trill&piep=x%41:tiri +"
PARTS = ("kanarien", "vogel", "zwitsch", "9f3a", "trill", "piep", "tiri")

#: Passwords that somebody did not percent-encode, and whose rest looks like something else.
UNESCAPED = (
    "my?kanarien==", "a?vogel&vogel", "p@ss/kanarien", "p@ss?kanarien", "1/kanarien", "1?vogel=1", "x#vogel",
)  # fmt: skip


@pytest.fixture(scope="module", params=[*ETCD, "zookeeper-sasl", *(["zookeeper"] if LONG else [])])
def server(request, tmp_path_factory):
    if request.param == "zookeeper":
        with ZooKeeperServer() as started:
            yield started
        return
    if request.param == "zookeeper-sasl":
        with sasl_server(tmp_path_factory.mktemp("jaas"), app=CANARY) as started:
            started.options = {"sasl": "digest-md5"}
            yield started
        return
    with BY_NAME[request.param].launch() as started, closing(Accounts(started, CANARY)):
        yield started


@pytest.fixture
def logged():
    """All that any logger says, of any level, with its traceback."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    handler.setLevel(1)
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    levels = [logger.level for logger in loggers]
    logging.getLogger().addHandler(handler)
    for logger in loggers:
        logger.setLevel(1)
    yield stream
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    logging.getLogger().removeHandler(handler)


def url(server, root="app", password=CANARY, **options):
    options = {"connect_timeout_s": 5, "call_timeout_s": 3, **getattr(server, "options", {}), **options}
    return server.url(root, **options).replace("://", f"://app:{quote(password, safe='')}@")


def leaked(text):
    """Which parts of the password a text shows."""
    return [part for part in PARTS if part in text]


def shown(*things):
    """All that a person could be shown of some objects; errors with their whole chain."""
    parts = []
    for each in things:
        parts += [repr(each), str(each)]
        if isinstance(each, BaseException):
            parts += traceback.format_exception(each)
    return "\n".join(parts)


def failure(act):
    """The latchwork error of something that must fail."""
    with pytest.raises(LatchworkError) as caught:
        act()
    return caught.value


def test_no_repr_error_or_log_has_the_password_while_servers_come_and_go(server, logged, capfd):
    seen = []
    with latchwork.connect(url(server), session_ttl_s=3.0) as store:
        session, mirror = store.session, store.mirror("")
        watch = store.watch("")
        store.put("k", b"v")
        seen += [store, session, mirror, watch, store.namespace("x"), store.pipeline(), parse_url(url(server))]
        server.kill()
        seen += [failure(lambda: store.put("k", b"w")), failure(lambda: store.get("k"))]
        seen += [store, session, mirror, watch]
        server.restart()
        store.put("k", b"w")
        watch.close()
    seen += [store, session, mirror, watch, failure(lambda: store.get("k"))]
    assert not leaked(shown(*seen))
    assert "app" in shown(parse_url(url(server)))
    assert "latchwork" in logged.getvalue()
    assert not leaked(logged.getvalue() + "".join(capfd.readouterr()))


def test_no_refusal_to_connect_has_the_password(server, logged, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(CANARY + "\n")
    bad = [
        url(server, option="1"),
        url(server, connect_timeout_s="soon"),
        url(server, tls_ca="/nowhere.pem"),
        url(server, password_file=secret),
        url(server, root="a//b"),
        url(server, connect_timeout_s=0.5).replace(server.endpoint, "127.0.0.1:1", 1),
        url(server).replace(server.endpoint, "127.0.0.1:port", 1),
        url(server).replace("@", "", 1),
        url(server) + "#part",
        *(url(server).replace(quote(CANARY, safe=""), each) for each in (CANARY, *UNESCAPED)),
    ]
    errors = [failure(lambda each=each: latchwork.connect(each)) for each in bad]
    for wrong in (quote(CANARY + "-wrong", safe=""), "1,piep:x"):  # ZooKeeper accepts any password
        try:
            latchwork.connect(url(server, connect_timeout_s=1.5).replace(quote(CANARY, safe=""), wrong, 1)).close()
        except LatchworkError as error:
            errors.append(error)
    assert not leaked(shown(*errors))
    assert not leaked(logged.getvalue())


@pytest.mark.slow
def test_no_command_prints_the_password(server, tmp_path):
    program = Path(sys.executable).with_name("latchwork")
    environment = {**os.environ, "LATCHWORK_URL": url(server), "COLUMNS": "200"}
    for command in (["status", "--json"], ["tree", "--values"], ["why", "job", "item", "--debug"])[: 3 if LONG else 2]:
        ran = subprocess.run(
            [program, *command], env=environment, cwd=tmp_path, capture_output=True, timeout=60, check=False
        )
        assert not leaked((ran.stdout + ran.stderr).decode()), command
        assert ran.stdout + ran.stderr, command
    talkative = {**environment, "GRPC_VERBOSITY": "debug", "GRPC_TRACE": "http,call_error"}
    ran = subprocess.run([program, "status", "--debug"], env=talkative, capture_output=True, timeout=60, check=False)
    assert not leaked((ran.stdout + ran.stderr).decode())
    assert (b"chttp2" in ran.stderr) == server.url().startswith("etcd"), "gRPC writes to file descriptor 2 by itself"
    ran = subprocess.run([program, "status", "--url", url(server)], capture_output=True, timeout=60, check=False)
    assert not leaked((ran.stdout + ran.stderr).decode())
    assert b"LATCHWORK_URL" in ran.stderr
    assert b"password_file=" in ran.stderr
