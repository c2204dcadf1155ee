"""A certificate authority for tests, made with openssl."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_SIGNED = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")


class Authority:
    """Signs certificates. They, their keys and its own certificate, ``ca.pem``, are in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test ca", "-days", "2"
        )

    def sign(self, name: str, *extensions: str) -> None:
        """Make ``<name>.pem`` and ``<name>.key``, with X.509 extensions such as ``subjectAltName=IP:127.0.0.1``."""
        (self.folder / f"{name}.ext").write_text("".join(f"{each}\n" for each in extensions))
        self._openssl("req", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = (*_SIGNED, "-extfile", f"{name}.ext", "-out", f"{name}.pem")
        self._openssl("x509", "-req", "-in", f"{name}.csr", *signed)

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True, timeout=30)
