# SPDX-License-Identifier: Apache-2.0
"""Who is stopped in the middle of something, or killed when others count on it, holds nobody up."""

import ctypes
import mmap
import os
import queue
import select
import signal
import sys
import threading

import pytest

import farcall
from queue_parts import DATA, GET, PUT, is_in_state, wait_for

# Where there are more things in the memory of a queue: the lock of its places, who waits for bells.
PLACES, WAITING = 448, 128


def is_waiting(q, bell):
    memory = mmap.mmap(q._items.descriptors()[0], DATA + 4096)
    return memory[WAITING + 4 * bell] != 0


class Holder:
    """A process that holds a lock of the queue until the end, or for `seconds` at most."""

    def __init__(self, q, lock, seconds=240):
        ready, ready_writer = os.pipe()
        self._told, self._tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._tell)
            memory = mmap.mmap(q._items.descriptors()[0], DATA + 4096)
            mutex = ctypes.byref(ctypes.c_char.from_buffer(memory, lock))
            ctypes.CDLL(None).pthread_mutex_lock(mutex)
            os.write(ready_writer, b"x")
            told = select.select([self._told], [], [], seconds)[0]
            ctypes.CDLL(None).pthread_mutex_unlock(mutex)
            os._exit(0 if told else 1)
        os.read(ready, 1)
        os.close(ready)
        os.close(ready_writer)
        os.close(self._told)

    def end(self):
        """Whether it has held the lock until now."""
        os.close(self._tell)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0


def test_who_asks_for_the_size_of_a_queue_does_not_keep_others_from_running():
    q = farcall.Queue(maxsize=1, capacity=4096)
    q.put(bytes(10_000))  # waits in this process
    holder = Holder(q, PLACES, 10)
    thread = threading.Thread(target=q.full)
    thread.start()
    assert holder.end()
    thread.join()
    assert q.get() == bytes(10_000)


def test_a_process_that_is_stopped_while_it_puts_holds_nobody_up(alarm):
    q = farcall.Queue(capacity=4096)
    holder = Holder(q, PUT)
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        q.put_nowait(1)  # later
        q.put(2, timeout=1000)
        q.put(3)
        assert q.qsize() == 3
        with pytest.raises(queue.Empty):
            q.get_nowait()
    finally:
        os.kill(holder.pid, signal.SIGCONT)
        held = holder.end()
    assert held
    assert [q.get(), q.get(), q.get()] == [1, 2, 3]


def test_a_process_that_is_stopped_while_it_gets_holds_nobody_up(alarm):
    q = farcall.Queue()
    q.put(1)
    holder = Holder(q, GET)
    with pytest.raises(queue.Empty):
        q.get_nowait()
    with pytest.raises(queue.Empty):
        q.get(timeout=0.01)
    assert holder.end()
    assert q.get() == 1


def test_a_process_that_is_stopped_while_it_takes_a_place_holds_nobody_up(alarm):
    q = farcall.Queue(maxsize=2, capacity=4096)
    q.put(bytes(10_000))
    q.put(2)
    holder = Holder(q, PLACES)
    with pytest.raises(queue.Full):
        q.put_nowait(3)
    with pytest.raises(queue.Full):
        q.put(3, timeout=0.01)
    assert q.full()
    assert holder.end()
    assert [q.get(), q.get()] == [bytes(10_000), 2]
    q.put(3, timeout=0)
    assert q.get() == 3


@pytest.mark.parametrize("has_waited", [False, True])
def test_a_process_that_is_stopped_while_it_counts_an_item_that_waits_holds_nobody_up(alarm, has_waited):
    q = farcall.Queue(capacity=4096)
    if has_waited:
        q.put(bytes(10_000))
        assert q.get() == bytes(10_000)
    q.put(bytes(4000))
    holder = Holder(q, PLACES)
    q.put_nowait(bytes(10_000))
    q.put(2, timeout=1000)
    q.put(3)
    assert q.qsize() == 4
    assert holder.end()
    assert [q.get() for _ in range(4)] == [bytes(4000), bytes(10_000), 2, 3]
    assert q.qsize() == 0


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])


ITEMS, ROOM, PLACE = 1, 2, 3  # bells, by their place among the descriptors


@pytest.mark.parametrize("bell, wait, end", [
    (ITEMS, "q.get()", "q.put(1)"),
    (PLACE, "q.put(bytes(10))", "q.get()"),
    (ROOM, "q.put(bytes(3000))", "q.get()")], ids=["item", "place", "room"])
def test_a_process_that_is_killed_when_it_has_silenced_a_bell_holds_nobody_up(alarm, bell, wait, end):
    q = farcall.Queue(maxsize=2 if bell == ROOM else 1, capacity=4096)
    if bell != ITEMS:
        q.put(bytes(4000))
    if (pid := os.fork()) == 0:
        exec(wait)
        q.close()
        q.join_thread()
        os._exit(0)
    try:
        wait_for(lambda: is_waiting(q, bell))
        wait_for(lambda: all(is_in_state(f"{pid}/task/{task}", "S")
                             for task in os.listdir(f"/proc/{pid}/task")))
        stop(pid)
        exec(end)
        # As one that is killed before it has looked at what there is.
        assert int.from_bytes(os.read(q._items.descriptors()[bell], 8), sys.byteorder) > 0
        os.kill(pid, signal.SIGCONT)
        if bell == ROOM:
            assert q.get() == bytes(3000)
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
