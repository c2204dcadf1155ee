"""Logs of attempts: slices, following, ends, secrets, floods, and a disk that is full."""

import errno
import json
import os
import random
import socket
import subprocess
import sys
import threading

import pytest

from latchwork.testing import VirtualClock
from latchwork_workflows.logs import (
    AttemptLog,
    LogMissing,
    LogStoreHealth,
    LogStoreMismatch,
    Mask,
    clean_text,
    open_logs,
)
from latchwork_workflows.logs.attempt_log import AGAIN_S, KEPT_BYTES
from latchwork_workflows.logs.store import LogFile
from patience import eventually

REF = "7/11/42/1.99.log"


@pytest.fixture
def virtual_clock():
    return VirtualClock()


@pytest.fixture(params=["file", "memory", "local"])
def logs(request, tmp_path):
    if request.param == "memory":
        yield open_logs(f"memory://logs-{tmp_path.name}")
    elif request.param == "local":  # fsspec's own view of a folder: segments that can be seen
        yield open_logs(f"local://{tmp_path}/segments")
    else:
        yield open_logs(f"file://{tmp_path}/logs")


@pytest.fixture
def folder_logs(tmp_path):
    return open_logs(tmp_path)


def read_all(logs, ref=REF, limit=65_536):
    data, offset, ended = b"", 0, False
    while True:
        part = logs.read(ref, offset, limit)
        data, offset, ended = data + part.data, part.next, part.ended
        if not part.data:
            return data, ended


class Trouble:
    """A log store whose files take nothing while ``error`` is set, or half of it."""

    def __init__(self, logs):
        self.logs, self.error, self.takes = logs, None, None
        self.every_s, self.chunk_bytes = logs.every_s, logs.chunk_bytes

    def create(self, ref):
        return TroubledFile(self, self.logs.create(ref))


class TroubledFile(LogFile):
    def __init__(self, trouble, file):
        self.trouble, self.file = trouble, file

    def append(self, data):
        if self.trouble.error is not None:
            raise OSError(self.trouble.error, "No space left on device")
        return self.file.append(data[: self.trouble.takes])

    def end(self):
        self.file.end()

    def close(self):
        self.file.close()


def test_log_is_read_by_slices_while_it_grows_and_says_when_it_has_ended(logs):
    with pytest.raises(LogMissing, match="nothing was written yet"):
        logs.read(REF)
    log = AttemptLog(logs, REF)
    log.write(b"one two ")
    assert log.flush()
    assert logs.read(REF, 4, 3) == (b"two", 7, False)
    assert logs.read(REF, 8) == (b"", 8, False)
    log.write(b"three")
    assert log.end()
    assert b"two t".startswith(logs.read(REF, 4, 5).data)
    assert read_all(logs) == (b"one two three", True)
    assert read_all(logs, limit=2) == (b"one two three", True)
    assert logs.read(REF, 10_000)[0] == b""
    assert logs.tail(REF, 5).data == b"three"
    assert logs.size(REF) == 13


def test_log_is_followed_from_before_its_first_byte_to_its_end(logs):
    log = AttemptLog(logs, REF)
    parts, told = [], threading.Event()

    def follow():
        parts.extend(part.data for part in logs.follow(REF, lambda _s: told.wait(0.01)))

    follower = threading.Thread(target=follow)
    follower.start()
    for n in range(3):
        log.write(b"line %d\n" % n)
        log.flush()
        eventually(lambda n=n: b"line %d" % n in b"".join(parts), what="the line in the follower's hands")
    log.end()
    follower.join(20)
    assert not follower.is_alive()
    assert b"".join(parts) == b"line 0\nline 1\nline 2\n"


def test_logs_of_two_claims_of_one_attempt_are_two_logs(logs):
    for claim in (99, 100):
        log = AttemptLog(logs, f"7/11/42/1.{claim}.log")
        log.write(b"claim %d" % claim)
        log.end()
    assert read_all(logs)[0] == b"claim 99"
    assert read_all(logs, "7/11/42/1.100.log")[0] == b"claim 100"


