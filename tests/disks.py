"""File systems of a few megabytes, for disks that get full."""

import os
import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def mounted(tmp_path, megabytes, *umount):
    """A folder that is such a file system; the test is skipped where none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", *umount, str(folder)], check=True)
