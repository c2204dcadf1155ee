"""As which user of the machine a task runs."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping
from pathlib import Path

from latchwork.errors import LatchworkError

#: Variables that say how text and time look; the only ones that a tenant gets of the worker's.
_COMMON = ("PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR")
_PATH = "/usr/local/bin:/usr/bin:/bin"


class NoTenant(LatchworkError):
    """This worker cannot run tasks as that user."""


def own_user() -> str:
    """The user of this process; its number where it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def may_become(tenant: str | None, allowed: Collection[str]) -> bool:
    """Whether tasks of this user can run here.

    A worker that is not root runs them as itself alone. One that is root runs them as the users on its list. Tasks
    without a tenant run as the worker, but as root only while there is no list, or root is on it.

    Args:
        tenant: that the task names; None: none.
        allowed: the users on the list of this worker.
    """
    if os.geteuid() != 0:
        return tenant is None or tenant == own_user()
    return tenant in allowed or (tenant is None and (not allowed or own_user() in allowed))


def runs_as_root(allowed: Collection[str]) -> bool:
    """Whether tasks without a tenant run as root here, which no list of users has asked for."""
    return os.geteuid() == 0 and not allowed


def tenants_label(allowed: Collection[str]) -> str:
    """Return the users that tasks may name here, separated by commas; ``-`` stands for tasks without a tenant.

    Args:
        allowed: the users on the list of this worker.
    """
    named = sorted({own_user(), *allowed})
    return ",".join(
        [*(each for each in named if may_become(each, allowed)), *(["-"] if may_become(None, allowed) else [])]
    )


def user_of(tenant: str | None, allowed: Collection[str]) -> str | None:
    """The user to change to; None for none.

    Raises:
        NoTenant: there is no such user here, or we may not become it.
    """
    if not may_become(tenant, allowed):
        if os.geteuid() != 0:
            raise NoTenant(f"this worker runs as {own_user()}, not as root, so it cannot run tasks as {tenant!r}")
        whom = "root, as this task names no tenant" if tenant is None else repr(tenant)
        raise NoTenant(f"this worker may not run tasks as {whom}: name that user with its --tenants")
    if tenant is None or tenant == own_user():
        return None
    try:
        pwd.getpwnam(tenant)
    except KeyError:
        raise NoTenant(f"there is no user {tenant!r} on this machine; add it, or name another tenant") from None
    return tenant


def environment(user: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a task begins with: ours, without any of latchwork's; for another user hardly any of ours."""
    if user is None:
        return {name: value for name, value in environ.items() if not name.startswith("LATCHWORK_")}
    about = pwd.getpwnam(user)
    kept = {name: environ[name] for name in environ if name in _COMMON or name.startswith("LC_")}
    mine = {"HOME": about.pw_dir, "USER": user, "LOGNAME": user, "SHELL": about.pw_shell or "/bin/sh"}
    return {"PATH": _PATH, **kept, **mine}


def hand_over(path: Path, user: str | None) -> None:
    """Give a file or a folder to the user."""
    if user is not None:
        about = pwd.getpwnam(user)
        os.chown(path, about.pw_uid, about.pw_gid)
