"""Atomic replacement of files, private folders, and explanations of failed writes.

SQLite reports a full disk as an I/O error, and the system names no file when a write fails.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from pathlib import Path

from latchwork._base.text import printable

_log = logging.getLogger(__name__)

#: The mode of a file that only its user may read. SQLite gives its log and its index the mode of the database file.
_PRIVATE = 0o600
#: A disk on which fewer bytes are free is full: SQLite's files grow by some ten thousand at a time.
_FULL_BYTES = 262_144


def explain_write_failure(path: Path) -> str:
    """Return a sentence that explains why a file cannot be written and how to fix it. Empty if no reason is found.

    Never raises an error.
    """
    folder = path.parent
    try:
        about = os.statvfs(folder)
        if about.f_flag & os.ST_RDONLY:
            return f"the disk of {printable(str(folder))} is mounted read-only"
        if about.f_bavail * about.f_frsize < _FULL_BYTES or about.f_favail == 0 < about.f_files:
            return f"the disk of {printable(str(folder))} is full: free space there"
        for each in (path, folder):
            if each.exists() and not os.access(each, os.R_OK | os.W_OK):
                return f"this account may not write {printable(str(each))}: change its owner or mode"
    except FileNotFoundError:
        return f"there is no folder {printable(str(folder))}"
    except OSError as error:
        return f"{printable(str(folder))}: {error.strerror or error}"
    return ""


def secure_folder(path: Path, mode: int = 0o700) -> Path:
    """Create a folder that no other user of this machine can change or replace.

    Every folder above it must belong to root or to this user. It may be writable for others only with the sticky bit,
    like the temporary folder. The folder itself must belong to this user and be writable only for this user.

    Args:
        path: The folder. Missing parent folders are created with the same permissions.
        mode: The permissions of created folders.
    Returns:
        The path without symbolic links, so that no link can lead elsewhere later.
    Raises:
        PermissionError: Another user owns or can change one of the folders. The message names it.
        OSError: A folder cannot be created.
    """
    real = Path(os.path.realpath(path.expanduser()))
    for level in [*reversed(real.parents), real]:
        try:
            level.mkdir(mode=mode)
        except FileExistsError:
            pass
        else:
            level.chmod(mode)  # whatever the umask is
        _refuse_foreign(level, is_last=level == real)
    return real


def _refuse_foreign(folder: Path, *, is_last: bool) -> None:
    found, user = folder.lstat(), os.geteuid()
    where = printable(str(folder))
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{where} is not a folder")
    if found.st_uid != user and (is_last or found.st_uid != 0):
        raise PermissionError(f"{where} belongs to user {found.st_uid}, not to user {user}, who is to use it")
    open_to = found.st_mode & (0o002 if _is_private_group(found) else 0o022)
    if open_to and (is_last or not found.st_mode & stat.S_ISVTX):
        raise PermissionError(f"other users may write to {where}: run chmod go-w on it")


def _is_private_group(found: os.stat_result) -> bool:
    """Return whether the owner of a folder is the only member of its group.

    Systems with a umask of 002 create such a group for each user.
    """
    import grp  # not on every system
    import pwd

    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == found.st_gid and owner.pw_name == group.gr_name and set(group.gr_mem) <= {owner.pw_name}


def replace_file(path: Path, data: bytes, *, mode: int) -> None:
    """Write a file atomically: readers see either the old content or the new one. The folder must exist.

    Args:
        path: The file.
        data: Its content.
        mode: Its permissions. Until the file is complete and has its name, only this user can read it.
    Raises:
        OSError: The file cannot be written. The message names the file, and no temporary file remains.
    """
    made = None
    try:
        fd, made = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        Path(made).chmod(mode)
        Path(made).replace(path)
    except BaseException as error:
        if made is not None:
            Path(made).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise


def make_file(path: Path, what: str, mode: int | None = None, *, remedy: str = "") -> None:
    """Create an empty file if it does not exist.

    An existing file is not opened, because closing it would release the locks that SQLite holds on it in another
    thread.

    Args:
        path: The file.
        what: Description of the file, for the warning that every user of the machine can read it.
        mode: The exact permissions. With None only this user gets permissions, and a warning is logged if an existing
            file has others.
        remedy: What the warning suggests besides chmod.
    Raises:
        OSError: The file cannot be created.
    """
    try:
        _make(path, _PRIVATE if mode is None else mode)
    except FileExistsError:
        found = path.stat().st_mode
        if mode is None and found & (stat.S_IROTH | stat.S_IWOTH):
            _log.warning(
                "%s %s has mode %o: every account of this machine can %s it; run chmod 600%s",
                what,
                path,
                stat.S_IMODE(found),
                "write" if found & stat.S_IWOTH else "read",
                remedy,
            )
    else:
        if mode is not None:
            path.chmod(mode)  # whatever the umask


def _make(path: Path, mode: int) -> None:
    try:
        os.mknod(path, stat.S_IFREG | mode)
    except PermissionError:  # some systems allow this only to root
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode))
