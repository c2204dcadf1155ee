"""Prepares an attempt: its code, values, secrets, folder and user."""

from __future__ import annotations

import logging
import os
import pwd
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import ValidationError

from latchwork.errors import LatchworkError
from latchwork.spi import call_user, reason, secure_folder
from latchwork_workflows.bundles import BadBundle, BundleCache
from latchwork_workflows.logs import LogStore, Mask
from latchwork_workflows.messages import TaskMessage
from latchwork_workflows.model.templates import (
    CONNECTION,
    SECRET,
    fill_references,
    find_environment_value_problem,
    format_environment_value,
    get_env_var_name,
)
from latchwork_workflows.secrets import SecretMissing, Secrets
from latchwork_workflows.types import Command, RunInfo, TaskTypes
from latchwork_workflows.types.registry import UnknownType
from latchwork_workflows.worker.attempt import ActiveAttempt
from latchwork_workflows.worker.options import WorkerOptions

#: Variables for search path, locale and time. A tenant gets no other variables of the worker.
_COMMON = ("PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR")
_PATH = "/usr/local/bin:/usr/bin:/bin"


class NoTenant(LatchworkError):
    """This worker cannot run tasks as the user that they require."""


def current_user_name() -> str:
    """Return the name of the user of this process, or the user ID if the user has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def may_run_as(tenant: str | None, allowed: Collection[str]) -> bool:
    """Return whether this worker may run tasks of a tenant, which is a user of the operating system.

    A worker that is not root runs tasks without a tenant, and tasks whose tenant is its own user. A worker that is root
    runs tasks of the allowed users. It runs tasks without a tenant as root, if root is an allowed user or no users were
    given.

    Args:
        tenant: User name that the task requires, or None.
        allowed: User names for which this worker may run tasks.
    """
    if os.geteuid() != 0:
        return tenant is None or tenant == current_user_name()
    return tenant in allowed or (tenant is None and (not allowed or current_user_name() in allowed))


def is_unrestricted_root(allowed: Collection[str]) -> bool:
    """Return whether this process is root and has no list of allowed users.

    Tasks that name no user then run as root.

    Args:
        allowed: User names for which this worker may run tasks.
    """
    return os.geteuid() == 0 and not allowed


def format_tenants(allowed: Collection[str]) -> str:
    """Return the user names for which this worker runs tasks, separated by commas. ``-`` stands for tasks without a
    tenant.

    Args:
        allowed: User names for which this worker may run tasks.
    """
    named = sorted({current_user_name(), *allowed})
    return ",".join(
        [*(each for each in named if may_run_as(each, allowed)), *(["-"] if may_run_as(None, allowed) else [])]
    )


def choose_user(tenant: str | None, allowed: Collection[str]) -> str | None:
    """Return the user to run a task as, or None for the user of this process.

    Args:
        tenant: User name that the task requires, or None.
        allowed: User names for which this worker may run tasks.
    Raises:
        NoTenant: The user does not exist on this machine, or this process may not run programs as that user.
    """
    if not may_run_as(tenant, allowed):
        if os.geteuid() != 0:
            raise NoTenant(
                f"this worker runs as {current_user_name()}, not as root, so it cannot run tasks as {tenant!r}"
            )
        whom = "root, as this task has no tenant" if tenant is None else repr(tenant)
        raise NoTenant(f"this worker may not run tasks as {whom}; list that user in its --tenants")
    if tenant is None or tenant == current_user_name():
        return None
    try:
        pwd.getpwnam(tenant)
    except KeyError:
        raise NoTenant(f"there is no user {tenant!r} on this machine; add it, or name another tenant") from None
    return tenant


def build_base_environment(user: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables with which the process of a task starts.

    For the user of this process, these are the current variables without those of Latchwork. For another user, they are
    a minimal set.

    Args:
        user: The user that the task runs as. None: the user of this process.
        environ: The environment variables of this process.
    """
    if user is None:
        return {name: value for name, value in environ.items() if not name.startswith("LATCHWORK_")}
    about = pwd.getpwnam(user)
    kept = {name: environ[name] for name in environ if name in _COMMON or name.startswith("LC_")}
    mine = {"HOME": about.pw_dir, "USER": user, "LOGNAME": user, "SHELL": about.pw_shell or "/bin/sh"}
    return {"PATH": _PATH, **kept, **mine}


