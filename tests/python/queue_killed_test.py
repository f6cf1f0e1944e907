# SPDX-License-Identifier: Apache-2.0
"""Who is killed leaves a queue that works, and whose places are all there."""

import ctypes
import mmap
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time

import pytest

import farcall
from queue_parts import DATA, ENTRIES, GET, PROCESS, PUT, consume, is_asleep, is_in_state, produce, wait_for


def test_a_consumer_that_is_killed_while_it_waits_holds_nobody_up():
    q = farcall.Queue()
    process = multiprocessing.get_context("fork").Process(target=q.get)
    process.start()
    wait_for(lambda: is_asleep(process.pid))
    process.kill()
    process.join()
    for i in range(100):
        q.put(i)
        assert q.get() == i


def die_halfway(q, side, steps):
    """Takes the lock of that side and writes numbers into the memory, which are some of the steps on the
    way over an item."""
    memory = mmap.mmap(q._items.descriptors()[0], DATA + 4096)
    lock = ctypes.byref(ctypes.c_char.from_buffer(memory, side))
    assert ctypes.CDLL(None).pthread_mutex_lock(lock) == 0
    for at, value in steps:
        memory[at:at + 8] = value.to_bytes(8, sys.byteorder)
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_getting(q, item_bytes, steps):
    position, items, next_position, next_items = (GET + at for at in (64, 72, 80, 88))
    die_halfway(q, GET, [(next_items, 1), (next_position, item_bytes), (items, 1),
                         (position, item_bytes)][:steps])


@pytest.mark.parametrize("steps", range(5))
def test_an_item_counts_once_whatever_its_getter_had_done_when_it_was_killed(steps):
    q = farcall.Queue(maxsize=1, capacity=4096)
    q.put(1)
    process = multiprocessing.get_context("fork").Process(target=die_while_getting, args=(q, 16, steps))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    if steps < 4:
        assert q.get() == 1
    assert q.empty() and q.qsize() == 0
    for i in range(3):
        q.put(i, timeout=0)
        assert q.full()
        assert q.get() == i


def test_a_producer_that_dies_in_the_middle_of_a_long_item_ends_the_queue():
    q = farcall.Queue(capacity=4096)
    process = multiprocessing.get_context("fork").Process(target=q.put, args=(bytes(1_000_000),))
    process.start()
    wait_for(lambda: not q.empty())
    process.kill()
    process.join()
    for _ in range(2):
        with pytest.raises(OSError):
            q.get()
    with pytest.raises(OSError):
        q.put(1)


def test_a_queue_that_ends_ends_those_who_wait_for_a_place():
    q = farcall.Queue(2, capacity=4096)
    process = multiprocessing.get_context("fork").Process(target=q.put, args=(bytes(1_000_000),))
    process.start()
    wait_for(lambda: not q.empty())
    assert q._items.reserve(0)  # the other place
    ends = []

    def put():
        try:
            q.put(1)
        except OSError:
            ends.append(True)

    thread = threading.Thread(target=put)
    thread.start()
    process.kill()
    process.join()
    with pytest.raises(OSError):
        q.get()
    thread.join(60)
    assert ends == [True]


def put_long_and_die(q, how):
    """Takes both places, for items that do not fit: the second one waits behind the first."""
    q.put(bytes(3000))
    q.put(bytes(3000))
    q.put(bytes(3000))
    wait_for(lambda: not q._items.empty())
    if how == "exit":
        q.cancel_join_thread()
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        os._exit(0)


@pytest.mark.parametrize("how", ["exit", "kill", "os._exit"])
@pytest.mark.parametrize("reaped", [True, False])
def test_places_of_a_process_that_has_not_put_its_items_are_given_back(how, reaped):
    q = farcall.Queue(maxsize=3, capacity=4096)
    process = multiprocessing.get_context("fork").Process(target=put_long_and_die, args=(q, how))
    process.start()
    if reaped:
        process.join()
    else:  # also what nobody has waited for is gone
        wait_for(lambda: is_in_state(process.pid, "Z"))
    wait_for(lambda: q.qsize() == 1)  # its other thread may end a moment later
    assert not q.full()
    q.put(1, timeout=60)
    q.put(2, timeout=60)
    with pytest.raises(queue.Full):
        q.put(3, timeout=0.01)
    assert [q.get(), q.get(), q.get()] == [bytes(3000), 1, 2]
    for i in range(3):
        q.put(i, timeout=0)
    assert q.full()
    process.join()


