"""Settings that change while the cluster runs: which switch beats which, and what a change does to live nodes."""

from __future__ import annotations

import logging
import threading
import time

import pytest

import latchwork
from latchwork.jobs import Control, Cron, FixedDelay, FixedRate, InvalidJob, InvalidSetting, Job, Threads
from latchwork.jobs import settings as stored
from latchwork.jobs.settings import ClusterSettings, JobSettings, LiveSettings, Settings
from latchwork.jobs.stored import cluster_store
from latchwork.schedules.schedule import DueTime, Instant


@pytest.fixture
def memory():
    with latchwork.connect("memory://settings") as store:
        yield cluster_store(store)


# Pure


@pytest.mark.parametrize(
    ("all_disabled", "switch", "default", "runs"),
    [
        (None, None, None, True),
        (None, None, False, False),
        (None, True, False, True),
        (None, False, True, False),
        (True, True, True, False),
        (True, None, None, False),
        (False, False, None, False),
    ],
)
def test_all_beats_switch_and_switch_beats_default(all_disabled, switch, default, runs):
    cluster = ClusterSettings(all_disabled=all_disabled, default_enabled=default)
    assert Settings(cluster, {"report": JobSettings(enabled=switch)}).is_enabled("report") is runs


@pytest.mark.parametrize("schedule", [FixedDelay(2.5), FixedRate(0.5), Cron("*/5 * * * *", "Europe/Berlin")])
def test_a_schedule_survives_being_stored(schedule):
    assert stored.check_setting("schedule", stored.encode_setting("schedule", schedule)) == schedule


def test_fields_that_cannot_be_used_are_left_out_and_named_and_the_others_count():
    settings, bad = stored.decode_settings(
        JobSettings(), {"threads": -1, "enabled": False, "colour": "red", "schedule": {"cron": "x"}}
    )
    assert settings == JobSettings(enabled=False)
    assert [word for word in ("threads", "colour", "cron") if any(word in line for line in bad)] == [
        "threads",
        "colour",
        "cron",
    ]


def test_a_due_is_found_anew_under_another_schedule_from_when_the_last_run_ended():
    ended = Instant(1000.0, 0.0)
    due = DueTime.first(FixedDelay(5.0), Instant(990.0, 0.0), None).after(ended)
    assert due.at == 1005.0
    assert due.with_schedule(FixedDelay(5.0), None) is due
    assert due.with_schedule(FixedDelay(3600.0), None).at == 4600.0
    assert due.with_schedule(FixedRate(1.0), None).remaining_s(Instant(1010.0, 0.0)) < 0
    assert due.with_schedule(Cron("*/1 * * * *"), None).at == 60.0


def test_the_initial_delay_moves_the_first_due_only():
    first = DueTime.first(FixedDelay(5.0), Instant(100.0, 0.0), 50.0)
    assert first.with_schedule(FixedDelay(5.0), 1.0).at == 101.0
    later = first.after(Instant(200.0, 0.0))
    assert later.with_schedule(FixedDelay(5.0), 1.0) is later


# Stored


def test_a_change_keeps_the_other_settings_and_says_who_made_it(store):
    control = Control(store, by="ops@desk")
    control.change_job("report", threads=4, schedule=FixedRate(2.0))
    control.disable("report")
    assert control.settings().job("report") == JobSettings(enabled=False, threads=4, schedule=FixedRate(2.0))
    assert b'"by":"ops@desk"' in store.get("settings/jobs/report").value
    control.change_job("report", enabled=None, threads=None, schedule=None)
    assert store.get("settings/jobs/report") is None


