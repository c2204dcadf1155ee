"""The how-tos of web frameworks and task queues, with the real ones: their servers are started as the pages say.

A block ``console serves`` has a command that goes on running: here it runs on a free port, in the folder of its page.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import latchwork
from latchwork.primitives import Lock
from latchwork_testkit.servers import EtcdServer
from patience import came_true
from test_docs import BLOCKS, REPOSITORY, environment, run_block

HOW_TO = REPOSITORY / "docs" / "how-to"
WAIT_S = 30.0


class Site:
    """The files of a page, and its commands that serve."""

    def __init__(self, page, folder, url, **settings):
        self.folder = folder
        self.url = url
        self.port = None
        self._environment = {
            **environment(),
            "LATCHWORK_URL": url,
            "PYTHONWARNINGS": "error::RuntimeWarning",
            **settings,
        }
        self._blocks = BLOCKS[HOW_TO / page]
        for block in self._blocks:
            if block.how.startswith("file="):
                run_block(block, folder)
        self.log = folder / "served.log"

    def command(self, number=0):
        """A command of the page that serves, on a free port."""
        (command,) = [block for block in self._blocks if block.how == "serves"][number].commands
        self.port = free_port()
        return shlex.split(re.sub(r"\b8000\b", str(self.port), command))

    @contextmanager
    def serving(self, number=0, *, says=None):
        """While the command runs; it ends by SIGTERM, and well."""
        words = self.command(number)
        with self.log.open("wb") as log:
            server = subprocess.Popen(words, cwd=self.folder, env=self._environment, stdout=log, stderr=log)
        try:
            assert came_true(lambda: server.poll() is not None or self._is_up(says), WAIT_S), self.log.read_text()
            assert server.poll() is None, self.log.read_text()
            yield server
            server.send_signal(signal.SIGTERM)
            server.wait(WAIT_S)
            assert server.returncode in {0, -signal.SIGTERM}, self.log.read_text()
        finally:
            if server.poll() is None:
                server.kill()
                server.wait()

    def run(self, *command):
        """A command that ends: what it printed."""
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, path, method="GET"):
        """Status and body of an answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def _is_up(self, says):
        if says is not None:
            return says in self.log.read_text(errors="replace")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def in_parallel(call, count):
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(call) for _ in range(count)]]


@pytest.fixture
def file_url(tmp_path):
    return f"sqlite:///{tmp_path}/coordination.db"


@pytest.fixture
def url(etcd35, request):
    return etcd35.url(f"frameworks-{os.getpid()}-{abs(hash(request.node.name))}")


def test_requests_of_fastapi_take_turns_and_say_what_keeps_them(url, tmp_path):
    site = Site("use-with-fastapi.md", tmp_path, url)
    with site.serving(), latchwork.connect(url) as store:
        assert site.ask("/ready")[0] == 200
        answers = in_parallel(lambda: site.ask("/accounts/ada/deposits?amount=1", "POST"), 12)
        assert sorted(int(body) for _, body in answers) == list(range(1, 13)), "no deposit is lost"
        with Lock(store, "accounts/ada/lock", label="an audit"):
            status, body = site.ask("/accounts/ada/deposits?amount=1", "POST")
        assert (status, "an audit" in body) == (503, True)
        assert site.ask("/accounts/a%20b/deposits?amount=1", "POST")[0] == 422
        assert store.children("accounts/ada/lock") == [], "nothing is left behind"
        with store.mirror("accounts") as accounts:
            assert accounts["accounts/ada/balance"].value == b"12"


def test_fastapi_is_not_ready_while_its_session_cannot_be_renewed_and_lives(tmp_path):
    with EtcdServer() as server:
        site = Site("use-with-fastapi.md", tmp_path, server.url("app") + "?session_ttl_s=5&call_timeout_s=2")
        with site.serving():
            assert site.ask("/ready") == (200, '"yes"')
            server.stop()
            assert came_true(lambda: site.ask("/ready")[0] == 503, WAIT_S)
            assert site.ask("/live") == (200, '"yes"')
            server.start()
            assert came_true(lambda: site.ask("/ready")[0] == 200, WAIT_S)


@pytest.mark.parametrize("number", [0, 1], ids=["without preload", "preloaded"])
def test_workers_of_gunicorn_have_a_store_each(number, url, tmp_path):
    site = Site("use-with-gunicorn.md", tmp_path, url)
    if number == 0:
        (tmp_path / "gunicorn.conf.py").unlink()
    with site.serving(number):
        answers = in_parallel(lambda: site.ask("/"), 8) + in_parallel(lambda: site.ask("/"), 8)
        assert sorted(int(body) for status, body in answers if status == 200) == list(range(1, 17)), answers


def test_a_preloaded_application_that_connects_at_first_use_needs_no_hook(url, tmp_path):
    site = Site("use-with-gunicorn.md", tmp_path, url)
    (tmp_path / "gunicorn.conf.py").write_text("")
    text = (tmp_path / "shop.py").read_text()
    text = text.replace("store = latchwork.connect()", "import lazily\nlazily.store().get('parent')").replace(
        "def app(environ, start_response):\n", "def app(environ, start_response):\n    store = lazily.store()\n"
    )
    (tmp_path / "shop.py").write_text(text)
    with site.serving(1):
        answers = in_parallel(lambda: site.ask("/"), 6)
        assert sorted(int(body) for _, body in answers) == list(range(1, 7))


def test_tasks_of_celery_about_one_shop_take_turns_in_processes_with_stores_of_their_own(file_url, tmp_path):
    site = Site("use-with-celery.md", tmp_path, file_url, BROKER_URL="filesystem://")
    folders = dict.fromkeys(("data_folder_in", "data_folder_out", "control_folder"), str(tmp_path / "broker"))
    (tmp_path / "broker").mkdir()
    with (tmp_path / "shop.py").open("a") as page:
        page.write(f"\n\napp.conf.broker_transport_options = {folders!r}\n")
    send = "import shop\nfor number in range(8): shop.restock.delay(['oslo', 'lima'][number % 2], 5)"
    site.run(sys.executable, "-c", send)
    with latchwork.connect(file_url) as store, store.mirror("shops") as shops, site.serving(says="ready."):
        shops.wait_until(lambda now: {e.value for k, e in now.items() if k.endswith("/stock")} == {b"20"}, 60)
        assert sum("/done/" in key for key in shops) == 8


def test_a_command_of_django_runs_once_although_two_machines_start_it(file_url, tmp_path):
    site = django(tmp_path, file_url)
    nightly = (sys.executable, "manage.py", "nightly", "2026-11-22")
    with latchwork.connect(file_url) as store, Lock(store, "locks/nightly", label="another machine"):
        assert "not this time: lock" in (said := site.run(*nightly))
        assert "another machine" in said
    assert site.run(*nightly) == "closed 2026-11-22\n"
    assert site.run(*nightly) == "2026-11-22 is closed already\n"


def test_a_view_of_django_does_once_what_two_requests_ask_for(file_url, tmp_path):
    site = django(tmp_path, file_url)
    with site.serving():
        answers = in_parallel(lambda: site.ask("/pay/7"), 5)
        assert sorted(status for status, _ in answers) == [200, 409, 409, 409, 409], answers
        assert json.loads(site.ask("/pay/8")[1]) == {"paid": 8, "payments": 2}
        assert site.ask("/ready") == (200, "active")


def django(folder, url):
    command = folder / "shop" / "management" / "commands"
    command.mkdir(parents=True)
    for package in (command, command.parent, command.parent.parent):
        (package / "__init__.py").touch()
    return Site("use-with-django.md", folder, url)