def test_who_waits_for_a_place_gets_that_of_a_process_that_dies_meanwhile():
    q = farcall.Queue(maxsize=2, capacity=4096)
    hold = "q.put(bytes(4000)); q.put(bytes(4000)); time.sleep(1000)"
    process = multiprocessing.get_context("fork").Process(
        target=exec, args=(hold, {"q": q, "time": time}))
    process.start()
    wait_for(q.full)
    threading.Timer(0.3, process.kill).start()
    q.put("here", timeout=60)
    process.join()
    assert [q.get(), q.get()] == [bytes(4000), "here"]


def test_places_of_those_who_live_are_not_given_away():
    q = farcall.Queue(maxsize=2, capacity=4096)
    q.put(bytes(4000))
    q.put(b"behind it" * 400)
    assert q.full()
    process = multiprocessing.get_context("fork").Process(target=q.put, args=(1, True, 0.5))
    process.start()
    process.join()
    assert process.exitcode == 1  # queue.Full
    assert [q.get(), q.get()] == [bytes(4000), b"behind it" * 400]


def put_without_end(q):
    while True:
        q.put(0)


def test_producers_that_are_killed_at_any_moment_leave_all_places():
    q = farcall.Queue(maxsize=2)
    context = multiprocessing.get_context("fork")
    for _ in range(100):
        process = context.Process(target=put_without_end, args=(q,), daemon=True)
        process.start()
        for _ in range(50):
            q.get()
        process.kill()
        process.join()
        while not q.empty():
            q.get()
        for i in range(2):
            q.put(i, timeout=0)
        assert q.full()
        assert [q.get(), q.get()] == [0, 1]


def die_while_putting(q, steps):
    """As above, of a putter: with all steps the item is put and counted."""
    q.put(0, timeout=0)  # 16 bytes; from here on this process has an entry
    q.get()
    assert q._items.reserve(0)
    position, next_position, next_items, next_process = (PUT + at for at in (64, 80, 88, 96))
    die_halfway(q, PUT, [(DATA + 16, 3 << 56 | 8), (DATA + 24, 7), (next_position, 32), (next_items, 2),
                         (next_process, 1), (position, 32), (PROCESS + 32, 2)][:steps])


@pytest.mark.parametrize("steps", range(8))
def test_a_place_counts_once_whatever_its_putter_had_done_when_it_was_killed(steps):
    q = farcall.Queue(maxsize=1, capacity=4096)
    process = multiprocessing.get_context("fork").Process(target=die_while_putting, args=(q, steps))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    if steps >= 6:
        with pytest.raises(queue.Full):
            q.put(1, timeout=0.01)
        assert q.get() == 7
    for i in range(3):
        q.put(i, timeout=0)
        assert q.full()
        assert q.get() == i


class Putter:
    """A forked process that puts bytes when it is told to, until it is killed."""

    def __init__(self, q):
        told, self._tell = os.pipe()
        self._done, done = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            while size := os.read(told, 8):
                q.put(bytes(int(size)))
                os.write(done, b"x")
            os._exit(0)
        os.close(told)
        os.close(done)

    def put(self, size):
        os.write(self._tell, f"{size:8}".encode())
        assert os.read(self._done, 1) == b"x"

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._tell)
        os.close(self._done)


def test_places_of_the_killed_are_given_back_however_many_processes_have_put(alarm):
    q = farcall.Queue(maxsize=2, capacity=4096)
    putters = [Putter(q) for _ in range(ENTRIES + 3)]
    try:
        for putter in putters:
            putter.put(1)
            assert q.get() == bytes(1)
        # The last ones have the entries of the first ones, who go on all the same.
        for _ in range(2):
            for putter in (putters[-1], putters[0], putters[1]):
                putter.put(3000)
                putter.put(3000)  # waits for room
                assert q.full()
                putter.kill()
                putters.remove(putter)
                assert q.get() == bytes(3000)
                wait_for(lambda: q.qsize() == 0)
                for i in range(2):
                    q.put(i, timeout=0)
                assert [q.get(), q.get()] == [0, 1]
    finally:
        for putter in putters:
            putter.kill()


