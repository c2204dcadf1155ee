"""The checker on histories written by hand: which it must let pass, which it must not."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from latchwork_testkit.histories.calls import (
    CONFLICT,
    OK,
    REFUSED,
    UNKNOWN,
    Call,
    Check,
    History,
    Operation,
    ReportedEntry,
    history_from_json,
)
from latchwork_testkit.histories.checker import check_history, format_timeline, minimize_history
from latchwork_testkit.histories.search import search_linearization
from latchwork_testkit.histories.tokens import check_tokens

KEYS = ("a", "b")


def seen(key, value, token, created=None):
    return ReportedEntry(key, value, token, token if created is None else created)


class Story:
    """A history under construction: each call names its client and the two moments between which it took effect."""

    def __init__(self, *, after=10, **start):
        self.history = History(KEYS, {key: start.get(key) for key in KEYS}, after)

    def call(self, client, times, kind, **fields):
        invoked, returned = times
        call = Call(len(self.history.calls), client, kind, invoked, returned=returned, **fields)
        self.history.calls.append(call)
        return self

    def get(self, client, times, key, found):
        return self.call(client, times, "get", key=key, found=found, outcome=OK)

    def put(self, client, times, written):
        ops = (Operation("put", written.key, written.value),)
        return self.call(client, times, "put", ops=ops, token=written.token, written=(written,), outcome=OK)

    def delete(self, client, times, key, *, was_there=True):
        ops = (Operation("delete", key),)
        return self.call(client, times, "delete", ops=ops, deleted=(key,) if was_there else (), outcome=OK)

    def commit(self, client, times, checks, written, *, token):
        ops = tuple(Operation("put", each.key, each.value) for each in written)
        fields = {"checks": tuple(checks), "ops": ops, "written": tuple(written), "token": token}
        return self.call(client, times, "commit", outcome=OK, **fields)

    def unknown(self, client, times, *ops, checks=()):
        return self.call(client, times, "commit", ops=ops, checks=tuple(checks))

    def conflict(self, client, times, *failed):
        return self.call(
            client, times, "commit", checks=failed, ops=(Operation("put", "a", "x"),), failed=failed, outcome=CONFLICT
        )


def is_good(story):
    return check_history(story.history).is_linearizable


def test_a_sequence_of_calls_that_agree_is_good():
    first, second = seen("a", "1", 11), seen("a", "2", 12, created=11)
    story = Story().put("p", (0, 1), first).get("p", (2, 3), "a", first).put("q", (4, 5), second)
    assert is_good(story.get("p", (6, 7), "a", second).delete("q", (8, 9), "a").get("p", (10, 11), "a", None))


def test_a_read_may_show_either_state_while_a_write_is_under_way():
    before, after = seen("a", "0", 5), seen("a", "1", 11, created=5)
    story = Story(a=before).put("p", (0, 10), after)
    assert is_good(story.get("q", (1, 2), "a", before).get("q", (3, 4), "a", after))


def test_a_read_of_the_old_value_after_the_write_was_answered_is_bad():
    before = seen("a", "0", 5)
    story = Story(a=before).put("p", (0, 1), seen("a", "1", 11, created=5)).get("q", (2, 3), "a", before)
    assert not search_linearization(story.history).is_linearizable
    assert any("stale read" in each for each in check_tokens(story.history))


def test_two_reads_one_after_the_other_that_go_backwards_during_a_write_are_bad():
    before, after = seen("a", "0", 5), seen("a", "1", 11, created=5)
    story = Story(a=before).put("p", (0, 10), after)
    story.get("q", (1, 2), "a", after).get("r", (3, 4), "a", before)
    assert not search_linearization(story.history).is_linearizable
    assert any("stale read" in each for each in check_tokens(story.history))


def test_a_key_missing_after_it_was_written_and_before_anybody_deletes_it_is_bad():
    story = Story().put("p", (0, 1), seen("a", "1", 11)).get("q", (2, 3), "a", None).delete("p", (4, 5), "a")
    assert not is_good(story)


def test_tokens_that_contradict_the_order_of_two_writes_are_bad():
    story = Story().put("p", (0, 1), seen("a", "1", 12)).put("q", (2, 3), seen("b", "2", 11))
    assert not search_linearization(story.history).is_linearizable
    assert any("smaller token" in each for each in check_tokens(story.history))


def test_tokens_may_be_of_any_order_while_the_writes_overlap():
    assert is_good(Story().put("p", (0, 5), seen("a", "1", 12)).put("q", (1, 4), seen("b", "2", 11)))


def test_one_token_for_two_commits_is_bad():
    story = Story().put("p", (0, 5), seen("a", "1", 11)).put("q", (1, 4), seen("b", "2", 11))
    assert any("two commits" in each for each in check_tokens(story.history))


def test_a_check_that_passes_at_an_overwritten_version_is_bad():
    """The lost update: both increments rest on the same read."""
    start = seen("a", "0", 5)
    story = Story(a=start)
    story.commit("p", (0, 1), [Check("at", "a", 5)], [seen("a", "1", 11, created=5)], token=11)
    story.commit("q", (2, 3), [Check("at", "a", 5)], [seen("a", "2", 12, created=5)], token=12)
    assert check_tokens(story.history) == []
    assert not is_good(story)


def test_overlapping_commits_at_the_same_version_are_bad_too():
    story = Story(a=seen("a", "0", 5))
    story.commit("p", (0, 9), [Check("at", "a", 5)], [seen("a", "1", 11, created=5)], token=11)
    story.commit("q", (1, 8), [Check("at", "a", 5)], [seen("a", "2", 12, created=5)], token=12)
    assert not is_good(story)


def test_a_check_that_passes_after_deletion_and_recreation_is_bad():
    story = Story(a=seen("a", "0", 5)).delete("p", (0, 1), "a").put("p", (2, 3), seen("a", "1", 11))
    story.commit("q", (4, 5), [Check("at", "a", 5)], [seen("b", "2", 12)], token=12)
    assert not is_good(story)


def test_a_conflict_is_good_only_when_its_check_failed_at_some_moment():
    start = seen("a", "0", 5)
    story = Story(a=start).conflict("q", (0, 1), Check("at", "a", 5))
    assert not is_good(story)
    story = Story(a=start).put("p", (0, 9), seen("a", "1", 11, created=5)).conflict("q", (1, 2), Check("at", "a", 5))
    assert is_good(story)


def test_a_multi_key_commit_shows_all_of_its_writes_or_none():
    a, b = seen("a", "1", 11), seen("b", "2", 11)
    story = Story().commit("p", (0, 9), [], [a, b], token=11)
    story.get("q", (1, 2), "a", a).get("q", (3, 4), "b", None)
    assert check_tokens(story.history) == []
    assert not is_good(story)


def test_keys_cannot_be_judged_one_by_one():
    """Each key by itself is explained; the checks across keys are not: both commits saw the other's key absent."""
    a, b = seen("a", "1", 11), seen("b", "2", 12)
    story = Story().commit("p", (0, 9), [Check("absent", "b")], [a], token=11)
    story.commit("q", (1, 8), [Check("absent", "a")], [b], token=12)
    assert not is_good(story)


