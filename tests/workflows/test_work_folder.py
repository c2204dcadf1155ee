"""The folder in which tasks run: no other user of the machine can put code into it."""

import os
import pwd
import shutil
import tempfile
import uuid
from pathlib import Path

import pytest

import latchwork
from latchwork.errors import LatchworkError
from latchwork_workflows import Home, Serve, ServeOptions
from latchwork_workflows.bundles import BadBundle, BundleCache, pack_bundle
from latchwork_workflows.keys import get_workflows_store
from latchwork_workflows.logs import open_logs
from latchwork_workflows.messages import Outcome
from latchwork_workflows.worker import Secrets, Worker, WorkerOptions

from . import working
from .working import result, shell

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to another user, or become one")


@pytest.fixture
def store():
    with latchwork.connect(f"memory://{uuid.uuid4().hex}") as opened:
        yield get_workflows_store(opened)


@pytest.fixture
def logs(store, tmp_path):
    return working.begun(store, tmp_path)


@as_root
@pytest.mark.parametrize("squatted", [".", "attempts", "bundles"])
def test_worker_does_not_start_in_a_folder_that_another_user_made_first(store, logs, tmp_path, squatted):
    work = tmp_path / "work"
    theirs = work / squatted
    theirs.mkdir(parents=True)
    os.chown(theirs, pwd.getpwnam("nobody").pw_uid, -1)
    made = Worker(store, logs=logs, name="w1", options=working.options(tmp_path), secrets=Secrets(environ={}))
    with pytest.raises(LatchworkError, match=r"cannot use its work folder .* belongs to user \d+.*--work-dir"):
        made.start()
    made.close()


def test_default_work_folder_is_in_the_home_of_the_workflows(store, logs, monkeypatch, tmp_path):
    monkeypatch.setenv("LATCHWORK_WORKFLOWS_HOME", str(tmp_path / "home"))
    with Worker(store, logs=logs, name="w1", options=WorkerOptions(slots=1)) as made:
        made.wait_ready(60)
        assert (
            result(store, shell(store, 1, "pwd > $OUT", env={"OUT": str(tmp_path / "out")})).outcome is Outcome.SUCCESS
        )
    assert Path((tmp_path / "out").read_text().strip()).is_relative_to(tmp_path / "home" / "work")


def test_serve_keeps_its_work_folder_in_its_home(tmp_path):
    with Serve(Home.of(tmp_path / "home"), ServeOptions(port=0, has_pages=False, worker=WorkerOptions(slots=1))):
        assert (tmp_path / "home" / "work" / "attempts").is_dir()


@as_root
def test_tenant_that_cannot_enter_the_work_folder_is_a_failure_that_names_folder_and_option(store, logs, tmp_path):
    closed = Path(tempfile.mkdtemp())  # with mode 0700
    made = working.worker(store, tmp_path, work_dir=closed / "work", tenants=("nobody",))
    found = result(store, shell(store, 1, "true", tenant="nobody"))
    made.close()
    shutil.rmtree(closed)
    assert found.outcome is Outcome.FAILURE
    assert f"user 'nobody' cannot enter {closed}," in found.error
    assert "--work-dir" in found.error


# Bundles that an earlier process unpacked


@pytest.fixture
def bundle(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "honest.py").write_text("print('honest')\n")
    (tmp_path / "code" / "data.txt").write_text("data\n")
    return pack_bundle(tmp_path / "code")


@pytest.fixture
def unpacked(bundle, tmp_path):
    """The folder of a bundle that another process unpacked, and the log store that has it."""
    logs = open_logs(tmp_path / "logs")
    logs.put_file(bundle.file_name, bundle.data)
    return BundleCache(tmp_path / "bundles").get_folder(bundle.sha256, logs), logs


def again(unpacked, bundle):
    folder, logs = unpacked
    found = BundleCache(folder.parent).get_folder(bundle.sha256, logs)
    assert sorted(each.name for each in found.iterdir()) == ["data.txt", "honest.py"]
    return (found / "honest.py").read_text()


def change(folder):
    (folder / "honest.py").write_text("print('changed')\n")


def add(folder):
    (folder / "sitecustomize.py").write_text("print('added')\n")


def add_bytecode(folder):
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "honest.cpython-311.pyc").write_bytes(b"planted")


def lose(folder):
    (folder / "honest.py").write_bytes(b"")  # as a power cut leaves it


def link(folder):
    (folder.parent / "elsewhere.py").write_text("print('honest')\n")
    (folder / "honest.py").unlink()
    (folder / "honest.py").symlink_to(folder.parent / "elsewhere.py")


def change_zip(folder):
    change(folder)
    folder.with_suffix(".zip").write_bytes(pack_bundle(folder).data)


@pytest.mark.parametrize("harm", [change, add, add_bytecode, lose, link, change_zip], ids=lambda harm: harm.__name__)
def test_bundle_that_was_changed_on_disk_is_unpacked_again_before_its_first_use(unpacked, bundle, harm):
    harm(unpacked[0])
    assert again(unpacked, bundle) == "print('honest')\n"
    left = [each.name for each in unpacked[0].parent.iterdir() if each.name != "elsewhere.py"]
    assert sorted(left) == [bundle.sha256, f"{bundle.sha256}.zip"]


def test_intact_bundle_is_used_without_the_log_store(unpacked, bundle):
    unpacked[1].remove_file(bundle.file_name)
    assert again(unpacked, bundle) == "print('honest')\n"


def test_changed_bundle_that_the_log_store_no_longer_has_is_not_used(unpacked, bundle):
    unpacked[1].remove_file(bundle.file_name)
    change(unpacked[0])
    with pytest.raises(BadBundle, match="deploy the workflow again"):
        again(unpacked, bundle)
