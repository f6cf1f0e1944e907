# SPDX-License-Identifier: Apache-2.0
"""What is opened and closed many times leaves nothing."""

import asyncio
import os
import re
import subprocess
import sys
import time

import pytest

import farcall


def held():
    """Descriptors, mappings and MiB of memory of this process."""
    with open("/proc/self/maps") as maps, open("/proc/self/status") as status:
        resident = int(re.search(r"VmRSS:\s*(\d+)", status.read())[1]) >> 10
        return len(os.listdir("/proc/self/fd")), len(maps.readlines()), resident


def used_and_closed():
    a, b = farcall.pipe()
    with a, b:
        a.send(bytes(10))
        b.recv()


def dropped():
    a, b = farcall.pipe()
    a.send(bytes(100_000))


def unused():
    farcall.pipe()


def left_in_part():
    a, b = farcall.pipe(capacity=4096)
    with pytest.raises(BlockingIOError):
        a.send(bytes(100_000), timeout=0)
    with pytest.raises(BlockingIOError):
        b.recv(timeout=0)


def refused():
    with pytest.raises(OSError):
        farcall._farcall.adopt_pipe(farcall.PipeEnd, [0, 1, 2, 3])


def waited_for():
    async def main():
        a, b = farcall.pipe()
        with pytest.raises(TimeoutError):
            await b.arecv(timeout=1e-6)
        b.close()
    asyncio.run(main())


def polled_and_dropped():
    a, b = farcall.pipe(capacity=4096)
    assert a.poll_begin()
    while b.try_send(bytes(100)):
        pass
    assert b.send_poll_begin()


PATH = f"/tmp/farcall-python-leaks-{os.getpid()}"


def opened_and_called():
    assert farcall.call(PATH, b"x") == b"X"


@pytest.fixture(scope="module")
def server():
    """Another process: threads that serve come and go there."""
    program = f"import farcall, sys\nwith farcall.serve({PATH!r}, bytes.upper): sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        farcall.open_door(PATH, timeout=60).close()
        yield
        process.stdin.close()


@pytest.mark.parametrize("use", [used_and_closed, dropped, unused, left_in_part, refused, waited_for,
                                 polled_and_dropped, opened_and_called])
def test_2000_times_leave_nothing(use, server):
    for _ in range(50):
        use()
    descriptors, mappings, memory = held()
    for _ in range(2000):
        use()
    end = time.monotonic() + 60
    while (after := held())[0] > descriptors:  # a thread of the library's may still be closing some
        assert time.monotonic() < end
        time.sleep(0.001)
    assert after[1] <= mappings + 10  # of the allocator
    assert after[2] <= memory + 20
