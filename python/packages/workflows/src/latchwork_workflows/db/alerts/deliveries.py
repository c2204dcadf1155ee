"""Deliveries as the sender moves them. One sender at a time may: each of its transactions begins with its guard.

The guard is a row of ``about`` with the token of the sender's hold in the store, as a shard has one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from latchwork_workflows.db.alerts.tables import alert, channel, delivery
from latchwork_workflows.db.tables import SENDER, about
from latchwork_workflows.errors import NotOwner
from latchwork_workflows.state.alerting import Answer, Delivery, DeliveryState, answered

_TOKEN = sa.cast(about.c.value, sa.BigInteger)
#: Seconds that a delivery may be SENDING before ``doctor`` says so.
STUCK_S = 900.0


class Due(NamedTuple):
    """A delivery whose time has come.

    Attributes:
        id: of it.
        channel: by which.
    """

    id: int
    channel: str


@dataclass(frozen=True, slots=True)
class Taken:
    """A delivery that is SENDING, and ours.

    Attributes:
        id: of it.
        round: how often somebody asked for it.
        by: the name of its channel.
        channel: the row of its channel: ``kind``, ``options``, ``enabled``; None: there is none of its name.
        alert: the row of its alert.
    """

    id: int
    round: int
    by: str
    channel: Any
    alert: Any


@dataclass(frozen=True, slots=True)
class Sending:
    """The right to send, under one hold.

    Attributes:
        token: of the hold, from the store.
    """

    token: int

    def own(self, connection: sa.Connection) -> None:
        """Be the sender from now on.

        Raises:
            NotOwner: a newer one is.
        """
        insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        row = {"name": SENDER, "value": str(self.token)}
        connection.execute(insert(about).values(**row).on_conflict_do_nothing())
        mine = sa.update(about).where(about.c.name == SENDER, self.token >= _TOKEN)
        if not connection.execute(mine.values(value=str(self.token))).rowcount:
            raise NotOwner(f"alerts have a newer sender than token {self.token}")

    def guard(self, connection: sa.Connection) -> None:
        """The first statement of each transaction of a sender.

        Raises:
            NotOwner: it is that no more; roll back.
        """
        mine = sa.update(about).where(about.c.name == SENDER, about.c.value == str(self.token))
        if not connection.execute(mine.values(value=str(self.token))).rowcount:
            raise NotOwner(f"alerts are no more sent by token {self.token}")

    def take(self, connection: sa.Connection, number: int, now: float) -> Taken | None:
        """Mark a delivery as SENDING, before anything is sent; None: its time has not come, or it is gone.

        Raises:
            NotOwner: somebody else sends.
        """
        self.guard(connection)
        mine = sa.update(delivery).where(delivery.c.id == number, delivery.c.state == DeliveryState.PENDING.value)
        mine = mine.where(delivery.c.next_at <= now)
        values = {"state": DeliveryState.SENDING.value, "token": self.token, "changed_at": now, "next_at": now}
        row = connection.execute(mine.values(**values).returning(*delivery.c)).first()
        if row is None:
            return None
        way = connection.execute(sa.select(channel).where(channel.c.name == row.channel)).first()
        what = connection.execute(sa.select(alert).where(alert.c.id == row.alert)).one()
        return Taken(row.id, row.round, row.channel, way, what)

    def answer(
        self, connection: sa.Connection, number: int, answer: Answer, error: str, now: float
    ) -> DeliveryState | None:
        """Write how a sending ended; None: it is not ours any more, and whoever has it knows better.

        No guard: what a former sender has heard is true, as long as nobody has decided without it.
        """
        chosen = sa.select(delivery).where(delivery.c.id == number, *self._ours())
        row = connection.execute(chosen.with_for_update()).first()
        if row is None:
            return None
        known = answered(_known(row), answer, error, now)
        connection.execute(
            sa.update(delivery).where(delivery.c.id == number, *self._ours()).values(_columns(known, now))
        )
        return known.state

    def _ours(self) -> tuple[sa.ColumnElement[bool], ...]:
        return (delivery.c.state == DeliveryState.SENDING.value, delivery.c.token == self.token)

    def doubt(self, connection: sa.Connection, is_mine: Callable[[int], bool], now: float) -> int:
        """Deliveries that are SENDING, and not by us: whoever sent them heard no answer. How many.

        Args:
            connection: a transaction.
            is_mine: whether this sender has one in hand. It is asked once the rows are read: nobody takes another
                meanwhile, since that needs the guard too, and what is answered meanwhile is not SENDING any more.
            now: seconds since the epoch.
        Raises:
            NotOwner: somebody else sends.
        """
        self.guard(connection)
        chosen = sa.select(delivery).where(delivery.c.state == DeliveryState.SENDING.value)
        rows = [row for row in connection.execute(chosen.limit(1000)) if not is_mine(row.id)]
        for row in rows:
            error = "its sender ended before it heard an answer"
            known = answered(_known(row), Answer.DOUBT, error, now)
            same = sa.and_(delivery.c.id == row.id, delivery.c.state == row.state, delivery.c.token == row.token)
            connection.execute(sa.update(delivery).where(same).values(_columns(known, now)))
        return len(rows)


def due(connection: sa.Connection, now: float, *, without: Iterable[str] = (), most: int = 200) -> list[Due]:
    """Deliveries whose time has come, the oldest first, of other channels than these."""
    chosen = sa.select(delivery.c.id, delivery.c.channel).where(delivery.c.next_at <= now)
    chosen = chosen.where(delivery.c.state == DeliveryState.PENDING.value, delivery.c.channel.not_in(sorted(without)))
    return [Due(*row) for row in connection.execute(chosen.order_by(delivery.c.next_at, delivery.c.id).limit(most))]


def is_any_sending(connection: sa.Connection, mine: Collection[int]) -> bool:
    """Whether a delivery is SENDING that is not in these hands."""
    chosen = sa.select(delivery.c.id).where(delivery.c.state == DeliveryState.SENDING.value).limit(len(mine) + 1)
    return any(each not in mine for each in connection.execute(chosen).scalars())


def _known(row: Any) -> Delivery:
    return Delivery(DeliveryState(row.state), row.tries, row.doubts, row.next_at, row.error or "")


def _columns(known: Delivery, now: float) -> dict[str, Any]:
    return {
        "state": known.state.value,
        "tries": known.tries,
        "doubts": known.doubts,
        "next_at": known.next_at,
        "changed_at": now,
        "error": known.error[:2000] or None,
    }
