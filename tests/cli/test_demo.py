"""`latchwork demo`, whole, on every kind of store that processes can share."""

from __future__ import annotations

import re
import shutil
import signal
import sysconfig
from pathlib import Path

import psutil
import pytest

import latchwork

# Faster than for people; still some seconds of work, so that the kill comes in the middle.
QUICK = ("--pace-s", "0.05", "--json")
TTL_S = 2.0


@pytest.fixture
def part(tmp_path_factory):
    """Variables with which the demo counts single modules of the standard library only: one test has all of it."""
    few, found = tmp_path_factory.mktemp("few"), tmp_path_factory.mktemp("found")
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:120]:
        shutil.copy(path, few)
    (found / "sitecustomize.py").write_text(
        "import sysconfig\n"
        "path_of = sysconfig.get_path\n"
        f"sysconfig.get_path = lambda name, *rest: {str(few)!r} if name == 'stdlib' else path_of(name, *rest)\n"
    )
    return {"PYTHONPATH": str(found)}


def assert_proved(done, *, leader, lines=20_000):
    """The story holds together: killed halfway inside an item, taken over in time, totals equal."""
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    report = done.json
    kill, takeover = report["kill"], report["takeover"]
    assert report["ok"]
    assert not report["problems"]
    assert 0.3 <= kill["done"] / report["items"] <= 0.7
    assert kill["was_leader"] is leader
    assert kill["item"] in kill["owned"]
    assert [kill["item"], kill["node"]] in [[rerun["item"], rerun["first"]] for rerun in report["reruns"]]
    assert all(rerun["again"] != kill["node"] for rerun in report["reruns"])
    assert takeover["items"] == len(kill["owned"]) > 10
    assert 0 < takeover["interrupted_s"] <= TTL_S + 2
    assert 0 < takeover["owned_s"] <= TTL_S + 2
    assert (takeover["leader_s"] is not None) == leader
    assert report["cluster"] == report["serial"]
    assert report["serial"]["lines"] > lines
    assert report["serial"]["unparsable"] >= 1
    assert sum(report["by_node"].values()) == report["items"]


@pytest.mark.slow
def test_demo_on_sqlite_survives_the_kill_of_a_worker_and_leaves_nothing(cli):
    done = cli("demo", *QUICK, TMPDIR=str(cli.folder))
    assert_proved(done, leader=False, lines=100_000)
    assert done.json["store"].startswith("sqlite:///")
    assert [each for each in cli.folder.rglob("*") if each.is_file() or each.name.startswith("latchwork-demo-")] == []


@pytest.mark.slow
def test_demo_on_sqlite_survives_the_kill_of_the_manager_and_what_it_kept_can_be_looked_at(cli, part):
    url = f"sqlite:///{cli.folder}/demo.db"
    done = cli("demo", "--kill", "manager", "--keep", "--url", url, *QUICK, TMPDIR=str(cli.folder), **part)
    assert_proved(done, leader=True)
    report = done.json
    assert report["kept"]
    rows = cli("tree", "demo/results", "--json", "--url", report["store"]).json
    assert len(rows) == report["items"]
    assert len(list(cli.folder.glob("latchwork-demo-*/w?.log"))) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("server", "victim"), [("etcd35", "worker"), ("zookeeper", "manager")])
def test_demo_on_a_real_server_survives_and_removes_its_root(cli, request, server, victim, part):
    url = request.getfixturevalue(server).url(f"demo-of-{victim}")
    with latchwork.connect(url) as store:
        store.put("others", b"stays")
        done = cli("demo", "--kill", victim, *QUICK, LATCHWORK_URL=url, **part)
        assert_proved(done, leader=victim == "manager")
        assert [entry.key for entry in store.list("", recursive=True)] == ["others"]
        assert store.children("") == ["others"]


@pytest.mark.slow
def test_demo_tells_people_what_happened(cli, part):
    done = cli("demo", "--pace-s", "0.05", "--workers", "2", **part)
    assert done.code == 0, done.err
    assert re.search(r"kill -9 \d+: w\d, a worker, after \d+ of \d+ items, while it was running \w+", done.out)
    assert re.search(r"run again: +\w+ \(w\d, then w\d\)", done.out)
    assert re.search(r"had new owners \d+\.\d s after the kill", done.out)
    assert "equal the serial count" in done.out
    assert re.search(r"\d+\.\d s in all; the store was sqlite:///.*\(removed\)", done.out)


@pytest.mark.slow
def test_demo_fails_when_the_totals_differ(cli, wait_until, part):
    url = f"sqlite:///{cli.folder}/demo.db"
    process = cli.start("demo", "--pace-s", "0.05", "--url", url, **part)
    root = wait_until(lambda: re.search(r"root=(\S+);", process.log.read_text()), "the demo names its store")[1]
    with latchwork.connect(url, root=root) as store:

        def falsify():
            done = store.list("demo/results", limit=1)
            return done and store.put(done[0].key, done[0].value.replace(b'"lines":', b'"lines":1'))

        wait_until(falsify, "there is a result to falsify")
    assert process.wait(120) == 1
    assert re.search(r"FAILED: the cluster counted [\d,]+ lines, the serial count is [\d,]+", process.log.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_demo_however_it_ends(cli, wait_until, blow):
    process = cli.start("demo", TMPDIR=str(cli.folder))
    wait_until(lambda: "running" in process.log.read_text(), "items run")
    children = psutil.Process(process.pid).children(recursive=True)
    workers = [each for each in children if "latchwork.demo.node" in each.cmdline()]
    assert len(workers) == 3
    process.send_signal(blow)
    assert process.wait(20) == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[blow]
    _, left = psutil.wait_procs(children, timeout=5)
    assert all(each.status() == psutil.STATUS_ZOMBIE for each in left)
    assert "Traceback" not in process.log.read_text()
    if blow != signal.SIGKILL:
        assert not list(cli.folder.glob("latchwork-demo-*"))


def test_demo_refuses_a_store_that_processes_cannot_share(cli):
    cli("demo", "--url", "memory://trial").refused(2, "memory://trial", "sqlite://")


def test_demo_refuses_to_kill_its_only_worker(cli):
    done = cli("demo", "--workers", "1")
    assert done.code == 2
    assert "--workers" in done.err


def test_demo_says_which_worker_failed_and_why(cli):
    ours = "'latchwork.demo.node' in sys.orig_argv"
    cli.write("sitecustomize.py", f"import os, sys\nif {ours}:\n    print('no room', flush=True)\n    os._exit(7)\n")
    done = cli("demo", PYTHONPATH=str(cli.folder), TMPDIR=str(cli.folder))
    line = done.refused(1, "ended by itself", "its log ends: no room")
    assert re.search(r"w\d \(pid \d+\)", line)
