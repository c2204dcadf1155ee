"""Code bundles: the Python code of a workflow as a zip, named by its SHA-256. Each version pins its bundle.

Packing the same files always gives the same bundle. Workers fetch it from the log store and verify its hash.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from latchwork.errors import LatchworkError
from latchwork.spi import printable, replace_file
from latchwork_workflows.logs import LogStore

#: The maximum size of a bundle in bytes, packed and unpacked.
MAX_BYTES, MAX_UNPACKED = 16 * 1024 * 1024, 256 * 1024 * 1024
_LEFT_OUT = {"__pycache__", "node_modules", "build", "dist"}
_DATE = (1980, 1, 1, 0, 0, 0)
_PLAIN, _PROGRAM = 0o644, 0o755


class BadBundle(LatchworkError):
    """A bundle is missing, does not match its name, or cannot be created."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Packed code.

    Attributes:
        sha256: Its name.
        data: Its bytes.
    """

    sha256: str
    data: bytes

    @property
    def file_name(self) -> str:
        """The name of the bundle's file in the log store."""
        return get_bundle_file_name(self.sha256)


def get_bundle_file_name(sha256: str) -> str:
    """Return the name of the file in the log store for a bundle with this SHA-256."""
    return f"bundles/{sha256}"


def pack_bundle(path: Path) -> Bundle:
    """Pack a module, a package (a folder with ``__init__.py``), or all files of another folder.

    Hidden files, caches, build outputs, and links that lead out of the folder are left out.

    Args:
        path: The file or folder.
    Raises:
        BadBundle: There are no files, or too many bytes.
    """
    path = path.resolve()
    if not path.exists():
        raise BadBundle(f"there is no {printable(str(path))} to bundle")
    root = path.parent if path.is_file() or (path / "__init__.py").exists() else path
    files = [path] if path.is_file() else sorted(_files(path, root))
    if not files:
        raise BadBundle(f"{printable(str(path))} has no file to bundle")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            name = PurePosixPath(*file.relative_to(root).parts).as_posix()
            about = zipfile.ZipInfo(name, _DATE)
            about.compress_type = zipfile.ZIP_DEFLATED
            about.external_attr = (_PROGRAM if os.access(file, os.X_OK) else _PLAIN) << 16
            archive.writestr(about, file.read_bytes())
            if out.tell() > MAX_BYTES:
                raise BadBundle(
                    f"{printable(str(path))} makes a bundle of more than {MAX_BYTES // 2**20} MiB at "
                    f"{printable(name)}; install large code on the workers, and deploy without a bundle"
                )
    data = out.getvalue()
    return Bundle(hashlib.sha256(data).hexdigest(), data)


def _files(folder: Path, root: Path) -> Iterator[Path]:
    for each in folder.iterdir():
        if each.name.startswith(".") or each.name in _LEFT_OUT or not each.resolve().is_relative_to(root):
            continue
        if each.is_dir():
            if not each.is_symlink():
                yield from _files(each, root)
        elif each.is_file() and each.suffix != ".pyc":
            yield each


class BundleCache:
    """Unpacked bundles on this machine. Thread-safe. Several processes may share a folder.

    Before its first use in this process, a bundle unpacked by an earlier process is compared with its zip, and the zip
    with its name: a power failure can leave empty files, and the files may have been changed.

    Args:
        folder: Where bundles are unpacked. Its content can be deleted at any time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._verified: set[str] = set()
        self._mutex = threading.Lock()

    def get_folder(self, sha256: str, logs: LogStore) -> Path:
        """Return the local folder with the files of a bundle. The bundle is fetched unless an intact copy exists.

        Args:
            sha256: The SHA-256 of the bundle.
            logs: The log store, which contains the bundle.
        Raises:
            BadBundle: The bundle is missing or does not match its SHA-256.
            OSError: The bundle cannot be fetched now.
        """
        found = self._folder / sha256
        with self._mutex:
            if sha256 in self._verified and found.exists():
                return found
            if not self._is_intact(sha256):
                data = logs.get_file(get_bundle_file_name(sha256))
                if data is None:
                    raise BadBundle(f"code bundle {sha256[:12]} is not in {logs.url}: deploy the workflow again")
                self._unpack(Bundle(sha256, data), found)
            self._verified.add(sha256)
        return found

    def _is_intact(self, sha256: str) -> bool:
        """Return whether the local copy of a bundle matches its SHA-256, and its folder has exactly the files of the
        zip file.
        """
        found = self._folder / sha256
        try:
            data = self._zip(sha256).read_bytes()
            if hashlib.sha256(data).hexdigest() != sha256:
                return False
            for each in found.rglob("__pycache__"):  # created by Python, which would run it
                shutil.rmtree(each)
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                expected = {found / each.filename for each in archive.infolist() if not each.is_dir()}
                there = {each for each in found.rglob("*") if not each.is_dir() or each.is_symlink()}
                return there == expected and all(
                    not each.is_symlink() and each.read_bytes() == archive.read(each.relative_to(found).as_posix())
                    for each in expected
                )
        except (OSError, zipfile.BadZipFile):
            return False

    def _zip(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.zip"

    def _unpack(self, bundle: Bundle, path: Path) -> None:
        if hashlib.sha256(bundle.data).hexdigest() != bundle.sha256:
            raise BadBundle(
                f"code bundle {bundle.sha256[:12]} was changed: its bytes have another sha256; deploy again"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=self._folder))
        old = made.with_suffix(".old")
        try:
            with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
                if sum(each.file_size for each in archive.infolist()) > MAX_UNPACKED:
                    raise BadBundle(f"code bundle {bundle.sha256[:12]} is larger than allowed when unpacked")
                for each in archive.infolist():
                    target = Path(archive.extract(each, made))  # ignores '..' and absolute paths
                    if not each.is_dir():
                        target.chmod(_PROGRAM if (each.external_attr >> 16) & 0o100 else _PLAIN)
            for folder in [made, *(each for each in made.rglob("*") if each.is_dir())]:
                folder.chmod(0o755)  # other users run it too
            replace_file(self._zip(bundle.sha256), bundle.data, mode=0o600)
            if path.exists() and not self._is_intact(bundle.sha256):
                path.rename(old)
            with suppress(OSError):  # another process was faster
                made.rename(path)
        except zipfile.BadZipFile as error:
            raise BadBundle(f"code bundle {bundle.sha256[:12]} is not a zip file: {error}") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
