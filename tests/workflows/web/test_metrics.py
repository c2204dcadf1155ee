"""What the server tells of itself to a program that watches it."""

import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families

from latchwork_workflows.db.commands import CommandType
from latchwork_workflows.db.commands import send_command as ask_for
from latchwork_workflows.db.tables import shard
from workflows.web.seeds import GOOD, HALF


def figures(client):
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {each.name.removeprefix("latchwork_workflows_"): each.samples[0].value for each in _families(answer.text)}


def _families(text):
    return text_string_to_metric_families(text)


def test_metrics_count_what_waits_and_what_nobody_has_and_name_nothing(seeds, ask):
    before = figures(ask("stranger"))
    seeds.run(GOOD)
    seeds.run(HALF)
    with seeds.database.write() as connection:
        ask_for(connection, CommandType.PAUSE, shard_id=0, run_id=1)
        connection.execute(sa.update(shard).where(shard.c.id == 0).values(owner=""))
    after = figures(ask("stranger"))
    assert after["active_runs"] == before["active_runs"] + 1
    assert after["open_commands"] == before["open_commands"] + 1
    assert (after["shards"], after["shards_without_owner"]) == (4, 1)
    assert "nightly" not in ask("stranger").get("/metrics").text
