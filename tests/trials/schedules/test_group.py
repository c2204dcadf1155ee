"""Groups under random schedules: all members see the same views in the same order."""

from __future__ import annotations

from latchwork.primitives import Group
from trials.schedules.harness import PATIENCE_S, Model, ModelBroken, action, check


class GroupModel(Model):
    """A view with a number is the same everywhere; numbers only grow; who joins is seen; who is gone, is gone."""

    def __init__(self):
        super().__init__()
        self.views = {}

    def follow(self, me, group):
        last = [-1]

        def note(change):
            view = change.view
            if view.number <= last[0]:
                raise ModelBroken(f"{me.name} saw view {view.number} after view {last[0]}")
            last[0] = view.number
            content = tuple((member.id, member.incarnation, member.weight) for member in view.members)
            first = self.views.setdefault(view.number, (me.name, content))
            if first[1] != content:
                raise ModelBroken(f"view {view.number} is {content} to {me.name}, and {first[1]} to {first[0]}")

        def noted(change):
            try:
                note(change)
            except ModelBroken as error:
                self.broken = error  # a listener's exceptions are logged, and no more

        group.on_view(noted)

    def look(self):
        if getattr(self, "broken", None) is not None:
            raise self.broken

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
        if self.views:
            with Group(store, "web") as group:
                group.wait_until(lambda view: not view.members, PATIENCE_S)


def test_group_keeps_its_rules_under_random_schedules():
    check(GroupModel)
