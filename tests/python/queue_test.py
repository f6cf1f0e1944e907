# SPDX-License-Identifier: Apache-2.0
"""Queue does what multiprocessing's does, between any number of processes."""

import collections
import errno
import multiprocessing
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

import farcall
from queue_parts import consume, is_asleep, is_in_state, produce, wait_for


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


def produce_long(q, number, count):
    """Some are longer than the queue."""
    for i in range(count):
        q.put((number, i, b"x" * (i % 300 if i % 20 else 9000)))


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


def test_the_size_is_exact_while_items_wait():
    q = farcall.Queue(capacity=4096)
    for i in range(10):
        q.put(bytes(3000))
        assert q.qsize() == i + 1
    for i in range(10):
        q.get()
        assert q.qsize() == 9 - i


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
