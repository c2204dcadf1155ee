"""What a shard's master sees of its part of the store, and what it has seen before."""

from latchwork.types import Entry
from latchwork_workflows.master.store_reader import MAX_RESULTS, StoreReader
from latchwork_workflows.messages import AttemptResult
from latchwork_workflows.state import Outcome

PREFIX = "default/shards/0"


def result_of(task, token=9):
    value = AttemptResult(Outcome.SUCCESS, 3, "w", "h", 1.0, 2.0).to_bytes()
    return Entry(f"{PREFIX}/results/{task}.1", value, token, token, token)


def test_a_result_that_was_taken_in_is_not_taken_in_again_while_a_late_mirror_shows_it():
    looking = StoreReader(PREFIX)
    assert set(looking.read([result_of(1), result_of(2)]).results) == {"1.1", "2.1"}
    looking.mark_processed(["1.1"])
    assert set(looking.read([result_of(1), result_of(2)]).results) == {"2.1"}
    looking.mark_processed(["2.1"])
    assert not looking.read([result_of(1), result_of(2)]).results


def test_a_result_whose_transaction_failed_is_seen_again():
    looking = StoreReader(PREFIX)
    looking.read([result_of(1)])
    assert set(looking.read([result_of(1)]).results) == {"1.1"}


def test_after_a_doubt_all_results_are_seen_again():
    looking = StoreReader(PREFIX)
    looking.read([result_of(1)])
    looking.mark_processed(["1.1"])
    looking.reset()
    assert set(looking.read([result_of(1)]).results) == {"1.1"}


def test_another_result_of_the_same_attempt_is_seen():
    looking = StoreReader(PREFIX)
    looking.read([result_of(1)])
    looking.mark_processed(["1.1"])
    assert set(looking.read([result_of(1, token=12)]).results) == {"1.1"}


def test_what_was_taken_in_takes_no_place_among_those_of_one_look():
    looking = StoreReader(PREFIX)
    first = [result_of(number) for number in range(1, MAX_RESULTS + 1)]
    found = looking.read([*first, result_of(1000)])
    assert found.is_full
    assert "1000.1" not in found.results
    looking.mark_processed(found.results)
    found = looking.read([*first, result_of(1000)])
    assert set(found.results) == {"1000.1"}
    assert not found.is_full


def test_what_is_gone_is_forgotten():
    looking = StoreReader(PREFIX)
    looking.read([result_of(1)])
    looking.mark_processed(["1.1"])
    assert not looking.read([]).processed
    assert set(looking.read([result_of(1)]).results) == {"1.1"}
