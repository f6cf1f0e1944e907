# SPDX-License-Identifier: Apache-2.0
"""Pipes between processes, however they are started and however they end."""

import copy
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import uuid

import pytest

import farcall

METHODS = ["fork", "spawn", "forkserver"]


def echo(end):
    for message in end:
        end.send(message[::-1])


def echo_objects(connection):
    while (value := connection.recv()) is not None:
        connection.send([value])


def relay(connection):
    end = connection.recv()
    end.send(b"from a child that was sent an end")
    end.close()


@pytest.mark.parametrize("method", METHODS)
def test_an_end_goes_to_a_child(method):
    a, b = farcall.pipe(capacity="64K", wait="block")
    process = multiprocessing.get_context(method).Process(target=echo, args=(b,))
    process.start()
    b.close()
    for message in (b"hello", b"", os.urandom(200_000)):
        a.send(message)
        assert a.recv() == message[::-1]
    a.close()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_connection_goes_to_a_child(method):
    a, b = farcall.Pipe()
    process = multiprocessing.get_context(method).Process(target=echo_objects, args=(b,))
    process.start()
    b.close()
    a.send({"x": 1})
    assert a.recv() == [{"x": 1}]
    a.send(None)
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("method", METHODS)
def test_an_end_goes_through_a_connection(method):
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=relay, args=(there,))
    process.start()
    a, b = farcall.pipe()
    here.send(b)
    assert a.recv() == b"from a child that was sent an end"
    with pytest.raises(RuntimeError, match="passed"):
        b.send(b"it is not here any more")
    b.close()
    process.join()
    assert process.exitcode == 0


def test_an_end_that_was_used_is_not_passed():
    a, b = farcall.pipe()
    a.send(b"x")
    with pytest.raises(OSError, match="used"):
        multiprocessing.reduction.ForkingPickler.dumps(a)
    assert b.recv() == b"x"


def test_an_end_is_pickled_for_nobody_else():
    a, _ = farcall.pipe()
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            way(a)
    a.send(b"it is still here")


def forked(function):
    """Runs a function in a forked child; returns what it returns."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, repr(function()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        text = answer.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


def test_a_child_that_inherits_a_used_end_is_refused_and_its_parent_goes_on():
    a, b = farcall.pipe()
    a.send(b"1")
    assert b.recv() == b"1"

    def child():
        refused = 0
        for use in (lambda: a.send(b"2"), lambda: a.recv(0), b.poll, b.try_recv, b.poll_begin, a.finish,
                    a.fileno):
            try:
                use()
            except RuntimeError as error:
                refused += "forked" in str(error)
        a.close()
        b.close()
        return refused, a.closed

    assert forked(child) == "(7, True)"
    a.send(b"3")
    assert b.recv() == b"3"
    b.send(b"4")
    assert a.recv() == b"4"


def test_an_end_that_a_child_has_used_is_the_childs():
    a, b = farcall.pipe()
    a.send(b"to whoever is first")
    if (pid := os.fork()) == 0:
        os._exit(b.recv() != b"to whoever is first")
    assert os.waitpid(pid, 0)[1] == 0
    for use in (b.recv, lambda: b.send(b""), b.try_recv, b.finish):
        with pytest.raises(RuntimeError, match="another process"):
            use()
    with pytest.raises(OSError):
        b._pass()
    b.close()


def test_a_child_of_a_process_that_polls_frees_what_it_inherits():
    a, b = farcall.pipe()
    assert b.poll_begin()
    assert forked(lambda: (b.poll_end(), b.close())) == "(False, None)"
    a.send(b"x")
    b.poll_end()
    assert b.recv() == b"x"


KILLED = """
import farcall, sys, time
end = farcall.open_pipe(sys.argv[1])
end.send(b"ready")
end.recv()
"""


@pytest.fixture
def killed_peer():
    name = f"farcall-python-{uuid.uuid4()}"
    with subprocess.Popen([sys.executable, "-c", KILLED, name]) as child:
        end = farcall.serve_pipe(name, timeout=60)
        assert end.recv() == b"ready"
        child.send_signal(signal.SIGKILL)
        yield end


def test_who_receives_from_a_killed_peer_learns_of_it(killed_peer):
    with pytest.raises(ConnectionResetError):
        killed_peer.recv()
    with pytest.raises(ConnectionResetError):
        killed_peer.recv(timeout=0)
    assert killed_peer.poll() is True


def test_who_sends_to_a_killed_peer_learns_of_it(killed_peer):
    with pytest.raises(BrokenPipeError):
        while True:
            killed_peer.send(bytes(1000))


def test_processes_that_are_strangers_meet_by_name():
    name = f"farcall-python-{uuid.uuid4()}"
    program = f"import farcall; print(farcall.open_pipe({name!r}).recv().decode())"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        end = farcall.serve_pipe(name, timeout=60)
        end.send(b"hello stranger")
        assert child.communicate()[0] == "hello stranger\n"
    with pytest.raises(EOFError):
        end.recv()
