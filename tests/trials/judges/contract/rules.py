"""The judge: what the contract forbids, looked for in the record of a play. Pure.

violations = judge(record)      # sentences; empty: nothing wrong was found
figures(record)                 # how long reconnection took, how many answers were unknown
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from latchwork_testkit.histories.calls import OK, REFUSED, UNKNOWN
from trials.judges.contract.facts import Call, Record, Seen, Settled

#: ``tmp`` writes what is deleted again.
WRITES = {"create", "put", "commit", "bind", "tmp", "delete"}


def judge(record: Record) -> list[str]:
    """Every violation in the record of one play, as sentences."""
    rules: list[Callable[[Record], Iterator[str]]] = [
        hung_calls,
        mirrors_differ,
        watches_missed,
        watches_went_back,
        risen_sessions,
        landed_elsewhere,
        lost_too_late,
        orphans,
        known_writes,
        settled_writes,
        lost_updates,
        torn_commits,
        stale_reads,
        slow_reconnection,
    ]
    found = [sentence for rule in rules for sentence in rule(record)]
    return [*record.problems, *found]


def hung_calls(record: Record) -> Iterator[str]:
    """Every call returned, in time."""
    limit_s = record.call_timeout_s + record.patience.grace_s
    for call in record.calls:
        if call.client in record.gone | record.exempt and (call.ended is None or call.ended - call.began > limit_s):
            continue  # it was killed, or frozen, and could not return
        if call.ended is None:
            yield f"{_told(call)} never returned"
        elif call.ended - call.began > limit_s:
            yield f"{_told(call)} took {call.ended - call.began:.2f} s, with {record.call_timeout_s:g} s to answer"


def mirrors_differ(record: Record) -> Iterator[str]:
    """Every mirror equals the server's state."""
    state = {stored.key: stored.value for stored in record.state}
    for client, mirror in record.mirrors.items():
        for key in sorted(state.keys() | mirror.keys()):
            if state.get(key) != mirror.get(key):
                yield f"the mirror of {client} has {mirror.get(key)!r} at {key!r}, the server {state.get(key)!r}"


def watches_missed(record: Record) -> Iterator[str]:
    """Every watch reported every key that was created for good, and ended up with the server's state."""
    lasting = [call for call in record.calls if call.kind == "create" and call.outcome == OK]
    state = {stored.key: stored.value for stored in record.state}
    for client, changes in _watchers(record).items():
        values = {(seen.key, seen.value) for seen in changes}
        for call in lasting:
            if (call.keys[0], call.value) not in values:
                yield f"the watch of {client} never reported {call.keys[0]!r}, created with token {call.token}"
        last = {seen.key: seen.value for seen in changes}
        for key in sorted(state.keys() | last.keys()):
            if state.get(key) != last.get(key):
                yield f"the watch of {client} left {key!r} at {last.get(key)!r}, the server has {state.get(key)!r}"


def watches_went_back(record: Record) -> Iterator[str]:
    """A key never moves backwards, and no change is reported twice."""
    for client, changes in _watchers(record).items():
        newest: dict[str, int] = defaultdict(int)
        for seen in changes:
            if seen.value is None:
                continue
            if seen.token <= newest[seen.key]:
                yield f"the watch of {client} reported {seen.key!r} at token {seen.token} after {newest[seen.key]}"
            newest[seen.key] = max(newest[seen.key], seen.token)


def risen_sessions(record: Record) -> Iterator[str]:
    """``lost`` comes once, and nothing succeeds for a session that was lost."""
    lost: dict[str, float] = {}
    heard: dict[str, int] = defaultdict(int)
    for mark in sorted(record.marks, key=lambda mark: mark.at):
        if mark.what == "heard":
            heard[mark.session] += 1
        if mark.what == "lost":
            if mark.session in lost:
                yield f"session {mark.session} of {mark.client} was lost twice"
            lost.setdefault(mark.session, mark.at)
        elif mark.what in {"state:active", "state:suspect"} and mark.session in lost:
            yield f"session {mark.session} of {mark.client} was {mark.what[6:]} after it had been lost"
    for session, count in heard.items():
        if count > 1:
            yield f"session {session} told {count} times that it was lost"
    for call in record.calls:
        if call.session in lost and call.outcome == OK and call.began > lost[call.session]:
            yield f"{_told(call)} succeeded after session {call.session} had been lost"


