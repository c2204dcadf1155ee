"""The file of a root. It is read without a lock, and replaced while a lock is held."""

import contextlib
import fcntl
import json
import threading
import time
from pathlib import Path
from urllib.parse import quote

from latchwork.errors import ConnectFailed, PermissionDenied, Unavailable
from latchwork_jsonfile.state import State

_RETRY_S = 0.002
_DIGITS = 20


class StateFile:
    """The file of a root, and the last state that this process has read from it. Thread-safe.

    The first line of the file is its generation, so that an unchanged file is not parsed again. A write creates a new
    file and renames it. A reader therefore sees the old contents or the new ones, and a killed writer leaves the old
    ones.
    """

    def __init__(self, folder, root):
        self._path = Path(folder) / f"{quote(root, safe='')}.json"
        self._lock_path = self._path.with_suffix(".lock")
        self._mutex = threading.Lock()
        self._seen = State()
        try:
            self._lock_path.touch()
        except PermissionError as error:
            raise PermissionDenied(f"{folder} cannot be written: {error}") from error
        except OSError as error:
            raise ConnectFailed(f"{folder} cannot be opened: {error}; create the folder") from error

    def read(self):
        """Return the newest state. The caller must not change it."""
        try:
            with self._path.open("rb") as file:
                seen = self._seen
                if int(file.read(_DIGITS)) != seen.generation:
                    seen = self._seen = State.from_json(json.loads(file.read()))
                return seen
        except FileNotFoundError:
            return State()
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be read: {error}") from error

    @contextlib.contextmanager
    def lock(self, deadline):
        """Lock the file for the block, so that no other thread or process can write.

        Raises Unavailable if the lock is not free before the deadline.
        """
        if not self._mutex.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise Unavailable(f"{self._path} was locked by this process until the timeout; nothing was written")
        try:
            with self._lock_path.open("rb") as lock:
                self._wait_for(lock, deadline)
                yield
        except PermissionError as error:
            raise PermissionDenied(f"{self._path} cannot be written: {error}") from error
        except OSError as error:  # the rename comes last, so nothing was written
            raise Unavailable(f"{self._path} cannot be written: {error}; nothing was written") from error
        finally:
            self._mutex.release()

    def save(self, state):
        """Replace the contents of the file. The caller must hold the lock."""
        state.generation += 1
        new = self._path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(b"%0*d" % (_DIGITS, state.generation))
            file.write(json.dumps(state.as_json()).encode())
        new.replace(self._path)
        self._seen = state

    def _wait_for(self, lock, deadline):
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Unavailable(f"{self._path} was locked by another process; nothing was written") from None
                time.sleep(_RETRY_S)
            else:
                return
