"""`latchwork backends`: the capabilities and limits that the installed backends declare."""

from __future__ import annotations

import dataclasses
from math import inf

from latchwork._base.text import counted
from latchwork.backends.capabilities import Capabilities
from latchwork.backends.schemes import SchemeSpec, installed_specs
from latchwork.cli.options import Json, command
from latchwork.cli.text import print_list, say


@command("latchwork backends", "latchwork backends --json | jq '.backends[].min_ttl_s'")
def backends(*, as_json: Json = False) -> None:
    """Show the installed backends, with the capabilities and limits that they declare.

    No server is asked: TTLs are those of a server with its default settings.
    """
    found = installed_specs()
    specs = [spec for spec in found.values() if isinstance(spec, SchemeSpec)]
    print_list("backends", specs, _format_row, plain=_to_json, empty="no backends are installed", as_json=as_json)
    if not as_json:
        for problem in found.values():
            if isinstance(problem, str):
                say(problem)


def format_capabilities(capabilities: Capabilities) -> dict[str, str]:
    """Format the capabilities of a backend as short texts by title, for a table."""
    each = capabilities
    shared = "machines" if each.multi_host else "processes of a machine" if each.multi_process else "one process"
    longest = "" if each.max_ttl_s == inf else f", at most {each.max_ttl_s:g} s"
    return {
        "shared by": shared,
        "writes survive": each.survives,
        "session TTL": f"{each.min_ttl_s:g} s or more{longest}",
        "changes": f"polled every {each.poll_interval_s * 1000:g} ms" if each.poll_interval_s else "pushed",
        "password checked": "yes" if each.verifies_password else "no",
        "one transaction": (
            f"{counted(each.max_txn_checks, 'check')}, {counted(each.max_txn_ops, 'write')}, "
            f"{each.max_txn_bytes / 1_000_000:g} MB"
        ),
    }


def _format_row(spec: SchemeSpec) -> dict[str, str]:
    return {"scheme": ", ".join(spec.schemes), **format_capabilities(spec.capabilities)}


def _to_json(spec: SchemeSpec) -> dict[str, object]:
    declared = dataclasses.asdict(spec.capabilities)
    declared["max_ttl_s"] = None if spec.capabilities.max_ttl_s == inf else spec.capabilities.max_ttl_s
    return {"schemes": list(spec.schemes), "extra": spec.extra, **declared}
