"""Certificates, and servers that ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from latchwork_testkit.servers import Tls


@dataclass(frozen=True)
class Certificates:
    """An authority in a folder, and what it issues."""

    authority: trustme.CA
    folder: Path

    @property
    def ca(self):
        path = self.folder / "ca.pem"
        self.authority.cert_pem.write_to_path(path)
        return path

    def issue(self, name, host="127.0.0.1", **options):
        """Paths of a certificate for a host and of its key, which is PKCS #8."""
        leaf = self.authority.issue_cert(host, **options)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        private = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), password=None)
        key.write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert, key

    def server(self, name="server", **options):
        """What a server is given that asks clients for certificates too."""
        return Tls(self.ca, *self.issue(name, **options), client_cert_auth=True)

    def client(self, name="client", **options):
        """The options of a URL."""
        cert, key = self.issue(name, **options)
        return {"tls_cert": cert, "tls_key": key}
