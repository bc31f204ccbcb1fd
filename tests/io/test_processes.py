"""Child processes that answer: what they print, how they end, and that they end with whoever asks."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGKILL

import pytest

from schedc.io.child import LENGTH, Child, ChildDied, TookTooLong, forget_peak_memory, own_peak_memory_bytes

SERVER = """
import os, signal, subprocess, sys, threading, time
from schedc.io.child import serve
idle_s = None
def answer(question):
    {body}
    return question[::-1]
{before}
serve(int(sys.argv[1]), answer, idle_s)
"""


def child(body: str = "pass", before: str = "") -> Child:
    return Child(["-c", SERVER.format(body=body, before=before)])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_one_child_answers_one_question_after_another_whatever_it_prints() -> None:
    with child('print("noise"); os.write(2, b"more")') as asked:
        assert [asked.ask(question, 60) for question in (b"abc", b"", b"x" * 1_000_000)] == [b"cba", b"", b"x" * 1_000_000]


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
        ("raise ValueError(question)", "ended with status 1: ValueError: b'abc'"),
        # what it started keeps the socket open
        ("subprocess.Popen(['sleep', '1000'], pass_fds=[int(sys.argv[1])]); os._exit(7)", "ended with status 7"),
    ],
)
def test_a_child_that_dies_says_how(body: str, how: str) -> None:
    with child(body) as asked, pytest.raises(ChildDied) as died:
        asked.ask(b"abc", 60)
    assert str(died.value) == how


def test_a_child_that_died_before_the_question_says_so() -> None:
    with child(before="idle_s = 0.0") as asked:
        while is_running(asked.pid):
            time.sleep(0.01)
        with pytest.raises(ChildDied, match="ended with status 0"):
            asked.ask(b"abc")


def test_a_child_that_takes_too_long_is_killed() -> None:
    with child("time.sleep(1000)") as asked:
        with pytest.raises(TookTooLong):
            asked.ask(b"abc", 0.1)
        assert not is_running(asked.pid)


def test_hanging_up_ends_a_child_that_works() -> None:
    with child("threading.Event().wait()") as asked:
        asked.hang_up()
        with pytest.raises(ChildDied):
            asked.ask(b"abc")
        assert not is_running(asked.pid)


def test_a_child_ends_with_its_asker_however_that_ends(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    body = f"open({str(note)!r}, 'w').write(str(os.getpid()) + chr(10)); time.sleep(1000)"
    code = f"from schedc.io.child import Child\nChild(['-c', {SERVER.format(body=body, before='')!r}]).ask(b'abc')"
    with subprocess.Popen([sys.executable, "-c", code]) as asker:
        try:
            while not (note.exists() and note.read_text().endswith("\n")):
                time.sleep(0.01)
        finally:
            asker.send_signal(SIGKILL)
    pid = int(note.read_text())
    until_s = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not is_running(pid)


def test_a_child_ends_where_its_answer_was_not_read() -> None:
    ours, theirs = socket.socketpair()
    code = SERVER.format(body="pass", before="")
    with theirs:
        child = subprocess.Popen([sys.executable, "-c", code, str(theirs.fileno())], pass_fds=[theirs.fileno()], process_group=0)
    try:
        with ours:
            ours.sendall(LENGTH.pack(3) + b"abc")
            assert ours.recv(1, socket.MSG_PEEK)
        assert child.wait(30) == -SIGKILL
    finally:
        child.kill()


def test_peak_memory_begins_anew() -> None:
    ballast = b"\1" * (256 << 20)
    before = own_peak_memory_bytes()
    assert before > len(ballast)
    del ballast
    forget_peak_memory()
    assert 1 << 20 < own_peak_memory_bytes() < before - (200 << 20)
