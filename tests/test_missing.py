"""What a machine may lack: Chromium and PostgreSQL are installed where they can be; else tests are skipped, or fail."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from latchwork_testkit.binaries import ServerMissing
from latchwork_testkit.chromium import find_chromium
from missing import found_or_skipped

SCRIPT = Path(__file__).parents[1] / "scripts" / "install_chromium"


def lacks():
    raise ServerMissing("there is no Chromium")


def test_a_test_is_skipped_where_something_is_missing(monkeypatch):
    monkeypatch.delenv("LATCHWORK_NOTHING_MISSING", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no Chromium"):
        found_or_skipped(lacks)


def test_it_fails_where_nothing_may_be_missing(monkeypatch):
    monkeypatch.setenv("LATCHWORK_NOTHING_MISSING", "1")
    with pytest.raises(pytest.fail.Exception, match=r"nothing may be missing.*there is no Chromium"):
        found_or_skipped(lacks)


def test_a_browser_is_found_by_its_variable_or_on_the_path(monkeypatch, tmp_path):
    monkeypatch.delenv("LATCHWORK_CHROMIUM", raising=False)
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_chromium() == str(program)
    monkeypatch.setenv("LATCHWORK_CHROMIUM", "/nowhere/browser")
    with pytest.raises(ServerMissing, match="LATCHWORK_CHROMIUM"):
        find_chromium()


@pytest.fixture
def install(tmp_path):
    """Runs a copy of the script on a machine with these programs; its exit code, what was run, and what it said."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")

    def run(*, user=0, apt="touch there"):
        programs = {
            ".venv/bin/python": "[ -e there ]",
            "bin/id": f"echo {user}",
            "bin/apt-get": f'echo "$*" >>asked\ncase "$*" in *install*) {apt};; esac',
        }
        for name, text in programs.items():
            program = tmp_path / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
        done = subprocess.run(
            ["sh", "scripts/install_chromium"],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        asked = tmp_path / "asked"
        return done.returncode, asked.read_text().splitlines() if asked.exists() else [], done.stderr

    return run


def test_root_gets_the_package_once(install):
    code, asked, said = install()
    assert (code, said) == (0, "")
    assert asked == ["-q update", "-q install -y --no-install-recommends chromium"]
    assert install() == (0, asked, "")


@pytest.mark.parametrize(
    ("how", "why"), [({"user": 1000}, "not root; run: sudo apt-get"), ({"apt": "exit 100"}, "could not install it")]
)
def test_whoever_cannot_install_a_browser_gets_one_loud_line(install, how, why):
    code, _, said = install(**how)
    assert code == 1
    assert said.startswith("install_chromium: NO PAGE IS LOOKED AT: ")
    assert why in said
    assert said.count("\n") == 1
