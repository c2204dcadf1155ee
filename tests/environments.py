"""Virtual environments that have latchwork with some extras, and nothing else.

By default they consist of links to the sources of latchwork, and to the distributions that the extras bring, as they
are installed here. Wheels of our add-ons are unpacked. That takes a few seconds and no network.
With `LATCHWORK_LONG_TESTS=1` (as `make check` sets it) pip installs wheels, which are built from the sources.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
#: The folder of each of our distributions.
FOLDERS = {"latchwork": ROOT, **{f"latchwork-{each.name}": each for each in (ROOT / "python" / "packages").iterdir()}}
PROJECTS = {name: tomllib.loads((each / "pyproject.toml").read_text())["project"] for name, each in FOLDERS.items()}
PROJECT = PROJECTS["latchwork"]
EXTRAS = PROJECT["optional-dependencies"]
LONG = bool(os.environ.get("LATCHWORK_LONG_TESTS"))
_BUILD_TIMEOUT_S = 1500
_MODULE, _, _FUNCTION = PROJECT["scripts"]["latchwork"].partition(":")
_SCRIPT = f"import sys\nfrom {_MODULE} import {_FUNCTION}\nsys.exit({_FUNCTION}())\n"


class Environment:
    """A virtual environment.

    Args:
        folder: where to make it.
        extras: those of latchwork, joined by commas; "" for none.
        more: what else a user has installed there.
        wheels: the wheels of our distributions by name; None to link the sources.
    """

    def __init__(self, folder, extras, more=(), wheels=None):
        self.folder = folder
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        (self.site,) = folder.glob("lib/python*/site-packages")
        named = [f"latchwork[{extras}]" if extras else "latchwork", *more]
        if wheels is None:
            self._link(needed(named))
        else:
            pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
            ours = {name: wheels[name].as_uri() for name in PROJECTS}
            exact = [f"{each} @ {ours[name]}" if (name := each.partition("[")[0]) in ours else each for each in named]
            subprocess.run([*pip, "--find-links", wheels["latchwork"].parent, *exact], check=True)

    def run(self, *command):
        """Run a program of the environment, with nothing of the environment around it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LATCHWORK"))}
        return subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            cwd=self.folder,
            env=kept,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def write(self, module, text):
        """Install a module of one file."""
        (self.site / f"{module}.py").write_text(text)

    def distributions(self):
        """Return the names of everything installed, except our distributions."""
        found = metadata.distributions(path=[str(self.site)])
        return {canonicalize_name(each.metadata["Name"]) for each in found} - PROJECTS.keys()

    def _link(self, distributions):
        (self.site / "latchwork.pth").write_text(str(ROOT / "python"))
        script = self.folder / "bin" / "latchwork"
        script.write_text(f"#!{self.python}\n{_SCRIPT}")
        script.chmod(0o755)
        for name in distributions & PROJECTS.keys():
            with zipfile.ZipFile(build_wheel(self.folder, name)) as wheel:
                wheel.extractall(self.site)
        for name in distributions - PROJECTS.keys():
            root = Path(metadata.distribution(name).locate_file(""))
            files = [file for file in metadata.files(name) if not {"..", "__pycache__"} & {*file.parts}]
            for part in {_whole(root, file) for file in files}:
                (self.site / part).parent.mkdir(parents=True, exist_ok=True)
                (self.site / part).symlink_to(root / part)


def needed(requirements):
    """Names of the distributions that these requirements bring, but latchwork; all of them are installed here."""
    seen, todo = set(), [Requirement(each) for each in requirements]
    while todo:
        one = todo.pop()
        name, extras = canonicalize_name(one.name), frozenset(one.extras)
        if (name, extras) not in seen:
            seen.add((name, extras))
            todo += [each for each in map(Requirement, _requires(name, extras)) if _is_wanted(each, extras)]
    return {name for name, _ in seen} - {"latchwork"}


def build_wheel(folder, name):
    """Build a wheel of these sources and return its path. That of latchwork takes minutes without `make build`."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    if name == "latchwork":
        command = [Path(sys.executable).with_name("maturin"), "build", "--release", "--out", folder]
    subprocess.run(command, cwd=FOLDERS[name], check=True, timeout=_BUILD_TIMEOUT_S, capture_output=True)
    (wheel,) = folder.glob(f"{name.replace('-', '_')}-*.whl")
    return wheel


def wheels_if_long(folder):
    """Build the wheels of our distributions and return their paths by name; None unless the tests are long."""
    return {name: build_wheel(folder, name) for name in PROJECTS} if LONG else None


def _requires(name, extras):
    if name in PROJECTS:  # of these sources, not as it was installed
        optional = PROJECTS[name].get("optional-dependencies", {})
        return [*PROJECTS[name]["dependencies"], *(each for extra in extras for each in optional[extra])]
    return metadata.requires(name) or []


def _is_wanted(requirement, extras):
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def _whole(root, file):
    """The greatest part of a distribution with this file that it shares with no other: folders may be namespaces."""
    for depth in range(1, len(file.parts)):
        part = Path(*file.parts[:depth])
        if (root / part / "__init__.py").exists() or part.suffix in {".dist-info", ".libs"}:
            return part
    return Path(file)
