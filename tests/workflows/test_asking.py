"""Commands in the database: each once for its unique key, whoever asks again."""

import pytest
import sqlalchemy as sa

from latchwork.errors import LatchworkError
from latchwork_workflows.db.commands import CommandType, KeyReused, choose_random_shard, send_command
from latchwork_workflows.db.tables import command, shard
from latchwork_workflows.state import RunState, list_possible_commands


def test_a_command_with_the_same_key_is_written_once_also_after_it_was_done(database):
    for version, is_new in ((1, True), (2, False)):
        with database.write() as connection:
            args = {"code": 7, "version": version, "params": {"day": "x"}}
            asked = send_command(connection, CommandType.START, shard_id=version, args=args, unique_key="k", by="me")
            assert (asked.is_new, asked.shard) == (is_new, 1)
            connection.execute(sa.update(command).values(done_at=1.0))
    with database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(command)).scalar() == 1


@pytest.mark.parametrize(
    "other",
    [{"command_type": CommandType.STOP}, {"run_id": 6}, {"args": {"start_from": ["a"]}}],
    ids=["kind", "id", "args"],
)
def test_a_key_that_was_used_for_another_command_is_refused(database, other):
    first = {"command_type": CommandType.RECOVER, "run_id": 5, "args": {"start_from": []}}
    with database.write() as connection:
        send_command(connection, shard_id=0, unique_key="k", **first)
    with pytest.raises(KeyReused, match="was used for command 1"), database.write() as connection:
        send_command(connection, shard_id=0, unique_key="k", **{**first, **other})


def test_a_shard_is_drawn_from_those_that_there_are(database):
    with pytest.raises(LatchworkError, match="workflows init"), database.read() as connection:
        choose_random_shard(connection)
    with database.write() as connection:
        connection.execute(sa.insert(shard), [{"id": 3}, {"id": 5}])
        assert {choose_random_shard(connection) for _ in range(60)} == {3, 5}


def test_what_is_possible_is_what_the_state_takes():
    assert list_possible_commands(RunState.RUNNING) == ("pause", "stop")
    assert list_possible_commands(RunState.FAILURE) == ("recover", "rerun")
    assert list_possible_commands(RunState.READY_STOP) == ()
