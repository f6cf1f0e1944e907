# SPDX-License-Identifier: Apache-2.0
"""What tests share. What hangs fails: the stacks of all threads are shown, and the run ends."""

import faulthandler
import signal
import subprocess
import sys

import pytest

SERVE = """
import farcall, os, resource, signal, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
def answer(data):
    if data == b"die": os.kill(os.getpid(), signal.SIGKILL)
    if data == b"who": return str(tuple(farcall.caller()))
    if data.startswith(b"slow"): time.sleep(0.001)
    return data[::-1]
with farcall.serve(sys.argv[1], answer):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def watchdog():
    faulthandler.dump_traceback_later(280, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def alarm():
    def fail(*_):
        raise AssertionError("this waits for a process that does nothing")
    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "called"


@pytest.fixture
def server(path):
    """Another process that serves there."""
    with subprocess.Popen([sys.executable, "-c", SERVE, path], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()
        process.wait(60)
