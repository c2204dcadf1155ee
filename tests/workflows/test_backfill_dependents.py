"""Backfills that lead to backfills of the workflows that wait: after its dates, not after those of another time."""

from datetime import date

import pytest

from latchwork_workflows import DateRange
from latchwork_workflows.errors import BadRequest
from latchwork_workflows.state import Outcome
from patience import eventually
from workflows.hands import a_workflow

DAYS = DateRange(date(2025, 10, 1), date(2025, 10, 2))


def waits_for(*names):
    return {"type": "dependent", "params": {"on": {"all": [{"workflow": each, "window": "today"} for each in names]}}}


@pytest.fixture
def flows(stage):
    """``last`` waits for ``middle``, which waits for ``first``; another one waits for nobody of these."""
    stage.apply(a_workflow("first", tasks={"a": []}))
    stage.apply(a_workflow("middle", tasks={"ready": waits_for("first"), "b": ["ready"]}))
    stage.apply(a_workflow("last", tasks={"ready": waits_for("default.middle"), "c": ["ready"]}, project="other"))
    stage.apply(a_workflow("apart", tasks={"ready": waits_for("nobody"), "d": ["ready"]}))
    stage.apply(a_workflow("off", tasks={"ready": waits_for("first"), "e": ["ready"]}), online=False)


def of(client, name):
    return [each for each in client.backfills.list() if each.workflow == name]


def finish(hand, name, outcome=Outcome.SUCCESS):
    hand.end(hand.wait(name), outcome)


def test_who_waits_directly_gets_a_backfill_whose_dates_wait_for_those_of_the_first(stage, client, flows):
    hand = stage.hand()
    with stage.master():
        client.backfills.start("first", DAYS).id()
        for _ in range(2):
            finish(hand, "a")
        before = client.backfills.start("first", DAYS, dependents="direct").id()
        eventually(lambda: of(client, "default.middle"))
        found = of(client, "default.middle")[0]
        assert (found.cause, found.dates, found.parallel) == (before, 2, 1)
        assert of(client, "other.last") == of(client, "default.apart") == of(client, "default.off") == []
        finish(hand, "a")  # alone: the success of another time is none of this
        both = hand.wait("a", "b")  # the second date of the first, and the first of who waits
        for each in both.values():
            hand.end(each)
        finish(hand, "b")
        assert client.backfills.wait(found.id, 30).counts == {"success": 2}


def test_all_has_those_that_wait_for_these_and_none_has_nobody(stage, client, flows):
    assert client.backfills.dependents("first", "direct") == ["default.middle"]
    assert client.backfills.dependents("first", "all") == ["default.middle", "other.last"]
    assert client.backfills.dependents("first", "none") == []
    with stage.master():
        client.backfills.start("first", DAYS, dependents="all", dry_run=True).wait(30)
        eventually(lambda: of(client, "other.last"))
        number = of(client, "other.last")[0].id
        assert client.backfills.wait(number, 30).counts == {"success": 2}


def test_a_date_that_fails_fails_for_who_waits_and_the_others_go_on(stage, client, flows):
    hand = stage.hand()
    with stage.master():
        client.backfills.start("first", DAYS, dependents="direct").id()
        finish(hand, "a", Outcome.FAILURE)
        finish(hand, "a")
        finish(hand, "b")
        eventually(lambda: of(client, "default.middle")[0].has_ended)
        assert of(client, "default.middle")[0].counts == {"failure": 1, "success": 1}


def test_rings_of_workflows_that_wait_for_each_other_end(stage, client):
    stage.apply(a_workflow("one", tasks={"ready": waits_for("two")}))
    stage.apply(a_workflow("two", tasks={"ready": waits_for("one")}))
    assert client.backfills.dependents("one", "all") == ["default.two"]


def test_the_same_key_again_leads_to_nothing_more(stage, client, flows):
    with stage.master():
        for _ in range(2):
            client.backfills.start("first", DAYS, dependents="direct", dry_run=True, unique_key="k").id()
        eventually(lambda: of(client, "default.middle"))
        client.backfills.start("first", DAYS, dependents="direct", dry_run=True, unique_key="k").wait(30)
    assert len(of(client, "default.middle")) == 1


def test_what_follows_a_backfill_that_was_refused_is_refused_too(stage, client):
    version = stage.apply(a_workflow("first", tasks={"a": []}))
    with stage.master():
        args = {"code": version.code, "version": 1, "schedule_times": [1.0], "parallel": 1, "order": "asc"}
        number = stage.send("backfill", **args, cause=stage.send("backfill", code=version.code))
        eventually(lambda: stage.command(number).done_at)
    assert "requested this one was refused" in stage.command(number).error
    with pytest.raises(BadRequest, match="dependents: Input should be 'none', 'direct' or 'all'"):
        client.backfills.start("first", DAYS, dependents="some")
