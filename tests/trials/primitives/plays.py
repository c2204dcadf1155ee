"""The plays: what is done before, during and after a fault, and what must hold. A rule that is broken is an assertion.

Judged by the order of events, tokens and moments of one machine's clock, never by how long something took.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial

from backends_table import SERVERS
from latchwork.errors import Conflict, OwnershipLost
from latchwork.primitives.fair.tickets import is_ticket
from patience import Deadline
from trials.judges.primitive import Views, late_writes, miscounted, too_many
from trials.primitives.faults import FAULTS, SHORT_TTL_S, Fault
from trials.primitives.owners import OWNERS, PATIENCE_S, PERSISTENT
from trials.primitives.play import Play, insist, until
from trials.primitives.players import INTERVAL_S, PERMITS, PLAYERS
from trials.stage import Stage

PRIMITIVES = tuple(PLAYERS)
#: Loops have to come round so often before a fault, and after it.
_ROUNDS = 4
_REFUSALS = (Conflict, OwnershipLost)


def play(stage: Stage, fault: Fault, primitive: str) -> None:
    """Give one play on servers that are there."""
    with Play(stage, primitive, fault.ttl_s) as given:
        try:
            _PLAYS.get(primitive, _wait if fault.waits else _own)(given, fault)
        finally:
            stage.mend()


# What one owns at a time


def _own(play: Play, fault: Fault) -> None:
    """One owner at a time, by the tokens of fenced writes; and somebody owns in the end."""
    victim, other, writes = play.victim, play.other, []
    first = _have(victim, writes)
    _queue(play, other)
    fate = "kept" if fault.fate == "lost" and not fault.tells and play.primitive in PERSISTENT else fault.fate
    assert other.owned() is None or not victim.is_held(), "two own it before anything has happened"
    with fault.inflict(play):
        if fate in {"dead", "lost"}:
            second = until(other.owned, "the other owns it")
            writes.append(insist(other.write))
    if fate == "lost":
        _assert_over(victim, second, fault)
    elif fate != "dead":
        _hand_over(victim, other, fate, writes)
        second = until(other.owned, "the other owns it")
    writes.append(insist(other.write))
    assert second[1] > first[1], f"the second owner has token {second[1]}, the first one had {first[1]}"
    insist(other.end)
    if fate != "dead":
        third = _have(victim, writes)
        assert third[1] > second[1], f"the third owner has token {third[1]}, the second one had {second[1]}"
    _assert_in_order(writes)


def _wait(play: Play, fault: Fault) -> None:
    """A waiter that is gone holds up nobody behind it; one that comes back waits again, and has it in the end."""
    victim, other, third, writes = play.victim, play.other, play.another_player("third"), []
    other.begin()
    first = until(other.owned, "the other owns it")
    writes.append(insist(other.write))
    for player in (victim, third):
        _queue(play, player)
    with fault.inflict(play):
        insist(other.end)
        second = until(third.owned, "the one behind the victim owns it")
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


def _queue(play, player):
    """Have a player wait for it, and see that it does."""
    before = _tickets(play)
    player.begin()
    if play.primitive in PERSISTENT:
        time.sleep(0.2)  # those have no queue
    else:
        until(lambda: player.owned() or _tickets(play) > before, "a player queues")


def _tickets(play):
    return sum(is_ticket(entry.key) for entry in play.store.list("", recursive=True))


def _have(victim, writes, *, begin=True):
    """Have the victim own it and write; again if the machine was too busy to keep so short a session alive."""
    deadline = Deadline(PATIENCE_S)
    while True:
        if begin:
            victim.begin()
        begin = True
        owned = until(victim.owned, "the victim owns it")
        try:
            writes.append(insist(victim.write))
        except _REFUSALS:
            assert not deadline.has_passed, "the victim loses whatever it owns"
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
    assert late_writes((at, token, "a player") for at, token in writes) == []


# What counts


def _count(play: Play, fault: Fault) -> None:
    """What was confirmed is counted once, what is unknown once at most, and nothing under a fence that is over."""
    victim, other = play.victim, play.other
    victim.own()
    until(victim.owned, "the victim has its lock")
    other.own()
    _loop_on(play, (victim, other))
    with fault.inflict(play):
        if fault.fate in {"dead", "lost"}:
            until(other.owned, "the lock of the victim comes back")
    if fault.fate == "lost":
        assert _is_refused(victim.late), "a change passed under the fence of a lock that another has"
    elif fault.fate == "kept":
        insist(victim.late)
    living = [player for player in (victim, other) if player is other or fault.fate != "dead"]
    _loop_on(play, living, begin=False)
    for player in living:
        player.stop()
    unknown = sum(player.unknown() for player in living) + (fault.fate == "dead")
    known = sum(len(play.marks[role]) for role in ("victim", "other"))
    assert miscounted(insist(other.total), known=known, unknown=unknown) == []
    assert insist(other.flaws) == []


def _loop_on(play, players, *, begin=True, rounds=_ROUNDS):
    """Wait until each of these has come round so often, from now on."""
    roles = ["other" if player is play.other else "victim" for player in players]
    before = {role: len(play.marks[role]) for role in roles}
    for player in players:
        if begin:
            player.begin()
    for role in roles:
        enough = before[role] + rounds
        until(lambda role=role, enough=enough: len(play.marks[role]) >= enough, f"the {role} goes on")


def _limit(play: Play, fault: Fault) -> None:
    """No more permits than the limit in any interval of the whole cluster; and there are always more to come."""
    victim, other = play.victim, play.other
    loop_on = partial(_loop_on, play, rounds=2)
    loop_on((victim, other))
    with fault.inflict(play):
        if fault.fate in {"dead", "lost"}:
            time.sleep(1.5 * SHORT_TTL_S)  # what the victim's session held is gone by now
            loop_on((other,), begin=False)
    living = [player for player in (victim, other) if player is other or fault.fate != "dead"]
    loop_on(living, begin=False)
    for player in living:
        player.stop()
        player.unknown()
    assert too_many(play.marks["victim"] + play.marks["other"], PERMITS, INTERVAL_S) == []


# Where many come together


def _meet(play: Play, fault: Fault) -> None:
    """Who has arrived counts once, whatever happens to it; a generation passes for all, and the next is usable."""
    victim, other = play.victim, play.other
    victim.go("wait")
    until(lambda: other.here() == ["victim"], "the victim arrives")
    victim = _hurt(play, fault, lambda player: player.go("wait"))
    assert insist(other.here) == ["victim"]
    assert victim.passed() == [], "the victim passed alone"
    other.go("wait")
    for player in (victim, other):
        until(lambda player=player: player.passed() == [0], "the generation passes")
    for player in (victim, other):
        player.go("wait")
    for player in (victim, other):
        until(lambda player=player: player.passed() == [0, 1], "the next generation passes")


def _enter(play: Play, fault: Fault) -> None:
    """Who is inside stays inside, whatever happens to it; all leave together, and the next round is usable."""
    victim, other = play.victim, play.other
    for player in (victim, other):
        player.go("enter")
    for player in (victim, other):
        until(lambda player=player: player.passed() == [0], "both enter")
    victim = _hurt(play, fault, lambda player: player.go("enter"))
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


def _hurt(play: Play, fault: Fault, again):
    """Strike and heal, with time for the victim's session to end; the victim, or its next life."""
    with fault.inflict(play):
        if fault.fate == "lost":
            time.sleep(2.0 * SHORT_TTL_S)
    if fault.fate != "dead":
        return play.victim
    victim = play.another_victim()
    again(victim)
    return victim


def _belong(play: Play, fault: Fault) -> None:
    """Who is gone leaves the view, and comes back as another incarnation; all are told the same views in one order."""
    victim, other = play.victim, play.other
    for player in (victim, other):
        player.begin()
    for player in (victim, other):
        until(lambda player=player: set(player.view()) == {"victim", "other"}, "both are in the view")
    before = other.view()["victim"]
    with fault.inflict(play):
        if fault.fate == "dead" or (fault.fate == "lost" and fault.tells):
            until(lambda: "victim" not in other.view(), "the view without the victim")
    if fault.fate == "lost":
        until(lambda: other.view().get("victim") not in {before, None}, "the victim comes back as a new incarnation")
    elif fault.fate == "either":
        until(lambda: "victim" in other.view(), "the victim is in the view again")
    elif fault.fate == "kept":
        assert insist(victim.view)["victim"] == other.view()["victim"] == before
    if fault.fate != "dead":
        until(lambda: victim.view() == other.view(), "both have the same view")
        views = Views()
        for player, role in ((other, "the other"), (victim, "the victim")):
            for number, members in player.views():
                assert views.told(role, number, members) == []


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
