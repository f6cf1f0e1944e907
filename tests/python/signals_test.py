# SPDX-License-Identifier: Apache-2.0
"""Every wait ends with the signal that comes, once, and goes on if the handler returns."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

import farcall

PREPARE = """
import farcall, os, sys
a, b = farcall.pipe(wait=os.environ.get("WAIT", "adaptive"), capacity=4096)
message = bytes(100)
def full():
    while a.try_send(message): pass
"""
WAITS = {
    "recv": "b.recv()",
    "recv_timeout": "b.recv(timeout=1000)",
    "recv_into": "b.recv_into(bytearray(10))",
    "poll": "b.poll(None)",
    "send": "a.send(message)",
    "send_long": "a.send(bytes(100_000))",
    "iterate": "next(iter(b))",
    "serve": "farcall.serve_pipe(f'farcall-python-{os.getpid()}')",
    "open": "farcall.open_pipe(f'farcall-python-{os.getpid()}')",
    "connection": "c, d = farcall.Pipe(); c.recv()",
}


def is_asleep(process):
    with open(f"/proc/{process.pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "S"


def interrupted(statement, wait="adaptive", may_spin=False):
    program = PREPARE + f"""
full()
try:
    print("ready", flush=True)
    {statement}
except KeyboardInterrupt:
    sys.exit(42)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                          env={"PYTHONPATH": ":".join(sys.path), "WAIT": wait}) as child:
        assert child.stdout.readline() == "ready\n"
        while not may_spin and not is_asleep(child):
            assert child.poll() is None
            time.sleep(0.001)
        child.send_signal(signal.SIGINT)
        assert child.wait() == 42


@pytest.mark.parametrize("wait", ["adaptive", "block", "spin"])
@pytest.mark.parametrize("statement", ["empty.recv()", "a.send(message)"])
def test_each_way_of_waiting_is_interrupted(statement, wait):
    interrupted("empty, other = farcall.pipe(wait=os.environ['WAIT']); " + statement, wait, wait == "spin")


@pytest.mark.parametrize("statement", WAITS.values(), ids=WAITS.keys())
def test_ctrl_c_ends_a_wait(statement):
    if statement.startswith("b.") or "iter(b)" in statement:
        statement = "a, b = farcall.pipe(); " + statement
    interrupted(statement)


def test_ctrl_c_ends_an_event_loop():
    interrupted("a, b = farcall.pipe(); import asyncio; asyncio.run(b.arecv())")


class Caught(Exception):
    pass


@pytest.fixture
def alarm():
    def handle(number, frame):
        raise Caught

    before = signal.signal(signal.SIGALRM, handle)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("direction", ["recv", "send"])
def test_a_signal_at_any_moment_of_a_wait_is_seen(alarm, direction):
    a, b = farcall.pipe(capacity=4096)
    while a.try_send(bytes(100)):
        pass
    chance = random.Random(1)
    for _ in range(500):
        with pytest.raises(Caught):
            alarm(chance.uniform(1e-6, 400e-6))
            if direction == "recv":
                a.recv()  # nothing comes
            else:
                a.send(bytes(100))


def test_a_wait_goes_on_after_a_handler_that_returns():
    a, b = farcall.pipe()
    caught = []

    def handle(number, frame):
        caught.append(number)
        if len(caught) == 5:
            a.send(b"from the handler")

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        assert b.recv() == b"from the handler"
        assert len(caught) >= 5
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_handlers_are_as_before_when_a_name_has_been_waited_for():
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        with pytest.raises(ConnectionRefusedError):
            farcall.open_pipe("farcall-python-nobody", timeout=0.001)
        signal.raise_signal(signal.SIGUSR1)
        assert signal.signal(signal.SIGUSR1, before) is not None
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_child_is_interrupted_whatever_threads_of_its_parent_waited_for():
    name = f"nobody-{os.getpid()}"
    thread = threading.Thread(target=lambda: pytest.raises(OSError, farcall.open_pipe, name, timeout=3))
    before = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    thread.start()
    while not any(open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2].split()[0] == "S"
                  for task in os.listdir("/proc/self/task") if int(task) != os.getpid()):
        time.sleep(0.001)
    if (pid := os.fork()) == 0:
        def interrupt(*_):
            os._exit(42)
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
        try:
            farcall.open_pipe(name, timeout=15)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
    thread.join()
    signal.signal(signal.SIGALRM, before[0])
    signal.signal(signal.SIGUSR1, before[1])


@pytest.mark.parametrize("function", ["open_pipe", "subscribe"])
def test_ctrl_c_ends_a_wait_for_a_name_for_which_another_thread_has_waited(function):
    program = f"""
import farcall, os, sys, threading, time
name = f"nobody-{{os.getpid()}}"
def wait():
    try:
        farcall.{function}(name, timeout=1)
    except ConnectionRefusedError:
        pass
def tell():
    first.join()
    print("ready", flush=True)
first = threading.Thread(target=wait)
first.start()
time.sleep(0.2)  # it waits now
try:
    threading.Thread(target=tell).start()
    farcall.{function}(name)
except KeyboardInterrupt:
    os._exit(42)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        try:
            assert child.wait(60) == 42
        finally:
            child.kill()


def test_a_child_that_a_handler_forks_during_a_wait_for_a_name_waits_as_its_parent():
    statuses = []

    def fork(*_):
        if (pid := os.fork()) == 0:
            try:  # twice: what the first takes back is not its own
                for _ in range(2):
                    with pytest.raises(ConnectionRefusedError):
                        farcall.open_pipe(f"nobody-{os.getpid()}", timeout=0.01)
                os._exit(42)
            finally:
                os._exit(1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    before = signal.signal(signal.SIGALRM, fork)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(ConnectionRefusedError):
            farcall.open_pipe(f"nobody-{os.getpid()}", timeout=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert statuses == [42]


def test_a_signal_does_not_disturb_the_wait_of_another_thread():
    a, b = farcall.pipe()
    received = []
    thread = threading.Thread(target=lambda: received.append(b.recv()))
    thread.start()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    for _ in range(100):
        signal.pthread_kill(thread.ident, signal.SIGUSR1)
    a.send(b"x")
    thread.join()
    signal.signal(signal.SIGUSR1, before)  # not before: one may be on its way
    assert received == [b"x"]
