"""Masters on each database: on PostgreSQL transactions run side by side."""

import pytest
import sqlalchemy as sa

from latchwork_workflows.db.tables import backfill, workflow_run
from latchwork_workflows.state import Outcome
from patience import eventually
from workflows.hands import a_workflow, stage_in_memory


@pytest.fixture
def stage(database_url):
    with stage_in_memory(database_url, shards=2) as made:
        yield made


@pytest.mark.parametrize("database_url", [pytest.param("sqlite", id="file"), "postgres"], indirect=True)
def test_two_shards_run_side_by_side_through_failures_a_rerun_and_lost_answers(stage, monkeypatch):
    version = stage.apply(a_workflow(tasks={"a": {"retries": 1, "retry_interval_s": 0}, "b": ["a"]}))
    hand = stage.hand()
    with stage.master(0), stage.master(1):
        stage.lose_answers(monkeypatch, every=5)
        runs = [stage.send("start", on=each, code=version.code, version=1) for each in (0, 1)]
        made = [eventually(lambda each=each: stage.command(each).run_id) for each in runs]
        ended = 0

        def work():
            nonlocal ended
            for claim in hand.take_all().values():
                head = hand.spec(claim).head
                fails = head.name == "a" and head.n == 1
                hand.end(claim, Outcome.FAILURE if fails else Outcome.SUCCESS, error="a\0b" if fails else "")
                ended += 1
            return all(stage.state(each) == "success" for each in made)

        eventually(work, 30.0)
        stage.send("rerun", made[0])
        eventually(lambda: stage.known(made[0]).round == 2)
        eventually(work, 30.0)
    assert len(stage.attempts()) == ended == 9


@pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)
def test_a_backfill_runs_each_date_once_through_lost_answers(stage, monkeypatch):
    version = stage.apply(a_workflow(tasks={"a": []}))
    hand = stage.hand()
    ended = []
    with stage.master(0), stage.master(1):
        stage.lose_answers(monkeypatch, every=5)
        moments = [86_400.0 * each for each in range(1, 6)]
        kinds = {"schedule_times": moments, "parallel": 2, "order": "desc"}
        asked = stage.send("backfill", on=1, code=version.code, version=1, **kinds)

        def work():
            for claim in hand.take_all().values():
                ended.append(hand.spec(claim).values["schedule_time"][:10])
                hand.end(claim, Outcome.FAILURE if len(ended) == 2 else Outcome.SUCCESS)
            with stage.database.read() as connection:
                return connection.execute(sa.select(backfill.c.state)).scalars().all() == ["failure"]

        eventually(work, 60.0)
    assert sorted(ended) == [f"1970-01-0{each}" for each in range(2, 7)]
    assert set(ended[:2]) == {"1970-01-05", "1970-01-06"}
    assert stage.command(asked).error is None


@pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)
def test_of_a_serial_workflow_one_run_goes_at_a_time_in_all_shards(stage, monkeypatch):
    version = stage.apply(a_workflow(tasks={"a": []}, serial="wait"))
    hand = stage.hand()
    with stage.master(0, poll_s=1.0), stage.master(1, poll_s=1.0):
        stage.lose_answers(monkeypatch, every=7)
        for each in range(6):
            stage.send("start", on=each % 2, code=version.code, version=1)
        ended = 0

        def work():
            nonlocal ended
            with stage.database.read() as connection:
                found = connection.execute(sa.select(workflow_run.c.state)).scalars().all()
            assert found.count("running") <= 1
            claims = list(hand.take_all().values())
            assert len(claims) <= 1
            for claim in claims:
                hand.end(claim)
                ended += 1
            return found == ["success"] * 6

        eventually(work, 60.0)
    assert ended == 6


@pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)
def test_children_maps_and_dependents_of_two_shards_end_once_each_through_lost_answers(stage, monkeypatch):
    stage.apply(a_workflow("child", tasks={"c": []}))
    sub = {"type": "sub_process", "params": {"workflow": "child"}}
    version = stage.apply(a_workflow("top", tasks={"sub": sub, "fan": {**sub, "map": [1, 2, 3]}, "m": {"map": [1, 2]}}))
    waits = {"type": "dependent", "params": {"on": {"all": ["top", {"workflow": "top", "task": "m"}]}}}
    waiting = stage.apply(a_workflow("waits", tasks={"dep": waits, "go": ["dep"]}))
    hand = stage.hand()
    with stage.master(0), stage.master(1):
        lost = stage.lose_answers(monkeypatch, every=4)
        asked = [stage.send("start", on=0, code=version.code, version=1, schedule_time=1.0)]
        asked += [stage.send("start", on=1, code=waiting.code, version=1, schedule_time=1.0)]
        made = [eventually(lambda each=each: stage.command(each).run_id) for each in asked]
        ended = []

        def work():
            for claim in hand.take_all().values():
                ended.append(hand.spec(claim).head.name)
                hand.end(claim)
            return all(stage.state(each) == "success" for each in made)

        eventually(work, 60.0)
    assert sorted(ended) == ["c"] * 4 + ["go", "m[0]", "m[1]"]
    assert lost
    assert stage.runs() == 6
