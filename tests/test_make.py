"""The targets of the Makefile, and which script `make check WHAT=...` and `make bench WHAT=...` run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {
    "build",
    "demo",
    "test",
    "quick",
    "check",
    "bench",
    "lint",
    "format",
    "docs",
    "protos",
    "wheel",
    "release",
    "clean",
}
CHECKS = [
    "tests",
    "kit",
    "faults",
    "primitive-faults",
    "history",
    "soak",
    "schedules",
    "interrupts",
    "loop",
    "mutants",
    "mutation",
    "storms",
    "fuzz",
    "api-fuzz",
    "core",
    "clients",
    "site",
    "operate",
    "alerts",
    "dependencies",
]
BENCHES = [
    "aio",
    "store",
    "assignment",
    "balancing",
    "cluster",
    "handover",
    "keeper",
    "primitives",
    "group",
    "work_queue",
    "workers",
    "executor",
    "plans",
    "postgres",
    "workflows",
    "startup",
]
#: Installing and building, told from what is run in the end.
FIRST = (
    "make",
    "pip",
    "install_test_servers",
    "install_bench_peers",
    "build_etcd36",
    "install_zookeeper39",
    "install_postgres",
    "install_chromium",
    "install_nginx",
    "install_operate_tools",
)


@pytest.fixture
def run(tmp_path):
    """Runs a script in a copy of its folder where every program says what it was given, and fails if it is told to."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    getting = [
        "install_test_servers",
        "build_etcd36",
        "install_zookeeper39",
        "install_postgres",
        "install_operate_tools",
    ]
    inner = [*getting, "install_bench_peers", "run_tests", "check_core", "check_kit", "fuzz"]
    for name in ["bin/make", ".venv/bin/python", ".venv/bin/latchwork", *(f"scripts/{each}" for each in inner)]:
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        fails = f'case "{program.name} $*" in *"${{FAIL:-nothing}}"*) exit 1;; esac'
        program.write_text(f'#!/bin/sh\necho "{program.name}" "$@"\n{fails}\n')
        program.chmod(0o755)

    def run_script(name, *arguments, **environment):
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", f"scripts/{name}", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if not line.removeprefix("python -m ").startswith(FIRST)]
        return done.returncode, lines, done.stderr

    return run_script


def test_the_help_names_each_target():
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert set(phony) == TARGETS | {"help", "prerequisites"}
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make (\w+)", shown, re.MULTILINE)) == TARGETS
    assert [what for what in re.findall(r"WHAT=([\w-]+) ", shown) if what in CHECKS] == [*CHECKS, "storms"]
    assert f"WHAT={', '.join(BENCHES[:-1])} or {BENCHES[-1]}" in shown


def test_hosted_ci_runs_every_check_at_night():
    (named,) = re.findall(r"what: \[(.*)\]", (ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    assert sorted(named.split(", ")) == sorted(CHECKS)


@pytest.mark.parametrize("what", CHECKS)
def test_a_check_runs_one_script_that_is_there_with_the_arguments(run, what):
    code, lines, _ = run("check", what, "--seed", "a b")
    assert code == 0
    (line,) = lines
    program, *arguments = line.split()
    assert arguments[-3:] == ["--seed", "a", "b"]
    what_runs = arguments[2] if arguments[0] == "-m" else arguments[0]
    assert (ROOT / "scripts" / program).exists() or (ROOT / what_runs).exists()


@pytest.mark.parametrize("what", BENCHES)
def test_a_benchmark_runs_what_is_there_with_the_arguments(run, what):
    code, lines, _ = run("bench", what, "--pairs", "40")
    assert code == 0
    assert lines[-1].endswith("--pairs 40")
    for program, first, *_ in map(str.split, lines):
        assert (ROOT / "scripts" / program).exists() or first == "bench" or (ROOT / first).exists()


def test_the_plots_are_drawn_on_request(run):
    assert run("bench", "assignment", "--plot")[:2] == (0, ["python benches/bench_hashing.py --plot docs/images"])


def test_all_checks_are_made_whatever_one_of_them_gives(run):
    code, lines, said = run("check", "", FAIL="check_history.py")
    assert code == 1
    assert [line.rpartition("=")[2] for line in lines if line.startswith("== ")] == CHECKS
    assert len(lines) == 2 * len(CHECKS)
    assert said == "make check: these failed: history\n"
    assert run("check")[0] == 0


@pytest.mark.parametrize(("script", "choices"), [("check", CHECKS), ("bench", BENCHES)])
def test_an_unknown_choice_is_one_clear_error(run, script, choices):
    code, lines, said = run(script, "store-faults")
    assert (code, lines) == (2, [])
    assert said.startswith(f"make {script}: there is no WHAT=store-faults; use one of WHAT={', '.join(choices)}")
    assert said.count("\n") == 1


def test_nothing_may_be_missing_in_a_check(run, tmp_path):
    (tmp_path / "scripts" / "run_tests").write_text('echo "missing: $LATCHWORK_NOTHING_MISSING"\n')
    assert run("check", "tests")[:2] == (0, ["missing: 1"])


def test_arguments_without_a_choice_are_refused(run):
    for script in ("check", "bench"):
        code, lines, said = run(script, "", "--rounds")
        assert (code, lines) == (2, [])
        assert "use one of WHAT=" in said


def test_a_server_that_cannot_be_installed_ends_a_check_before_it_begins(run):
    assert run("check", "faults", FAIL="install_test_servers")[:2] == (1, [])


#: Targets of before; in the changelog they stay, as history.
OLD = re.compile(
    r"\bmake (?:(?:check|bench|plot)-\w|chaos\b|fuzz\b)"
    r"|\bcheck-(?:faults|history|mutants|primitive-faults|schedules|core)\b|\bplot-assignment\b"
)


def test_no_text_names_a_target_that_was_there_before():
    folders = ("docs", "scripts", "tests", "benches", "python", "rust")
    texts = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / ".gitignore"]
    texts += [file for folder in folders for file in (ROOT / folder).rglob("*")]
    named = []
    for file in texts:
        if file.is_file() and file.suffix in {".md", ".py", ".pyi", ".rs", ".toml", ""} and file != Path(__file__):
            named += [f"{file.relative_to(ROOT)}: {found[0]}" for found in OLD.finditer(file.read_text())]
    assert named == []


@pytest.mark.parametrize("what", ["", "all"])
def test_a_shell_can_read_every_line_of_a_wheel(what):
    shown = subprocess.run(
        ["make", "--no-print-directory", "-n", "wheel", f"WHAT={what}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    subprocess.run(["sh", "-n"], input=shown, text=True, check=True)
    assert ("scripts/build_wheels" in shown) == bool(what)
