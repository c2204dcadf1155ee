"""An interrupt at every line of a call leaves what was asked for held and known, or gone; see docs/design/0015.

`make check WHAT=interrupts` has every line of every play; each day has some, and they are others every day.
"""

from __future__ import annotations

import datetime as dt
import uuid

import pytest

import latchwork
from levels import LONG
from trials.interrupts.harness import Interrupter
from trials.interrupts.plays import PLAYS

#: Lines from one that is tried to the next; after so many days each had its turn.
STEP = 1 if LONG else 179


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.name)
def test_nothing_is_left_behind_by_an_interrupt_at_any_line(play):
    url = f"memory://{uuid.uuid4().hex}?call_timeout_s=5&session_ttl_s=60"
    with latchwork.connect(url) as mine, latchwork.connect(url) as other:
        mine.open_session(60.0)
        interrupter = Interrupter()
        line, interrupted = dt.date.today().toordinal() % STEP + 1, True  # noqa: DTZ011 - any day will do
        while interrupted:
            name = f"n{line}"
            made = play.make(mine, name)
            interrupted = interrupter.call(lambda made=made, name=name: play.use(made, mine, name), line)
            try:
                play.after(made, mine, other, name)
            except Exception as error:
                pytest.fail(f"interrupted at {interrupter.where}: {error!r}")
            line += STEP