def change_owner(path: Path, user: str | None) -> None:
    """Change the owner of a file or folder. Does nothing if the user is None."""
    if user is not None:
        about = pwd.getpwnam(user)
        os.chown(path, about.pw_uid, about.pw_gid)


_log = logging.getLogger(__name__)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: Variables that change how programs run. A value cannot set them.
_NEVER = re.compile(r"PATH|IFS|ENV|BASH_.*|LD_.*|DYLD_.*|PYTHON.*|PERL.*|RUBY.*|NODE_.*|JAVA_TOOL_OPTIONS|LATCHWORK_.*")
#: Folders in the work folder: one for attempts, with a folder for each worker, and one for unpacked code bundles.
ATTEMPTS, BUNDLES = "attempts", "bundles"
#: Tenants can reach their folders by name, but cannot list any folder.
_MODE = 0o711
_REMEDY = "give the worker another folder with --work-dir"


class CannotRun(LatchworkError):
    """An attempt cannot be run.

    Attributes:
        is_final: A retry cannot succeed.
    """

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True)
class PreparedAttempt:
    """A command that can be started.

    Attributes:
        command: The command.
        env: Its complete environment.
        folder: Its working directory.
        output: File for its outputs.
        stdin: File for its standard input. None: empty input.
        user: User to run as. None: the user of the worker.
        mask: Hides its secrets.
    """

    command: Command
    env: Mapping[str, str]
    folder: Path
    output: Path
    stdin: Path | None
    user: str | None
    mask: Mask