def test_log_of_a_run_is_removed_with_all_its_parts_and_no_other(logs):
    for ref in (REF, "7/11/43/2.5.log", "7/12/44/1.6.log"):
        log = AttemptLog(logs, ref)
        log.write(b"x")
        log.end()
    logs.remove(7, 11)
    logs.remove(7, 11)
    with pytest.raises(LogMissing):
        logs.read(REF)
    assert read_all(logs, "7/12/44/1.6.log")[0] == b"x"


@pytest.mark.parametrize(
    "ref", ["../../etc/passwd", "/etc/passwd", "7/11/42/../../1.log", "7/11/42/1.99.log/0", "", "7/11/42/1.99.log\n"]
)
def test_reference_that_is_a_path_of_anybodys_choice_is_no_log(logs, ref):
    with pytest.raises(LogMissing, match="not a log reference"):
        logs.read(ref)


def test_log_store_of_other_workflows_is_refused(logs):
    with pytest.raises(LogStoreMismatch, match="belongs to no workflows"):
        logs.check_owner("abc")
    logs.set_owner("abc")
    logs.set_owner("abc")
    logs.check_owner("abc")
    with pytest.raises(LogStoreMismatch, match="belongs to workflows abc, not to def"):
        logs.set_owner("def")


def test_files_are_kept_by_name_and_replaced_at_once(logs):
    assert logs.get_file("bundles/a1") is None
    logs.put_file("bundles/a1", b"one")
    logs.put_file("bundles/a1", b"two")
    assert logs.get_file("bundles/a1") == b"two"
    logs.remove_file("bundles/a1")
    logs.remove_file("bundles/a1")
    assert logs.get_file("bundles/a1") is None
    with pytest.raises(ValueError, match="not a file name"):
        logs.get_file("bundles/../../x")


def test_all_but_the_last_moment_of_a_log_is_there_after_its_writer_was_killed(tmp_path):
    code = f"""
import sys, time
from latchwork_workflows.logs import AttemptLog, open_logs
log = AttemptLog(open_logs({str(tmp_path)!r}), {REF!r})
n = 0
while True:
    log.write(b"line %d\\n" % n)
    log.flush() if log.flush_delay_s == 0.0 else None
    print(n, flush=True)
    n += 1
    time.sleep(0.01)
"""
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    lines = [writer.stdout.readline() for _ in range(100)]
    writer.kill()
    lines += writer.stdout.readlines()
    writer.wait()
    writer.stdout.close()
    printed = sum(line.endswith("\n") for line in lines)
    found, ended = read_all(open_logs(tmp_path))
    kept = found.decode().splitlines()
    assert kept == [f"line {n}" for n in range(len(kept))]
    assert 20 <= len(kept) <= printed + 1
    assert not ended  # who died has not said so: the attempt does


# Secrets


def test_secret_is_masked_wherever_the_stream_is_cut():
    secrets = ["hunter2!", "hunter2!and-more", "b\nlong line of a key\nanother line of it\n", "pa ss&word"]
    text = b"x hunter2! y hunter2!and-more z hunter2!and pa%20ss%26word pa+ss%26word a long line of a key b hunter2"
    want = Mask(secrets).mask_bytes(text)
    assert b"hunter2!" not in want
    assert b"long line" not in want
    assert b"%26" not in want
    assert want.endswith(b"b hunter2")
    chance = random.Random(5)
    for _ in range(60):
        mask, out, at = Mask(secrets), b"", 0
        while at < len(text):
            step = chance.randint(1, 9)
            out += mask.feed(text[at : at + step])
            at += step
        assert out + mask.flush() == want


def test_secret_is_hidden_from_the_log_from_its_readers_and_from_the_last_line(folder_logs):
    log = AttemptLog(folder_logs, REF, mask=Mask(["s3cr3t"]))
    log.write(b"the password is s3c")
    log.flush()
    assert folder_logs.read(REF).data == b"the password is "
    log.write(b"r3t\n")
    log.note("it was s3cr3t")
    log.end()
    assert read_all(folder_logs)[0] == b"the password is ***\n[latchwork] it was ***\n"
    assert log.last_line == "the password is ***"


def test_json_form_of_a_secret_is_masked():
    secret = 'quo"te'
    assert b"quo" not in Mask([secret]).mask_bytes(json.dumps({"password": secret}).encode())


# Floods, and a full disk


