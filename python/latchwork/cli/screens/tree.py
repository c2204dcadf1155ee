"""`latchwork tree`: all keys under a root.

Values are shown on request only, and are not decoded: text is shown as it is stored, with apparent secrets masked and
control characters escaped. Of other bytes only the size is shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.tree import Tree

from latchwork._base.decoding import read_json
from latchwork._base.text import counted, printable
from latchwork.cli.cluster import open_store
from latchwork.cli.options import Json, Url, command
from latchwork.cli.text import say_json, show, styled
from latchwork.errors import BadRecord
from latchwork.store import Store
from latchwork.store.keys import SYSTEMS
from latchwork.types import Entry

_PAGE = 1000
_LONGEST_SHOWN = 200
_SECRET = re.compile(r"(?i)pass(word|wd|phrase)?|secret|token|credential|api[-_.]?key|private[-_.]?key")
_MASK = "***"


@command(
    "latchwork tree --url zk://127.0.0.1:2181/app",
    "latchwork tree workers --url etcd://127.0.0.1:2379/app --values",
    "latchwork tree --json | jq 'map(.bytes) | add'",
)
def tree(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Show only keys below this key. By default the whole root.")
    ] = "",
    *,
    url: Url = None,
    as_json: Json = False,
    values: Annotated[
        bool, typer.Option("--values", help="Show text values, up to 200 characters, with secrets masked.")
    ] = False,
) -> None:
    """Show all keys under the root, with their sizes and the sessions that they are bound to.

    First segments that begin with @ belong to latchwork's own systems, such as @jobs.

    Values are hidden unless --values is given. Even then, members of JSON objects and keys whose names look like a
    password, a secret or a token are masked.

    The entry with the greatest token was written last.
    """
    with open_store(url, of_cluster=False) as store:
        if as_json:
            _print_json(_read_entries(store, prefix), values=values)
            return
        entries = list(_read_entries(store, prefix))
        size = sum(len(entry.value) for entry in entries)
        count = f"{counted(len(entries), 'key')}, {counted(size, 'byte')}"
        shown_tree = build_tree(store.url, prefix, entries, values=values)
        show(shown_tree, count if entries else f"no keys under {prefix or 'the root'}")


def build_tree(url: str, prefix: str, entries: Sequence[Entry], *, values: bool) -> Tree:
    """Build a printable tree of keys. Keys that exist only as parents of other keys are shown without a size.

    Args:
        url: URL of the store.
        prefix: Prefix of the shown keys; empty for all.
        entries: The entries, sorted by key.
        values: Show the values.
    """
    root = Tree(styled(f"{url}{' ' + prefix if prefix else ''}", "bold"))
    branches = {prefix: root}
    for entry in sorted(entries, key=lambda entry: entry.key.split("/")):
        parent = root if entry.key == prefix else _get_branch(branches, prefix, entry.key.rpartition("/")[0])
        label = styled(entry.key.rpartition("/")[2])
        label.append(f"  {len(entry.value):,} B", style="cyan")
        if entry.owner is not None:
            label += styled(f"  session {entry.owner}", "yellow")
        if values:
            label += styled(f"  {format_value(entry)}", "dim")
        branches[entry.key] = parent.add(label)
    return root


def format_value(entry: Entry) -> str:
    """Format a stored value for a terminal: masked, escaped and shortened. A value that is not text is described
    instead.
    """
    if any(_SECRET.search(segment) for segment in entry.key.split("/")):
        return _MASK
    try:
        text = entry.value.decode("utf-8")
    except UnicodeDecodeError:
        return f"<{len(entry.value):,} bytes, not text>"
    text = printable(_mask_secrets(text))
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _mask_secrets(text: str) -> str:
    """Mask secrets in a text. Of a JSON document only secret members are masked; another text is masked as a whole if
    it seems to contain a secret.
    """
    try:
        value = read_json(text.encode())
    except BadRecord:
        return _MASK if _SECRET.search(text) else text
    return json.dumps(_mask_members(value), ensure_ascii=False) if _SECRET.search(text) else text


def _mask_members(value: object) -> object:
    if isinstance(value, dict):
        return {name: _MASK if _SECRET.search(str(name)) else _mask_members(part) for name, part in value.items()}
    return [_mask_members(part) for part in value] if isinstance(value, list) else value


def _get_branch(branches: dict[str, Tree], prefix: str, key: str) -> Tree:
    if key in branches or key == "":
        return branches.get(key, branches[prefix])
    parent = _get_branch(branches, prefix, key.rpartition("/")[0])
    branches[key] = parent.add(styled(key.rpartition("/")[2], "bold"))
    return branches[key]


def _read_entries(store: Store, prefix: str) -> Iterator[Entry]:
    """Generate the entries at and below a prefix, read in pages."""
    if prefix == "":  # a listing of the root leaves the systems out
        for name in SYSTEMS:
            yield from _read_entries(store, f"@{name}")
    elif (own := store.get(prefix)) is not None:
        yield own
    last: str | None = None
    while True:
        page = store.list(prefix, recursive=True, limit=_PAGE, start_after=last)
        yield from page
        if len(page) < _PAGE:
            return
        last = page[-1].key


def _print_json(entries: Iterator[Entry], *, values: bool) -> None:
    rows: list[dict[str, object]] = [
        {
            "key": entry.key,
            "bytes": len(entry.value),
            "owner": entry.owner,
            "token": entry.token,
            "created": entry.created,
            **({"value": format_value(entry)} if values else {}),
        }
        for entry in entries
    ]
    say_json(rows)