def test_changes_at_the_same_time_lose_nothing_of_each_other(store):
    names = ["debounce_s", "debounce_max_s", "cleanup_period_s", "sweep_period_s", "stop_timeout_s"]
    threads = [threading.Thread(target=Control(store).change_cluster, kwargs={name: 7.0}) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    found = Control(store).settings().cluster
    assert [getattr(found, name) for name in names] == [7.0] * 5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"threads": 1.5}, "setting threads is 1.5"),
        ({"speed": 1}, "setting 'speed' is not known; known settings are enabled, "),
        ({"schedule": "daily"}, "setting schedule: Cron expression 'daily' cannot be used"),
        ({"schedule": {"at": 5}}, "setting schedule is {'at': 5}; give one of"),
        ({"initial_delay_s": -1}, "initial_delay_s is -1"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_by_name_and_nothing_is_stored(memory, wrong, message):
    with pytest.raises(InvalidSetting, match=message):
        Control(memory).change_job("report", enabled=False, **wrong)
    assert memory.list("settings", recursive=True) == []


def test_damaged_settings_count_as_not_set_are_reported_once_and_are_not_overwritten(
    memory, cluster, eventually, caplog
):
    memory.put("settings/jobs/report", b"no json")
    cluster.node(memory, "n1", cluster.endless())
    eventually(lambda: len(cluster.log.owners()) == 4)
    assert caplog.text.count("settings/jobs/report has invalid settings") == 1
    with pytest.raises(InvalidSetting, match="settings/jobs/report cannot be changed"):
        Control(memory).disable("report")


# Live


def test_a_job_that_is_disabled_when_a_node_starts_is_so_from_the_first_moment(memory, monkeypatch):
    Control(memory).change_job("report", enabled=False)
    mirror = memory.mirror(stored.SETTINGS)
    monkeypatch.setattr(mirror, "on_change", lambda _listener: None)  # its first batch comes later, some time
    monkeypatch.setattr(memory, "mirror", lambda _prefix, **_options: mirror)
    settings = LiveSettings({"report": Job("report", work_pool=["a"], run=print, schedule=FixedDelay(1.0))})
    settings.watch(memory)
    settings.wait_ready()
    assert not settings.is_enabled("report")
    settings.close()


def test_what_is_stored_when_a_node_starts_is_no_change_of_the_schedule_and_what_comes_later_is(memory, eventually):
    Control(memory).change_job("report", schedule=Cron("0 3 * * *"))
    job = Job("report", work_pool=["a"], run=print, schedule=FixedDelay(1.0))
    times = iter([100.0, 200.0])
    settings = LiveSettings({"report": job}, wall_s=lambda: next(times))
    assert settings.options("report").schedule_since_s is None
    settings.watch(memory)
    settings.wait_ready()
    assert settings.options("report").schedule_since_s is None
    Control(memory).change_job("report", schedule=Cron("0 4 * * *"))
    eventually(lambda: settings.options("report").schedule_since_s == 100.0)
    Control(memory).change_job("report", jitter_s=5.0)
    eventually(lambda: settings.options("report").jitter_s == 5.0)
    Control(memory).change_job("report", schedule=None)
    eventually(lambda: settings.options("report").schedule_since_s == 200.0)
    settings.close()


def test_options_that_are_stored_when_a_node_starts_are_not_logged_as_changed(memory, cluster, eventually, caplog):
    caplog.set_level(logging.INFO)
    Control(memory).change_job("report", jitter_s=5.0)
    node = cluster.node(memory, "n1", cluster.endless(items=["a"]))
    eventually(lambda: node.stats().jobs["report"].items)
    assert "options changed" not in caplog.text


@pytest.mark.serial
def test_a_disabled_job_stops_within_a_second_calls_its_listeners_once_and_goes_on_when_enabled(
    store, cluster, eventually
):
    told = []

    def run(context):
        context.on_stop(lambda: told.append(context.items))
        cluster.log.begin(context)
        context.wait_for_stop()
        cluster.log.end(context)

    cluster.node(store, "n1", [cluster.endless(run=run, items=["a", "b"]), cluster.endless("other", items=["z"])])
    eventually(lambda: set(cluster.log.owners()) == {"a", "b", "z"})
    Control(store).disable("report")
    eventually(lambda: set(cluster.log.owners()) == {"z"} and sorted(told) == [("a",), ("b",)], 1.0)
    assert store.get("workers/n1/assigned/report") is not None, "its items keep their node"
    Control(store).change_job("report", threads=0)  # further news must not call them again
    Control(store).enable("report")
    eventually(lambda: set(cluster.log.owners()) == {"a", "b", "z"})
    assert cluster.log.count()["z"] == 1, "another job was interrupted"
    assert sorted(told) == [("a",), ("b",)], "a listener was called a second time"


@pytest.mark.serial
def test_disable_all_stops_every_job_of_every_node_within_a_second_and_calls_each_listener_once(
    store, cluster, eventually
):
    told = []
    jobs = [
        cluster.endless(
            name, [f"{name}{number}" for number in range(4)], on_start=lambda c: c.on_stop(lambda: told.append(c))
        )
        for name in ("one", "two")
    ]
    for name in ("n1", "n2"):
        cluster.node(store, name, jobs)
    eventually(lambda: len(cluster.log.owners()) == 8 and set(cluster.log.owners().values()) == {"n1", "n2"})
    before = len(told)  # of items that moved to the second node
    Control(store).disable_all()
    eventually(lambda: not cluster.log.owners() and len(told) == before + 8, 1.0)
    assert not threading.Event().wait(0.5), "time for a second call"
    assert len(told) == before + 8


def test_a_listener_is_called_once_however_many_tell_the_run_to_stop(cluster, memory, eventually):
    told, go_on = [], threading.Event()

    def run(context):
        context.on_stop(lambda: told.append(context.items))
        cluster.log.begin(context)
        go_on.wait(20)
        cluster.log.end(context)

    node = cluster.node(memory, "n1", cluster.endless(run=run, items=["a"]))
    eventually(cluster.log.owners)
    Control(memory).disable("report")
    eventually(lambda: told)
    callers = [threading.Thread(target=node._worker._on_settings_changed) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(10)
    Control(memory).disable_all()
    assert not threading.Event().wait(0.3), "time for a second call"
    go_on.set()
    eventually(lambda: not cluster.log.owners())
    assert told == [("a",)]


def test_disable_all_beats_a_job_that_is_switched_on(store, cluster, eventually):
    control = Control(store)
    control.enable("report")
    cluster.node(store, "n1", cluster.endless())
    eventually(lambda: len(cluster.log.owners()) == 4)
    control.disable_all()
    eventually(lambda: not cluster.log.owners())
    control.enable_all()
    eventually(lambda: len(cluster.log.owners()) == 4)


def test_a_job_that_was_disabled_before_the_start_never_runs(memory, cluster, eventually):
    control = Control(memory)
    control.set_default_enabled(False)
    control.enable("other")
    cluster.node(memory, "n1", [cluster.endless(items=["a"]), cluster.endless("other", items=["z"])])
    eventually(lambda: set(cluster.log.owners()) == {"z"})
    assert set(cluster.log.count()) == {"z"}


@pytest.mark.serial
@pytest.mark.parametrize(("initial_delay_s", "before"), [(None, 0), (0.0, 1)])
def test_a_schedule_set_from_one_hour_to_one_second_runs_within_two_seconds_of_the_change(
    store, cluster, eventually, initial_delay_s, before
):
    ran = []

    def run(_context):
        ran.append(time.monotonic())

    job = cluster.endless(items=["a"], run=run, schedule=FixedDelay(3600.0), initial_delay_s=initial_delay_s)
    cluster.node(store, "n1", job)
    eventually(lambda: len(store.list("locks", recursive=True)) == 1 and len(ran) == before)
    changed = time.monotonic()
    Control(store).change_job("report", schedule=FixedDelay(1.0))
    eventually(lambda: len(ran) > before)
    assert ran[before] - changed <= 2.0
    Control(store).change_job("report", schedule=FixedDelay(3600.0))


def test_an_option_changed_in_the_code_holds_at_once_and_what_the_cluster_set_goes_before_it(
    memory, cluster, eventually
):
    ran = []
    job = cluster.endless(items=["a"], run=ran.append, schedule=FixedDelay(3600.0), initial_delay_s=3600.0)
    cluster.node(memory, "n1", job)
    job.change(initial_delay_s=0.0)
    eventually(lambda: len(ran) == 1)
    job.change(schedule=FixedDelay(0.01))
    eventually(lambda: len(ran) >= 3)
    Control(memory).change_job("report", schedule=FixedDelay(3600.0))
    eventually(lambda: cluster.nodes[0]._settings.options("report").schedule == FixedDelay(3600.0))
    count = eventually(lambda: len(ran))
    job.change(schedule=FixedDelay(0.02))
    assert not threading.Event().wait(0.3)
    assert len(ran) <= count + 1


def test_a_change_that_cannot_be_used_changes_nothing(cluster):
    job = cluster.endless()
    with pytest.raises(InvalidJob, match="pool_check_period_s is -1"):
        job.change(schedule=FixedDelay(9.0), pool_check_period_s=-1)
    with pytest.raises(InvalidJob, match="id cannot change; use "):
        job.change(id="other")
    assert job.schedule == FixedDelay(0.05)


def test_threads_set_for_the_cluster_split_the_items_again(memory, cluster, eventually):
    shares = []

    def run(context):
        shares.append(context.items)
        context.wait_for_stop()

    cluster.node(memory, "n1", cluster.endless(run=run, items=["a", "b", "c"], threads=Threads.whole()))
    eventually(lambda: shares == [("a", "b", "c")])
    Control(memory).change_job("report", threads=2)
    eventually(lambda: sorted(shares[1:]) == [("a",), ("b", "c")])


def test_pool_changed_has_the_pool_read_at_once_also_one_that_is_never_checked(memory, cluster, eventually):
    items = ["a"]
    job = cluster.endless(work_pool=lambda: list(items), pool_check_period_s=0.0)
    cluster.node(memory, "n1", job)
    eventually(lambda: set(cluster.log.owners()) == {"a"})
    items.append("b")
    job.refresh_pool()
    eventually(lambda: set(cluster.log.owners()) == {"a", "b"})


def test_a_shorter_check_period_holds_for_the_wait_under_way(memory, cluster, eventually):
    items = ["a"]
    job = cluster.endless(work_pool=lambda: list(items), pool_check_period_s=3600.0)
    cluster.node(memory, "n1", job)
    eventually(lambda: set(cluster.log.owners()) == {"a"})
    items.append("b")
    Control(memory).change_job("report", pool_check_period_s=0.05)
    eventually(lambda: set(cluster.log.owners()) == {"a", "b"})


def test_quiet_time_and_cleanup_period_set_for_the_cluster_reach_the_manager(memory, cluster, eventually, caplog):
    caplog.set_level(logging.INFO)
    first = cluster.node(memory, "n1", cluster.endless("gone"), debounce_s=3600.0, debounce_max_s=3600.0)
    threading.Event().wait(0.3)
    assert not cluster.log.owners()
    Control(memory).change_cluster(debounce_s=0.0, debounce_max_s=0.0)
    eventually(lambda: len(cluster.log.owners()) == 4)
    cluster.node(memory, "n2", cluster.endless("kept", items=["k"]))
    first.close()
    Control(memory).change_cluster(cleanup_period_s=0.1)
    eventually(lambda: memory.get("work-pool/gone") is None)
    assert memory.get("work-pool/kept") is not None


def test_a_run_that_does_not_stop_is_reported_after_the_time_set_for_the_cluster(memory, cluster, eventually, caplog):
    leave = threading.Event()
    cluster.node(memory, "n1", cluster.endless(run=lambda _context: leave.wait(20), items=["a"]))
    eventually(lambda: len(memory.list("locks", recursive=True)) == 1)
    Control(memory).change_cluster(stop_timeout_s=0.2)
    Control(memory).disable("report")
    eventually(lambda: "has not stopped" in caplog.text)
    leave.set()


def test_runs_start_later_by_no_more_than_the_jitter(memory, cluster, eventually):
    ran = []
    job = cluster.endless(items=["a"], run=ran.append, schedule=FixedDelay(0.0), jitter_s=3600.0)
    cluster.node(memory, "n1", job)
    assert not threading.Event().wait(0.3)
    assert ran == []
    Control(memory).change_job("report", jitter_s=0.0)
    eventually(lambda: len(ran) > 3)


@pytest.mark.parametrize(("ttls", "longest_s"), [((2.0, 20.0), 2.0), ((10.0, 4.0), 3.0)])
def test_a_grace_set_for_the_cluster_is_cut_to_what_the_ttls_of_a_node_allow(
    memory, cluster, eventually, caplog, ttls, longest_s
):
    session_ttl_s, lock_ttl_s = ttls
    node = cluster.node(memory, "n1", cluster.endless(), session_ttl_s=session_ttl_s, lock_ttl_s=lock_ttl_s)
    control = Control(memory)
    control.change_cluster(disconnect_grace_s=15.0)
    eventually(lambda: node._worker._get_stop_margin_s() == lock_ttl_s - longest_s)
    control.change_cluster(debounce_s=0.05)
    eventually(lambda: node._settings.now.cluster.debounce_s == 0.05)
    assert caplog.text.count(f"disconnect_grace_s is 15, but the TTLs of this node allow {longest_s:g}") == 1
    control.change_cluster(disconnect_grace_s=1.0)
    eventually(lambda: node._worker._get_stop_margin_s() == lock_ttl_s - 1.0)


def test_a_grace_set_before_a_node_starts_is_cut_too(memory, cluster):
    Control(memory).change_cluster(disconnect_grace_s=15.0)
    node = cluster.node(memory, "n1", cluster.endless(), session_ttl_s=2.0, lock_ttl_s=20.0)
    assert node._worker._get_stop_margin_s() == 18.0
