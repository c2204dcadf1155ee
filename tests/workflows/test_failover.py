"""Masters and workers that die: what is queued is not queued again, what runs goes on, what is lost runs again."""

from patience import eventually
from workflows.hands import a_workflow

FOUR = {"ended": [], "runs": [], "queued": [], "after": ["ended"]}


def test_a_new_master_resumes_runs_leaves_queued_and_running_tasks_alone_and_takes_results_in(stage):
    version = stage.apply(a_workflow(tasks=FOUR))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        eventually(lambda: hand.backlog.size("default") == 3)
        got = {name: claim for _ in range(2) for name, claim in hand.take(limit=1).items()}
        assert sorted(got) == ["ended", "runs"]
        stage.until_task(made, ended="running", runs="running", queued="submitted")
    hand.end(got["ended"])  # nobody is there
    items = stage.items()
    with stage.master():
        stage.until_task(made, ended="success", after="submitted", runs="running", queued="submitted")
        assert items - stage.items() == set()
        hand.end(got["runs"])
        for name, claim in hand.wait("queued", "after").items():
            assert hand.spec(claim).head.n == 1, name
            hand.end(claim)
        stage.until(made, "success")
        eventually(lambda: stage.left() == [])
    assert [n for n, *_ in stage.attempts()] == [1, 1, 1, 1]


def test_what_was_submitted_and_never_put_is_put_by_the_next_master(stage):
    version = stage.apply(a_workflow(tasks={"a": []}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        stage.until_task(made, a="submitted")
    stage.store.delete_tree(stage.keys.backlog)  # as if it had died before
    with stage.master():
        hand.end(hand.wait("a"))
        stage.until(made, "success")


def test_an_item_that_ended_is_not_put_again_while_its_result_is_there(stage):
    version = stage.apply(a_workflow(tasks={"a": [], "b": ["a"]}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        claim = hand.wait("a")
    hand.end(claim)
    with stage.master():
        hand.end(hand.wait("b"))
        stage.until(made, "success")
    assert len(stage.attempts()) == 2


def test_the_task_of_a_worker_that_died_is_taken_by_another_as_the_same_attempt(stage):
    version = stage.apply(a_workflow(tasks={"a": []}))
    first, second = stage.hand("first"), stage.hand("second")
    with stage.master():
        made = stage.start(version)
        first.wait("a")
        stage.until_task(made, a="running")
        stage.lose(first)
        stage.until_task(made, a="submitted")
        second.end(second.wait("a"))
        stage.until(made, "success")
    assert stage.attempts() == [(1, "first", "lost", "first", None), (1, "failover", "success", "second", None)]
    assert "failover" in stage.events(made)


def test_a_worker_that_dies_while_no_master_is_there_is_seen_by_the_next(stage):
    version = stage.apply(a_workflow(tasks={"a": []}))
    first, second = stage.hand("first"), stage.hand("second")
    with stage.master():
        made = stage.start(version)
        first.wait("a")
        stage.until_task(made, a="running")
    stage.lose(first)
    claim = second.wait("a")
    with stage.master():
        eventually(lambda: len(stage.attempts()) == 2)
        second.end(claim)
        stage.until(made, "success")
    assert stage.attempts() == [(1, "first", "lost", "first", None), (1, "failover", "success", "second", None)]


def test_a_task_given_back_by_a_worker_that_leaves_is_no_failover(stage):
    version = stage.apply(a_workflow(tasks={"a": []}))
    first, second = stage.hand("first"), stage.hand("second")
    with stage.master():
        made = stage.start(version)
        claim = first.wait("a")
        stage.until_task(made, a="running")
        first.release(claim)
        second.end(second.wait("a"))
        stage.until(made, "success")
    assert "failover" not in stage.events(made)


def test_a_running_task_of_which_nothing_is_left_in_the_store_is_run_again(stage):
    version = stage.apply(a_workflow(tasks={"a": []}))
    first, second = stage.hand("first"), stage.hand("second")
    with stage.master():
        made = stage.start(version)
        first.wait("a")
        stage.until_task(made, a="running")
    stage.lose(first)
    stage.store.delete_tree(stage.keys.backlog)
    with stage.master():
        second.end(second.wait("a"))
        stage.until(made, "success")


def test_a_fan_out_is_put_in_batches_and_ends(stage):
    tasks = {"root": [], **{f"t{each}": ["root"] for each in range(300)}}
    version = stage.apply(a_workflow(tasks=tasks))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("root"))
        ended = []

        def work():
            for claim in hand.take(limit=40).values():
                hand.end(claim)
                ended.append(claim)
            return len(ended) == 300

        eventually(work, 60.0)
        stage.until(made, "success")
        eventually(lambda: stage.left() == [])
