"""Servers with accounts: etcd with root, and app with all rights below /app/; ZooKeeper with SASL."""

from __future__ import annotations

import grpc

from latchwork_testkit.etcd_rpc import Stub, pb
from latchwork_testkit.servers import ZooKeeperServer


class Accounts:
    """Makes accounts on a server without any, and changes their rights as root."""

    def __init__(self, server, password):
        self._channel = grpc.insecure_channel(f"ipv4:{server.endpoint}")
        self._auth = Stub(self._channel, "Auth")
        self._metadata = ()
        self._password = password
        for user in ("root", "app"):
            self._auth.UserAdd(pb.AuthUserAddRequest(name=user, password=password), timeout=5)
            self._auth.RoleAdd(pb.AuthRoleAddRequest(name=user), timeout=5)
            self._auth.UserGrantRole(pb.AuthUserGrantRoleRequest(user=user, role=user), timeout=5)
        self.grant()
        self._auth.AuthEnable(pb.AuthEnableRequest(), timeout=5)

    def log_in(self):
        request = pb.AuthenticateRequest(name="root", password=self._password)
        self._metadata = (("token", self._auth.Authenticate(request, timeout=5).token),)

    def grant(self, prefix=b"/app/"):
        kind = pb.Permission.READWRITE
        perm = pb.Permission(permType=kind, key=prefix, range_end=prefix[:-1] + b"0")
        request = pb.AuthRoleGrantPermissionRequest(name="app", perm=perm)
        self._auth.RoleGrantPermission(request, timeout=5, metadata=self._metadata)

    def revoke(self):
        request = pb.AuthRoleRevokePermissionRequest(role="app", key=b"/app/", range_end=b"/app0")
        self._auth.RoleRevokePermission(request, timeout=5, metadata=self._metadata)

    def put(self, key, value):
        """As root."""
        Stub(self._channel, "KV").Put(pb.PutRequest(key=key, value=value), timeout=5, metadata=self._metadata)

    def remove(self):
        """The account itself."""
        self._auth.UserDelete(pb.AuthUserDeleteRequest(name="app"), timeout=5, metadata=self._metadata)

    def close(self):
        self._channel.close()


def sasl_server(folder, **passwords):
    """A ZooKeeper server that lets only these users in, by SASL."""
    users = " ".join(f'user_{user}="{password}"' for user, password in passwords.items())
    jaas = folder / "jaas.conf"
    jaas.write_text(f"Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n  {users};\n}};\n")
    provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    config = {"authProvider.1": provider, "sessionRequireClientSASLAuth": "true"}
    return ZooKeeperServer(extra_config=config, jvm_args=[f"-Djava.security.auth.login.config={jaas}"])
