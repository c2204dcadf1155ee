"""The plays: what is done before, during and after a fault, and what must hold. A rule that is broken is an assertion.

Judged by the order of events, tokens and moments of one machine's clock, never by how long something took.
"""

from __future__ import annotations

import contextlib
import struct
import time
from functools import partial

from latchwork.errors import Conflict, OwnershipLost
from latchwork.primitives.fair.tickets import is_ticket
from trials.primitives.faults import FAULTS, SHORT_TTL_S, Fault
from trials.primitives.owners import OWNERS, PATIENCE_S, PERSISTENT
from trials.primitives.players import INTERVAL_S, PERMITS, PLAYERS
from trials.primitives.stage import SERVERS, Scene, Stage, insist, until

PRIMITIVES = tuple(PLAYERS)
#: Loops have to come round so often before a fault, and after it.
_ROUNDS = 4
_REFUSALS = (Conflict, OwnershipLost)


def play(scene: Scene, fault: Fault, primitive: str) -> None:
    """Give one play on servers that are there."""
    with Stage(scene, primitive, fault.ttl_s) as stage:
        try:
            _PLAYS.get(primitive, _wait if fault.waits else _own)(stage, fault)
        finally:
            scene.mend()


# What one owns at a time


def _own(stage: Stage, fault: Fault) -> None:
    """One owner at a time, by the tokens of fenced writes; and somebody owns in the end."""
    victim, other, writes = stage.victim, stage.other, []
    first = _have(victim, writes)
    _queue(stage, other)
    fate = "kept" if fault.fate == "lost" and not fault.tells and stage.primitive in PERSISTENT else fault.fate
    assert other.owned() is None or not victim.is_held(), "two own it before anything has happened"
    fault.strike(stage)
    if fate in {"dead", "lost"}:
        second = until(other.owned, "the other owns it")
        writes.append(insist(other.write))
        fault.heal(stage)
        if fate == "lost":
            _assert_over(victim, second, fault)
    else:
        fault.heal(stage)
        _hand_over(victim, other, fate, writes)
        second = until(other.owned, "the other owns it")
    writes.append(insist(other.write))
    assert second[1] > first[1], f"the second owner has token {second[1]}, the first one had {first[1]}"
    insist(other.end)
    if fate != "dead":
        third = _have(victim, writes)
        assert third[1] > second[1], f"the third owner has token {third[1]}, the second one had {second[1]}"
    _assert_in_order(writes)


def _wait(stage: Stage, fault: Fault) -> None:
    """A waiter that is gone holds up nobody behind it; one that comes back waits again, and has it in the end."""
    victim, other, third, writes = stage.victim, stage.other, stage.another_player(), []
    other.begin()
    first = until(other.owned, "the other owns it")
    writes.append(insist(other.write))
    for player in (victim, third):
        _queue(stage, player)
    fault.strike(stage)
    insist(other.end)
    second = until(third.owned, "the one behind the victim owns it")
    fault.heal(stage)
    writes.append(insist(third.write))
    if fault.fate != "dead":
        assert victim.owned() is None, "the victim owns it, and so does the one that was behind it"
    insist(third.end)
    tokens = [first[1], second[1]]
    if fault.fate != "dead":
        until(victim.owned, "the victim owns it after all")
        tokens.append(_have(victim, writes, begin=False)[1])
    assert tokens == sorted(set(tokens)), f"tokens do not grow: {tokens}"
    _assert_in_order(writes)


def _queue(stage, player):
    """Have a player wait for it, and see that it does."""
    before = _tickets(stage)
    player.begin()
    if stage.primitive in PERSISTENT:
        time.sleep(0.2)  # those have no queue
    else:
        until(lambda: player.owned() or _tickets(stage) > before, "a player queues")


def _tickets(stage):
    return sum(is_ticket(entry.key) for entry in stage.store.list("", recursive=True))


