"""The folder of a worker, in which its tasks run: private to its user, and open to tenants only along the way."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from latchwork.errors import LatchworkError
from latchwork.spi import secure_folder

#: What is in it: a folder for each attempt, below one for each worker; and unpacked code bundles.
ATTEMPTS, BUNDLES = "attempts", "bundles"
#: Tenants reach their own folders by name, and can list no folder.
_MODE = 0o711
_REMEDY = "give the worker another folder with --work-dir"


def work_folder(path: Path) -> Path:
    """Make a folder of a worker, once it is certain that no other user can change it, and return its real path.

    Raises:
        LatchworkError: another user can change it or a folder above it, or it cannot be made.
    """
    try:
        return secure_folder(path, _MODE)
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home folder
        raise LatchworkError(f"this worker cannot use its work folder {path}: {error}; {_REMEDY}") from error


def barrier_to(folder: Path, user: str) -> Path | None:
    """Return the first level of a folder that a user cannot enter; None if the user can enter all of them."""
    about = pwd.getpwnam(user)
    groups = set(os.getgrouplist(user, about.pw_gid))
    for level in [*reversed(folder.parents), folder]:
        found = level.stat()
        is_owner, is_member = found.st_uid == about.pw_uid, found.st_gid in groups
        if not found.st_mode & (0o100 if is_owner else 0o010 if is_member else 0o001):
            return level
    return None