def landed_elsewhere(record: Record) -> Iterator[str]:
    """What was asked of one session is bound to that session."""
    for seen in [*record.seen, *record.state]:
        asked = _session_of(seen.value)
        if asked and asked != seen.owner:
            yield f"{seen.key!r}, asked of session {asked}, was bound to {seen.owner}"


def lost_too_late(record: Record) -> Iterator[str]:
    """The owner saw ``lost`` before anybody else saw its keys vanish."""
    ended: dict[str, float] = {}
    owners: dict[str, str] = {}
    for mark in record.marks:
        owners[mark.session] = mark.client
        if mark.what in {"lost", "closing"}:
            ended[mark.session] = min(mark.at, ended.get(mark.session, mark.at))
    bound: dict[tuple[str, str], str] = {}
    for seen in record.seen:
        if seen.value is not None:
            bound[seen.client, seen.key] = seen.owner or ""
            continue
        session = bound.pop((seen.client, seen.key), "")
        owner = owners.get(session)
        if owner is None or owner in record.exempt | record.gone:
            continue
        if session not in ended:
            yield f"{seen.client} saw {seen.key!r} vanish, but its owner {owner} never lost session {session}"
        elif seen.at < ended[session] - record.patience.slack_s:
            early_s = ended[session] - seen.at
            yield f"{seen.client} saw {seen.key!r} vanish {early_s:.3f} s before {owner} knew that {session} was lost"


def orphans(record: Record) -> Iterator[str]:
    """No key is bound to a session that was lost before the store was read."""
    lost = {mark.session for mark in record.marks if mark.what == "lost" and mark.at < record.read_at}
    for stored in record.state:
        if stored.owner in lost:
            yield f"{stored.key!r} is still bound to {stored.owner}, which was lost"


def known_writes(record: Record) -> Iterator[str]:
    """What was confirmed is there, what was refused is nowhere."""
    state = {stored.key: stored.value for stored in record.state}
    refused = {call.value: call for call in record.calls if call.value and call.outcome == REFUSED}
    for call in record.calls:
        if call.kind == "create" and call.outcome == OK and state.get(call.keys[0]) != call.value:
            yield f"{_told(call)} was confirmed, and is not there"
    for fact in [*record.seen, *record.state]:
        if fact.value in refused:
            yield f"{_told(refused.pop(fact.value))} was refused with {_error(fact, record)}, and was applied"


def settled_writes(record: Record) -> Iterator[str]:
    """A write that was unknown and then found to be absent never lands; one found present stays."""
    state = {stored.key: stored.value for stored in record.state}
    settled = {(one.client, one.value): one for one in record.settled}
    settled_at: dict[str, int] = {}
    for one in record.settled:
        settled_at[one.client] = max(one.token, settled_at.get(one.client, 0))
    for one in settled.values():
        if one.key.startswith("log/") and (state.get(one.key) == one.value) != one.present:
            yield f"{one.value!r} at {one.key!r} was settled as {_presence(one)}, and is not so"
    unknown = {call.value: call for call in record.calls if call.value and call.outcome == UNKNOWN}
    for call in unknown.values():
        if call.kind == "create" and call.client not in record.gone and (call.client, call.value) not in settled:
            yield f"{_told(call)} was unknown, and could not be settled"
    for fact in [*record.seen, *record.state]:
        call = unknown.get(fact.value or "")
        if call is not None and fact.token > settled_at.get(call.client, fact.token):
            yield f"{_told(call)} landed at token {fact.token}, after it had been settled at {settled_at[call.client]}"


def lost_updates(record: Record) -> Iterator[str]:
    """What a key holds is the newest of the confirmed writes, or one that was unknown."""
    newest: dict[str, Call] = {}
    for call in record.calls:
        if call.kind in {"put", "commit"} and call.outcome == OK:
            for key in call.keys:
                if key not in newest or newest[key].token < call.token:
                    newest[key] = call
    state = {stored.key: stored for stored in record.state}
    for key, call in newest.items():
        stored = state.get(key)
        if stored is None or stored.token < call.token:
            yield f"{key!r} lost {_told(call)}: it holds {stored.value if stored else None!r}"
        elif stored.token == call.token and stored.value != call.value:
            yield f"{key!r} holds {stored.value!r} at the token of {_told(call)}"


