"""What a release has that a checkout has not: links that work elsewhere, addresses, wheels for each platform."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from environments import EXTRAS, FOLDERS, LONG, PROJECTS, Environment, build_wheel
from script_modules import load_script

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPT = REPOSITORY / "scripts" / "build_wheels"
HOME = "https://example.org/owner/latchwork"
LINK = re.compile(r"\]\(([^)\s]+)\)")
ADD_ONS = [name for name in PROJECTS if name != "latchwork"]


@pytest.fixture(scope="module")
def script():
    return load_script("build_wheels")


def test_each_link_of_a_releases_readme_works_where_its_folder_is_not(script):
    before = LINK.findall((REPOSITORY / "README.md").read_text())
    after = LINK.findall(script.absolute_links((REPOSITORY / "README.md").read_text(), HOME))
    assert len(before) == len(after) > 10
    for old, new in zip(before, after, strict=True):
        assert new.startswith(("https://", "#")), new
        if new != old:
            assert (REPOSITORY / new.removeprefix(f"{HOME}/blob/main/").partition("#")[0]).exists(), new


@pytest.mark.parametrize("name", PROJECTS)
def test_a_releases_metadata_names_its_pages_and_each_exists(script, name):
    text = script.with_urls((FOLDERS[name] / "pyproject.toml").read_text(), HOME)
    assert text.count("[project.urls]") == 1
    assert f'Repository = "{HOME}"' in text
    for page in re.findall(rf"{HOME}/blob/main/([^\"]+)", text):
        assert (REPOSITORY / page).exists(), page


@pytest.mark.parametrize("name", PROJECTS)
def test_the_metadata_has_who_made_it_and_each_python_that_it_is_for(name):
    text = (FOLDERS[name] / "pyproject.toml").read_text()
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


def test_all_distributions_have_the_version_of_the_sdk_and_require_it():
    version = PROJECTS["latchwork"]["version"]
    assert {each["version"] for each in PROJECTS.values()} == {version}
    required = [each for one in PROJECTS.values() for each in one["dependencies"] if each.startswith("latchwork")]
    required += [each for extra in EXTRAS.values() for each in extra if each.startswith("latchwork-")]
    assert len(required) >= len(PROJECTS)
    assert all(each.endswith(f"=={version}") for each in required)


@pytest.mark.timeout(1800 if LONG else 240)
@pytest.mark.parametrize("name", PROJECTS if LONG else ADD_ONS)
def test_a_wheel_has_every_file_of_its_sources_and_nothing_else(name, tmp_path):
    package = name.replace("-", "_")
    source = FOLDERS[name] / ("python" if name == "latchwork" else "src")
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", package],
        cwd=source,
        capture_output=True,
        text=True,
        check=True,
    )
    built = set(zipfile.ZipFile(build_wheel(tmp_path, name)).namelist())
    ours = {each for each in built if ".dist-info/" not in each and not each.endswith(".so")}
    assert ours == {each for each in tracked.stdout.splitlines() if (source / each).is_file()}
    assert any(each.endswith(".dist-info/licenses/LICENSE") for each in built)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ADD_ONS)
def test_an_add_on_installs_and_imports_alone(name, tmp_path):
    package = name.replace("-", "_")
    installed = Environment(tmp_path, "cli,etcd", [name])  # for commands, and for calls of etcd without latchwork
    script = (
        f"import pkgutil, {package}; print({package}.__file__)\n"
        f"for each in pkgutil.walk_packages({package}.__path__, '{package}.'):\n"
        "    if not each.name.endswith(('__main__', '.migrations.env', 'supervisor', '_body')): __import__(each.name)"
    )
    done = installed.run("python", "-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(installed.site))


@pytest.fixture(scope="module")
def release():
    return load_script("release")


def test_every_file_that_names_the_version_names_the_same_one(release):
    assert len(set.union(*release.versions().values())) == 1


@pytest.mark.parametrize(
    ("changelog", "newest"),
    [
        ("## [1.2.3] - 2026-01-02\n- a\n", "1.2.3"),
        ("## [Unreleased]\n\n## [1.2.3] - 2026-01-02\n", "1.2.3"),
        ("## [Unreleased]\n- a\n\n## [1.2.3] - 2026-01-02\n", None),
        ("## [1.2.3]\n", None),
        ("", None),
    ],
)
def test_a_release_needs_a_dated_section_as_the_newest_of_the_changelog(release, changelog, newest):
    assert release.newest_section(changelog) == newest


def test_a_release_that_is_not_possible_is_explained(release, capsys, monkeypatch):
    monkeypatch.setattr(release, "versions", lambda: {"Cargo.toml": {"1.2.3"}, "pyproject.toml": {"1.2.2"}})
    monkeypatch.setattr(sys, "argv", ["release", "--check"])
    assert release.main() == 1
    said = capsys.readouterr().err
    assert "pyproject.toml names 1.2.2" in said
    assert "'## [1.2.3] - YYYY-MM-DD'" in said


@pytest.mark.parametrize(("tags", "is_possible"), [("", True), ("v1.2.3\nv1.0.0", False), ("v1.2.30", True)])
def test_only_a_tag_of_another_commit_keeps_a_version_from_being_released(release, monkeypatch, tags, is_possible):
    """A workflow that a tag starts has the tag on its own commit."""
    monkeypatch.setattr(release, "versions", lambda: {"Cargo.toml": {"1.2.3"}})
    monkeypatch.setattr(release, "newest_section", lambda _changelog: "1.2.3")
    monkeypatch.setattr(release, "run", lambda *command: tags if "--no-contains" in command else "")
    assert (release.problems("1.2.3") == []) is is_possible
