# SPDX-License-Identifier: Apache-2.0
"""Queue does what multiprocessing's does, between any number of processes."""

import collections
import ctypes
import errno
import mmap
import multiprocessing
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

import farcall


@pytest.fixture(params=[multiprocessing.Queue, farcall.Queue], ids=["multiprocessing", "farcall"])
def make(request):
    return request.param


def test_items_come_out_in_order(make):
    q = make()
    items = [1, "two", {3: [4]}, None, b"x" * 100_000]
    for item in items:
        q.put(item)
    assert [q.get() for _ in items] == items
    q.close()
    q.join_thread()


def test_an_empty_queue(make):
    q = make()
    assert q.empty() and not q.full() and q.qsize() == 0
    with pytest.raises(queue.Empty):
        q.get_nowait()
    with pytest.raises(queue.Empty):
        q.get(True, 0.01)
    with pytest.raises(queue.Empty):
        q.get(True, -1)


def test_a_full_queue(make):
    q = make(maxsize=2)
    q.put(1)
    q.put(2)
    assert q.full() and q.qsize() == 2
    with pytest.raises(queue.Full):
        q.put_nowait(3)
    with pytest.raises(queue.Full):
        q.put(3, timeout=0.01)
    assert q.get() == 1
    q.put(3, timeout=60)
    assert [q.get(), q.get()] == [2, 3]


def test_a_closed_queue(make):
    q = make()
    q.close()
    with pytest.raises(ValueError):
        q.put(1)
    with pytest.raises(ValueError):
        q.get()
    q.join_thread()
    with pytest.raises((ValueError, AssertionError)):
        make().join_thread()


def test_more_than_fits_is_put_and_then_got(make):
    q = make()
    items = [bytes([i]) * 300_000 for i in range(20)]
    for item in items:
        q.put(item)
    assert [q.get() for _ in items] == items


class Number(int):
    pass


class Text(str):
    pass


@pytest.mark.parametrize("item", [
    None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**40, Number(7), 0.0, -0.0,
    1e308, float("inf"), "", "a", "grün \U0001f7e2", "half \ud800", "x" * 255, "ü" * 200, "y" * 100_000,
    Text("more"), b"", b"\x00", bytes(range(256)) * 2, bytes(100_000), bytearray(b"ab"), (1, None, "x"),
    NotImplemented, ...], ids=lambda item: repr(item)[:20])
def test_an_object_comes_out_as_it_was(item):
    q = farcall.Queue(capacity=4096)
    for _ in range(3):
        q.put(item)
    for _ in range(3):
        got = q.get()
        assert type(got) is type(item) and got == item and repr(got) == repr(item)
    with pytest.raises(queue.Empty):
        q.get_nowait()


def test_items_behind_one_that_is_longer_than_the_queue_wait_for_room():
    q = farcall.Queue(capacity=4096)
    for number in range(20):
        long = bytes([number]) * 20000
        q.put(long)  # goes through in parts, by a thread
        assert q.get() == long
        items = [bytes([number, i]) * 700 for i in range(6)]
        for item in items:  # two fit
            q.put(item)
        assert [q.get() for _ in items] == items


def test_what_cannot_be_pickled_takes_no_place():
    q = farcall.Queue(maxsize=1)
    with pytest.raises(Exception):
        q.put(lambda: None)
    q.put(1, timeout=0)
    assert q.get() == 1


def produce(q, number, count):
    for i in range(count):
        q.put((number, i, b"x" * (i % 300)))


def produce_long(q, number, count):
    """Some are longer than the queue."""
    for i in range(count):
        q.put((number, i, b"x" * (i % 300 if i % 20 else 9000)))


def consume(q, results):
    seen = []
    while (item := q.get()) is not None:
        seen.append(item[:2])
    results.put(seen)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("maxsize", [0, 3])