def test_an_unknown_write_may_never_land():
    story = Story().unknown("p", (0, None), Operation("put", "a", "1")).get("q", (5, 6), "a", None)
    assert is_good(story)


def test_an_unknown_write_may_land_late():
    story = Story().unknown("p", (0, None), Operation("put", "a", "1")).get("q", (5, 6), "a", None)
    assert is_good(story.get("q", (7, 8), "a", seen("a", "1", 11)))


def test_an_unknown_write_lands_once():
    late = seen("a", "1", 11)
    story = Story().unknown("p", (0, None), Operation("put", "a", "1")).get("q", (5, 6), "a", late)
    story.delete("q", (7, 8), "a").get("q", (9, 10), "a", late)
    assert not is_good(story)


def test_an_unknown_write_lands_no_more_after_its_client_has_read():
    story = Story().unknown("p", (0, None), Operation("put", "a", "1")).get("p", (5, 6), "a", None)
    assert is_good(story)
    assert not is_good(story.get("q", (7, 8), "a", seen("a", "1", 11)))


def test_an_unknown_write_does_not_slip_in_between_its_clients_read_and_that_reads_answer():
    late = seen("a", "1", 11)
    story = Story().unknown("p", (0, None), Operation("put", "a", "1"))
    story.get("p", (5, 9), "a", None).get("q", (6, 7), "a", late)
    assert not is_good(story)


def test_an_unknown_write_lands_no_more_after_a_moment_that_is_known():
    story = Story().unknown("p", (0, 4), Operation("put", "a", "1")).get("q", (5, 6), "a", None)
    assert is_good(story)
    assert not is_good(story.get("q", (7, 8), "a", seen("a", "1", 11)))


def test_an_unknown_write_that_nobody_read_explains_a_failed_check():
    start = seen("a", "0", 5)
    story = (
        Story(a=start).unknown("p", (0, None), Operation("put", "a", "1")).conflict("q", (5, 6), Check("at", "a", 5))
    )
    assert is_good(story)
    assert not is_good(story.get("q", (7, 8), "a", start))


def test_an_unknown_deletion_explains_a_new_creation():
    story = Story(a=seen("a", "0", 5)).unknown("p", (0, None), Operation("delete", "a"))
    assert is_good(story.put("q", (5, 6), seen("a", "1", 11)))
    assert not is_good(Story(a=seen("a", "0", 5)).put("q", (5, 6), seen("a", "1", 11)))


def test_an_unknown_commit_whose_checks_fail_cannot_land():
    story = Story(a=seen("a", "0", 5)).unknown(
        "p", (0, None), Operation("put", "b", "1"), checks=[Check("absent", "a")]
    )
    assert not is_good(story.get("q", (5, 6), "b", seen("b", "1", 11)))


def test_an_unknown_creation_that_was_overwritten_unread_shows_in_created():
    story = Story().unknown("p", (0, None), Operation("create", "a", "1"))
    assert is_good(story.put("q", (5, 6), seen("a", "2", 12, created=11)))


