# SPDX-License-Identifier: Apache-2.0
"""Pipes within one process: messages, timeouts, the end."""

import errno
import os
import threading
import uuid

import pytest

import farcall


@pytest.fixture
def ends():
    a, b = farcall.pipe()
    with a, b:
        yield a, b


def test_messages_arrive_in_order_both_ways(ends):
    a, b = ends
    for i in range(100):
        a.send(b"to b %d" % i)
        b.send(b"to a %d" % i)
    assert [b.recv() for _ in range(100)] == [b"to b %d" % i for i in range(100)]
    assert [a.recv() for _ in range(100)] == [b"to a %d" % i for i in range(100)]


@pytest.mark.parametrize("size", [0, 1, 56, 57, 4096, 4097, 65536, 65537])
def test_a_message_of_any_size_arrives_whole(ends, size):
    a, b = ends
    message = os.urandom(size)
    a.send(message)
    assert b.recv() == message


def test_a_message_larger_than_the_ring_arrives_whole():
    a, b = farcall.pipe(capacity="4K")
    message = os.urandom(1_000_003)
    sender = threading.Thread(target=a.send, args=(message,))
    sender.start()
    assert b.recv() == message
    sender.join()


def test_timeout_0_does_not_wait(ends):
    a, b = ends
    with pytest.raises(BlockingIOError) as caught:
        b.recv(timeout=0)
    assert caught.value.errno == errno.EAGAIN
    assert b.try_recv() is None


def test_a_timeout_ends_a_wait(ends):
    with pytest.raises(TimeoutError) as caught:
        ends[1].recv(timeout=0.01)
    assert caught.value.errno == errno.ETIMEDOUT
    with pytest.raises(TimeoutError):
        ends[1].recv(0.000001)


@pytest.mark.parametrize("timeout", [-1, float("nan"), -0.5])
def test_a_timeout_that_cannot_be_is_refused(ends, timeout):
    with pytest.raises(ValueError):
        ends[0].recv(timeout)
    with pytest.raises(TypeError):
        ends[0].recv("1")


def test_a_full_ring_makes_senders_wait():
    a, b = farcall.pipe(capacity=4096)
    sent = 0
    while a.try_send(b"x" * 100):
        sent += 1
    with pytest.raises(BlockingIOError):
        a.send(b"y" * 100, timeout=0)
    with pytest.raises(TimeoutError):
        a.send(b"y" * 100, timeout=0.01)
    for _ in range(sent):
        assert b.recv(timeout=0) == b"x" * 100
    a.send(b"y" * 100, timeout=0)
    assert b.recv() == b"y" * 100


def test_of_a_long_message_that_timed_out_the_rest_must_follow():
    a, b = farcall.pipe(capacity=4096)
    message = os.urandom(100_000)
    with pytest.raises(TimeoutError):
        a.send(message, timeout=0.01)
    with pytest.raises(RuntimeError, match="in part"):
        a.send(b"another")
    with pytest.raises(RuntimeError, match="in part"):
        a.send(bytes(len(message)))
    with pytest.raises(TimeoutError):
        b.recv(timeout=0.01)  # what came of it is kept
    received = []
    receiver = threading.Thread(target=lambda: received.append(b.recv()))
    receiver.start()
    a.send(message)
    receiver.join()
    assert received == [message]
    a.send(b"another")
    assert b.recv() == b"another"


def test_a_long_message_of_which_nothing_has_gone_is_forgotten():
    a, b = farcall.pipe(capacity=4096)
    sent = 0
    while a.try_send(b"x" * 40):
        sent += 1
    with pytest.raises(BlockingIOError):
        a.send(bytes(2000), timeout=0)
    for _ in range(sent):
        b.recv(timeout=0)
    a.send(b"another", timeout=0)
    assert b.recv(timeout=0) == b"another"


def test_recv_into_says_how_long_a_message_is_that_does_not_fit(ends):
    a, b = ends
    a.send(b"0123456789")
    buffer = bytearray(4)
    with pytest.raises(farcall.MessageTooLong) as caught:
        b.recv_into(buffer)
    assert (caught.value.errno, caught.value.needed) == (errno.EMSGSIZE, 10)
    assert buffer == bytes(4)
    buffer = bytearray(12)
    assert b.recv_into(buffer) == 10
    assert buffer == b"0123456789\0\0"


def test_an_end_that_closes_lets_the_other_receive_what_was_sent(ends):
    a, b = ends
    a.send(b"last")
    a.close()
    assert a.closed
    assert b.recv() == b"last"
    with pytest.raises(EOFError):
        b.recv()
    with pytest.raises(EOFError):
        b.recv(timeout=0)
    with pytest.raises(BrokenPipeError) as caught:
        b.send(b"")
    assert caught.value.errno == errno.EPIPE


