"""Groups under random schedules: all members see the same views in the same order."""

from __future__ import annotations

import itertools

import latchwork
from latchwork.primitives import Group
from latchwork.testing.simulation import Simulation
from trials.judges.primitive import Views
from trials.schedules.harness import PATIENCE_S, Model, action, check, refuse


class GroupModel(Model):
    """A view with a number is the same everywhere; numbers only grow; who joins is seen; who is gone, is gone."""

    def __init__(self):
        super().__init__()
        self.views = Views()
        self.found = []
        self.follows = itertools.count()

    def follow(self, me, group):
        who = f"{me.name}, join {next(self.follows)}"

        def note(change):
            view = change.view
            content = [(member.id, member.incarnation, member.weight) for member in view.members]
            self.found += self.views.told(who, view.number, content)  # a listener's exceptions are logged, and no more

        group.on_view(note)

    def look(self):
        refuse(self.found)

    @action
    def join(self, me):
        with Group(me.store, "web", member_id=me.name) as group:
            self.follow(me, group)
            me.patiently(lambda: group.wait(PATIENCE_S))
            me.pause()

    @action
    def join_and_change(self, me):
        with Group(me.store, "web", member_id=me.name) as group:
            self.follow(me, group)
            me.patiently(lambda: group.wait(PATIENCE_S))
            group.update(weight=3.0)
            me.pause()

    @action
    def look_on(self, me):
        with Group(me.store, "web") as group:
            self.follow(me, group)
            me.pause(2.0)

    def finish(self, store):
        if self.views.are_any:
            with Group(store, "web") as group:
                group.wait_until(lambda view: not view.members, PATIENCE_S)


def test_group_keeps_its_rules_under_random_schedules():
    check(GroupModel)


def test_others_write_the_views_while_the_oldest_member_is_frozen():
    url = "memory://frozen-oldest"

    def oldest():
        with latchwork.connect(url, session_ttl_s=60.0) as store, Group(store, "web", member_id="oldest") as group:
            group.wait_until(lambda view: view.ids == ["oldest"], PATIENCE_S)
            group.wait_until(lambda view: view.ids == ["a", "oldest"], PATIENCE_S)

    with Simulation() as sim, latchwork.connect(url) as store:
        first = sim.spawn(oldest, name="oldest", node="oldest")
        sim.sleep(1.0)
        sim.freeze("oldest", 30.0)
        with Group(store, "web", member_id="a") as group:
            assert group.wait(8.0).ids == ["a", "oldest"]
            first.join()


def test_a_deputy_writes_at_once_when_the_writer_has_left():
    url = "memory://deputies"
    with Simulation() as sim, latchwork.connect(url) as first, latchwork.connect(url) as second:
        writer = Group(first, "web", member_id="writer")
        writer.start()
        writer.wait(PATIENCE_S)
        with Group(second, "web") as deputy, Group(second, "web", member_id="a") as a:
            deputy.wait_until(lambda view: "a" in view, PATIENCE_S)
            sim.sleep(1.0)
            writer.close()
            deputy.wait_until(lambda view: "writer" not in view, PATIENCE_S)
            asked_at = second.clock.now()
            a.update(weight=5.0)
            deputy.wait_until(lambda view: view.members[0].weight == 5.0, PATIENCE_S)
            assert second.clock.now() - asked_at < 0.1  # as the deputy it would give the writer longer
