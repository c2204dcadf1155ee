"""Exports and imports everything that users wrote as one document: workflows with schedules, settings, accounts.

Runs, history, logs, passwords, tokens and secrets are not exported. An import first compares the document with the
database. It adds and changes, but deletes nothing. It writes everything or nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from latchwork_workflows.alerts import ChannelInvalid, validate_channel
from latchwork_workflows.db import Database, definitions, grants, related_runs, tables
from latchwork_workflows.db.accounts import end_all_sessions
from latchwork_workflows.db.history import record_event
from latchwork_workflows.db.tables import channel, project_grant
from latchwork_workflows.errors import DefinitionInvalid, Problem
from latchwork_workflows.model.definition import Definition
from latchwork_workflows.model.settings.validation import (
    ENVIRONMENT_NAME,
    find_connection_problems,
    find_environment_problems,
    find_parameter_problems,
)
from latchwork_workflows.model.validate import ValidDefinition, check_definition
from latchwork_workflows.schemas.grants import Grant
from latchwork_workflows.schemas.pools import PoolSettings
from latchwork_workflows.types import TaskTypes

FORMAT = 1


class _ExportRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", str_max_length=200_000)


class ExportedWorkflow(_ExportRecord):
    """A workflow: its newest version, whether it may be started, and whether its schedule is enabled.

    None keeps the current value. For a new workflow, None means true.
    """

    definition: dict[str, Any]
    online: bool | None = None
    scheduled: bool | None = None


class ExportedParameter(_ExportRecord):
    """A value for ``${name}``, of a project or of all projects."""

    project: str = Field("", max_length=100)
    name: str = Field(max_length=100)
    value: JsonValue


class ExportedEnvironment(_ExportRecord):
    """Named variables, of a project or of all projects."""

    project: str = Field("", max_length=100)
    name: str = Field(max_length=100)
    variables: dict[str, str]


class ExportedConnection(_ExportRecord):
    """A connection of a project or of all projects, with the name of its password instead of the password."""

    project: str = Field("", max_length=100)
    name: str = Field(max_length=100)
    url: str = Field(max_length=1000)
    secret: str = Field("", max_length=100)


class ExportedChannel(_ExportRecord):
    """An alert channel, with the names of its secrets."""

    name: str = Field(max_length=100)
    kind: Literal["smtp", "webhook", "apprise"]
    options: dict[str, JsonValue] = {}
    enabled: bool = True


class ExportedAccount(_ExportRecord):
    """An account and its roles by project, without its password: an administrator sets a new one."""

    name: str = Field(max_length=100)
    enabled: bool = True
    roles: dict[str, Literal["viewer", "operator", "editor", "admin"]] = {}


class ExportDocument(_ExportRecord):
    """The whole document."""

    latchwork_workflows: Literal[1]
    workflows: list[ExportedWorkflow] = []
    parameters: list[ExportedParameter] = []
    environments: list[ExportedEnvironment] = []
    connections: list[ExportedConnection] = []
    pools: list[PoolSettings] = []
    channels: list[ExportedChannel] = []
    grants: list[Grant] = []
    accounts: list[ExportedAccount] = []


class Change(NamedTuple):
    """Effect of an import on one object.

    Attributes:
        kind: Such as ``workflow`` or ``account``.
        name: Name of the object.
        what: ``new``, ``changed`` or ``same``.
        fields: Names of the fields that differ, if it has changed.
    """

    kind: str
    name: str
    what: str
    fields: tuple[str, ...] = ()


#: Section, kind, table, and the columns of its key. All other columns are its values.
_PLAIN: tuple[tuple[str, str, sa.Table, tuple[str, ...]], ...] = (
    ("parameters", "parameter", tables.parameter, ("project", "name")),
    ("environments", "environment", tables.environment, ("project", "name")),
    ("connections", "connection", tables.connection, ("project", "name")),
    ("pools", "pool", tables.pool, ("name",)),
    ("channels", "channel", channel, ("name",)),
    ("grants", "grant", project_grant, ("project", "grantee")),
)


def export_document(database: Database) -> dict[str, Any]:
    """Return everything that users have stored in a database, as plain values sorted by name. See the module."""
    with database.read() as connection:
        return _document(connection).model_dump(mode="json")


def import_document(
    database: Database, document: Mapping[str, Any], *, types: TaskTypes | None = None, by: str, dry_run: bool = False
) -> list[Change]:
    """Compare a document with a database, and store the differences.

    Args:
        database: Database to write to.
        document: A document made by ``export_document``.
        types: Task types that its workflows may have. None: all installed ones.
        by: User who imports it.
        dry_run: Store nothing, and only return the differences.
    Returns:
        One change for each object of the document, in its order.
    Raises:
        DefinitionInvalid: Contains every problem with its path. Nothing was written.
    """
    wanted = _read(document)
    found = _checked(wanted, types or TaskTypes())
    with database.write() as connection:
        _check_cycles(connection, found)
        changes = list(_compare(_document(connection), wanted, found))
        if not dry_run and any(each.what != "same" for each in changes):
            _write(connection, wanted, found, changes, by)
    return changes


def find_missing_bundles(document: Mapping[str, Any], has: Callable[[str], bool]) -> list[str]:
    """Return the code bundles that workflows of a document need but that a log store does not have.

    Args:
        document: The document.
        has: Returns whether the log store has the bundle with a SHA-256.
    Returns:
        The SHA-256 of each such bundle.
    """
    wanted = {
        task["params"]["bundle"]
        for each in _read(document).workflows
        for task in each.definition.get("tasks", ())
        if isinstance(task, dict) and isinstance((task.get("params") or {}).get("bundle"), str)
    }
    return sorted(each for each in wanted if not has(each))


def _read(given: Mapping[str, Any]) -> ExportDocument:
    try:
        return ExportDocument.model_validate({name: each for name, each in given.items() if name != "exported_at"})
    except ValidationError as error:
        raise DefinitionInvalid([Problem(_path(each["loc"]), each["msg"]) for each in error.errors()]) from None


def _path(places: Sequence[str | int]) -> str:
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in places).lstrip(".")


def _checked(document: ExportDocument, types: TaskTypes) -> list[ValidDefinition]:
    found, problems = [], []
    for number, each in enumerate(document.workflows):
        try:
            found.append(check_definition(each.definition, types))
        except DefinitionInvalid as error:
            place = f"workflows[{number}].definition"
            problems += [Problem(f"{place}.{at}" if at else place, message) for at, message in error.problems]
    keys = [each.definition.key for each in found]
    problems += [
        Problem("workflows", f"{key} is listed twice") for key in sorted({k for k in keys if keys.count(k) > 1})
    ]
    for number, way in enumerate(document.channels):
        try:
            validate_channel(way.name, way.kind, way.options)
        except ChannelInvalid as error:
            problems += [Problem(f"channels[{number}].{path}", why) for path, why in error.problems]
    problems += _find_setting_problems(document)
    if problems:
        raise DefinitionInvalid(problems)
    return found


def _check_cycles(connection: sa.Connection, found: Sequence[ValidDefinition]) -> None:
    wrong = enumerate(related_runs.find_cycles(connection, [each.definition for each in found]))
    problems = [Problem(f"workflows[{number}].definition.{at}", why) for number, each in wrong for at, why in each]
    if problems:
        raise DefinitionInvalid(problems)


def _find_setting_problems(document: ExportDocument) -> Iterator[Problem]:
    """Yield the problems of the settings in a document. No message contains a value, because it could be a password."""
    found: list[tuple[str, int, str, Iterable[Problem]]] = []
    for number, one in enumerate(document.connections):
        found.append(("connections", number, one.project, find_connection_problems(one.name, one.url, one.secret)))
    for number, each in enumerate(document.environments):
        found.append(("environments", number, each.project, find_environment_problems(each.name, each.variables)))
    for number, value in enumerate(document.parameters):
        found.append(("parameters", number, value.project, find_parameter_problems(value.name, value.value)))
    for section, number, project, problems in found:
        if project and not ENVIRONMENT_NAME.fullmatch(project):
            yield Problem(f"{section}[{number}].project", "this is not a valid project name")
        yield from (Problem(f"{section}[{number}].{path}", message) for path, message in problems)


# From the database


def _document(connection: sa.Connection) -> ExportDocument:
    made: dict[str, Any] = {"latchwork_workflows": FORMAT, "workflows": _workflows(connection)}
    for section, _, table, key in _PLAIN:
        rows = connection.execute(sa.select(table).order_by(*(table.c[each] for each in key)))
        made[section] = [_to_plain_values(dict(row._mapping)) for row in rows]  # noqa: SLF001 - public, in spite of its name
    made["accounts"] = _accounts(connection)
    return ExportDocument.model_validate(made)


def _to_plain_values(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as plain values, without its author and without the time of its last change."""
    return {name: each for name, each in row.items() if name not in {"changed_at", "by"}}