def _have(victim, writes, *, begin=True):
    """Have the victim own it and write; again if the machine was too busy to keep so short a session alive."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        if begin:
            victim.begin()
        begin = True
        owned = until(victim.owned, "the victim owns it")
        try:
            writes.append(insist(victim.write))
        except _REFUSALS:
            assert time.monotonic() < deadline, "the victim loses whatever it owns"
        else:
            return owned


def _assert_over(victim, second, fault):
    """What the victim had is over: its fenced write and its late end are refused, and it knew in time."""
    assert not fault.tells or victim.last_held() <= second[0], "the victim said that it owns it when another did"
    assert _is_refused(victim.write), "a fenced write of the victim passed after another had owned it"
    assert _is_refused(victim.late), "the victim ended what it had lost, and was not told"
    until(lambda: not victim.is_held(), "the victim knows that it does not own it")


def _hand_over(victim, other, fate, writes):
    """The victim has kept it, or perhaps has lost it: either way the other may have it afterwards."""
    try:
        waits = other.owned() is None
        writes.append(insist(victim.write))
        assert waits, "the victim wrote after the other had owned it"
        assert fate == "either" or victim.is_held(), "the victim does not know that it has kept it"
        insist(victim.end)
    except _REFUSALS:
        assert fate == "either", "what outlives this fault was lost"
        with contextlib.suppress(*_REFUSALS):
            insist(victim.end)  # it may have queued again


def _is_refused(step):
    try:
        insist(step)
    except _REFUSALS:
        return True
    return False


def _assert_in_order(writes):
    tokens = [fence for _, fence in sorted(writes)]
    assert tokens == sorted(tokens), f"a write passed after one with a newer fence: {sorted(writes)}"


# What counts


def _count(stage: Stage, fault: Fault) -> None:
    """What was confirmed is counted once, what is unknown once at most, and nothing under a fence that is over."""
    victim, other = stage.victim, stage.other
    victim.own()
    until(victim.owned, "the victim has its lock")
    other.own()
    _loop_on(stage, (victim, other))
    fault.strike(stage)
    if fault.fate in {"dead", "lost"}:
        until(other.owned, "the lock of the victim comes back")
    fault.heal(stage)
    if fault.fate == "lost":
        assert _is_refused(victim.late), "a change passed under the fence of a lock that another has"
    elif fault.fate == "kept":
        insist(victim.late)
    living = [player for player in (victim, other) if player is other or fault.fate != "dead"]
    _loop_on(stage, living, begin=False)
    for player in living:
        player.stop()
    unknown = sum(player.unknown() for player in living) + (fault.fate == "dead")
    known = sum(len(stage.marks(role)) for role in ("victim", "other"))
    total = insist(other.total)
    assert known <= total <= known + unknown, f"{known} changes are known, {unknown} unknown, {total} are there"
    assert insist(other.flaws) == []


def _loop_on(stage, players, *, begin=True, rounds=_ROUNDS, size=1):
    """Wait until each of these has come round so often, from now on."""
    roles = ["other" if player is stage.other else "victim" for player in players]
    before = {role: len(stage.marks(role)) for role in roles}
    for player in players:
        if begin:
            player.begin()
    for role in roles:
        enough = before[role] + rounds * size
        until(lambda role=role, enough=enough: len(stage.marks(role)) >= enough, f"the {role} goes on")


def _limit(stage: Stage, fault: Fault) -> None:
    """No more permits than the limit in any interval of the whole cluster; and there are always more to come."""
    victim, other = stage.victim, stage.other
    loop_on = partial(_loop_on, stage, rounds=2, size=struct.calcsize("d"))
    loop_on((victim, other))
    fault.strike(stage)
    if fault.fate in {"dead", "lost"}:
        time.sleep(1.5 * SHORT_TTL_S)  # what the victim's session held is gone by now
        loop_on((other,), begin=False)
    fault.heal(stage)
    living = [player for player in (victim, other) if player is other or fault.fate != "dead"]
    loop_on(living, begin=False)
    for player in living:
        player.stop()
        player.unknown()
    marks = stage.marks("victim") + stage.marks("other")
    moments = sorted(moment for (moment,) in struct.iter_unpack("d", marks))
    spans = [after - before for before, after in zip(moments, moments[PERMITS:], strict=False)]
    assert min(spans, default=INTERVAL_S) >= INTERVAL_S, f"{PERMITS + 1} permits within {min(spans):.3f} s"


# Where many come together


def _meet(stage: Stage, fault: Fault) -> None:
    """Who has arrived counts once, whatever happens to it; a generation passes for all, and the next is usable."""
    victim, other = stage.victim, stage.other
    victim.go("wait")
    until(lambda: other.here() == ["victim"], "the victim arrives")
    victim = _hurt(stage, fault, lambda player: player.go("wait"))
    assert insist(other.here) == ["victim"]
    assert victim.passed() == [], "the victim passed alone"
    other.go("wait")
    for player in (victim, other):
        until(lambda player=player: player.passed() == [0], "the generation passes")
    for player in (victim, other):
        player.go("wait")
    for player in (victim, other):
        until(lambda player=player: player.passed() == [0, 1], "the next generation passes")


def _enter(stage: Stage, fault: Fault) -> None:
    """Who is inside stays inside, whatever happens to it; all leave together, and the next round is usable."""
    victim, other = stage.victim, stage.other
    for player in (victim, other):
        player.go("enter")
    for player in (victim, other):
        until(lambda player=player: player.passed() == [0], "both enter")
    victim = _hurt(stage, fault, lambda player: player.go("enter"))
    until(lambda: victim.passed() == [0], "the victim is let in again")
    other.go("leave")
    until(lambda: other.here() == ["victim"], "the other waits to leave")
    assert other.passed() == [0], "the other left alone"
    victim.go("leave")
    for step, expected in (("leave", [0, 0]), ("enter", [0, 0, 1]), ("leave", [0, 0, 1, 1])):
        for player in (victim, other):
            if step != "leave" or expected != [0, 0]:
                player.go(step)
        for player in (victim, other):
            until(lambda player=player, expected=expected: player.passed() == expected, f"both {step}")


def _hurt(stage: Stage, fault: Fault, again):
    """Strike and heal, with time for the victim's session to end; the victim, or its next life."""
    fault.strike(stage)
    if fault.fate == "lost":
        time.sleep(2.0 * SHORT_TTL_S)
    fault.heal(stage)
    if fault.fate != "dead":
        return stage.victim
    victim = stage.another_victim()
    again(victim)
    return victim


