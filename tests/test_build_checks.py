"""Building starts by naming everything that this machine lacks; proved with a PATH of made-up tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GOOD_TOOLS = {
    "python3": f'exec {sys.executable} "$@"',
    "rustc": "echo 'rustc 1.95.0 (59807616e 2026-04-14)'",
    "cargo": "echo 'cargo 1.95.0 (f2d3ce0bd 2026-03-21)'",
    "cc": "exit 0",
    "make": "echo 'GNU Make 4.3'",
}


def check(tmp_path, *arguments, tools=None, without=(), **environment):
    """Run the check where only these tools are on the PATH; returns the finished process."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name, script in {**GOOD_TOOLS, **(tools or {})}.items():
        if name not in without:
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
    return subprocess.run(
        ["/bin/sh", "scripts/check_prerequisites", *arguments],
        cwd=ROOT,
        env={"PATH": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("python3", ["Python 3.11 or newer", "no python3 on the PATH", "python3-venv"]),
        ("rustc", ["rustc 1.85 or newer", "no rustc on the PATH", "apt-get install cargo rustc", "rustup"]),
        ("cargo", ["cargo 1.85 or newer", "no cargo on the PATH", "apt-get install cargo rustc"]),
        ("cc", ["C compiler", "no cc on the PATH", "apt-get install gcc libc6-dev"]),
        ("make", ["GNU make 4.0 or newer", "no make on the PATH", "apt-get install make"]),
    ],
)
def test_missing_tool_is_named_with_least_version_and_package(tmp_path, tool, expected):
    result = check(tmp_path, without=[tool])
    assert result.returncode == 1
    assert "one thing that is missing" in result.stderr
    for text in expected:
        assert text in result.stderr


@pytest.mark.parametrize(
    ("tool", "script", "expected"),
    [
        ("rustc", "echo 'rustc 1.63.0 (4b91a6ea7 2022-08-08)'", "rustc 1.85 or newer: found 1.63.0"),
        ("rustc", "echo 'rustc 1.84.1'", "rustc 1.85 or newer: found 1.84.1"),
        ("rustc", "echo 'error: no default toolchain' >&2; exit 1", "rustc 1.85 or newer: found one that does not run"),
        ("cargo", "echo 'cargo 0.66.0'", "cargo 1.85 or newer: found 0.66.0"),
        ("make", "echo 'GNU Make 3.81'", "GNU make 4.0 or newer: found 3.81"),
        ("make", "echo 'bmake: usage' >&2; exit 2", "GNU make 4.0 or newer: found another make"),
        ("cc", "echo 'cannot find crt1.o' >&2; exit 1", "cc cannot compile and link a program"),
        (
            "python3",
            'case "$2" in *ensurepip*) exit 1;; *) echo 3.9.18;; esac',
            "Python 3.11 or newer: python3 is 3.9.18",
        ),
        (
            "python3",
            'case "$2" in *ensurepip*) exit 1;; *) echo 3.11.2;; esac',
            "venv and ensurepip, 3.11 or newer: python3 3.11.2 cannot import them",
        ),
    ],
)
def test_unfit_tool_is_named_with_what_was_found(tmp_path, tool, script, expected):
    result = check(tmp_path, tools={tool: script})
    assert result.returncode == 1
    assert "one thing that is missing" in result.stderr
    assert expected in result.stderr


def test_chosen_python_is_the_only_one_considered(tmp_path):
    result = check(tmp_path, PYTHON="python3.99")
    assert result.returncode == 1
    assert "no python3.99 on the PATH" in result.stderr


def test_make_build_stops_before_anything_is_installed(tmp_path):
    """A copy of the Makefile and the scripts is enough: nothing else may be touched."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    for name in ("Makefile", "Cargo.toml", "pyproject.toml", "requirements-build.txt", "requirements-dev.txt"):
        shutil.copy(ROOT / name, checkout / name)
    before = sorted(checkout.rglob("*"))
    result = subprocess.run(
        ["make", "build"],
        cwd=checkout,
        env={**os.environ, "PYTHON": "/nowhere/python"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert "no /nowhere/python on the PATH" in result.stderr
    assert sorted(checkout.rglob("*")) == before


def install_servers(tmp_path, tools, **environment):
    """Run the installer with these tools first on the PATH; returns the finished process."""
    for name, script in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    return subprocess.run(
        ["/bin/sh", "scripts/install_test_servers"],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_ordinary_user_is_told_what_is_missing_and_what_to_run(tmp_path):
    # An ordinary user may download a package, as get_cpython_tests does.
    tools = {"apt-get": f'case "$*" in *install*) touch {tmp_path}/called ;; esac', "id": "echo 1000"}
    result = install_servers(tmp_path, tools, LATCHWORK_ETCD34="/nowhere/etcd")
    assert result.returncode == 1
    assert "etcd 3.4 is not installed" in result.stderr
    assert "sudo apt-get install --no-install-recommends libzookeeper-java default-jre-headless etcd-s" in result.stderr
    assert not (tmp_path / "called").exists()