def test_a_refused_write_that_shows_is_bad():
    story = Story().call("p", (0, 1), "put", ops=(Operation("put", "a", "1"),), outcome=REFUSED)
    story.get("q", (2, 3), "a", seen("a", "1", 11))
    assert not search_linearization(story.history).is_linearizable
    assert any("refused" in each for each in check_tokens(story.history))


def test_a_value_that_nobody_wrote_is_bad():
    assert not is_good(Story().get("q", (2, 3), "a", seen("a", "?", 11)))


def test_a_deletion_that_found_a_key_already_deleted_is_bad():
    story = Story(a=seen("a", "0", 5)).delete("p", (0, 1), "a").delete("q", (2, 3), "a")
    assert not is_good(story)
    assert is_good(Story(a=seen("a", "0", 5)).delete("p", (0, 1), "a").delete("q", (2, 3), "a", was_there=False))


def test_overlapping_deletions_are_put_into_the_order_that_fits():
    story = Story(a=seen("a", "0", 5)).delete("p", (0, 9), "a").delete("q", (1, 8), "a", was_there=False)
    assert is_good(story)


def test_a_put_that_keeps_created_across_a_deletion_is_bad():
    story = Story(a=seen("a", "0", 5)).delete("p", (0, 1), "a").put("q", (2, 3), seen("a", "1", 11, created=5))
    assert not is_good(story)


def test_many_unknown_writes_at_once_do_not_stop_the_search():
    story = Story()
    for n in range(16):
        story.unknown(f"p{n}", (n, None), Operation("put", "a", f"u{n}"), Operation("delete", "b"))
    for n in range(60):
        story.put("q", (100 + 2 * n, 101 + 2 * n), seen("b", f"v{n}", 11 + n))
        story.history.calls[-1].written = (seen("b", f"v{n}", 11 + n, created=11),)
    assert is_good(story)


def test_a_history_survives_being_written_down_as_json():
    story = Story(a=seen("a", "0", 5)).commit("p", (0, 1), [Check("at", "a", 5)], [seen("b", "1", 11)], token=11)
    story.conflict("q", (2, 3), Check("absent", "a")).get("q", (4, 5), "a", seen("a", "0", 5))
    assert history_from_json(json.loads(json.dumps(story.history.as_json()))) == story.history


def simulate(rng, calls):
    """A good history: each call takes effect at a moment of its own between its ends."""
    clients, number = [f"c{n}" for n in range(6)], itertools.count()
    free = dict.fromkeys(clients, 0)
    planned = []
    for _ in range(calls):
        client = min(clients, key=lambda each: (free[each], rng.random()))
        invoked = free[client] + rng.randint(1, 20)
        effect = invoked + rng.randint(1, 30)
        returned = effect + rng.randint(1, 30)
        free[client] = returned
        planned.append((effect, rng.random(), client, invoked, returned))
    story, held, token = Story(), dict.fromkeys(KEYS), 10
    for _, _, client, invoked, returned in sorted(planned):
        key = rng.choice(KEYS)
        if rng.random() < 0.5:
            story.get(client, (invoked, returned), key, held[key])
        elif rng.random() < 0.3:
            story.delete(client, (invoked, returned), key, was_there=held[key] is not None)
            token += 1
            held[key] = None
        else:
            token += 1
            before = held[key]
            held[key] = seen(key, f"v{next(number)}", token, created=before.created if before else token)
            checks = [Check("at", key, before.token)] if before and rng.random() < 0.5 else []
            story.commit(client, (invoked, returned), checks, [held[key]], token=token)
    return story.history


@pytest.mark.parametrize("seed", range(5))
def test_simulated_histories_are_good_and_become_bad_when_one_read_is_made_stale(seed):
    rng = random.Random(seed)
    history = simulate(rng, 2_000)
    assert check_history(history).is_linearizable
    reads = [call for call in history.calls if call.found is not None]
    late = rng.choice(reads[len(reads) // 2 :])
    early = next(call for call in reads if call.key == late.key and call.found.token != late.found.token)
    late.found = early.found
    assert not search_linearization(history).is_linearizable


@pytest.mark.parametrize("seed", range(3))
def test_a_bad_history_is_made_small_and_stays_bad(seed):
    rng = random.Random(seed)
    history = simulate(rng, 600)
    write = rng.choice([call for call in history.calls if call.written and call.checks][20:])
    write.checks = (write.checks[0]._replace(token=write.checks[0].token - 1),)
    assert check_tokens(history) == []
    small = minimize_history(history)
    assert not check_history(small).is_linearizable
    assert len(small.calls) <= 60
    assert write.describe() in format_timeline(small)


def test_a_good_history_is_not_made_small():
    with pytest.raises(ValueError, match="good"):
        minimize_history(Story().put("p", (0, 1), seen("a", "1", 11)).history)


def test_an_unknown_read_says_nothing():
    story = Story().call("p", (0, 1), "get", key="a", outcome=UNKNOWN).put("q", (2, 3), seen("a", "1", 11))
    assert is_good(story)