def _belong(stage: Stage, fault: Fault) -> None:
    """Who is gone leaves the view, and comes back as another incarnation; all are told the same views in one order."""
    victim, other = stage.victim, stage.other
    for player in (victim, other):
        player.begin()
    for player in (victim, other):
        until(lambda player=player: set(player.view()) == {"victim", "other"}, "both are in the view")
    before = other.view()["victim"]
    fault.strike(stage)
    if fault.fate == "dead" or (fault.fate == "lost" and fault.tells):
        until(lambda: "victim" not in other.view(), "the view without the victim")
    fault.heal(stage)
    if fault.fate == "lost":
        until(lambda: other.view().get("victim") not in {before, None}, "the victim comes back as a new incarnation")
    elif fault.fate == "either":
        until(lambda: "victim" in other.view(), "the victim is in the view again")
    elif fault.fate == "kept":
        assert insist(victim.view)["victim"] == other.view()["victim"] == before
    if fault.fate != "dead":
        until(lambda: victim.view() == other.view(), "both have the same view")
        views = dict(map(_frozen, other.views()))
        theirs = [_frozen(view) for view in victim.views()]
        assert [number for number, _ in theirs] == sorted({number for number, _ in theirs}), "views went backwards"
        assert [view for view in theirs if views.get(view[0], view[1]) != view[1]] == [], "two views of one number"


def _frozen(view):
    number, members = view
    return number, tuple(tuple(member) for member in members)


_PLAYS = {
    "Counter": _count,
    "Sequence": _count,
    "RateLimiter": _limit,
    "Barrier": _meet,
    "DoubleBarrier": _enter,
    "Group": _belong,
}
assert set(_PLAYS) | set(OWNERS) == set(PRIMITIVES)

#: Every play there is: backend, fault, primitive.
ALL = [
    (backend, fault, primitive)
    for backend in (*SERVERS, "sqlite")
    for fault in FAULTS
    if backend in fault.backends
    for primitive in (OWNERS if fault.waits else PRIMITIVES)
]