def torn_commits(record: Record) -> Iterator[str]:
    """Keys that are written only together hold the same."""
    pairs = [stored for stored in record.state if stored.key.startswith("pair/")]
    if len({(stored.value, stored.token) for stored in pairs}) > 1:
        yield f"a commit was torn: {', '.join(f'{one.key}={one.value}' for one in pairs)}"


def stale_reads(record: Record) -> Iterator[str]:
    """A read gives what was confirmed before it began, or newer."""
    writes = sorted(
        (call for call in record.calls if call.kind in {"put", "commit"} and call.outcome == OK and call.ended),
        key=lambda call: call.ended or 0.0,
    )
    reads = sorted((call for call in record.calls if call.kind == "get" and call.outcome == OK), key=lambda c: c.began)
    confirmed: dict[str, int] = defaultdict(int)
    position = 0
    for read in reads:
        while position < len(writes) and (writes[position].ended or 0.0) < read.began:
            for key in writes[position].keys:
                confirmed[key] = max(confirmed[key], writes[position].token)
            position += 1
        if read.token < confirmed[read.keys[0]]:
            yield f"{_told(read)} gave token {read.token}, after {confirmed[read.keys[0]]} had been confirmed"


def slow_reconnection(record: Record) -> Iterator[str]:
    """Every client writes, and its watch reports, soon after its servers can be reached."""
    for what, times in (("wrote", reconnected(record)), ("saw anything new", watched(record))):
        for client, took_s in times.items():
            if took_s is None:
                yield f"{client} never {what} again"
            elif took_s > record.patience.reconnect_s:
                yield f"{client} {what} again {took_s:.2f} s after its servers could be reached"


def reconnected(record: Record) -> dict[str, float | None]:
    """Client to the seconds from when its servers could be reached until a write of it was confirmed."""
    found: dict[str, float | None] = {}
    for client, since in record.reachable.items():
        ends = [
            call.ended
            for call in record.calls
            if call.client == client and call.kind in WRITES and call.outcome == OK and (call.ended or 0.0) >= since
        ]
        found[client] = min(ends) - since if ends else None
    return found


def watched(record: Record) -> dict[str, float | None]:
    """Client to the seconds from when its servers could be reached until its watch reported anything newer."""
    found: dict[str, float | None] = {}
    for client, since in record.reachable.items():
        times = [seen.at for seen in record.seen if seen.client == client and seen.at >= since]
        found[client] = min(times) - since if times else None
    return found


def figures(record: Record) -> dict[str, float]:
    """Numbers for the table."""
    back = [took for took in reconnected(record).values() if took is not None]
    seen = [took for took in watched(record).values() if took is not None]
    calls = [call for call in record.calls if call.ended is not None]
    return {
        "calls": len(record.calls),
        "unknown": sum(call.outcome == UNKNOWN for call in calls),
        "refused": sum(call.outcome == REFUSED for call in calls),
        "lost": len({mark.session for mark in record.marks if mark.what == "lost"}),
        "reconnect_s": round(max(back, default=0.0), 3),
        "watch_s": round(max(seen, default=0.0), 3),
        "longest_call_s": round(max(((call.ended or 0.0) - call.began for call in calls), default=0.0), 3),
    }


def _watchers(record: Record) -> dict[str, list[Seen]]:
    """Client to what its watch reported, in order; not of clients that died."""
    found: dict[str, list[Seen]] = {client: [] for client in record.mirrors}
    for seen in record.seen:
        if seen.client in found:
            found[seen.client].append(seen)
    return found


def _session_of(value: str | None) -> str:
    return value.split(":")[2] if value is not None and value.count(":") == 2 else ""


def _presence(one: Settled) -> str:
    return "present" if one.present else "absent"


def _error(fact: object, record: Record) -> str:
    value = getattr(fact, "value", None)
    return next((call.error for call in record.calls if call.value == value), "an error")


def _told(call: Call) -> str:
    return f"{call.kind} {call.value or ','.join(call.keys)!r} of {call.client}"
