"""Where plays are given: servers that can be hurt, and the players on them.

The victim is a process of its own, whose connections go through a proxy where there is one server; the other player is
in this process, and goes straight to the servers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from queue import Empty, Queue

import grpc
from etcd3 import etcdrpc as pb
from kazoo.client import KazooClient

import latchwork
from etcd_versions import ETCD
from latchwork import errors
from latchwork.errors import OutcomeUnknown, Unavailable
from latchwork_testbed.proxy import Proxy
from latchwork_testbed.servers import EtcdCluster, EtcdServer, ZooKeeperEnsemble, ZooKeeperServer
from trials.primitives.owners import PATIENCE_S
from trials.primitives.players import make

ACTOR = Path(__file__).with_name("actor.py")
SERVERS = ("zookeeper", *ETCD)
BACKENDS = ("sqlite", *SERVERS)
#: Of the player that nothing is meant to happen to, however busy the machine is.
OTHERS_TTL_S = 30.0
_CALL_TIMEOUT_S = 2.0
_TROUBLE = (Unavailable, OutcomeUnknown)


class Scene:
    """The servers of one backend, for any number of plays, one at a time."""

    def __init__(self, backend, members, directory):
        self.backend = backend
        self.members = members
        self.directory = Path(directory)
        self.server = self.proxy = None
        self._open = contextlib.ExitStack()

    def __enter__(self):
        if self.backend != "sqlite":
            self.server = self._open.enter_context(self._launcher())
            if self.members == 1:
                self.proxy = self._open.enter_context(Proxy(self.server.endpoint))
        return self

    def __exit__(self, *_):
        self._open.close()

    def mend(self):
        """Have all servers run and be reached."""
        if self.proxy is not None:
            self.proxy.release()
            self.proxy.accept()
        if self.server is not None and not self.server.running:
            self.server.start()
        if self.members > 1:
            self.server.resume()

    def _launcher(self):
        if self.backend == "zookeeper":
            return ZooKeeperServer() if self.members == 1 else ZooKeeperEnsemble(self.members)
        version = ETCD[self.backend]
        return EtcdServer(version) if self.members == 1 else EtcdCluster(self.members, version=version)

    def url(self, root, ttl_s, *, hurt):
        """Of a root; through the proxy for who is to be hurt."""
        options = {"session_ttl_s": ttl_s, "call_timeout_s": _CALL_TIMEOUT_S}
        if self.server is None:
            query = "&".join(f"{name}={value}" for name, value in options.items())
            return f"sqlite:///{self.directory / root}.db?root=play&{query}"
        url = self.server.url(root, **options)
        return url.replace(self.server.endpoint, self.proxy.endpoint) if hurt and self.proxy is not None else url


class Stage:
    """One play: a victim and another player of one primitive. One thread at a time."""

    def __init__(self, scene, primitive, ttl_s):
        self.scene = scene
        self.primitive = primitive
        self.ttl_s = ttl_s
        self._name = "play"
        self._root = f"play-{uuid.uuid4().hex[:12]}"
        self._open = contextlib.ExitStack()
        self._files = []

    def __enter__(self):
        try:
            url = self.scene.url(self._root, OTHERS_TTL_S, hurt=False)
            self.store = self._open.enter_context(latchwork.connect(url))
            self.other = make(self.primitive, self.store, self._name, "other", self._file(), OTHERS_TTL_S)
            self._open.callback(self.other.close)
            self.other.prepare()
            self.victim = self.another_victim()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_):
        self._open.close()

    def another_victim(self):
        """A process that plays the victim: the first, or the next life of one that was killed."""
        url = self.scene.url(self._root, self.ttl_s, hurt=True)
        self.victim = Remote(url, self.primitive, self._name, "victim", self._file(), self.ttl_s)
        self._open.callback(self.victim.close)
        return self.victim

    def another_player(self):
        """One more player in this process, with a client of its own."""
        store = self._open.enter_context(latchwork.connect(self.scene.url(self._root, OTHERS_TTL_S, hurt=False)))
        player = make(self.primitive, store, self._name, "third", self._file(), OTHERS_TTL_S)
        self._open.callback(player.close)
        return player

    def marks(self, role):
        """What a looping player has left in its files."""
        return b"".join(path.read_bytes() for path in self._files if path.exists() and path.name.startswith(role))

    def _file(self):
        role = "victim" if hasattr(self, "other") else "other"
        path = self.scene.directory / f"{role}-{self._root}-{len(self._files)}"
        self._files.append(path)
        return str(path)


class Remote:
    """A player in a process of its own; its methods are the player's."""

    def __init__(self, *arguments):
        self._process = subprocess.Popen(
            [sys.executable, str(ACTOR), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        self._said = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.is_alive = True
        self._hear()

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments: self._ask(name, arguments)

    def kill(self):
        self.is_alive = False
        self._process.kill()
        self._process.wait()

    def freeze(self):
        os.kill(self._process.pid, signal.SIGSTOP)

    def wake(self):
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self):
        """End it by force: what it leaves behind has to go by itself."""
        self.kill()
        self._reader.join(10.0)
        self._process.stdin.close()
        self._process.stdout.close()

    def _read(self):
        for line in self._process.stdout:
            self._said.put(json.loads(line))

    def _ask(self, name, arguments):
        self._process.stdin.write(json.dumps({"do": name, "with": arguments}) + "\n")
        self._process.stdin.flush()
        said = self._hear()
        if "error" in said:
            raise getattr(errors, said["error"])(said["why"])
        return said["ok"]

    def _hear(self):
        try:
            return self._said.get(timeout=PATIENCE_S)
        except Empty:
            raise AssertionError(f"the victim says nothing; its exit status is {self._process.poll()}") from None


def until(condition, what, timeout_s=PATIENCE_S):
    """Wait until it is true; its value. Trouble with the server is waited out."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            value = condition()
        except _TROUBLE:
            value = None
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(0.02)


def insist(step):
    """Do it, again and again while the server cannot be reached."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return step()
        except _TROUBLE:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def steal_session(stage):
    """End the victim's session from outside, as an operator could."""
    if stage.scene.backend == "zookeeper":
        number, password = stage.victim.secret()
        thief = KazooClient(
            stage.scene.server.endpoint, client_id=(number, bytes.fromhex(password)), timeout=stage.ttl_s
        )
        thief.start(timeout=PATIENCE_S)
        thief.stop()
        thief.close()
        return
    session_id = int(insist(stage.victim.session_id), 16)
    with grpc.insecure_channel(stage.scene.server.endpoint) as channel:
        pb.LeaseStub(channel).LeaseRevoke(pb.LeaseRevokeRequest(ID=session_id), timeout=PATIENCE_S)
