"""Opens a log store by URL. fsspec is imported only when needed, and not for folders."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from latchwork.errors import LatchworkError
from latchwork_workflows.logs.files import FileLogs
from latchwork_workflows.logs.object_store import SegmentLogs
from latchwork_workflows.logs.store import LogStore


class BadLogsUrl(LatchworkError, ValueError):
    """The URL of a log store is invalid or not supported."""


def open_logs(url: str | Path) -> LogStore:
    """Return the log store for a URL or a path. Does no I/O.

    Args:
        url: ``file:///var/lib/latchwork/logs``, a path, or any fsspec URL: ``s3://bucket/logs``, ``gs://...``.
    Raises:
        BadLogsUrl: fsspec does not support the URL, or a required package is not installed.
    """
    if isinstance(url, Path):
        return FileLogs(url)
    parts = urlsplit(url)
    if parts.scheme in {"", "file"}:
        if parts.netloc not in {"", "localhost"}:
            raise BadLogsUrl(f"{url!r} names host {parts.netloc!r}; a folder of this machine is file:///path")
        path = unquote(parts.path)
        if not path:
            raise BadLogsUrl(f"{url!r} names no folder; write file:///path")
        return FileLogs(Path(path))
    try:
        import fsspec  # only for object stores
    except ImportError:
        raise BadLogsUrl(f'{url!r} needs fsspec; run: pip install "latchwork[workflows]"') from None
    try:
        fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise BadLogsUrl(f"log store {_without_password(url)!r} cannot be opened: {error}") from None
    return SegmentLogs(fs, root, _without_password(url))


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
