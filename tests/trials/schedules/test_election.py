"""Campaigns under random schedules."""

from __future__ import annotations

from latchwork.primitives import Election
from trials.schedules.harness import PATIENCE_S, Model, action, check


class ElectionModel(Model):
    """At most one leads; every campaign ends in a term; what the last leader said is seen."""

    @action
    def lead(self, me):
        with me.ended(Election(me.store, "chair", node_id=me.name)) as election:
            term = me.patiently(lambda: election.campaign(b"first", timeout_s=PATIENCE_S))
            self.claims.add(me, lambda: term.is_leader)
            with term:
                self.writes.write(me, term.fence)
                me.pause()
                term.proclaim(b"second")
                self.writes.write(me, term.fence)

    @action
    def lead_twice(self, me):
        with me.ended(Election(me.store, "chair", node_id=me.name)) as election:
            for _ in range(2):
                term = me.patiently(lambda: election.campaign(timeout_s=PATIENCE_S))
                self.claims.add(me, lambda term=term: term.is_leader)
                with term:
                    me.pause(1.5)
                    self.writes.write(me, term.fence)

    @action
    def observe(self, me):
        with me.ended(Election(me.store, "chair", node_id=me.name)) as election, election.observe() as observer:
            observer.next(5.0)

    def finish(self, store):
        assert store.list("chair") == [], "a ticket was left behind"


def test_election_keeps_its_rules_under_random_schedules():
    check(ElectionModel)
