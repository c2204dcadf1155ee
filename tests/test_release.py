"""What a release has that a checkout has not: links that work elsewhere, addresses, wheels for each platform."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPT = REPOSITORY / "scripts" / "build_wheels"
HOME = "https://example.org/owner/latchwork"
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def script():
    loader = importlib.machinery.SourceFileLoader("build_wheels", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("build_wheels", loader))
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


def test_each_link_of_a_releases_readme_works_where_its_folder_is_not(script):
    before = LINK.findall((REPOSITORY / "README.md").read_text())
    after = LINK.findall(script.absolute_links((REPOSITORY / "README.md").read_text(), HOME))
    assert len(before) == len(after) > 10
    for old, new in zip(before, after, strict=True):
        assert new.startswith(("https://", "#")), new
        if new != old:
            assert (REPOSITORY / new.removeprefix(f"{HOME}/blob/main/").partition("#")[0]).exists(), new


def test_a_releases_metadata_names_its_pages_and_each_exists(script):
    text = script.with_urls((REPOSITORY / "pyproject.toml").read_text(), HOME)
    assert text.count("[project.urls]") == 1
    assert f'Repository = "{HOME}"' in text
    for page in re.findall(rf"{HOME}/blob/main/([^\"]+)", text):
        assert (REPOSITORY / page).exists(), page


def test_the_metadata_has_who_made_it_and_each_python_that_it_is_for():
    text = (REPOSITORY / "pyproject.toml").read_text()
    assert re.search(r"^authors = ", text, re.MULTILINE)
    for minor in range(11, 15):
        assert f'"Programming Language :: Python :: 3.{minor}"' in text


def test_what_a_build_of_wheels_lacks_is_named_with_the_command(script, monkeypatch):
    monkeypatch.setattr(script.shutil, "which", lambda _name: None)
    monkeypatch.setattr(script, "_has_module", lambda _name: False)
    assert all("pip install" in each for each in script.missing(list(script.TARGETS)))
    done = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("manylinux2014", "musllinux", "aarch64", "--home"))
