"""`latchwork doctor`: what it finds in an installation and a store, and its exit code."""

from __future__ import annotations

import latchwork
from latchwork.cli.screens import doctor


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
    monkeypatch.setattr(doctor, "_version", lambda name: "0.0.1" if name == "latchwork-workflows" else None)
    found = {each.check: each for each in doctor.distributions()}
    assert found["latchwork-workflows"].verdict == "problem"
    assert found["latchwork-workflows"].remedy == f"pip install latchwork-workflows=={latchwork.__version__}"


def test_few_descriptors_and_a_newer_python_are_warnings(monkeypatch):
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _which: (256, 4096))
    assert doctor.files().verdict == "warning"
    monkeypatch.setattr(doctor.sys, "version_info", (3, 99, 0))
    assert doctor.python().verdict == "warning"
