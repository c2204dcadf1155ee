"""Each fault once, on one of the backends it applies to; `make check WHAT=faults` has all of them, idle and busy."""

from __future__ import annotations

import pytest

from trials.contract.faults import BY_NAME, FAULTS
from trials.contract.play import Fault, play
from trials.judges.contract.facts import Patience

#: Tests share the machine with others; `make check WHAT=faults` is strict.
PATIENCE = Patience(reconnect_s=10.0, grace_s=10.0, slack_s=1.5)
SAMPLE = [
    ("zookeeper", "server killed", "busy"),
    ("etcd34", "server stopped for half a TTL", "idle"),
    ("zookeeper", "server stopped for three TTLs", "busy"),
    ("sqlite", "client frozen past its TTL", "busy"),
    ("etcd35", "client killed", "busy"),
    ("zookeeper", "connections cut", "busy"),
    ("etcd35", "requests lost, then cut", "busy"),
    ("zookeeper", "answers lost, then cut", "busy"),
    ("zookeeper", "black hole for half a TTL", "busy"),
    ("etcd35", "black hole for three TTLs", "idle"),
    ("etcd35", "requests held for three TTLs", "busy"),
    ("zookeeper", "answers held for three TTLs", "busy"),
    ("etcd34", "writes land late", "busy"),
    ("zookeeper", "session revoked from outside", "busy"),
    ("etcd35", "compacted under watches", "busy"),
    ("etcd34", "compacted behind a watch", "busy"),
    ("zookeeper", "server absent at start", "idle"),
    ("etcd35", "process forked", "idle"),
    ("etcd35", "leader killed, three times", "busy"),
    ("zookeeper", "deposed leader woken", "busy"),
    ("etcd35", "leader cut off", "busy"),
    ("etcd34", "follower cut off", "idle"),
    ("zookeeper", "follower's link to its leader cut", "busy"),
    ("postgresql", "server killed", "busy"),
    ("postgresql", "server stopped for three TTLs", "busy"),
    ("postgresql", "answers lost, then cut", "busy"),
    ("postgresql", "writes land late", "busy"),
    ("sqlite", "stopped inside a write", "busy"),
    ("sqlite", "disk full", "busy"),
    ("sqlite", "files may not be written", "busy"),
    ("sqlite", "file moved away and back", "busy"),
]


def test_the_sample_covers_every_fault():
    assert {fault for _, fault, _ in SAMPLE} == {fault.name for fault in FAULTS}


#: Plays whose links are cut by proxies, as for those who are not root; the others are given in the best way there is.
BY_PROXIES = {("etcd34", "follower cut off"), ("zookeeper", "follower's link to its leader cut")}


@pytest.mark.parametrize(("backend", "fault", "load"), SAMPLE, ids=lambda part: part.replace(" ", "-"))
def test_the_contract_holds_through(backend, fault, load):
    if not BY_NAME[fault].is_possible:
        pytest.skip("needs root")
    links = "proxies" if (backend, fault) in BY_PROXIES else ""
    verdict = play(backend, BY_NAME[fault], load, links=links, patience=PATIENCE)
    assert verdict.violations == []


@pytest.mark.parametrize("lands_at", [1, 2, None])
def test_a_play_whose_fault_did_not_land_is_given_again_and_fails_when_it_never_does(lands_at):
    given = []

    def inflict(stage):
        given.append(stage)
        if len(given) != lands_at:
            stage.record.missed = "nothing happened"

    verdict = play("sqlite", Fault("lands now and then", inflict, ("sqlite",)), "idle", patience=PATIENCE)
    assert len(given) == (lands_at or 3)
    assert bool(verdict.violations) == (lands_at is None)
    assert all("did not land" in sentence and "nothing happened" in sentence for sentence in verdict.violations)
