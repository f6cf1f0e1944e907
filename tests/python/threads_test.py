# SPDX-License-Identifier: Apache-2.0
"""Threads that use one end at once take turns, and find it whole."""

import threading

import pytest

import farcall


def test_many_threads_send_and_receive_on_the_same_ends():
    a, b = farcall.pipe(capacity=8192)
    each, threads = 2000, 4
    received = [[] for _ in range(threads)]

    def send(number):
        for i in range(each):
            a.send(b"%d %d" % (number, i))

    def receive(into):
        while (message := b.recv()) != b"end":
            into.append(message)

    receivers = [threading.Thread(target=receive, args=(into,)) for into in received]
    senders = [threading.Thread(target=send, args=(number,)) for number in range(threads)]
    for thread in receivers + senders:
        thread.start()
    for thread in senders:
        thread.join()
    for _ in receivers:
        a.send(b"end")
    for thread in receivers:
        thread.join()
    assert sorted(sum(received, [])) == sorted(
        b"%d %d" % (number, i) for number in range(threads) for i in range(each))
    for into in received:  # what one sender sent one receiver sees in order
        for number in range(threads):
            numbers = [int(m.split()[1]) for m in into if m.split()[0] == b"%d" % number]
            assert numbers == sorted(numbers)


def test_a_second_thread_waits_no_longer_than_its_timeout():
    a, b = farcall.pipe()
    first = threading.Thread(target=b.recv)
    first.start()
    while first.is_alive():
        try:
            b.recv(timeout=0.001)
        except TimeoutError:
            pass
        a.try_send(b"x")
    first.join()


def test_an_end_that_is_closed_while_a_thread_receives_is_freed_by_that_thread():
    for _ in range(200):
        a, b = farcall.pipe()
        results = []

        def receive():
            try:
                while True:
                    results.append(b.recv())
            except (EOFError, ValueError) as error:
                results.append(type(error))

        thread = threading.Thread(target=receive)
        thread.start()
        a.send(b"1")
        b.close()
        try:
            a.send(b"2")
        except BrokenPipeError:
            pass
        a.close()
        thread.join()
        assert results[-1] in (EOFError, ValueError)
        assert results[:-1] in ([], [b"1"], [b"1", b"2"])


def test_others_run_while_one_waits():
    a, b = farcall.pipe()
    counted = []

    def count():
        for i in range(1000):
            counted.append(i)
        a.send(b"done")

    thread = threading.Thread(target=count)
    thread.start()
    assert b.recv() == b"done"
    assert len(counted) == 1000
    thread.join()


def test_who_polls_keeps_others_from_receiving():
    a, b = farcall.pipe()
    assert b.poll_begin() is True
    for use in (b.recv, b.poll_begin, b.try_recv):
        with pytest.raises(RuntimeError, match="already"):
            use()
    b.send(b"the other direction is free")
    assert a.recv() == b"the other direction is free"
    b.poll_end()
    b.poll_end()
    a.send(b"x")
    assert b.poll_begin() is False
    assert b.recv() == b"x"


def test_an_end_is_closed_or_used_while_it_is_passed_on():
    for attempt in range(300):
        a, b = farcall.pipe(capacity=4096)
        barrier = threading.Barrier(2)
        passed = []

        def pass_on():
            barrier.wait()
            try:
                passed.append(b._pass())
            except (OSError, ValueError):
                passed.append(None)  # it has been used, or closed

        thread = threading.Thread(target=pass_on)
        thread.start()
        barrier.wait()
        if attempt % 2:
            b.close()
        else:
            try:
                assert b.try_recv() is None
            except RuntimeError as error:
                assert "passed" in str(error)
        thread.join()
        assert passed[0] is None or all(number > 2 for number in passed[0])
        b.close()
        a.close()