def test_several_producers_and_consumers(method, maxsize):
    context = multiprocessing.get_context(method)
    q, results = farcall.Queue(maxsize, capacity=8192), farcall.Queue()
    count = 1000
    producers = [context.Process(target=produce_long, args=(q, n, count)) for n in range(3)]
    consumers = [context.Process(target=consume, args=(q, results)) for _ in range(2)]
    for process in producers + consumers:
        process.start()
    for process in producers:
        process.join()
    for _ in consumers:
        q.put(None)
    lists = [results.get() for _ in consumers]
    for process in producers + consumers:
        process.join()
        assert process.exitcode == 0
    got = collections.Counter(item for one in lists for item in one)
    assert got == collections.Counter((n, i) for n in range(3) for i in range(count))
    for one in lists:  # of one producer each consumer sees items in order
        for n in range(3):
            numbers = [i for m, i in one if m == n]
            assert numbers == sorted(numbers)


def test_a_child_puts_all_before_it_exits():
    q = farcall.Queue(capacity=4096)
    process = multiprocessing.get_context("fork").Process(target=produce, args=(q, 0, 500))
    process.start()
    assert [q.get()[1] for _ in range(500)] == list(range(500))
    process.join()
    assert process.exitcode == 0


def put_much_and_leave(q):
    q.put(bytes(100_000))
    q.cancel_join_thread()


def test_a_child_that_cancels_exits_with_items_unsent():
    q = farcall.Queue(capacity=4096)
    process = multiprocessing.get_context("fork").Process(target=put_much_and_leave, args=(q,))
    process.start()
    process.join()  # nobody gets anything
    assert process.exitcode == 0


def wait_for(condition):
    while not condition():
        time.sleep(0.001)


def is_in_state(pid, state):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == state


def is_asleep(pid):
    return is_in_state(pid, "S")


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


# Where things are in the memory of a queue (queue.h): both sides, the first entry of a process, data.
PUT, GET, PROCESS, DATA = 192, 320, 640, 8768
ENTRIES = (DATA - PROCESS) // 64  # of processes that each has one of


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


# ---- who is stopped with a lock ----

PLACES = 448


WAITING = 128


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


@pytest.fixture
def alarm():
    def fail(*_):
        raise AssertionError("this waits for a process that does nothing")
    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


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


