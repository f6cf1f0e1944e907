# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends what waits for a message to be received, however it waits."""

import os
import signal
import subprocess
import sys
import time

import pytest

from farcall import messages

SPIN = """
import sys
from farcall import messages
with messages.connect(sys.argv[1], timeout=60) as connection:
    try:
        print("begins", flush=True)
        getattr(connection, sys.argv[2])(b"x", timeout=600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


# The kernel ends only what sleeps.
@pytest.mark.parametrize("method", ["send", "send_one_way"])
def test_a_signal_ends_what_does_not_sleep(method):
    name = f"farcall-python-signal-{os.getpid()}"
    with messages.Channel(name), subprocess.Popen(
            [sys.executable, "-c", SPIN, name, method], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "FARCALL_WAIT": "spin"}) as sender:
        assert sender.stdout.readline() == "begins\n"
        time.sleep(0.05)
        sender.send_signal(signal.SIGINT)
        try:
            assert sender.communicate(timeout=30)[0] == "interrupted\n"
        finally:
            sender.kill()
