# SPDX-License-Identifier: Apache-2.0
"""Connection does what multiprocessing's does."""

import multiprocessing
import multiprocessing.connection
import os
import select
import subprocess
import sys
import threading

import pytest

import farcall
import farcall.connection


@pytest.fixture(params=[multiprocessing.Pipe, farcall.Pipe], ids=["multiprocessing", "farcall"])
def make(request):
    return request.param


def test_objects_and_bytes(make):
    a, b = make()
    a.send([1, "two", {3: 4.0}])
    assert b.poll(10) and b.recv() == [1, "two", {3: 4.0}]
    a.send_bytes(b"0123456789", 2, 5)
    assert b.recv_bytes() == b"23456"
    a.send_bytes(b"0123456789", 8)
    buffer = bytearray(6)
    assert b.recv_bytes_into(buffer, 1) == 2
    assert buffer == b"\x0089\0\0\0"
    assert not b.poll()


def test_one_way(make):
    reader, writer = make(duplex=False)
    assert (reader.readable, reader.writable, writer.readable, writer.writable) == (
        True, False, False, True)
    writer.send(1)
    assert reader.recv() == 1
    with pytest.raises(OSError):
        reader.send(1)
    with pytest.raises(OSError):
        writer.recv()


def test_the_end(make):
    a, b = make()
    with a:
        a.send("last")
    assert a.closed
    assert b.recv() == "last"
    assert b.poll()
    with pytest.raises(EOFError):
        b.recv()
    with pytest.raises(BrokenPipeError):
        b.send(1)
    with pytest.raises(OSError):
        a.send(1)


@pytest.mark.parametrize("offset, size", [(-1, None), (11, None), (0, 11), (5, -1)])
def test_what_is_outside_a_buffer_is_refused(make, offset, size):
    a, _ = make()
    with pytest.raises(ValueError):
        a.send_bytes(b"0123456789", offset, size)


def test_a_message_that_is_too_long_ends_receiving(make):
    a, b = make()
    a.send_bytes(b"0123456789")
    with pytest.raises(OSError):
        b.recv_bytes(5)
    assert (b.closed, b.readable, b.writable) == (False, False, True)
    b.send_bytes(b"still here")
    assert a.recv_bytes() == b"still here"
    with pytest.raises(OSError):
        b.recv_bytes()


def test_a_message_that_is_too_long_closes_what_cannot_send(make):
    b, a = make(False)
    a.send_bytes(b"0123456789")
    with pytest.raises(OSError):
        b.recv_bytes(5)
    assert b.closed


def test_several_are_waited_for(make):
    wait = multiprocessing.connection.wait
    pairs = [make() for _ in range(3)]
    here = [a for a, _ in pairs]
    there = [b for _, b in pairs]
    assert wait(here, 0) == []
    assert wait(here, 0.01) == []
    for i in (0, 2):
        there[i].send(i)
    assert wait(here, 60) == [here[0], here[2]] == wait(here, 60)
    assert here[0].recv() == 0 and here[2].recv() == 2
    assert wait(here, 0) == []
    for i in range(100):
        later = threading.Timer(0.001 * (i % 3), there[i % 3].send, [i])
        later.start()
        assert wait(here, 60) == [here[i % 3]]
        assert here[i % 3].recv() == i
        later.join()
    there[1].close()
    assert wait(here, 60) == [here[1]]
    with pytest.raises(EOFError):
        here[1].recv()


def test_one_that_was_waited_for_ends_when_it_is_dropped():
    here, there = farcall.Pipe()
    assert multiprocessing.connection.wait([here], 0) == []
    del here
    assert there.poll(60)
    with pytest.raises(EOFError):
        there.recv()


def send_back(connection):
    with connection:
        for n in iter(connection.recv, None):
            connection.send(n)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_and_their_end_are_waited_for(make, method):
    context = multiprocessing.get_context(method)
    here, there = make()
    child = context.Process(target=send_back, args=(there,))
    child.start()
    there.close()
    for n in range(100):
        here.send(n)
        assert multiprocessing.connection.wait([here, child.sentinel], 60) == [here]
        assert here.recv() == n
    here.send(None)
    left = {here, child.sentinel}
    while left:
        done = multiprocessing.connection.wait(left, 60)
        assert done
        left -= set(done)
    child.join()


def test_a_buffer_that_is_too_short(make):
    a, b = make()
    for message in (b"0123456789", b"x" * 10_000):
        a.send_bytes(message)
        with pytest.raises(multiprocessing.BufferTooShort) as caught:
            b.recv_bytes_into(bytearray(4))
        assert caught.value.args == (message,)
    a.send_bytes(b"next")
    assert b.recv_bytes() == b"next"


def test_a_sender_that_dies_in_the_middle_of_a_message_for_which_a_buffer_is_too_short():
    a, b = farcall.Pipe()
    process = multiprocessing.get_context("fork").Process(target=a.send_bytes, args=(bytes(10_000_000),))
    process.start()
    a.close()
    assert b.poll(60)
    process.kill()
    process.join()
    with pytest.raises(EOFError):
        b.recv_bytes_into(bytearray(4))


def test_an_empty_message_that_poll_has_seen_is_waited_for_no_more():
    a, b = farcall.Pipe()
    for _ in range(2):
        a.send_bytes(b"")
        assert b.poll()
        assert multiprocessing.connection.wait([b], 5) == [b]
        assert b.recv_bytes() == b""
    assert multiprocessing.connection.wait([b], 0.01) == []


SEND = """
import farcall, os, sys
with farcall.open_pipe(sys.argv[1], timeout=60) as end:
    print("open", flush=True)
    sys.stdin.readline()
    os.environ["LATE"] = "1"
    end.send(b"one")
    sys.stdin.read()
"""


def test_a_doorbell_that_comes_late_does_not_tell_of_what_has_been_received(monkeypatch):
    monkeypatch.setattr(farcall.connection, "_PATIENCE", 60, raising=False)
    name = f"farcall-python-late-{os.getpid()}"
    with subprocess.Popen([sys.executable, "-c", SEND, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          bufsize=0, env={**os.environ, "LD_PRELOAD": os.environ["LATE_DOORBELL"]}) as sender:
        here = farcall.connection.Connection(farcall.serve_pipe(name, timeout=60))
        assert sender.stdout.readline() == b"open\n"
        assert select.select([here], [], [], 0)[0] == []
        sender.stdin.write(b"\n")
        assert sender.stdout.read(1) == b"r"
        assert here.recv_bytes() == b"one"
        # It rings while the next wait begins, or once that has begun.
        begun = threading.Event()
        ring = threading.Thread(target=lambda: (begun.wait(0.2), sender.stdin.write(b"!")))
        ring.start()
        descriptor = here.fileno()
        begun.set()
        ring.join()
        assert select.select([descriptor], [], [], 1)[0] == []
        sender.stdin.close()
        assert select.select([descriptor], [], [], 60)[0] == [descriptor]
        with pytest.raises(EOFError):
            here.recv_bytes()
