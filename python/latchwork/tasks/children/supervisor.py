"""A program that supervises one command: ``python -I -S supervisor.py LABEL``. Standard library only.

It owns the processes that the command starts: a process group, and, on Linux, every process that forks away from it. It
ends all of them when the command has ended, at its deadline, on request, or when the parent has died, whichever comes
first. ``supervisor_handle.py`` is the other end of the pipes. No module imports this one.

Descriptor 0 is a pipe from the parent. It carries the order first: its length, then that many bytes of parts separated
by NUL. Then lines: ``until T`` (seconds on the boot clock), ``stop S`` (SIGTERM, and SIGKILL after S seconds),
``signal N``, ``kill``. The end of this pipe means that the parent is gone.
Descriptor 1 is a pipe to the parent: ``started PID`` or ``failed ERRNO WHERE``, then ``ended WHY STATUS USER SYSTEM RSS
LEFT`` once nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing takes longer than this whole module
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
#: Seconds between checks of the clock, on systems without a timer that runs through suspend.
LOOK_S = 0.5
#: Seconds between checks of processes that do not die: they hang in the kernel, for example on a dead disk.
REAP_S = 0.02
#: Signals that this process or Python handles, so that the command needs their defaults back.
OURS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TFD_NONBLOCK, TFD_ABSTIME = 0o4000, 1


def boot_time() -> float:
    """Return the seconds on the boot clock, which keeps running while the machine is suspended."""
    return time.clock_gettime(BOOT)


class System:
    """Functions of libc that the standard library lacks. Without libc, calls have no effect."""

    def __init__(self) -> None:
        self.libc = None
        if sys.platform == "linux":
            with contextlib.suppress(ImportError, OSError):
                import ctypes  # slow to import

                self.ctypes = ctypes
                self.libc = ctypes.CDLL(None, use_errno=True)

    def prctl(self, option: int, value: int) -> bool:
        """Set an option of this process.

        Args:
            option: Number of the option.
            value: Its value.
        Returns:
            Whether the option could be set.
        """
        return self.libc is not None and bool(self.libc.prctl(option, value, 0, 0, 0) == 0)

    def boot_timer(self) -> int | None:
        """Create a timer descriptor on the boot clock, for ``set_timer``. Return None if the system does not support
        that.
        """
        if self.libc is None or not hasattr(self.libc, "timerfd_create"):
            return None
        timer = self.libc.timerfd_create(BOOT, TFD_NONBLOCK)
        return timer if timer >= 0 else None

    def set_timer(self, timer_fd: int, time_s: float) -> None:
        """Make a timer descriptor readable at a given time.

        Args:
            timer_fd: The timer descriptor.
            time_s: Time on the boot clock in seconds; infinity disarms the timer.
        """
        whole = 0 if time_s == float("inf") else int(time_s)
        values = (0, 0, whole, int((time_s - whole) * 1e9) or 1) if whole else (0, 0, 0, 0)
        spec = (self.ctypes.c_long * 4)(*values)
        if self.libc is not None:
            self.libc.timerfd_settime(timer_fd, TFD_ABSTIME, spec, None)


class CommandRequest:
    """The message from the parent that describes the command to run."""

    def __init__(self, parts: list[bytes]) -> None:
        fixed, counts, rest = parts[:7], [int(n) for n in parts[7].split()], parts[8:]
        self.parent, self.until, self.grace_s = int(fixed[0]), float(fixed[1]), float(fixed[2])
        self.folder, self.user = fixed[3], fixed[4]
        self.streams = [int(fd) for fd in fixed[5].split()]
        lock, _, self.lock_file = fixed[6].partition(b" ")
        if lock:  # the lock shows that this supervisor is running: the command must not inherit it
            os.set_inheritable(int(lock), False)
        self.argv, rest = rest[: counts[0]], rest[counts[0] :]
        pairs, rest = rest[: counts[1]], rest[counts[1] :]
        self.env = dict(pair.split(b"=", 1) for pair in pairs)
        self.kept = [int(fd) for fd in rest]


class Supervisor:
    """Starts one command, and ensures that it and all processes that it started end in time."""

    def __init__(self, order: CommandRequest, system: System) -> None:
        self.order = order
        self.parent_of_child = os.getpid()
        self.system = system
        self.until = order.until
        self.why = "exited"
        self.child = 0
        self.status: int | None = None
        self.usage = (0.0, 0.0, 0)
        self.left = 0
        self.kill_at: float | None = None
        self.warned = False
        self.buffer = b""
        self.is_reaper = system.prctl(PR_SET_CHILD_SUBREAPER, 1)

    def run(self) -> None:
        """Start the command, and supervise it until it and all of its processes have ended."""
        wake = self.create_wake_pipe()
        parent = self.watch_parent()
        if not self.start():
            return
        poll = select.poll()
        timer = self.system.boot_timer()
        for fd in (0, wake, parent, timer):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        while self.status is None:
            moment = self.enforce_deadlines()
            if self.status is None:
                ready = dict(poll.poll(self.get_poll_timeout_ms(timer, moment)))
                self.handle_ready(ready, wake, parent)
            self.reap(wait=False)
        self.kill_descendants()
        self.report(
            f"ended {self.why} {self.status} {self.usage[0]:.6f} {self.usage[1]:.6f} {self.usage[2]} {self.left}"
        )

    def enforce_deadlines(self) -> float:
        """Send SIGTERM to the command or kill it, if its deadline requires that now.

        Returns:
            The next time to check, on the boot clock.
        """
        if self.kill_at is not None and boot_time() >= self.kill_at:
            self.kill("requested")
        elif boot_time() >= self.until:
            self.kill("deadline")
        elif self.order.grace_s and not self.warned and boot_time() >= self.until - self.order.grace_s:
            self.warned = True
            self.signal_group(signal.SIGTERM)
        moments = [self.until if self.warned or not self.order.grace_s else self.until - self.order.grace_s]
        return min([*moments, *([self.kill_at] if self.kill_at is not None else [])])

    def get_poll_timeout_ms(self, timer_fd: int | None, next_check_at: float) -> int | None:
        """Return the timeout for ``poll`` in milliseconds. None means no timeout: the timer or another event ends the
        wait.

        Args:
            timer_fd: Timer descriptor, which is set to the next check; None if the system has no timers.
            next_check_at: Time of the next check on the boot clock.
        """
        if timer_fd is None:
            if next_check_at == float("inf"):
                return None
            return int(max(0.0, min(LOOK_S, next_check_at - boot_time())) * 1000) + 1
        self.system.set_timer(timer_fd, next_check_at)
        return None

    def handle_ready(self, ready: dict[int, int], wake_fd: int, parent_fd: int | None) -> None:
        """Handle the descriptors that ``poll`` has reported as ready.

        Args:
            ready: Events by descriptor.
            wake_fd: Descriptor that is readable when a child has ended.
            parent_fd: Descriptor that is readable when the parent has ended; None if there is none.
        """
        if wake_fd in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_fd, 64)
        if 0 in ready:
            self.read_commands()
        if parent_fd is not None and parent_fd in ready:
            self.kill("parent")

    def read_commands(self) -> None:
        """Read and execute the lines that the parent has sent. The end of the pipe means that the parent is gone."""
        data = os.read(0, 65536)
        if not data:
            self.kill("parent")
            return
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            self.execute_command(*line.split())

    def execute_command(self, verb: bytes = b"", value: bytes = b"") -> None:
        """Execute one line that the parent has sent, such as ``until 17.5`` or ``kill``.

        Args:
            verb: The first word of the line.
            value: The second word.
        """
        if verb == b"until":
            self.until = float(value)
        elif verb == b"stop":
            self.why = "requested"
            self.signal_group(signal.SIGTERM)
            self.signal_group(signal.SIGCONT)
            moment = boot_time() + float(value)
            self.kill_at = moment if self.kill_at is None else min(self.kill_at, moment)
        elif verb == b"kill":
            self.kill("requested")

    def start(self) -> bool:
        """Start the command in a new process group.

        Returns:
            False if it could not be started. The error was then reported to the parent.
        """
        reading, writing = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            self.run_command(writing)
        os.close(writing)
        for fd in {*self.order.streams, *self.order.kept} - {0, 1, 2}:
            os.close(fd)
        with contextlib.suppress(OSError):  # the child does the same: no order is needed
            os.setpgid(self.child, self.child)
        failure = b""
        while part := os.read(reading, 4096):
            failure += part
        os.close(reading)
        if failure:
            os.waitpid(self.child, 0)
            self.report("failed " + os.fsdecode(failure))
            return False
        self.report(f"started {self.child}", is_last=False)
        return True

    def run_command(self, failure: int) -> NoReturn:
        """Replace this forked child process by the command. Never returns.

        Args:
            failure: Descriptor of the pipe to which an error is reported if the command cannot be started.
        """
        where = "start"
        try:
            os.setpgid(0, 0)
            self.system.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self.parent_of_child:
                os._exit(127)
            where = "open"
            self.set_up_streams()
            where = "user"
            self.change_user()
            where = "folder"
            if self.order.folder:
                os.chdir(self.order.folder)
            signal.set_wakeup_fd(-1)
            for number in OURS:
                signal.signal(number, signal.SIG_DFL)
            where = "program"
            exec_program(self.order.argv, self.order.env)
        except OSError as error:
            os.write(failure, f"{error.errno or 0} {where}".encode())
        except BaseException:  # never return into the loop of the parent
            os.write(failure, f"0 {where}".encode())
        os._exit(127)

    def set_up_streams(self) -> None:
        """Move the command's streams to descriptors 0 to 2, and close all descriptors that the command must not
        inherit.
        """
        spare = [os.dup(fd) for fd in self.order.streams]
        for number, fd in enumerate(spare):
            os.dup2(fd, number, inheritable=True)
            os.close(fd)
        for fd in self.order.kept:
            os.set_inheritable(fd, True)
        for fd in set(self.order.streams) - {0, 1, 2} - set(self.order.kept):
            os.close(fd)

    def change_user(self) -> None:
        """Switch to the user of the command, and drop all groups of the current user."""
        if not self.order.user:
            return
        uid, gid, *groups = [int(number) for number in self.order.user.split()]
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(uid)
        self.system.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user clears it

    def kill(self, reason: str) -> None:
        """Kill the command, and record the reason for the report.

        Args:
            reason: Why it is killed, as in ``ChildEnd.why``.
        """
        self.why = reason
        self.signal_group(signal.SIGKILL)
        self.reap(wait=True)

    def signal_group(self, signal_number: int) -> None:
        """Send a signal to the command's process group, whose ID is not reused until the command is reaped.

        Args:
            signal_number: The signal.
        """
        if self.status is None:
            send_signal(os.killpg, self.child, signal_number)

    def reap(self, *, wait: bool) -> None:
        """Record the end of the command if it has ended, and reap other processes that have become children of this
        process.

        Args:
            wait: Whether to wait for the end of the command.
        """
        flags = os.WEXITED | os.WNOWAIT
        if self.status is None and os.waitid(os.P_PID, self.child, flags | (0 if wait else os.WNOHANG)) is not None:
            self.left = len(self.signal_descendants())
            self.signal_group(signal.SIGKILL)
            _, self.status, usage = os.wait4(self.child, 0)
            self.usage = (usage.ru_utime, usage.ru_stime, usage.ru_maxrss)
        with contextlib.suppress(ChildProcessError):
            while (dead := os.waitid(os.P_ALL, 0, flags | os.WNOHANG)) is not None and dead.si_pid != self.child:
                os.waitpid(dead.si_pid, 0)

    def kill_descendants(self) -> None:
        """Kill all processes that forked away from the command, and wait until none is left."""
        while True:
            known: set[int] = set()
            while not (here := self.signal_descendants(signal.SIGSTOP)) <= known:  # a stopped process cannot fork
                known |= here
            for pid in known:
                send_signal(os.kill, pid, signal.SIGKILL)
            self.reap(wait=False)
            if not self.has_children():
                return
            time.sleep(REAP_S)

    def has_children(self) -> bool:
        """Return whether this process has any child processes left, including zombies."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def signal_descendants(self, signal_number: int = 0) -> set[int]:
        """Send a signal to all processes below this one, and return the IDs of those that are running.

        Args:
            signal_number: The signal; 0 sends none.
        """
        found, look_at = set(), [os.getpid()]
        while self.is_reaper and look_at:
            for pid in list_child_ids(look_at.pop()):
                if pid not in found:
                    send_signal(os.kill, pid, signal_number)
                    found.add(pid)
                    look_at.append(pid)
        return {pid for pid in found if not is_zombie(pid)}

    # The parent

    def create_wake_pipe(self) -> int:
        """Create a pipe that becomes readable when a child has ended, and return its reading end."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: setattr(self, "kill_at", 0.0))  # ends the command, too
        return reading

    def watch_parent(self) -> int | None:
        """Open a descriptor that becomes readable when the parent has ended. Return None if the system does not support
        that.

        Watching the pipe from the parent is not enough, because another child of the parent may keep its other end
        open.
        """
        opened: int | None = None
        with contextlib.suppress(AttributeError, OSError):
            opened = os.pidfd_open(self.order.parent)
        if os.getppid() != self.order.parent:
            os._exit(0)
        return opened

    def report(self, line: str, *, is_last: bool = True) -> None:
        """Send a line to the parent, if it is still running.

        Args:
            line: The line.
            is_last: Whether this is the last line. No process is left then, so the lock file is deleted first.
        """
        with contextlib.suppress(OSError):
            if is_last and self.order.lock_file:
                os.unlink(self.order.lock_file)  # noqa: PTH108 - without pathlib, which takes long to import
        with contextlib.suppress(OSError):
            os.write(1, line.encode("utf-8", "surrogateescape") + b"\n")


def send_signal(kill: Callable[[int, int], object], pid: int, signal_number: int) -> None:
    """Send a signal to a process or a process group, if it exists.

    Args:
        kill: ``os.kill`` or ``os.killpg``.
        pid: ID of the process or the process group.
        signal_number: The signal.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(pid, signal_number)


