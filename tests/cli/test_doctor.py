"""`latchwork doctor`: what it finds in an installation and a store, and its exit code."""

from __future__ import annotations

from types import SimpleNamespace

import latchwork
from latchwork.backends.base import ServerInfo
from latchwork.cli.screens import doctor
from latchwork.errors import PermissionDenied


def verdicts(findings):
    return {each["check"]: each["verdict"] for each in findings}


def test_a_sound_installation_has_no_problem(cli):
    findings = cli("doctor", "--json").json["findings"]
    found = verdicts(findings)
    assert set(found.values()) == {"ok"}
    assert {"python", "latchwork", "native core", "backend etcd", "backend zk", "open files"} <= found.keys()
    assert next(each for each in findings if each["check"] == "latchwork")["detail"] == latchwork.__version__


def test_a_store_is_read_written_and_watched_and_left_as_it_was(cli, store):
    store.put("kept", b"1")
    done = cli("doctor", "--url", store.url, "--json")
    assert done.code == 0, done
    shown = done.json["findings"]
    found = verdicts(shown)
    assert found["connect"] == found["read"] == found["session"] == found["write and watch"] == "ok"
    if not store.url.startswith(("memory:", "sqlite:")):
        assert found["server version"] == "ok"
    if store.url.startswith(("zk:", "postgresql:")):
        assert found["server clock"] == "ok"
        (clock,) = (each["detail"] for each in shown if each["check"] == "server clock")
        assert clock.startswith("0.0 s ")
    if store.url.startswith(("etcd:", "postgresql:")):
        assert found["server limits"] == "ok"
    assert store.children("doctor") == []
    assert store.get("kept").value == b"1"


def test_a_store_that_cannot_be_reached_is_a_problem(cli):
    done = cli("doctor", "--url", "etcd://127.0.0.1:1/app?connect_timeout_s=1", "--json")
    assert done.code == 1
    (problem,) = [each for each in done.json["findings"] if each["verdict"] == "problem"]
    assert problem["check"] == "connect"
    assert "check that it runs" in problem["detail"]


def test_a_file_that_is_not_there_is_a_problem_and_is_not_created(cli, tmp_path):
    done = cli("doctor", "--url", f"sqlite:///{tmp_path}/none.db")
    assert done.code == 1
    assert "does not exist" in done.out
    assert not (tmp_path / "none.db").exists()


def test_distributions_of_different_versions_are_a_problem(monkeypatch):
    monkeypatch.setattr(doctor, "_get_version", lambda name: "0.0.1" if name == "latchwork-workflows" else None)
    found = {each.check: each for each in doctor.check_distributions()}
    assert found["latchwork-workflows"].verdict == "problem"
    assert found["latchwork-workflows"].remedy == f"pip install latchwork-workflows=={latchwork.__version__}"


def test_few_descriptors_and_a_newer_python_are_warnings(monkeypatch):
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _which: (256, 4096))
    assert doctor.check_file_limit().verdict == "warning"
    monkeypatch.setattr(doctor.sys, "version_info", (3, 99, 0))
    assert doctor.check_python().verdict == "warning"


def test_a_clock_that_differs_and_a_version_that_is_not_supported_are_found():
    skew = doctor._compare_clocks(1005.0, 1000.0, 1000.2)
    assert (skew.verdict, skew.detail) == ("warning", "4.9 s ahead of ours, within 0.1 s")
    assert "NTP" in skew.remedy
    assert doctor._compare_clocks(995.0, 1000.0, 1000.2).verdict == "warning"
    assert doctor._compare_clocks(1005.0, 1000.0, 1010.0).verdict == "ok"  # the answer took so long
    assert doctor._check_server_version(ServerInfo("3.5.9", "3.6")).verdict == "problem"
    assert doctor._check_server_version(ServerInfo("3.10.0-beta", "3.6")).verdict == "ok"


def test_an_account_without_rights_is_told_what_to_give_it():
    found = doctor._create_failure("write and watch", PermissionDenied("account 'a' may not write"))
    assert (found.verdict, "rights" in found.remedy) == ("problem", True)


def test_a_full_disk_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _path: SimpleNamespace(free=1_000))
    assert doctor._check_disk(tmp_path / "app.db").verdict == "warning"
