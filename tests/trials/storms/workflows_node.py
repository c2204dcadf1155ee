"""A master, or a worker, of workflows in a process of its own, which others kill, freeze and cut off."""

from __future__ import annotations

import faulthandler
import logging
import signal
import threading

import latchwork
from latchwork_workflows.db import Database
from latchwork_workflows.logs import open_logs
from latchwork_workflows.master import Master
from latchwork_workflows.worker import Secrets, Worker, WorkerOptions

#: Seconds after which others have what a dead one had.
LOCK_TTL_S = 4.0
SESSION_TTL_S = 5.0
SLOTS = 3


def master(wire, database_url, store_url, folder, node):
    """Advance runs until told to end, or killed."""
    _log()
    told = _told()
    database = Database(database_url)
    with latchwork.connect(store_url) as store:
        made = Master(database, store, node_id=node, lock_ttl_s=LOCK_TTL_S, poll_s=2.0, logs=open_logs(folder / "logs"))
        with made:
            wire.report({"ready": node})
            told.wait()
    database.close()


def worker(wire, store_url, folder, node):
    """Run tasks until told to end, or killed."""
    _log()
    options = WorkerOptions(
        slots=SLOTS, session_ttl_s=SESSION_TTL_S, stop_grace_s=1.0, drain_s=3.0, work_dir=folder / "work"
    )
    logs, secrets = open_logs(folder / "logs"), Secrets(environ={}, providers=())
    with latchwork.connect(store_url) as store:
        made = Worker(store, logs=logs, name=node, options=options, secrets=secrets)
        made.start()
        wire.report({"ready": node})
        made.run_forever()


def _log():
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where each thread stands, for whoever finds it wedged
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")


def _told():
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    return told
