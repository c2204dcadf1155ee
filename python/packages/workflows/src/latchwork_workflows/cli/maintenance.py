"""`latchwork workflows doctor`, `export`, `import`: check an installation, and copy its contents to another one."""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from latchwork.spi import FAILURE, USAGE, Json, Line, command, counted, printable, say, say_json, show, utc_text
from latchwork_workflows.cli.options import (
    DatabaseUrl,
    HomeDir,
    LogsUrl,
    StoreUrl,
    open_database,
    open_store,
    resolve_home,
)
from latchwork_workflows.cli.workflows import read_text

if TYPE_CHECKING:
    from latchwork_workflows.maintenance import Change, Finding

#: Seconds to wait for the masters to repair.
_REPAIR_S = 30.0
#: Characters of a document.
_MAX_TEXT = 100_000_000


@command("latchwork workflows doctor", "latchwork workflows doctor --repair", "latchwork workflows doctor --json")
def run_doctor(
    *,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Ask the masters to reload their shards and drop orphans. Then check again."),
    ] = False,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Find contradictions between database and store. Exit code 1 if there are any.

    Examples are a queued task that no worker can find, and a result that no master reads. It checks twice, 2 s apart,
    and changes nothing. With --repair, the masters repair what they find by their usual rules.
    """
    where = resolve_home(home, database, store)
    from latchwork_workflows.maintenance import Doctor, to_mapping

    repaired = 0
    with open_database(where) as opened, open_store(where) as there:
        looks = Doctor(opened, there)
        found = looks.check()
        if repair and any(each.can_repair for each in found):
            before = {(each.kind, each.subject) for each in found}
            asked = looks.request_repair(found, by=getpass.getuser())
            looks.wait_until_executed(asked, _REPAIR_S)
            found = looks.check()
            repaired = len(before - {(each.kind, each.subject) for each in found})
    if as_json:
        say_json({"ok": not found, "repaired": repaired, "findings": [to_mapping(each) for each in found]})
    else:
        _print_findings(found, repaired, is_repair=repair)
    if found:
        raise typer.Exit(FAILURE)


def _print_findings(found: list[Finding], repaired: int, *, is_repair: bool) -> None:
    if repaired:
        show(Line(f"{counted(repaired, 'finding')} repaired", "green"))
    for each in found:
        where = "" if each.shard is None else f", shard {each.shard}"
        show(Line(f"{each.kind}: {printable(each.subject)}{where}", "red"))
        say(f"  {each.why}")
    if not found:
        say("no problems found")
    elif not is_repair and any(each.can_repair for each in found):
        say("repair with `latchwork workflows doctor --repair`")


@command("latchwork workflows export > flows.yaml", "latchwork workflows export --json > flows.json")
def export_all(*, home: HomeDir = None, database: DatabaseUrl = None, as_json: Json = False) -> None:
    """Write workflows, schedules, settings and accounts as one YAML document for `import`.

    Runs, logs, passwords, tokens and secrets are not exported.
    """
    where = resolve_home(home, database)
    import time

    from latchwork_workflows import load_installation
    from latchwork_workflows.maintenance import export_document
    from latchwork_workflows.model import format_as_yaml

    with open_database(where) as opened:
        load_installation(opened)
        document = export_document(opened)
    document = {
        "latchwork_workflows": document.pop("latchwork_workflows"),
        "exported_at": utc_text(time.time()),
        **document,
    }
    if as_json:
        say_json(document)
    else:
        sys.stdout.write(format_as_yaml(document))


@command("latchwork workflows import flows.yaml --dry-run", "latchwork workflows import flows.yaml")
def import_file(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file written by export. - reads standard input.")],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the differences without changing anything.")
    ] = False,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    logs: LogsUrl = None,
    as_json: Json = False,
) -> None:
    """Create and update everything in an exported document, in one transaction. Anything else is left unchanged.

    Imported schedules skip earlier fire times. Imported accounts have no password.
    """
    where = resolve_home(home, database, None, logs)
    from latchwork_workflows import DefinitionInvalid, load_installation
    from latchwork_workflows.logs import open_logs
    from latchwork_workflows.maintenance import find_missing_bundles, import_document
    from latchwork_workflows.model import parse_yaml

    text = read_text(file)
    try:
        given = parse_yaml(text, most_text=_MAX_TEXT)
        with open_database(where) as opened:
            load_installation(opened)
            changes = import_document(opened, given, by=getpass.getuser(), dry_run=dry_run)
    except DefinitionInvalid as error:
        for problem in error.problems:
            show(Line(str(problem), "red"))
        raise typer.Exit(USAGE) from None
    store = open_logs(where.logs)
    missing = find_missing_bundles(given, lambda sha256: store.get_file(f"bundles/{sha256}") is not None)
    if as_json:
        say_json({"dry_run": dry_run, "changes": [each._asdict() for each in changes], "missing_bundles": missing})
        return
    _print_changes(changes, dry_run=dry_run)
    for each in missing:
        show(Line(f"code bundle {each[:12]} is not in {store.url}: deploy its workflows again, or copy it", "red"))


def _print_changes(changes: list[Change], *, dry_run: bool) -> None:
    for each in changes:
        if each.what != "same":
            fields = f": {', '.join(each.fields)}" if each.fields else ""
            say(f"{each.what} {each.kind} {printable(each.name)}{fields}")
    same = sum(each.what == "same" for each in changes)
    done = len(changes) - same
    verb = "would be written" if dry_run else "written"
    say(f"{counted(done, 'thing')} {verb}, {same:,} the same")