def exec_program(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Replace this process by a program. Searches for the program in ``PATH``, like a shell.

    Imports nothing, because this may run as another user who cannot read the modules.
    """
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)  # noqa: S606 - runs the command of the parent
    why: OSError = FileNotFoundError(2, "no such program")
    for folder in env.get(b"PATH", b"/usr/bin:/bin").split(b":"):
        try:
            os.execve((folder or b".") + b"/" + argv[0], argv, env)  # noqa: S606 - likewise
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            why = error
    raise why


def list_child_ids(pid: int) -> list[int]:
    """Return the IDs of the child processes of a process, started by any of its threads."""
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - pathlib takes long to import
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found += [int(each) for each in file.read().split()]
    return found


def is_zombie(pid: int) -> bool:
    """Return whether a process does not exist, or has ended but was not reaped."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - likewise
        return file.read().rpartition(b")")[2].split()[0] == b"Z"
    return True


def read_exactly(count: int) -> bytes:
    """Read ``count`` bytes from the parent. Exit if the pipe ends earlier."""
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


def main() -> None:
    """Read the description of the command from the parent, and supervise the command."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    order = CommandRequest(read_exactly(int(read_exactly(10))).split(b"\0"))
    Supervisor(order, System()).run()


if __name__ == "__main__":
    main()
