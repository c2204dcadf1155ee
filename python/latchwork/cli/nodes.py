"""`latchwork drain` and `latchwork restart`: take a node out of a cluster without a gap, for good or for a moment."""

from __future__ import annotations

from typing import Annotated

import typer

from latchwork.cli.cluster import node_ids, open_store, state_of
from latchwork.cli.options import Json, NoWait, Url, command
from latchwork.cli.text import told
from latchwork.jobs import Control, UnknownNode
from latchwork.store import Store

Node = Annotated[str, typer.Argument(metavar="NODE", help="The id of a node.", autocompletion=node_ids)]
Wait = Annotated[float, typer.Option(min=0.0, help="Seconds to wait for its runs to stop.")]


@command("latchwork drain n1 --url etcd://127.0.0.1:2379/app", "latchwork drain n1 --undo")
def drain(
    node: Node,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Let it have items again.")] = False,
    no_wait: NoWait = False,
    wait_s: Wait = 60.0,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Move a node's items to the others, and wait until nothing of them runs there any more; then stop it if you like.

    It gets no items, also after a restart, until `--undo`. Exit code 1 when it still runs something after --wait-s.
    """
    with open_store(url) as store:
        control = _checked(store, node)
        if undo:
            found = control.undrain(node)
            line = f"{node}: takes items again" if found else f"{node}: was not drained"
            told(line, {"node": node, "mark": None, "changed": found}, as_json=as_json)
            return
        control.drain(node)
        told(*_waited(control, node, None if no_wait else wait_s, "drained", "is drained"), as_json=as_json)


@command("latchwork restart n1 && systemctl restart worker@n1", "latchwork restart n1 --cancel")
def restart(
    node: Node,
    *,
    cancel: Annotated[bool, typer.Option("--cancel", help="Call it off: it takes items as usual.")] = False,
    keep_s: Annotated[float, typer.Option(min=0.0, help="Seconds that its share is kept for it.")] = 300.0,
    no_wait: NoWait = False,
    wait_s: Wait = 60.0,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Announce a restart of a node: its items move out now, and back when it is back; nothing else moves.

    Returns when nothing of them runs there any more: restart it then. After --keep-s its share is given to the others.
    """
    with open_store(url) as store:
        control = _checked(store, node)
        if cancel:
            found = control.undrain(node)
            line = f"{node}: takes items as usual" if found else f"{node}: nothing was announced"
            told(line, {"node": node, "mark": None, "changed": found}, as_json=as_json)
            return
        control.announce_restart(node, timeout_s=keep_s)
        done = f"can be restarted; its share is kept for {keep_s:g} s"
        told(*_waited(control, node, None if no_wait else wait_s, "restarting", done), as_json=as_json)


def _waited(
    control: Control, node: str, wait_s: float | None, mark: str, done: str
) -> tuple[str, dict[str, str | bool]]:
    """Wait until nothing of a node's items runs there, unless told not to; what to tell then."""
    if wait_s is not None:
        control.wait_drained(node, wait_s)
    about: dict[str, str | bool] = {"node": node, "mark": mark, "is_empty": wait_s is not None}
    return f"{node}: {'its items move away' if wait_s is None else done}", about


def _checked(store: Store, node: str) -> Control:
    """The control of a cluster that knows this node: a mistyped id must not go unnoticed."""
    state = state_of(store)
    if node not in state.nodes and node not in state.marks:
        raise UnknownNode(
            f"node {node!r} does not live in this cluster; living are: {', '.join(state.nodes) or 'none'}"
        )
    return Control(store)