def test_who_finds_no_entry_has_no_place_until_another_owes_nothing(alarm):
    q = farcall.Queue(maxsize=2 * ENTRIES, capacity=4096)
    q.put(bytes(4000))
    putters = [Putter(q) for _ in range(ENTRIES)]
    try:
        for putter in putters:
            putter.put(1000)  # waits for room
        with pytest.raises(queue.Full):
            q.put("no entry", timeout=0.01)
        assert q.get() == bytes(4000)
        q.put("here", timeout=60)
        got = [q.get() for _ in range(ENTRIES + 1)]
        assert sorted(got, key=len) == ["here"] + [bytes(1000)] * ENTRIES
        assert q.qsize() == 0
    finally:
        for putter in putters:
            putter.kill()


def test_producers_and_consumers_that_are_killed_at_any_moment_leave_a_queue_that_works():
    q = farcall.Queue(capacity=8192)
    context = multiprocessing.get_context("fork")
    for _ in range(30):
        processes = [context.Process(target=produce, args=(q, 0, 1 << 40), daemon=True),
                     context.Process(target=consume, args=(q, None), daemon=True)]
        for process in processes:
            process.start()
        for _ in range(20):
            q.get()
        for process in processes:
            process.kill()
            process.join()
        while True:  # what is left is whole
            try:
                number, i, filling = q.get_nowait()
                assert number == 0 and filling == b"x" * (i % 300)
            except queue.Empty:
                break
        q.put("still works")
        assert q.get() == "still works"


def put_and_end(q, how):
    for _ in range(5):
        q.put(bytes(10_000))
    q.put(1)
    assert q.qsize() == 8
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    q.cancel_join_thread()


@pytest.mark.parametrize("maxsize", [0, 100])
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_what_a_process_had_not_put_is_not_there_when_it_has_gone(how, maxsize):
    q = farcall.Queue(maxsize, capacity=1 << 16)
    q.put(0)
    q.put(bytes(60_000))
    process = multiprocessing.get_context("fork").Process(target=put_and_end, args=(q, how))
    process.start()
    process.join()
    left = 0
    while not q.empty():
        q.get()
        left += 1
    assert left == 2
    assert q.qsize() == 0
    q.put(1)
    assert q.qsize() == 1


def die_while_putting_one_of_any_number(q, steps):
    q.put(0)  # 16 bytes
    q.get()
    position, items, next_position, next_process, next_total = (PUT + at for at in (64, 72, 80, 96, 104))
    die_halfway(q, PUT, [(DATA + 16, 3 << 56 | 8), (DATA + 24, 7), (next_position, 32), (next_process, 128),
                         (next_total, 2), (position, 32), (items, 2)][:steps])


@pytest.mark.parametrize("steps", range(8))
def test_an_item_counts_once_whatever_its_putter_had_done_when_it_was_killed(steps):
    q = farcall.Queue(capacity=4096)
    process = multiprocessing.get_context("fork").Process(
        target=die_while_putting_one_of_any_number, args=(q, steps))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert q.qsize() == (steps >= 6)
    q.put("next")
    if steps >= 6:
        assert q.qsize() == 2
        assert q.get() == 7
    assert q.qsize() == 1
    assert q.get() == "next"
    assert q.qsize() == 0


def die_while_putting_what_waited(q, steps):
    q.put(0)  # 16 bytes
    q.get()
    assert q._items.reserve(0)
    position, items = PUT + 64, PUT + 72
    next_position, next_items, next_process, next_total = (PUT + at for at in (80, 88, 96, 104))
    die_halfway(q, PUT, [(DATA + 16, 3 << 56 | 8), (DATA + 24, 7), (next_position, 32), (next_items, 1),
                         (next_process, 1), (next_total, 2), (position, 32), (PROCESS + 32, 1),
                         (items, 2)][:steps])


@pytest.mark.parametrize("steps", range(7, 10))
def test_an_item_that_waited_counts_once_whatever_its_putter_had_done_when_it_was_killed(steps):
    q = farcall.Queue(capacity=4096)
    process = multiprocessing.get_context("fork").Process(target=die_while_putting_what_waited, args=(q, steps))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert q.qsize() == 1
    assert q.get() == 7
    assert q.qsize() == 0
