"""`latchwork workflows doctor`, `export`, `import`: a database of workflows looked after, and carried to another."""

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
    home_of,
    opened_database,
    opened_store,
)
from latchwork_workflows.cli.workflows import text_of

if TYPE_CHECKING:
    from latchwork_workflows.maintenance import Change, Finding

#: Seconds that masters have to mend.
_MEND_S = 30.0
#: Characters of a document.
_MOST_TEXT = 100_000_000


@command("latchwork workflows doctor", "latchwork workflows doctor --mend", "latchwork workflows doctor --json")
def doctor(
    *,
    mend: Annotated[
        bool,
        typer.Option("--mend", help="Ask the masters to read all again and drop what nobody waits for; look again."),
    ] = False,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Find what database and store must never show together: exit code 1 if there is anything.

    Such as a queued task that no worker can find, or a result that no master takes. It looks twice, 2 s apart, and
    changes nothing; with --mend the masters do, by the rules that they always keep.
    """
    where = home_of(home, database, store)
    from latchwork_workflows.maintenance import Doctor, plain

    mended = 0
    with opened_database(where) as opened, opened_store(where) as there:
        looks = Doctor(opened, there)
        found = looks.look()
        if mend and any(each.can_mend for each in found):
            before = {(each.kind, each.subject) for each in found}
            asked = looks.ask_to_mend(found, by=getpass.getuser())
            looks.wait_done(asked, _MEND_S)
            found = looks.look()
            mended = len(before - {(each.kind, each.subject) for each in found})
    if as_json:
        say_json({"ok": not found, "mended": mended, "findings": [plain(each) for each in found]})
    else:
        _say_findings(found, mended, is_mending=mend)
    if found:
        raise typer.Exit(FAILURE)


def _say_findings(found: list[Finding], mended: int, *, is_mending: bool) -> None:
    if mended:
        show(Line(f"{counted(mended, 'finding')} mended", "green"))
    for each in found:
        where = "" if each.shard is None else f", shard {each.shard}"
        show(Line(f"{each.kind}: {printable(each.subject)}{where}", "red"))
        say(f"  {each.why}")
    if not found:
        say("nothing is wrong")
    elif not is_mending and any(each.can_mend for each in found):
        say("mend it with `latchwork workflows doctor --mend`")


@command("latchwork workflows export > flows.yaml", "latchwork workflows export --json > flows.json")
def export(*, home: HomeDir = None, database: DatabaseUrl = None, as_json: Json = False) -> None:
    """Write all that people wrote as one YAML document: workflows, schedules, values, accounts; for `import`.

    It has no runs and no logs, and neither passwords, tokens nor secrets.
    """
    where = home_of(home, database)
    import time

    from latchwork_workflows import installation_of
    from latchwork_workflows.maintenance import document_of
    from latchwork_workflows.model import as_yaml

    with opened_database(where) as opened:
        installation_of(opened)
        document = document_of(opened)
    document = {
        "latchwork_workflows": document.pop("latchwork_workflows"),
        "exported_at": utc_text(time.time()),
        **document,
    }
    if as_json:
        say_json(document)
    else:
        sys.stdout.write(as_yaml(document))


@command("latchwork workflows import flows.yaml --dry-run", "latchwork workflows import flows.yaml")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What export wrote; - for what comes by a pipe.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what differs, and change nothing.")] = False,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    logs: LogsUrl = None,
    as_json: Json = False,
) -> None:
    """Add and change what a document says, all of it or nothing; what it does not name stays.

    Schedules that it brings owe nothing of before, and accounts have no password until somebody gives them one.
    """
    where = home_of(home, database, None, logs)
    from latchwork_workflows import DefinitionInvalid, installation_of
    from latchwork_workflows.logs import open_logs
    from latchwork_workflows.maintenance import import_document, missing_bundles
    from latchwork_workflows.model import read

    text = text_of(file)
    try:
        given = read(text, most_text=_MOST_TEXT)
        with opened_database(where) as opened:
            installation_of(opened)
            changes = import_document(opened, given, by=getpass.getuser(), dry_run=dry_run)
    except DefinitionInvalid as error:
        for problem in error.problems:
            show(Line(str(problem), "red"))
        raise typer.Exit(USAGE) from None
    store = open_logs(where.logs)
    missing = missing_bundles(given, lambda sha256: store.get_file(f"bundles/{sha256}") is not None)
    if as_json:
        say_json({"dry_run": dry_run, "changes": [each._asdict() for each in changes], "missing_bundles": missing})
        return
    _say_changes(changes, dry_run=dry_run)
    for each in missing:
        show(Line(f"code bundle {each[:12]} is not in {store.url}: deploy its workflows again, or copy it", "red"))


def _say_changes(changes: list[Change], *, dry_run: bool) -> None:
    for each in changes:
        if each.what != "same":
            fields = f": {', '.join(each.fields)}" if each.fields else ""
            say(f"{each.what} {each.kind} {printable(each.name)}{fields}")
    same = sum(each.what == "same" for each in changes)
    done = len(changes) - same
    verb = "would be written" if dry_run else "written"
    say(f"{counted(done, 'thing')} {verb}, {same:,} the same")
