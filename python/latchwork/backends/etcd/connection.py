"""The connection: its channel, its token, its health, and unary calls that are safe to repeat.

Every call has a deadline. A call is tried again only here and only when repeating it is harmless; writes that need more
care are in ``writing``. gRPC's pick_first moves on to the next member when a connection breaks; a member that stands
but cannot serve (cut off from the others, or stopped) is left by opening a channel that tries the next one first. With
TLS a channel has one member, whose certificate must name it, and every failed connection is left in this way.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from latchwork._base.interrupts import mutex
from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.channel import Channel, create_credentials, open_channel
from latchwork.backends.etcd.errors import CallOutcome
from latchwork.backends.futures import FutureGenerator, LightFuture, chain, reject, resolve, run_generator
from latchwork.backends.server_versions import (
    etcd_may_lose_data,
    progress_follows_events,
    survives_canceled_reads,
    warn_once,
)
from latchwork.backends.timer import Timer
from latchwork.backends.url import StoreURL, join_hosts
from latchwork.clock import Clock
from latchwork.errors import (
    AuthenticationFailed,
    Closed,
    ConnectFailed,
    InvalidURL,
    LatchworkError,
    PermissionDenied,
    Unavailable,
)

_log = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_S = 0.05
_ROTATE_EVERY_S = 1.0
_FIRST_TRY_S = 2.0
#: Bounds of the time for one attempt to connect: two round trips, or four with TLS, and a packet that is sent again. A
#: longer one would find a server later that was out of reach: the kernel sends a lost SYN again after 1, 3 and 7 s.
_LEAST_CONNECT_S, _MOST_CONNECT_S = 1.0, 5.0
#: The part of the timeout for connecting after which the first attempt has failed, and gRPC says how far it came.
_FIRST_CONNECT = 0.6
_MAY_LOSE_DATA = "etcd %s at %s may lose confirmed writes when a server is killed; upgrade to 3.4.21, 3.5.5 or newer"
#: Half of etcd's default quota; servers before 3.6 do not say which quota they have.
_LARGE_BYTES = 1 << 30
_LARGE = (
    "the database of etcd at %s has more than 1 GB, and at its quota, 2 GB by default, etcd refuses all writes; "
    "compact and defragment it, and set --auto-compaction-retention"
)
#: So many writes make it worth asking whether the history was ever compacted: a day of a few nodes.
_MANY_REVISIONS = 100_000
_NEVER_COMPACTED = (
    "etcd at %s keeps the history of every write and was never compacted: at its quota it refuses all writes; set "
    "--auto-compaction-mode=periodic --auto-compaction-retention=1h"
)
#: Seconds after which the size and the history of the database are looked at again, when they are asked for.
_HISTORY_S = 3_600.0
_CLOSED = "the store was closed; open a new one"
_STALE_CLIENT = "the token of the etcd3 client has expired; connect a new client, or give user and password to connect"
#: A server that does not tell its version by then is taken for an old one.
_STATUS_S = 3.0
#: What gRPC says when the other side is not who it should be, or will not have us.
_TLS_TROUBLE = (
    "CERTIFICATE_VERIFY_FAILED",
    "SSL_ERROR",
    "SSL routines",
    "handshake failed",
    "Hostname Verification Check failed",
)


class _Read(LightFuture[T]):
    """A read in progress, which is also the future of its decoded answer."""

    __slots__ = ("_again", "_connection", "_deadline", "_decode", "_what")

    def __init__(
        self,
        connection: EtcdConnection,
        again: tuple[str, Any],
        what: str,
        decode: Callable[[bytes], T],
        deadline: float,
    ) -> None:
        super().__init__()
        self._connection = connection
        self._again = again
        self._what = what
        self._decode = decode
        self._deadline = deadline

    def ended(self, call: Any) -> None:
        try:
            resolve(self, self._decode(call.result()))
        except grpc.RpcError as error:  # of the first try: those of others are translated
            again = partial(self._connection.retry_read, error, self._again, self._what, self._deadline)
            run_generator(again()).add_done_callback(self.ended)
        except LatchworkError as error:
            reject(self, error)
        except ValueError as error:
            reject(self, malformed_response_error(self._what, error))
        except Exception as error:  # callers that wait for the outcome must be notified
            reject(self, error)


class EtcdConnection:
    """A connection to a cluster, for any number of stores. Thread-safe.

    Args:
        tls: The contents of the TLS files in the URL, by the name of the option.
        client: a user's client of python-etcd3, whose channel and token are used; None to open a channel.

    Attributes:
        healthy: the last call that said something about the connection went well.
        survives_canceled_reads, progress_is_proof: of the server; see ``versions.py``.
        closed: set once, by ``close``.
    """

    def __init__(self, url: StoreURL, clock: Clock, timer: Timer, tls: dict[str, bytes], client: Any = None) -> None:
        self.clock = clock
        self.timer = timer
        self.call_timeout_s = url.call_timeout_s
        self.metadata: tuple[tuple[str, str], ...] = tuple(getattr(client, "metadata", None) or ())
        self.healthy = True
        self.survives_canceled_reads = False
        self.progress_follows_events = False
        self.closed = False
        self._url = url
        self._client = client
        self._lock = mutex()
        self._hosts = list(url.hosts)
        share_s = max(url.connect_timeout_s / (1 + len(url.hosts)), _LEAST_CONNECT_S)
        self._connect_s = min(share_s, _MOST_CONNECT_S, url.connect_timeout_s * _FIRST_CONNECT)
        self._connect_error = ""  # gRPC's words for the last attempt to connect
        self._credentials = create_credentials(tls)
        self._refreshing: Future[None] | None = None
        self._probe: Any = None
        self._notices: tuple[str, ...] = ()
        self._noticed_at = -math.inf
        self._one_by_one = self._credentials is not None and len(self._hosts) > 1
        self._rotated_at = clock.now() - _ROTATE_EVERY_S
        if client is not None and self._credentials is not None:
            raise InvalidURL("tls_ca, tls_cert and tls_key have no effect on the open channel of a client; omit them")
        self._channel = (
            open_channel(self._hosts, self._credentials, self._connect_s)
            if client is None
            else Channel(client.channel, is_ours=False)
        )
        #: That one, and those before it which have calls under way yet.
        self._channels = [self._channel]

    def send(self, method: str, request: Any, timeout_s: float, *, in_caller_thread: bool = False) -> Any:
        """Send a request once, and return gRPC's future of the response.

        Args:
            method: The name of the gRPC method, such as "Range".
            request: The request as a message, or encoded.
            timeout_s: Seconds after which the call fails.
            in_caller_thread: Make the call in this thread and return a ``CompletedCall``. This saves the switch to
                gRPC's thread and back, which takes half of the time of a small request.

        Raises:
            Closed: The connection was closed.
        """
        # A stale token would fail even the call that replaces it.
        metadata = () if method == "Authenticate" else self.metadata
        channel = self._channel
        if self.closed:
            raise Closed(_CLOSED)
        try:
            if in_caller_thread:
                return CompletedCall(channel.calls[method](request, timeout_s, metadata))
            return channel.calls[method].future(request, timeout_s, metadata)
        except grpc.RpcError as error:
            return CompletedCall(error=error)
        except ValueError as error:
            self._refuse_closed(error)
            raise
        except Exception:
            raise
        except BaseException:
            self._abandon_channel(channel)
            raise

    def _abandon_channel(self, channel: Channel) -> None:
        """Stop using a channel after an interrupted call, because gRPC may hold a lock of it forever.

        Later calls open another channel.
        """
        if self._client is not None:
            return
        channel.close_in_thread()
        with self._lock:
            if not self.closed and self._channel is channel:
                self._replace_channel()

    def _replace_channel(self) -> None:
        """Open a new channel for later calls, and close the old one once its calls have ended.

        The caller holds the lock.
        """
        old, self._channel = self._channel, open_channel(self._hosts, self._credentials, self._connect_s)
        self._channels.append(self._channel)
        self.timer.call_later(self.call_timeout_s + 1.0, partial(self._retire, old))

    def _retire(self, channel: Channel) -> None:
        with self._lock:
            if channel not in self._channels:
                return
            self._channels.remove(channel)
        channel.close()

    def _refuse_closed(self, error: ValueError) -> None:
        """Raise ``Closed`` if gRPC refused a call because the channel was closed."""
        if self.closed:
            raise Closed(_CLOSED) from error
        if self._client is not None:
            raise Closed("the etcd3 client of this store was closed; connect a new one") from error

    def read(
        self,
        method: str,
        request: Any,
        description: str,
        decode: Callable[[bytes], T],
        *,
        deadline: float | None = None,
        in_caller_thread: bool = False,
    ) -> Future[T]:
        """Send a read, which may be repeated, and return a future of its decoded response.

        Args:
            method: "Range" or "Txn".
            request: The request as a message, or encoded.
            description: A description of the call with its key, for messages.
            decode: Decodes the response. Raises ``ValueError`` if the response is malformed.
            deadline: Local clock time. None is the call timeout from now.
            in_caller_thread: Make the call in this thread. See ``send``.
        """
        left_s = self.call_timeout_s if deadline is None else max(deadline - self.clock.now(), 0.001)
        deadline = self.clock.now() + left_s
        outcome = _Read(self, (method, request), description, decode, deadline)
        try:
            self.send(
                method, request, self.attempt_timeout_s(left_s), in_caller_thread=in_caller_thread
            ).add_done_callback(outcome.ended)
        except Closed as error:
            reject(outcome, error)
        return outcome

    def call(self, method: str, request: Any, description: str, deadline: float) -> FutureGenerator[Any]:
        """Make a call that may be repeated, until the server responds. Return the response as a message.

        Args:
            method: The name of the gRPC method.
            request: The request.
            description: A description of the call for messages.
            deadline: Local clock time.

        Raises:
            LatchworkError: The error of the server, or ``Unavailable``.
        """
        answer = yield from self.call_undecoded(method, request, description, deadline)
        if not isinstance(answer, bytes):
            return answer
        try:
            return decode_response(method, answer)
        except ValueError as error:
            raise malformed_response_error(description, error) from error

    def call_undecoded(self, method: str, request: Any, description: str, deadline: float) -> FutureGenerator[Any]:
        """Make a call like ``call``, but return the response to a Range or a Txn as undecoded bytes."""
        refreshed = False
        while True:
            left_s = max(deadline - self.clock.now(), 0.001)
            try:
                answer = yield self.send(method, request, self.attempt_timeout_s(left_s))
            except grpc.RpcError as error:
                refreshed = yield from self._prepare_retry(error, description, deadline, refreshed=refreshed)
            else:
                self.healthy = True
                return answer

    def pause_before_retry(self, error: grpc.RpcError, description: str, deadline: float) -> FutureGenerator[None]:
        """Pause before the next attempt of a call.

        Args:
            error: The error of the last attempt.
            description: A description of the call for messages.
            deadline: Local clock time.

        Raises:
            Unavailable: There is no time for another attempt.
        """
        if self.closed:
            raise rpc_errors.with_cause(Closed(f"the store was closed while it was to {description}"), error)
        if self.clock.now() + RETRY_S >= deadline:
            raise rpc_errors.translate_error(error, description)
        yield self.timer.after(RETRY_S)

    def refresh_token(self, deadline: float | None = None) -> Future[None]:
        """Log in again to get a new authentication token.

        Concurrent callers share one login, which has the call timeout. Each caller waits until its own deadline. The
        future fails with the error of the login.
        """
        with self._lock:
            refreshing = self._refreshing
            begin = refreshing is None
            if refreshing is None:
                refreshing = self._refreshing = LightFuture()
        if begin:
            chain(run_generator(self._authenticate()), refreshing)
            with self._lock:
                if refreshing.done():
                    self._refreshing = None
        if deadline is None or refreshing.done():
            return refreshing
        return self.with_deadline(refreshing, deadline, f"log in {self._url.user!r}")

    def with_deadline(self, shared: Future[T], deadline: float, description: str) -> Future[T]:
        """Return a future that completes like another future, but fails with ``Unavailable`` at a deadline.

        Args:
            shared: The other future, for which several callers wait.
            deadline: Local clock time.
            description: A description of the call for messages.
        """
        limited: Future[T] = LightFuture()

        def give_up() -> None:
            reject(limited, Unavailable(f"etcd did not {description} in time; try again"))

        chain(shared, limited)
        self.timer.call_later(max(deadline - self.clock.now(), 0.0), give_up)
        return limited

    @property
    def hosts(self) -> str:
        """The addresses of the members, for messages."""
        return join_hosts(self._url.hosts)

    def record_failure(self, error: grpc.RpcError) -> None:
        """Record that a call failed because of the connection. Disconnect from a member that cannot serve requests."""
        self.healthy = False
        if rpc_errors.classify_outcome(error) is CallOutcome.NEVER_SENT:
            self._connect_error = rpc_errors.get_message(error)
        if self._one_by_one or (len(self._hosts) > 1 and rpc_errors.is_member_failing(error)):
            self._rotate()

    def watch_stream(self, requests: Iterable[Any]) -> Any:
        """Open the stream of watch answers. A member ends it when it loses contact with the other members."""
        metadata = (*self.metadata, ("hasleader", "true"))
        # A stream that waits for a member that is gone would keep the watch from the next one.
        try:
            return self._channel.watch(requests, metadata=metadata, wait_for_ready=not self._one_by_one)
        except ValueError as error:
            self._refuse_closed(error)
            raise

    def connect(self, probe: Any) -> None:
        """Block until the cluster has answered a linearizable read.

        Args:
            probe: The read, as a message.
        Raises:
            ConnectFailed: There was no answer within ``connect_timeout_s``, or the TLS handshake failed.
            AuthenticationFailed: The server refused the account, or requires one.
        """
        what, self._probe = f"answer at {join_hosts(self._hosts)}", probe
        deadline = self.clock.now() + self._url.connect_timeout_s
        try:
            run_generator(self._check_server(probe, deadline)).result(self._url.connect_timeout_s + 1.0)
        except ConnectFailed:
            raise
        except Unavailable as error:
            raise ConnectFailed(
                f"etcd did not {what} within {self._url.connect_timeout_s:g} s: {self._describe_connect_error(error)}; "
                "check that it runs, the host and port, and the TLS options (tls_ca, tls_cert, tls_key)"
            ) from error

    def close(self) -> None:
        """Close the channel. Calls in flight fail. Idempotent."""
        with self._lock:
            self.closed = True
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    # Private.

    def _describe_connect_error(self, error: Unavailable) -> str:
        """Return a description of why connecting failed: the phase of connecting, and gRPC's message."""
        said = rpc_errors.get_message(error.__cause__) if isinstance(error.__cause__, grpc.RpcError) else str(error)
        if self._channel.is_connected():
            return f"it got no further than the first answer ({said})"
        said = self._connect_error or said
        phase = rpc_errors.find_connect_phase(said)
        return f"it got no further than {phase} ({said})" if phase else said

    def _check_server(self, probe: Any, deadline: float) -> FutureGenerator[None]:
        if self._url.user is not None and not self.metadata:
            yield from self._login(deadline)
        try:
            yield from self.call("Range", probe, "answer", deadline)
        except PermissionDenied:
            _log.info("connected to etcd at %s, but may not read below the root", join_hosts(self._hosts))
        try:
            soon = min(deadline, self.clock.now() + _STATUS_S)
            status = yield from self.call("Status", pb.StatusRequest(), "tell its version", soon)
            self.survives_canceled_reads = survives_canceled_reads(status.version)
            self.progress_follows_events = progress_follows_events(status.version)
            if etcd_may_lose_data(status.version):
                warn_once(_log, _MAY_LOSE_DATA, status.version, join_hosts(self._url.hosts))
            yield from self._warn_of_full_history(status, soon)
        except LatchworkError as error:
            _log.debug("etcd did not report its version and is treated as an old one: %s", error)

    def notices(self) -> tuple[str, ...]:
        """Return one sentence for each upcoming problem of the server's database. Does not block.

        Once an hour, a call starts a new check in the background.
        """
        now = self.clock.now()
        if now - self._noticed_at >= _HISTORY_S and not self.closed:
            self._noticed_at = now
            run_generator(self._check_database_size())
        return self._notices

    def _check_database_size(self) -> FutureGenerator[None]:
        try:
            soon = self.clock.now() + _STATUS_S
            status = yield from self.call("Status", pb.StatusRequest(), "tell the size of its database", soon)
            yield from self._warn_of_full_history(status, soon)
        except LatchworkError as error:
            _log.debug("etcd did not report the size of its database: %s", error)

    def _warn_of_full_history(self, status: Any, deadline: float) -> FutureGenerator[None]:
        """Log a warning if the history in the database will soon reach the quota, where etcd refuses all writes."""
        self._noticed_at = self.clock.now()
        hosts, found = join_hosts(self._url.hosts), []
        if status.dbSize > _LARGE_BYTES:
            found.append(_LARGE)
        if status.header.revision >= _MANY_REVISIONS:
            oldest = pb.RangeRequest(key=self._probe.key, revision=1, limit=1, keys_only=True)
            try:
                yield from self.call("Range", oldest, "read its oldest state", deadline)
            except LatchworkError as error:
                _log.debug("etcd at %s has compacted its history, or does not report it: %s", hosts, error)
            else:
                found.append(_NEVER_COMPACTED)
        for message in found:
            warn_once(_log, message, hosts)
        self._notices = tuple(message % hosts for message in found)

    def _authenticate(self) -> FutureGenerator[None]:
        try:
            yield from self._login(self.clock.now() + self.call_timeout_s)
        finally:
            with self._lock:
                self._refreshing = None

    def _login(self, deadline: float) -> FutureGenerator[None]:
        if self._url.user is None and self._client is not None:
            raise AuthenticationFailed(_STALE_CLIENT)
        request = pb.AuthenticateRequest(name=self._url.user or "", password=self._url.password or "")
        what = f"log in as {self._url.user!r}"
        while True:
            try:
                answer = yield self.send(
                    "Authenticate", request, self.attempt_timeout_s(max(deadline - self.clock.now(), 0.001))
                )
            except grpc.RpcError as error:
                if rpc_errors.message_contains(error, "authentication is not enabled"):
                    hosts = join_hosts(self._hosts)
                    _log.warning("etcd at %s does not verify passwords because authentication is not enabled", hosts)
                    return
                if rpc_errors.classify_outcome(error) is CallOutcome.REFUSED:
                    raise rpc_errors.translate_error(error, what) from error
                self.record_failure(error)
                yield from self.pause_before_retry(error, what, deadline)
            else:
                self.metadata = (("token", answer.token),)
                return

    def retry_read(
        self, error: grpc.RpcError, method_and_request: tuple[str, Any], description: str, deadline: float
    ) -> FutureGenerator[Any]:
        """Repeat a read whose first attempt has failed, and return its response.

        Args:
            error: The error of the first attempt.
            method_and_request: The name of the gRPC method, and the encoded request.
            description: A description of the call for messages.
            deadline: Local clock time.
        """
        yield from self._prepare_retry(error, description, deadline, refreshed=False)
        return (yield from self.call_undecoded(*method_and_request, description, deadline))

    def _prepare_retry(
        self, error: grpc.RpcError, description: str, deadline: float, *, refreshed: bool
    ) -> FutureGenerator[bool]:
        """Prepare the next attempt of a failed call. Log in again if the authentication token has expired.

        Args:
            error: The error of the last attempt.
            description: A description of the call for messages.
            deadline: Local clock time.
            refreshed: Whether this call has already logged in again.

        Returns:
            Whether there is a new authentication token.

        Raises:
            LatchworkError: A retry would not help.
        """
        effect = rpc_errors.classify_outcome(error)
        may_refresh = self._url.user is not None or self._client is not None
        if effect is CallOutcome.STALE_TOKEN and may_refresh and not refreshed:
            yield self.refresh_token(deadline)
            return True
        if effect in {CallOutcome.REFUSED, CallOutcome.STALE_TOKEN}:
            self.healthy = True
            raise rpc_errors.translate_error(error, description) from error
        self._raise_tls_error(error)
        self.record_failure(error)
        yield from self.pause_before_retry(error, description, deadline)
        return refreshed

    def _raise_tls_error(self, error: grpc.RpcError) -> None:
        """Raise ``ConnectFailed`` for a TLS error if there is no other member, because a retry would not help."""
        said = rpc_errors.get_message(error)
        if not self._one_by_one and any(words in said for words in _TLS_TROUBLE):
            raise ConnectFailed(
                f"TLS with etcd at {join_hosts(self._hosts)} could not be agreed ({said}); check tls_ca, tls_cert and "
                "tls_key, and that the server's certificate names the host"
            ) from error

    def attempt_timeout_s(self, left_s: float) -> float:
        """Return the timeout of one attempt in seconds, given the seconds until the deadline.

        It leaves time for an attempt with another member. A member that forwards to a leader that has just failed would
        keep a call for 6 s, so the first attempt is short. Later ones are longer, in case the answer itself takes long.
        """
        if len(self._hosts) == 1:
            return left_s
        return min(left_s, _FIRST_TRY_S if self.healthy else max(left_s * 0.4, 1.0))

    def _rotate(self) -> None:
        with self._lock:
            now = self.clock.now()
            if self.closed or now < self._rotated_at + _ROTATE_EVERY_S:
                return
            self._rotated_at = now
            self._hosts.append(self._hosts.pop(0))
            _log.info("the etcd member in use cannot serve; trying %s first", join_hosts(self._hosts[:1]))
            self._replace_channel()