class _TaskValues(Mapping[str, Any]):
    """Values for ``${name}``, including secrets and connections. Records which secrets were used."""

    def __init__(self, spec: TaskMessage, secrets: Secrets) -> None:
        self._values = spec.values
        self._connections = spec.connections
        self._secrets = secrets
        self._project = spec.head.project
        self.used: list[str] = []

    def __getitem__(self, name: str) -> Any:
        if name.startswith(SECRET):
            return self.get_secret(name[len(SECRET) :])
        if name.startswith(CONNECTION):
            url, password = self.get_url_and_password(name[len(CONNECTION) :])
            return insert_password(url, password)
        return self._values[name]

    def get_secret(self, name: str) -> str:
        """Return the value of a secret. From now on the value is masked in the log.

        Raises:
            SecretMissing: This machine has no secret of this name.
        """
        found = self._secrets.get(name, self._project)
        self.used.append(found)
        return found

    def get_url_and_password(self, name: str) -> tuple[str, str]:
        """Return the URL and the password of a stored connection.

        Raises:
            CannotRun: The master has sent no connection of this name.
            SecretMissing: This machine has no such password.
        """
        found = self._connections.get(name)
        if found is None:
            what = f"there is no connection {name!r:.110}; create it, or give its URL"
            raise CannotRun(what, is_final=True)
        secret = found.get("secret", "")
        return found["url"], self.get_secret(secret) if secret else ""

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class AttemptPreparer:
    """Prepares attempts on this machine. Thread-safe."""

    def __init__(
        self, options: WorkerOptions, types: TaskTypes, secrets: Secrets, bundles: BundleCache, logs: LogStore
    ) -> None:
        self._options = options
        self._types = types
        self._secrets = secrets
        self._bundles = bundles
        self._logs = logs

    def prepare(self, attempt: ActiveAttempt, spec: TaskMessage, folder: Path) -> PreparedAttempt:
        """Prepare everything to start an attempt in a new and empty folder: command, environment, files and secrets.

        Raises:
            CannotRun: The attempt cannot be started. The message says why.
        """
        known = _TaskValues(spec, self._secrets)
        try:
            return call_user(self._prepare_or_explain, attempt, spec, folder, known)
        except CannotRun as error:
            raise CannotRun(Mask(known.used).mask_text(str(error)), is_final=error.is_final) from error
        except Exception as error:  # from a task type of a plugin
            _log.exception("task %s of type %s could not be prepared", spec.head.attempt_key, spec.head.type)
            text = Mask(known.used).mask_text(reason(error))
            raise CannotRun(f"the worker could not prepare it: {text}", is_final=False) from error

    def _prepare_or_explain(
        self, attempt: ActiveAttempt, spec: TaskMessage, folder: Path, known: _TaskValues
    ) -> PreparedAttempt:
        try:
            return self._prepare(attempt, spec, folder, known)
        except ZoneInfoNotFoundError:
            raise CannotRun(f"this machine has no time zone {spec.tz!r}: install tzdata", is_final=False) from None
        except KeyError as error:
            name = error.args[0]
            raise CannotRun(
                f"'${{{name}}}' has no value: it is neither a parameter nor an output of a task before "
                "{spec.head.name!r}",
                is_final=True,
            ) from None
        except ValidationError as error:
            wrong = "; ".join(f"params.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
            raise CannotRun(f"with its references filled in, the task is invalid: {wrong}", is_final=True) from None
        except (UnknownType, SecretMissing, NoTenant, BadBundle) as error:
            raise CannotRun(str(error), is_final=False) from None

    def _prepare(self, attempt: ActiveAttempt, spec: TaskMessage, folder: Path, known: _TaskValues) -> PreparedAttempt:
        """Fill in the references of a task, write its files, and build the command and the environment variables.

        Args:
            attempt: The attempt.
            spec: The message of the master.
            folder: Folder of the attempt, which is created.
            known: The values that the references may use.
        """
        kind = self._types.get(spec.head.type)
        user = choose_user(spec.head.tenant, self._options.tenants)
        scheduled_at = datetime.fromtimestamp(spec.schedule_time, ZoneInfo(spec.tz))
        quoting = getattr(kind, "quoting", {})
        filled = {
            name: value
            if name in kind.quoted
            else fill_references(value, known, scheduled_at, quote=quoting.get(name, str))
            for name, value in spec.params.items()
        }
        if getattr(kind, "connects", False):
            filled = _resolve_connection(filled, known)
        task_env = {
            name: format_environment_value(fill_references(value, known, scheduled_at))
            for name, value in spec.env.items()
        }
        _check_variables(task_env, "variable")
        params = kind.params.model_validate(filled)
        bundle = getattr(params, "bundle", None)
        path = None if bundle is None else str(self._bundles.get_folder(bundle, self._logs))
        self._make(folder, user)
        run = RunInfo(
            spec.head.run_id,
            spec.head.name,
            spec.head.n,
            str(folder),
            self._options.python,
            path,
            spec.values,
            f"latchwork-{spec.head.task}",
        )
        command = kind.command(params, run)
        output = _write_file(folder / "output", b"", user)
        stdin = _write_file(folder / "stdin", command.stdin, user) if command.stdin else None
        for name, data in command.files.items():
            _write_file(folder / Path(name).name, data, user)
        base = build_base_environment(user, os.environ)
        variables = build_variables(spec.values, base)
        if getattr(kind, "ignores_variables", False):
            variables = {name: text for name, text in variables.items() if not find_environment_value_problem(text)}
        else:
            _check_variables(variables, "parameter or output")
        own_variables = {
            "LATCHWORK_OUTPUT": str(output),
            "LATCHWORK_TOKEN": str(attempt.token),
            "LATCHWORK_WORKFLOW": spec.head.workflow,
            "LATCHWORK_TASK": spec.head.name,
            "LATCHWORK_RUN": str(spec.head.run_id),
            "LATCHWORK_ATTEMPT": str(spec.head.n),
        }
        env = {**base, **variables, **task_env, **command.env, **own_variables}
        if "PYTHONPATH" in command.env and base.get("PYTHONPATH"):  # a bundle comes first
            env["PYTHONPATH"] = os.pathsep.join([command.env["PYTHONPATH"], base["PYTHONPATH"]])
        return PreparedAttempt(command, env, folder, output, stdin, user, Mask(known.used))

    def _make(self, folder: Path, user: str | None) -> None:
        """Create the folder of an attempt for the user who runs it. An existing folder is deleted first."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        change_owner(folder, user)
        barrier = None if user is None else find_inaccessible_folder(folder, user)
        if barrier is not None:
            raise CannotRun(
                f"user {user!r} cannot enter {barrier}, and tasks run below it: give the worker a folder that its "
                "tenants can enter with --work-dir",
                is_final=False,
            )


def _resolve_connection(params: Mapping[str, Any], task_values: _TaskValues) -> dict[str, Any]:
    """Return the parameters of a task in which the name of a stored connection is replaced by its URL and password."""
    name = params.get("connection")
    if not isinstance(name, str) or "://" in name:
        return dict(params)
    url, password = task_values.get_url_and_password(name)
    return {**params, "connection": url, "password": params.get("password") or password}


def insert_password(url: str, password: str) -> str:
    """Return a database URL with a password inserted. A URL without a host, or with a password, is returned
    unchanged.
    """
    scheme, _, rest = url.partition("://")
    end = min((at for each in "/?#" if (at := rest.find(each)) >= 0), default=len(rest))
    user, _, host = rest[:end].rpartition("@")
    if not password or not host or ":" in user:
        return url
    return f"{scheme}://{user}:{quote(password, safe='')}@{host}{rest[end:]}"


def build_variables(values: Mapping[str, Any], base: Mapping[str, str]) -> dict[str, str]:
    """Return values as environment variables. The name ``a.b`` becomes ``a_b``.

    Outputs of other tasks are untrusted. They never replace a variable of ``base`` or one that changes how programs
    run.

    Args:
        values: Values by name.
        base: The environment variables that are set already.
    """
    found: dict[str, str] = {}
    for name in sorted(values, key=lambda each: ("." not in each and "-" not in each, each)):  # plain names win
        variable = get_env_var_name(name)
        if _VARIABLE.fullmatch(variable) and variable not in base and not _NEVER.fullmatch(variable):
            found[variable] = format_environment_value(values[name])
    return found


def _check_variables(variables: Mapping[str, str], what: str) -> None:
    for name, text in variables.items():
        if why := find_environment_value_problem(text):
            message = f"{what} {name!r} cannot be an environment variable: {why}; pass the name of a file instead"
            raise CannotRun(message, is_final=True)


def _write_file(path: Path, data: bytes, user: str | None) -> Path:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    change_owner(path, user)
    return path


def create_work_folder(path: Path) -> Path:
    """Create the work folder of a worker, check that no other user can change it, and return its real path.

    Raises:
        LatchworkError: Another user can change it or a folder above it, or it cannot be created.
    """
    try:
        return secure_folder(path, _MODE)
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home folder
        raise LatchworkError(f"this worker cannot use its work folder {path}: {error}; {_REMEDY}") from error


def find_inaccessible_folder(folder: Path, user: str) -> Path | None:
    """Return the outermost folder of a path for which a user has no search permission, or None if there is none."""
    about = pwd.getpwnam(user)
    groups = set(os.getgrouplist(user, about.pw_gid))
    for level in [*reversed(folder.parents), folder]:
        found = level.stat()
        is_owner, is_member = found.st_uid == about.pw_uid, found.st_gid in groups
        if not found.st_mode & (0o100 if is_owner else 0o010 if is_member else 0o001):
            return level
    return None
