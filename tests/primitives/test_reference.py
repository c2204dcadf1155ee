"""Every public name of the primitives is in docs/reference/primitives.md: what it keeps, promises, and does not."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from latchwork import primitives

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "primitives.md").read_text(encoding="utf-8")
SECTIONS = {
    name.strip(): body
    for heading, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    for name in heading.split(",")
}
#: What a primitive hands out or takes, and in whose section that is explained.
PARTS = {
    "QueueClaim": "WorkQueue",
    "PreparedClaimEnd": "WorkQueue",
    "QueueItem": "WorkQueue",
    "CreateClaimed": "WorkQueue",
    "ConsumerShard": "WorkQueue",
    "Candidate": "LeaderLatch",
    "GroupMember": "Group",
    "HeldLock": "LockKeeper",
    "Leader": "Election",
    "LockHolder": "LockKeeper",
    "LockState": "LockKeeper",
    "Observer": "Election",
    "Term": "Election",
    "Ticket": "Lock",
    "View": "Group",
    "ViewChange": "Group",
    "GuardedWork": "Work under an ownership",
    "force_release": "LockKeeper",
    "forget": "What stays",
    "forget_free_locks": "LockKeeper",
    "lock_states": "LockKeeper",
    "list_groups": "Group",
}
#: For the parts of this package among themselves.
OURS = {"abandon", "acquire_unless_stopped", "close_in_background", "on_held_lock_lost", "release_acquisition"}
PRIMITIVES = sorted(set(primitives.__all__) - set(PARTS))


def test_every_part_is_a_public_name_and_explained_in_a_section_that_there_is():
    assert set(PARTS) <= set(primitives.__all__)
    assert set(PARTS.values()) <= set(SECTIONS)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_primitive_has_a_section_with_its_keys_what_it_promises_what_it_does_not_and_code_that_runs(name):
    section = SECTIONS[name]
    keys = re.search(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    same_as = re.search(r"^The keys are those of `(\w+)`", section, re.MULTILINE)
    assert keys is not None or (same_as is not None and same_as[1] in SECTIONS)
    assert section.count("**Guarantee.**") == section.count("**Not promised.**") == 1
    (code, *_) = re.findall(r"^```python runnable\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert re.search(rf"\b({'|'.join(each for each in SECTIONS if SECTIONS[each] is section)})\(", code)


@pytest.mark.parametrize("name", sorted(PARTS))
def test_what_a_primitive_hands_out_is_named_where_it_is_explained(name):
    where = SECTIONS[PARTS[name]]
    assert f"`{name}" in where or PARTS[name] == "Work under an ownership"


@pytest.mark.parametrize("name", [name for name in PRIMITIVES if f"`{name}(store, name" in TEXT])
def test_the_arguments_of_a_primitive_are_as_its_section_says(name):
    (row,) = re.findall(rf"^\| `{name}\((.*?)\)` \|", SECTIONS[name], re.MULTILINE)
    shown = inspect.signature(eval(f"lambda {row}: None"))
    real = inspect.signature(getattr(primitives, name))
    as_shown = [(each.name, each.default, each.kind) for each in shown.parameters.values()]
    assert as_shown == [(each.name, each.default, each.kind) for each in real.parameters.values()]


@pytest.mark.parametrize("name", PRIMITIVES)
def test_every_public_member_of_a_primitive_is_named_in_the_reference(name):
    """In its own section, or in that of the primitive it says it is like."""
    members = {each for each in dir(getattr(primitives, name)) if not each.startswith("_")} - OURS
    missing = {each for each in members if not re.search(rf"\b{each}\b", TEXT)}
    assert not missing