def test_an_end_that_finishes_can_still_receive(ends):
    a, b = ends
    a.finish()
    a.finish()
    with pytest.raises(EOFError):
        b.recv()
    b.send(b"answer")
    assert a.recv() == b"answer"


def test_a_closed_end_refuses_everything(ends):
    a, _ = ends
    a.close()
    a.close()
    for use in (a.recv, a.poll, a.fileno, a.finish, a.try_recv, a.poll_begin, a.send_poll_begin,
                lambda: a.send(b""), lambda: a.recv_into(bytearray(1))):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_poll_tells_of_messages_and_of_the_end(ends):
    a, b = ends
    assert b.poll() is False
    assert b.poll(0.001) is False
    a.send(b"")
    assert b.poll() is True
    assert b.poll() is True
    assert b.recv() == b""
    a.send(b"x")
    assert b.poll(None) is True
    assert b.recv() == b"x"
    a.close()
    assert b.poll(None) is True


def test_an_end_is_iterated_until_the_other_finishes(ends):
    a, b = ends
    for i in range(3):
        a.send(b"%d" % i)
    a.finish()
    assert list(b) == [b"0", b"1", b"2"]


def test_objects_are_pickled(ends):
    a, b = ends
    a.send_object({"x": [1, 2, (3,)]})
    assert b.recv_object() == {"x": [1, 2, (3,)]}


@pytest.mark.parametrize("wait", ["adaptive", "spin", "block"])
def test_each_way_of_waiting_ends_when_a_message_comes(wait):
    a, b = farcall.pipe(wait=wait)
    received = []
    receiver = threading.Thread(target=lambda: received.extend(b))
    receiver.start()
    for i in range(50):
        a.send(b"%d" % i)
    a.finish()
    receiver.join()
    assert received == [b"%d" % i for i in range(50)]


@pytest.mark.parametrize("arguments", [{"wait": "never"}, {"capacity": -1}, {"capacity": "1X"},
                                       {"capacity": 0}, {"capacity": ""}])
def test_options_that_cannot_be_are_refused(arguments):
    with pytest.raises(ValueError):
        farcall.pipe(**arguments)


def test_arguments_are_checked(ends):
    a, _ = ends
    for wrong in (lambda: a.send(), lambda: a.send(b"", 1, 2), lambda: a.send(b"", time=1),
                  lambda: a.send(b"", data=b""), lambda: a.send("text"), lambda: a.recv_into(b"const")):
        with pytest.raises((TypeError, BufferError)):
            wrong()
    with pytest.raises(TypeError):
        farcall.PipeEnd()


def test_a_pipe_by_name_meets_who_opens_it():
    name = f"farcall-python-{uuid.uuid4()}"
    served = []
    server = threading.Thread(target=lambda: served.append(farcall.serve_pipe(name, timeout=60)))
    server.start()
    b = farcall.open_pipe(name, timeout=60)
    server.join()
    a = served[0]
    a.send(b"hello")
    assert b.recv() == b"hello"
    b.send(b"hi")
    assert a.recv() == b"hi"


def test_a_name_that_nobody_serves_is_refused():
    with pytest.raises(ConnectionRefusedError):
        farcall.open_pipe(f"farcall-python-{uuid.uuid4()}", timeout=0.01)
    with pytest.raises((TimeoutError, BlockingIOError)):
        farcall.serve_pipe(f"farcall-python-{uuid.uuid4()}", timeout=0.01)


def named_ends(**options):
    """Both ends of a pipe by name: who serves it, who has opened it."""
    name = f"farcall-python-pipe-{os.getpid()}"
    served = []
    thread = threading.Thread(target=lambda: served.append(farcall.serve_pipe(name, timeout=60, **options)))
    thread.start()
    opened = farcall.open_pipe(name, timeout=60)
    thread.join()
    return served[0], opened


def test_of_a_message_that_fits_into_the_opened_end_of_a_pipe_no_part_has_gone():
    served, opened = named_ends()
    assert opened.capacity == 256 * 1024
    while opened.try_send(bytes(2000)):
        pass
    with pytest.raises(BlockingIOError):
        opened.send(bytes(60_000), timeout=0)
    while opened.try_send(bytes(1000)):  # another one
        pass
    while served.try_recv() is not None:
        pass
    opened.send(b"the next", timeout=60)
    assert served.recv(timeout=60) == b"the next"


def test_what_is_longer_than_fits_into_the_opened_end_goes_on_where_it_stopped():
    served, opened = named_ends(capacity=4096)
    assert opened.capacity == served.capacity == 4096
    assert not opened.try_send(bytes(100_000))
    with pytest.raises(RuntimeError):
        opened.try_send(b"another one")
    served.close()