def test_log_that_is_flooded_keeps_its_beginning_and_its_end(folder_logs):
    log = AttemptLog(folder_logs, REF, most_bytes=1000)
    for n in range(20_000):
        log.write(b"%09d\n" % n)
    log.end()
    found, ended = read_all(folder_logs)
    assert ended
    assert found.startswith(b"000000000\n")
    assert found.endswith(b"000019999\n")
    assert b"133,464 bytes left out, its end follows" in found
    assert len(found) < 70_000


def test_full_disk_delays_a_log_and_what_does_not_fit_is_counted_in_it(folder_logs, virtual_clock):
    trouble, told = Trouble(folder_logs), []
    health = LogStoreHealth(lambda: told.append(health.is_ok))
    log = AttemptLog(trouble, REF, health=health, clock=virtual_clock)
    log.write(b"before\n")
    assert log.flush()
    trouble.error = errno.ENOSPC
    for _ in range(30):
        log.write(b"." * 65_536)
    assert not health.is_ok
    assert "No space left" in health.error
    assert not log.flush()
    trouble.error, trouble.takes = None, 1000
    virtual_clock.advance(AGAIN_S)
    assert log.flush()
    log.write(b"after\n")
    assert log.end()
    assert told == [False, True]
    found, ended = read_all(folder_logs)
    assert ended
    missing = 30 * 65_536 - KEPT_BYTES
    assert f"[latchwork] {missing:,} bytes missing here: OSError: [Errno 28] No space left".encode() in found
    assert found.startswith(b"before\n....")
    assert found.endswith(b"after\n")


def test_log_is_written_at_the_latest_after_its_time_and_not_for_each_line(folder_logs, virtual_clock):
    log = AttemptLog(folder_logs, REF, clock=virtual_clock)
    assert log.flush_delay_s is None
    log.write(b"a")
    assert log.flush_delay_s == pytest.approx(0.5)
    virtual_clock.advance(0.4)
    log.write(b"b")
    assert log.flush_delay_s == pytest.approx(0.1)
    log.flush()
    assert log.flush_delay_s is None


def test_terminal_escapes_and_what_is_no_text_are_harmless_on_a_screen():
    shown = clean_text(b"ok\r\n\x1b[2J\x1b]0;owned\x07\xff\xfe\tend\x00")
    assert shown == "ok\n\\x1b[2J\\x1b]0;owned\\x07\\xff\\xfe    end\\x00"
    assert shown.replace("\n", "").isprintable()


def test_wrong_urls_of_logs_say_what_to_write():
    with pytest.raises(ValueError, match="names host 'nfs1'"):
        open_logs("file://nfs1/logs")
    with pytest.raises(ValueError, match="cannot be opened"):
        open_logs("nosuch://user:secret@x/y")
    with pytest.raises(ValueError, match="nosuch://x/y") as caught:
        open_logs("nosuch://user:secret@x/y")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("what", ["link", "link to a folder", "pipe", "socket", "folder"])
def test_what_a_task_puts_where_its_log_should_be_is_not_followed_and_holds_up_nobody(folder_logs, tmp_path, what):
    """A task may be able to write among the logs, and the pages may be of another user, and another machine."""
    secret, place = tmp_path / "elsewhere" / "1.99.log", tmp_path / REF
    secret.parent.mkdir()
    secret.write_text("of somebody else")
    place.parent.parent.mkdir(parents=True)
    if what == "link to a folder":
        place.parent.symlink_to(secret.parent)
        with pytest.raises(LogMissing):
            folder_logs.read(REF)
        return
    place.parent.mkdir()
    if what == "link":
        place.symlink_to(secret)
    elif what == "pipe":
        os.mkfifo(place)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(place))
    else:
        place.mkdir()
    for look in (folder_logs.read, folder_logs.size, folder_logs.tail):
        with pytest.raises(OSError, match="its path is a link, a pipe or the like"):
            look(REF)


def test_logs_behind_a_link_are_not_deleted_and_hold_up_no_retention(folder_logs, tmp_path):
    kept = tmp_path / "elsewhere" / "11" / "mine"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    (tmp_path / "7").symlink_to(kept.parent.parent)
    folder_logs.remove(7, 11)
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "11").symlink_to(kept.parent)
    folder_logs.remove(8, 11)
    assert not (tmp_path / "8" / "11").is_symlink()
    assert kept.read_text() == "mine"
