"""The options of a node, checked: nothing is started with one that cannot be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from latchwork.jobs.options.settings import ClusterSettings
from latchwork.jobs.options.table import NodeOnly, NodeRows, defaults, in_force, rows

#: Runs are told to stop when this part of the TTL is left of their locks, if not earlier.
STOP_MARGIN = 0.25


@dataclass(frozen=True)
class NodeOptions(NodeRows[NoReturn], NodeOnly):
    """The options of a node: what ``JobManager`` was given, or what holds now."""

    @property
    def longest_grace_s(self) -> float:
        """For how long at most runs can go on without the store: as long as the locks allow, and the session lasts."""
        return min(self.lock_ttl_s * (1 - STOP_MARGIN), self.session_ttl_s)

    def under(self, settings: ClusterSettings) -> NodeOptions:
        """These options, but for what is set for the cluster."""
        return in_force(NodeOptions, settings, self)


NODE_DEFAULTS = defaults(NodeOptions)


def node_options(given: Mapping[str, Any]) -> NodeOptions:
    """Check all options of a node, by name; what else is given does not matter.

    Raises:
        ValueError: one cannot be used; the message names it.
    """
    options = NodeOptions(**{each.name: each.check(given[each.name]) for each in rows(NodeOptions)})
    grace_s, longest_s = options.disconnect_grace_s, options.lock_ttl_s * (1 - STOP_MARGIN)
    if grace_s is None:
        return options
    if grace_s > longest_s:
        locks = f"locks of {options.lock_ttl_s:g} s"
        raise ValueError(f"disconnect_grace_s is {grace_s:g}, but {locks} allow {longest_s:g}; raise lock_ttl_s")
    if grace_s > options.session_ttl_s:
        after = f"others get the items after {options.session_ttl_s:g} s"
        raise ValueError(f"disconnect_grace_s is {grace_s:g}, but {after}; raise session_ttl_s")
    return options
