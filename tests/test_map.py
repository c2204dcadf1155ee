"""The first pages of the design notes: each file that they name is there, and the map names each wing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from test_layering import PACKAGE

ROOT = PACKAGE.parents[1]
DESIGN = ROOT / "docs" / "design"
TEXT = (DESIGN / "0000-map.md").read_text(encoding="utf-8")
NAMED = sorted(
    span
    for span in set(
        re.findall(r"`([A-Za-z0-9_./-]+)`", TEXT + (DESIGN / "architecture.md").read_text(encoding="utf-8"))
    )
    if span.endswith("/") or Path(span).suffix in {".py", ".md", ".toml", ".rs"}
)
FOLDERS = sorted(path.parent for path in PACKAGE.parent.rglob("__init__.py"))
WINGS = [folder for folder in FOLDERS if (folder.parent / "__init__.py").exists() and folder.parent != PACKAGE]
BASES = [
    ROOT,
    PACKAGE.parent,
    *FOLDERS,
    *PACKAGE.parent.glob("packages/*/src"),
    *PACKAGE.parent.glob("packages/*/src/*"),
]
BASES += [ROOT / "docs", ROOT / "docs" / "reference", ROOT / "tests" / "assignment", ROOT / "tests" / "primitives"]


@pytest.mark.parametrize("name", NAMED)
def test_a_file_or_folder_that_the_design_names_is_there(name):
    assert any((base / name).exists() for base in BASES)


@pytest.mark.parametrize("wing", WINGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_wing_is_on_the_map(wing):
    assert f"`{wing.name}/`" in TEXT


@pytest.mark.parametrize("wing", WINGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_wing_says_what_it_is_for(wing):
    text = (wing / "__init__.py").read_text(encoding="utf-8")
    assert re.match(r'"""\S.{20,}\n\n\S', text)
