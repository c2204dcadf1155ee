"""Which tests `make quick` runs."""

from __future__ import annotations

import subprocess

import pytest

from script_modules import load_script


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Return the script, for a project with tests of two packages."""
    script = load_script("quick")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "TESTS", tmp_path / "tests")
    monkeypatch.setattr(script, "ALWAYS", ())
    files = {
        "python/latchwork/jobs/cron.py": "",
        "tests/jobs/test_cron.py": "from latchwork.jobs.cron import Cell",
        "tests/jobs/test_other.py": "import latchwork",
        "tests/jobs/test_server.py": "from latchwork_testkit.servers import EtcdServer",
        "tests/store/test_store.py": "import latchwork",
        "tests/cli/test_why.py": "from latchwork.jobs import cron",
        "tests/trials/storms/test_storm.py": "from latchwork.jobs import cron",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return script


def chosen(quick, *names):
    return [path.name for path in quick.chosen([quick.ROOT / name for name in names])]


def test_tests_that_import_a_changed_module_run_before_others_of_its_package(quick):
    assert chosen(quick, "python/latchwork/jobs/cron.py") == ["test_why.py", "test_cron.py", "test_other.py"]


def test_tests_that_changed_run_first(quick):
    assert chosen(quick, "python/latchwork/jobs/cron.py", "tests/store/test_store.py")[0] == "test_store.py"


def test_a_changed_helper_of_tests_runs_the_tests_of_its_folder(quick):
    assert chosen(quick, "tests/jobs/conftest.py") == ["test_cron.py", "test_other.py"]


def test_a_change_of_a_page_runs_no_tests_of_packages(quick):
    assert chosen(quick, "README.md") == []


def test_what_is_committed_since_the_base_counts_as_changed_and_so_do_new_files(quick):
    def git(*arguments):
        about = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        subprocess.run(["git", *about, *arguments], cwd=quick.ROOT, check=True, capture_output=True)

    git("init", "-b", "main")
    git("add", ".")
    git("commit", "-m", "all")
    git("checkout", "-b", "work")
    (quick.ROOT / "tests/store/test_store.py").write_text("import latchwork.store")
    git("commit", "-a", "-m", "one")
    (quick.ROOT / "new.py").touch()
    assert [path.name for path in quick.changed_since("main")] == ["test_store.py", "new.py"]