class CompletedCall:
    """A call that was made in the calling thread. It has the interface of gRPC's future."""

    __slots__ = ("_answer", "_error")

    def __init__(self, answer: Any = None, error: grpc.RpcError | None = None) -> None:
        self._answer = answer
        self._error = error

    def code(self) -> grpc.StatusCode:
        """Return the gRPC status code of the call."""
        return grpc.StatusCode.OK if self._error is None else rpc_errors.get_status_code(self._error)

    def done(self) -> bool:
        """Return True, because the call has ended."""
        return True

    def exception(self) -> grpc.RpcError | None:
        """Return the error of the call, or None."""
        return self._error

    def result(self) -> Any:
        """Return the response, or raise the error of the call."""
        if self._error is not None:
            raise self._error
        return self._answer

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        """Call ``fn`` now, because the call has ended."""
        fn(self)


def decode_response(method: str, answer: bytes) -> Any:
    """Decode the bytes of a response to a message.

    Args:
        method: "Range" or "Txn".
        answer: The bytes.

    Raises:
        ValueError: The bytes are not a valid response.
    """
    try:
        return (pb.RangeResponse if method == "Range" else pb.TxnResponse).FromString(answer)
    except DecodeError as error:
        msg = f"etcd's answer cannot be read: {error}"
        raise ValueError(msg) from error


def malformed_response_error(description: str, error: ValueError) -> LatchworkError:
    """Return the error for a read whose response cannot be decoded.

    Args:
        description: A description of the call for the message.
        error: The error of the decoding.
    """
    return rpc_errors.with_cause(Unavailable(f"could not {description}: {error}; try again"), error)