@pytest.mark.parametrize("statement", ["q.get()", "q.get(timeout=1000)", "q.put(2)"])
def test_ctrl_c_ends_a_wait(statement):
    program = f"""
import farcall, sys
q = farcall.Queue(maxsize=1)
if "put" in {statement!r}: q.put(1)
try:
    print("ready", flush=True)
    {statement}
except KeyboardInterrupt:
    sys.exit(42)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        wait_for(lambda: is_asleep(child.pid))
        child.send_signal(signal.SIGINT)
        assert child.wait() == 42


def test_threads_share_a_queue():
    q = farcall.Queue(capacity=4096)
    threads = [threading.Thread(target=produce, args=(q, n, 500)) for n in range(3)]
    for thread in threads:
        thread.start()
    got = [q.get()[:2] for _ in range(1500)]
    for thread in threads:
        thread.join()
    assert sorted(got) == [(n, i) for n in range(3) for i in range(500)]


def test_an_item_for_which_there_is_no_thread_leaves_its_place(monkeypatch):
    q = farcall.Queue(maxsize=2, capacity=4096)
    q.put(bytes(4000))

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            q.put(bytes(4000))
    assert q.qsize() == 1
    q.put(bytes(3000), timeout=0)
    assert [q.get(), q.get()] == [bytes(4000), bytes(3000)]


def test_a_queue_for_which_there_was_no_thread_is_closed_and_joined(monkeypatch):
    q = farcall.Queue(capacity=4096)
    q.put(bytes(4000))

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            q.put(bytes(4000))
    q.close()
    q.join_thread()


def test_a_put_that_is_interrupted_when_its_thread_runs_has_put_nothing(monkeypatch):
    q = farcall.Queue(maxsize=3, capacity=4096)
    q.put(bytes(4000))
    start = threading.Thread.start

    def start_and_interrupt(thread):
        start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            q.put(b"interrupted" * 300)
    assert q.qsize() == 1
    q.put(b"next" * 800)
    assert [q.get(), q.get()] == [bytes(4000), b"next" * 800]
    with pytest.raises(queue.Empty):
        q.get(timeout=0.2)
    for i in range(3):
        q.put(i, timeout=0)
    assert q.full()


def test_a_forked_child_begins_with_nothing_of_its_parents_from_the_first():
    q = farcall.Queue(capacity=4096)
    q.put(bytes(4000))
    q.put(b"waits" * 500)
    if (pid := os.fork()) == 0:
        q.close()
        os._exit(len(q._waiting) or q._feeder is not None)
    assert os.waitpid(pid, 0)[1] == 0
    assert [q.get(), q.get()] == [bytes(4000), b"waits" * 500]


def test_what_a_thread_of_the_parent_used_is_closed_in_a_child():
    q = farcall.Queue(capacity=4096)
    thread = threading.Thread(target=q.get)
    thread.start()
    wait_for(lambda: all(is_in_state(f"{os.getpid()}/task/{task}", "S")
                         for task in os.listdir("/proc/self/task") if int(task) != os.getpid()))
    if (pid := os.fork()) == 0:
        descriptor = q._items.descriptors()[0]
        q._items.close()
        try:
            os.fstat(descriptor)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    q.put(1)
    thread.join()


def test_a_large_queue_is_made_whatever_signals_come():
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        farcall.Queue(capacity="16M")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_queue_of_more_memory_than_there_is_is_refused_before_it_is_made():
    """Else the kernel would end somebody to fill it."""
    everything = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # nothing is filled here in any case
    try:
        with pytest.raises(MemoryError):
            farcall.Queue(capacity=everything + everything // 8)
        with pytest.raises(OSError) as refused:
            farcall.Queue(capacity=1 << 20)
        assert refused.value.errno == errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def leaves_nothing(use, times):
    use()
    threads = set(threading.enumerate())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(times):
        use()
    end = time.monotonic() + 60
    while set(threading.enumerate()) - threads or len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_2000_queues_leave_nothing():
    def use():
        q = farcall.Queue(capacity=4096)
        q.put(1)
        assert q.get() == 1
    leaves_nothing(use, 2000)


def test_queues_whose_items_had_to_wait_leave_nothing():
    def use():
        q = farcall.Queue(capacity=4096)
        q.put(bytes(10_000))
        assert q.get() == bytes(10_000)
    leaves_nothing(use, 300)


def test_a_queue_whose_items_had_to_wait_and_that_is_closed_leaves_nothing_at_once():
    q = farcall.Queue(capacity=4096)
    q.put(bytes(10_000))
    assert q.get() == bytes(10_000)
    q.close()
    q.join_thread()
    assert not q._feeder.is_alive()


def test_what_has_to_wait_is_put_after_a_time_in_which_nothing_had_to():
    q = farcall.Queue(capacity=4096)
    for number in range(3):
        q.put(bytes([number]) * 10_000)
        q.put(number)
        assert [q.get(), q.get()] == [bytes([number]) * 10_000, number]
        q._feeder.join(60)
        assert not q._feeder.is_alive()


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


def test_the_size_is_exact_while_items_wait():
    q = farcall.Queue(capacity=4096)
    for i in range(10):
        q.put(bytes(3000))
        assert q.qsize() == i + 1
    for i in range(10):
        q.get()
        assert q.qsize() == 9 - i


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


def test_descriptors_that_are_no_queue_are_refused():
    memory = os.memfd_create("farcall-test")
    os.truncate(memory, 8192)
    items = farcall.Queue()._items
    queue = items.descriptors()
    count = len(queue)
    for descriptors in ([memory] * count, [-1] * count, list(range(count))):
        with pytest.raises(OSError):
            farcall._farcall.adopt_queue(descriptors)
    with tempfile.TemporaryFile() as plain:  # which could be cut short at any time
        plain.write(os.pread(queue[0], 1 << 24, 0))
        plain.flush()
        with pytest.raises(OSError):
            farcall._farcall.adopt_queue([plain.fileno(), *queue[1:]])
    for descriptors in ([], [memory]):
        with pytest.raises(IndexError):
            farcall._farcall.adopt_queue(descriptors)
    os.close(memory)