def _workflows(connection: sa.Connection) -> list[dict[str, Any]]:
    plain, version, timed = tables.definition, tables.definition_version, tables.schedule
    newest = sa.and_(version.c.code == plain.c.code, version.c.version == plain.c.version)
    chosen = sa.select(plain.c.online, version.c.body, timed.c.enabled).join(version, newest)
    chosen = chosen.outerjoin(timed, timed.c.code == plain.c.code).order_by(plain.c.project, plain.c.name)
    return [
        {"definition": _body(row.body), "online": row.online, "scheduled": row.enabled is not False}
        for row in connection.execute(chosen)
    ]


def _body(text: str) -> dict[str, Any]:
    return Definition.model_validate_json(text).model_dump(mode="json", exclude_defaults=True)


def _accounts(connection: sa.Connection) -> list[dict[str, Any]]:
    roles: dict[str, dict[str, str]] = {}
    for row in connection.execute(sa.select(tables.account_role).order_by(tables.account_role.c.project)):
        roles.setdefault(row.account, {})[row.project] = row.role
    chosen = sa.select(tables.account.c.name, tables.account.c.enabled).order_by(tables.account.c.name)
    return [
        {"name": row.name, "enabled": row.enabled, "roles": roles.get(row.name, {})}
        for row in connection.execute(chosen)
    ]


