"""The architecture page: the files that it names exist, and each sub-package says what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from test_layering import PACKAGE

ROOT = PACKAGE.parents[1]
PAGE = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
NAMED = sorted(
    span
    for span in set(re.findall(r"`([A-Za-z0-9_./-]+)`", PAGE))
    if span.endswith("/") or Path(span).suffix in {".py", ".md", ".toml", ".rs"}
)
FOLDERS = sorted(path.parent for path in PACKAGE.parent.rglob("__init__.py"))
SUB_PACKAGES = [folder for folder in FOLDERS if (folder.parent / "__init__.py").exists() and folder.parent != PACKAGE]
BASES = [
    ROOT,
    PACKAGE.parent,
    *FOLDERS,
    *PACKAGE.parent.glob("packages/*/src"),
    *PACKAGE.parent.glob("packages/*/src/*"),
]


@pytest.mark.parametrize("name", NAMED)
def test_a_file_or_folder_that_the_page_names_exists(name):
    assert any((base / name).exists() for base in BASES)


@pytest.mark.parametrize("folder", SUB_PACKAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_sub_package_says_what_it_is_for(folder):
    text = (folder / "__init__.py").read_text(encoding="utf-8")
    assert re.match(r'"""\S.{20,}\n\n\S', text)
