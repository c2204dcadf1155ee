"""Runs a server as a child process that never outlives the process that started it.

Executed as a script, `supervisor.py PARENT_PID REMOVE_DIR COMMAND...`, with the standard library only. It prints the
server's process ID, then waits until the server or the parent ends. When the server ends, it exits with the same
status. When the parent ends, even by SIGKILL, it kills the server and removes REMOVE_DIR unless that is empty. If it is
killed itself, the kernel kills the server.

The parent cannot set a parent-death signal on the server directly, because that signal is sent when the *thread* that
started the server ends.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Run a command until it or the parent process ends, and return the exit status of the supervisor.

    Args:
        argv: The parent's process ID, the directory to remove if the parent ends first, and the command.
    """
    parent_pid, remove_directory, command = int(argv[0]), argv[1], argv[2:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent_fd = os.pidfd_open(parent_pid)
    if os.getppid() != parent_pid:
        return 0
    server_pid = _spawn(command)
    sys.stdout.write(f"{server_pid}\n")
    sys.stdout.close()
    if not _server_ended_first(server_pid, parent_fd):
        os.kill(server_pid, signal.SIGKILL)
        os.waitpid(server_pid, 0)
        if remove_directory:
            shutil.rmtree(remove_directory, ignore_errors=True)
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(server_pid, 0)[1]) & 0xFF


def _spawn(command: list[str]) -> int:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    supervisor_pid = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor_pid:
            os._exit(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(2, 1)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot execute {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _server_ended_first(server_pid: int, parent_fd: int) -> bool:
    server_fd = os.pidfd_open(server_pid)
    ends = select.poll()
    ends.register(server_fd, select.POLLIN)
    ends.register(parent_fd, select.POLLIN)
    return any(fd == server_fd for fd, _ in ends.poll())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