# Comparing


def _compare(there: ExportDocument, given: ExportDocument, found: Sequence[ValidDefinition]) -> Iterator[Change]:
    old = {_key(each.definition): each for each in there.workflows}
    for each, one in zip(given.workflows, found, strict=True):
        before = old.get(one.definition.key)
        plain = ExportedWorkflow(
            definition=one.definition.model_dump(mode="json", exclude_defaults=True),
            online=each.online if each.online is not None or before is None else before.online,
            scheduled=each.scheduled if each.scheduled is not None or before is None else before.scheduled,
        )
        if one.definition.schedule is None:
            plain.scheduled = True
        yield _change("workflow", one.definition.key, before, plain)
    for section, kind, _, key in _PLAIN:
        rows = {_get_record_name(each, key): each for each in getattr(there, section)}
        for each in getattr(given, section):
            yield _change(kind, _get_record_name(each, key), rows.get(_get_record_name(each, key)), each)
    accounts = {each.name: each for each in there.accounts}
    for account in given.accounts:
        yield _change("account", account.name, accounts.get(account.name), account)


def _change(kind: str, name: str, before: BaseModel | None, after: BaseModel) -> Change:
    if before is None:
        return Change(kind, name, "new")
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    fields = [each for each in new if each != "definition" and old[each] != new[each]]
    if "definition" in new:
        mine, theirs = old["definition"], new["definition"]
        fields += [each for each in sorted(mine.keys() | theirs.keys()) if mine.get(each) != theirs.get(each)]
    return Change(kind, name, "changed" if fields else "same", tuple(fields))


def _key(definition: Mapping[str, Any]) -> str:
    return f"{definition.get('project', 'default')}.{definition['name']}"


def _get_record_name(record: BaseModel, key: Sequence[str]) -> str:
    """Return the values of a record's key fields, joined by slashes."""
    return "/".join(getattr(record, each) for each in key if getattr(record, each))


# Writing


def _write(
    connection: sa.Connection,
    document: ExportDocument,
    found: Sequence[ValidDefinition],
    changes: Sequence[Change],
    by: str,
) -> None:
    todo = {(each.kind, each.name) for each in changes if each.what != "same"}
    shards = connection.execute(sa.select(sa.func.count()).select_from(tables.shard)).scalar_one()
    for each, one in zip(document.workflows, found, strict=True):
        if ("workflow", one.definition.key) in todo:
            made = definitions.save_definition(connection, one, shards=max(1, shards), author=by, online=each.online)
            if each.scheduled is not None:
                timed = sa.update(tables.schedule).where(tables.schedule.c.code == made.code)
                connection.execute(timed.values(enabled=each.scheduled))
    for section, kind, table, key in _PLAIN:
        for record in getattr(document, section):
            if (kind, _get_record_name(record, key)) in todo:
                changed = {"changed_at": time.time(), "by": by[:200]} if "changed_at" in table.c else {}
                _put(connection, table, key, {**record.model_dump(mode="json"), **changed})
    wrong = [
        Problem(f"workflows[{number}].definition.{at}", why)
        for number, one in enumerate(found)
        for at, why in grants.find_missing_grants(connection, one.definition)
    ]
    if wrong:
        raise DefinitionInvalid(wrong)
    for account in document.accounts:
        if ("account", account.name) in todo:
            _put_account(connection, account)
    done = {what: sum(each.what == what for each in changes) for what in ("new", "changed", "same")}
    record_event(connection, "import", by=by, details=done)


def _put(connection: sa.Connection, table: sa.Table, key: Sequence[str], row: Mapping[str, Any]) -> None:
    same = sa.and_(*(table.c[each] == row[each] for each in key))
    values = {name: each for name, each in row.items() if name not in key}
    if not connection.execute(sa.update(table).where(same).values(**values)).rowcount:
        connection.execute(sa.insert(table).values(**row))


def _put_account(connection: sa.Connection, given: ExportedAccount) -> None:
    account, role = tables.account, tables.account_role
    mine = sa.update(account).where(account.c.name == given.name).values(enabled=given.enabled)
    if not connection.execute(mine).rowcount:
        made = {"name": given.name, "enabled": given.enabled, "created_at": time.time()}
        connection.execute(sa.insert(account).values(**made))
    if not given.enabled:
        end_all_sessions(connection, given.name)
    connection.execute(sa.delete(role).where(role.c.account == given.name))
    rows = [{"account": given.name, "project": project, "role": word} for project, word in given.roles.items()]
    if rows:
        connection.execute(sa.insert(role), rows)
