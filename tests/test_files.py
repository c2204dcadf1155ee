"""Folders that no other user of a machine can change."""

import os
import pwd
import stat
from pathlib import Path

import pytest

from latchwork._base.files import secure_folder

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to another user")


def of_another_user(path, mode=0o755):
    path.mkdir()
    path.chmod(mode)
    os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
    return path


def test_missing_levels_are_made_with_the_mode_whatever_the_umask_is(tmp_path):
    before = os.umask(0o077)
    try:
        assert secure_folder(tmp_path / "a" / "b", 0o711) == tmp_path / "a" / "b"
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o711


def test_folder_below_a_sticky_one_is_accepted(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    assert secure_folder(tmp_path / "tmp" / "mine").is_dir()


@as_root
@pytest.mark.parametrize("below", ["", "deeper"])
def test_folder_that_another_user_made_in_a_sticky_one_is_refused(tmp_path, below):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    of_another_user(tmp_path / "tmp" / "squatted")
    with pytest.raises(PermissionError, match=r"squatted belongs to user \d+, not to user 0"):
        secure_folder(tmp_path / "tmp" / "squatted" / below)
    assert list((tmp_path / "tmp" / "squatted").iterdir()) == []


@as_root
def test_folder_of_ours_below_one_of_another_user_is_refused(tmp_path):
    of_another_user(tmp_path / "theirs")
    (tmp_path / "theirs" / "ours").mkdir(mode=0o700)
    with pytest.raises(PermissionError, match="theirs belongs to user"):
        secure_folder(tmp_path / "theirs" / "ours")


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o1777])
def test_folder_in_which_others_may_write_is_refused(tmp_path, mode):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(PermissionError, match=r"other users may write to .*open: .*chmod go-w"):
        secure_folder(tmp_path / "open")


def test_folder_below_one_in_which_others_may_write_without_the_sticky_bit_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError, match=r"other users may write to .*open"):
        secure_folder(tmp_path / "open" / "mine")


@as_root
def test_link_that_leads_into_a_folder_of_another_user_is_refused(tmp_path):
    theirs = of_another_user(tmp_path / "theirs")
    (tmp_path / "link").symlink_to(theirs)
    with pytest.raises(PermissionError, match="theirs belongs to user"):
        secure_folder(tmp_path / "link" / "mine")


def test_group_that_has_the_owner_as_its_only_member_may_write(tmp_path, monkeypatch):
    (tmp_path / "made-with-umask-002").mkdir()
    (tmp_path / "made-with-umask-002").chmod(0o775)
    os.chown(tmp_path / "made-with-umask-002", -1, pwd.getpwuid(os.geteuid()).pw_gid)
    assert secure_folder(tmp_path / "made-with-umask-002").is_dir()
    monkeypatch.setattr("grp.getgrgid", lambda gid: SharedGroup)
    with pytest.raises(PermissionError, match="other users may write"):
        secure_folder(tmp_path / "made-with-umask-002")


class SharedGroup:
    gr_name = pwd.getpwuid(os.geteuid()).pw_name
    gr_mem = ("somebody_else",)


def test_file_in_place_of_a_folder_is_refused(tmp_path):
    Path(tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file is not a folder"):
        secure_folder(tmp_path / "file")
