"""What people do to workflows during a storm: starts, backfills, pauses, stops, recoveries, and the same request twice.

Whoever asks has a database that is away at times: each request has a key, and is made again until there is an answer.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import date, timedelta

import sqlalchemy as sa

from latchwork.errors import LatchworkError
from latchwork_workflows.db import Database
from latchwork_workflows.db.tables import backfill, command, definition, workflow_run
from latchwork_workflows.errors import WrongState
from trials.storms.workflows_work import PERIODS_S
from workflows.hands import client_of

_KINDS = ("dag", "dag", "broken", "long", "family", "dates", "one", "waits", "one")
_OPEN = ("submitted", "serial_wait", "running", "ready_pause", "ready_stop")
#: So many runs are open at a time, but for those of schedules.
_MAX_OPEN = 12


class Requests:
    """A thread that asks for things. Closed by whoever made it.

    Attributes:
        keys: of each key the commands that somebody was told of.
        asked: how often what was asked, and answered.
        troubles: what else went wrong.
    """

    def __init__(self, database_url, seed):
        self._database = Database(database_url)
        self._client = client_of(self._database)
        self._random = random.Random(seed)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._live, name="load", daemon=True)
        self._number = 0
        self._wanted = []
        self._acts = {}
        self.keys = {}
        self.asked = Counter()
        self.troubles = []

    def start(self):
        self._thread.start()

    def close(self):
        """Ask for nothing more."""
        self._ending.set()
        self._thread.join()

    def free(self):
        self._client.close()
        self._database.close()

    def _live(self):
        while not self._ending.wait(0.3):
            try:
                self._turn()
            except LatchworkError as error:
                self.asked[f"refused: {type(error).__name__}"] += 1
            except Exception as error:
                self.troubles.append(f"the client raised {error!r}")

    def _turn(self):
        for each in list(self._wanted):
            self._ask(*each)
        runs = self.runs(definition.c.name.not_in(PERIODS_S))
        if sum(each.state in _OPEN for each in runs) < _MAX_OPEN:
            self._want()
        self._act_on(runs)

    # Starts

    def _want(self):
        self._number += 1
        kind = "dag" if self._number == 1 else self._random.choice(_KINDS)  # others wait for one
        key = f"key-{self._number}"
        self.keys[key] = set()
        self._wanted.append((kind, key))
        self._ask(kind, key)

    def _ask(self, kind, key):
        """Until there is an answer; now and then once more, which has to change nothing."""
        if kind == "dates":
            first = date(2026, 1, 1) + timedelta(days=10 * int(key.rpartition("-")[2]) % 300)
            days = [first + timedelta(days=each) for each in range(3)]
            asked = self._client.backfills.start(kind, days, parallel=2, unique_key=key)
        else:
            asked = self._client.runs.start(kind, unique_key=key)
        self.keys[key].add(asked.command)
        self.asked[kind] += 1
        if (kind, key) in self._wanted and self._random.random() < 0.8:
            self._wanted.remove((kind, key))

    # What is done to runs

    def runs(self, which):
        """The newest of these."""
        with self._database.read() as connection:
            chosen = sa.select(workflow_run.c.id, definition.c.name, workflow_run.c.state, workflow_run.c.parent_task)
            chosen = chosen.join(definition, definition.c.code == workflow_run.c.code).where(which)
            return connection.execute(chosen.order_by(workflow_run.c.id.desc()).limit(150)).all()

    def _act_on(self, runs):
        for each in runs:
            if each.parent_task is None:
                with suppress(WrongState):
                    self._act(each)

    def _act(self, run):
        said = self._acts.setdefault(run.id, [])
        if run.name == "long" and run.state == "running" and len(said) < 2 and self._random.random() < 0.2:
            self._say(run, said, self._random.choice(["pause", "stop"]))
        elif run.name == "long" and run.state == "success" and not said:
            self._say(run, said, "rerun")
        elif run.state == "paused":
            self._say(run, said, "resume")
        elif run.state == "stopped" and run.id % 4 and len(said) < 4:
            self._say(run, said, self._random.choice(["recover", "rerun"]))
        elif run.state == "failure":
            self._say(run, said, "recover")

    def _say(self, run, said, action):
        self._client.runs.act(run.id, action)
        said.append(action)
        self.asked[action] += 1

    # The end

    def settle(self):
        """Take back what is in the way of an end; whether everything is over."""
        for each in list(self._wanted):
            self._ask(*each)
            self._wanted = [other for other in self._wanted if other != each]
        waits = self.runs(
            sa.and_(workflow_run.c.state.in_(("paused", "failure")), workflow_run.c.parent_task.is_(None))
        )
        for each in waits:
            with suppress(WrongState):
                self._say(each, self._acts.setdefault(each.id, []), "resume" if each.state == "paused" else "recover")
        return not waits and not self._is_open()

    def _is_open(self):
        with self._database.read() as connection:
            open_ = connection.execute(sa.select(command.c.id).where(command.c.done_at.is_(None)).limit(1)).first()
            going = connection.execute(
                sa.select(workflow_run.c.id).where(workflow_run.c.state.in_(_OPEN)).limit(1)
            ).first()
            filled = connection.execute(sa.select(backfill.c.id).where(backfill.c.ended_at.is_(None)).limit(1)).first()
            return bool(open_ or going or filled)

    def silence(self):
        """Switch the schedules off; the moment."""
        for name in PERIODS_S:
            self._client.schedules.set_enabled(name, enabled=False)
        return time.time()
