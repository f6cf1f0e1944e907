# SPDX-License-Identifier: Apache-2.0
"""Broadcasts: one writer, many readers, each at its own pace."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

import farcall


def fill(w):
    """Until a slow reader is waited for; how many messages that takes."""
    sent = 0
    while w.try_send(bytes(100)):
        sent += 1
    return sent


@pytest.fixture
def name():
    return f"farcall-python-{uuid.uuid4()}"


def test_every_reader_gets_every_message(name):
    with farcall.Broadcast(name) as w:
        readers = [farcall.subscribe(name) for _ in range(5)]
        assert w.readers == 5
        messages = [b"%d" % i * i for i in range(50)]
        for message in messages:
            w.send(message)
        for r in readers:
            assert [r.recv() for _ in messages] == messages
            assert r.missed == 0
        readers[0].close()
        while w.readers != 4:  # the writer learns of it
            time.sleep(0.001)
    for r in readers[1:]:
        with pytest.raises(EOFError):
            r.recv()


def test_a_slow_reader_learns_how_many_it_missed():
    w = farcall.Broadcast(capacity=4096, policy="overwrite")
    r = w.invite().accept()
    for i in range(1000):
        w.send(b"%d" % i)
    received = [int(r.recv())]
    first = r.just_missed
    assert first == received[0] > 0
    while (message := r.try_recv()) is not None:
        received.append(int(message))
        assert r.just_missed == 0
    assert received == list(range(first, 1000))
    assert r.missed == first


def test_a_writer_that_blocks_waits_for_its_readers():
    w = farcall.Broadcast(capacity=4096, policy="block")
    r = w.invite().accept()
    sent = fill(w)
    with pytest.raises(BlockingIOError):
        w.send(bytes(100), timeout=0)
    with pytest.raises(TimeoutError):
        w.send(bytes(100), timeout=0.01)
    for _ in range(sent):
        assert r.recv(timeout=0) == bytes(100)
    w.send(bytes(100), timeout=10)
    assert r.missed == 0


def test_a_coroutine_waits_for_slow_readers():
    def long(text):
        return text.ljust(100)

    async def main():
        w = farcall.Broadcast(capacity=4096, policy="block")
        r = w.invite().accept()
        sent = fill(w)
        task = asyncio.create_task(w.asend(long(b"last")))
        turns = 0
        for _ in range(sent):
            await asyncio.sleep(0)
            turns += not task.done()
            assert r.recv(timeout=0) == bytes(100)
        assert turns > 0  # others ran while it waited
        await asyncio.wait_for(task, 60)
        assert await r.arecv(timeout=60) == long(b"last")
        # What has been waited for in vain has not been sent.
        sent = fill(w)
        with pytest.raises(TimeoutError):
            await w.asend(long(b"late"), timeout=0.01)
        with pytest.raises(BlockingIOError):
            await w.asend(long(b"now"), timeout=0)
        task = asyncio.create_task(w.asend(long(b"cancelled")))
        await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError):
            await w.asend(long(b"beside"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(sent):
            assert r.recv(timeout=0) == bytes(100)
        w.send(b"next", timeout=60)
        assert r.recv(timeout=60) == b"next"
        # A reader that closes is waited for no longer, and closing ends a wait.
        fill(w)
        task = asyncio.create_task(w.asend(long(b"alone")))
        await asyncio.sleep(0.01)
        r.close()
        await asyncio.wait_for(task, 60)
        r = w.invite().accept()
        fill(w)
        task = asyncio.create_task(w.asend(long(b"never")))
        await asyncio.sleep(0.01)
        w.close()
        with pytest.raises(ValueError):
            await asyncio.wait_for(task, 60)
    asyncio.run(main())


def test_readers_are_invited_while_a_writer_waits():
    async def main():
        w = farcall.Broadcast(capacity=4096, policy="block")
        r = w.invite().accept()
        fill(w)
        task = asyncio.create_task(w.asend(b"last".ljust(100)))
        while not w._waiters()._sleeping:
            await asyncio.sleep(0)
        # First by a thread, of which the loop can tell whether it ever returns.
        await asyncio.wait_for(asyncio.to_thread(w.invite), 60)
        another = w.invite().accept()
        assert not task.done()
        r.close()
        await asyncio.wait_for(task, 60)
        assert another.recv(timeout=60) == b"last".ljust(100)
    asyncio.run(main())


def test_a_slow_reader_is_dropped():
    w = farcall.Broadcast(capacity=4096, policy="drop_reader")
    r = w.invite().accept()
    for _ in range(1000):
        w.send(bytes(100))
    with pytest.raises(ConnectionAbortedError):
        while True:
            r.recv(timeout=10)


def test_a_reader_begins_with_the_oldest(name):
    w = farcall.Broadcast(name)
    for i in range(3):
        w.send(b"%d" % i)
    oldest, newest = farcall.subscribe(name, start="oldest"), farcall.subscribe(name)
    w.send(b"3")
    assert [oldest.recv() for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    assert newest.recv() == b"3"


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 100_000])
def test_messages_of_any_size_up_to_the_longest(size):
    w = farcall.Broadcast(capacity="1M")
    r = w.invite().accept()
    message = os.urandom(size)
    w.send(message)
    w.send(message)
    assert r.recv() == message
    buffer = bytearray(size + 10)
    assert r.recv_into(buffer) == size
    assert buffer[:size] == message
    with pytest.raises(farcall.MessageTooLong):
        w.send(bytes(w.longest + 1))


def test_a_reader_is_iterated(name):
    w = farcall.Broadcast(name)
    r = farcall.subscribe(name)
    for i in range(3):
        w.send(b"%d" % i)
    w.close()
    assert list(r) == [b"0", b"1", b"2"]


def test_coroutines_read(name):
    async def main():
        w = farcall.Broadcast(name)
        readers = [farcall.subscribe(name) for _ in range(3)]

        async def read(r):
            return [message async for message in r]

        tasks = [asyncio.create_task(read(r)) for r in readers]
        for i in range(20):
            for _ in range(i):
                await asyncio.sleep(0)
            w.send(b"%d" % i)
        w.close()
        for task in tasks:
            assert await task == [b"%d" % i for i in range(20)]
        with pytest.raises(TimeoutError):
            with farcall.Broadcast() as other:
                await other.invite().accept().arecv(timeout=0.01)
    asyncio.run(main())


def count_by_name(name, ready, results):
    with farcall.subscribe(name, timeout=60) as r:
        ready.release()
        results.put(sum(int(message) for message in r))


def count_invited(invitation, results):
    results.put(sum(int(message) for message in invitation.accept(start="oldest")))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_readers_are_other_processes(name, method):
    context = multiprocessing.get_context(method)
    w = farcall.Broadcast(name, policy="block")
    ready, results = context.Semaphore(0), farcall.Queue()
    invitation = w.invite()
    processes = [context.Process(target=count_by_name, args=(name, ready, results)) for _ in range(2)]
    processes.append(context.Process(target=count_invited, args=(invitation, results)))
    for process in processes:
        process.start()
    for _ in range(2):
        ready.acquire()
    for i in range(100):
        w.send(b"%d" % i)
    invitation.close()
    w.close()
    assert [results.get() for _ in processes] == [4950] * 3
    for process in processes:
        process.join()
        assert process.exitcode == 0


def test_a_reader_that_is_killed_does_not_hold_up_the_writer(name):
    program = f"import farcall; r = farcall.subscribe({name!r}); print('ready', flush=True); input()"
    with farcall.Broadcast(name, capacity=4096, policy="block") as w:
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "ready\n"
            child.kill()
        for _ in range(1000):
            w.send(bytes(100))
        while w.readers != 0:
            time.sleep(0.001)


def test_a_writer_that_is_killed_ends_its_readers(name):
    program = f"import farcall; w = farcall.Broadcast({name!r}); print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as child:
        assert child.stdout.readline() == "ready\n"
        r = farcall.subscribe(name)
        child.kill()
    with pytest.raises(ConnectionResetError):
        r.recv()


@pytest.mark.parametrize("statement", ["r.recv()", "w.send(bytes(100))", "next(iter(r))",
                                       "farcall.subscribe('farcall-python-nobody')"])
def test_ctrl_c_ends_a_wait(statement):
    program = f"""
import farcall, sys
w = farcall.Broadcast(capacity=4096, policy="block")
r = w.invite().accept()
while "send" in {statement!r} and w.try_send(bytes(100)): pass
try:
    print("ready", flush=True)
    {statement}
except KeyboardInterrupt:
    sys.exit(42)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        with open(f"/proc/{child.pid}/stat") as stat:
            while stat.read().rpartition(")")[2].split()[0] != "S":
                assert child.poll() is None
                time.sleep(0.001)
                stat.seek(0)
        child.send_signal(signal.SIGINT)
        assert child.wait() == 42


def test_what_is_closed_or_inherited_is_refused():
    w = farcall.Broadcast()
    r = w.invite().accept()
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (r.recv, lambda: w.send(b""), lambda: w.readers, r.poll_begin):
            try:
                use()
            except RuntimeError:
                refused += 1
        w.close()
        r.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    w.send(b"still here")
    assert r.recv() == b"still here"
    r.close()
    w.close()
    for use in (r.recv, r.fileno, lambda: w.send(b""), lambda: w.readers, w.invite):
        with pytest.raises(ValueError, match="closed"):
            use()


@pytest.mark.parametrize("arguments", [{"policy": "never"}, {"wait": "x"}, {"readers": 65}, {"capacity": "y"}])
def test_options_that_cannot_be_are_refused(arguments):
    with pytest.raises((ValueError, OSError)):
        farcall.Broadcast(**arguments)


def test_descriptors_that_are_no_invitation_are_refused():
    reader, writer = os.pipe()
    for descriptor in (-1, 1000, reader):
        with pytest.raises(OSError):
            farcall._farcall.adopt_subscriber(farcall.Subscriber, descriptor)
    os.close(reader)
    os.close(writer)


def test_500_broadcasts_leave_nothing():
    def use():
        with farcall.Broadcast(capacity=4096) as w, w.invite().accept() as r:
            w.send(b"x")
            assert r.recv() == b"x"
    for _ in range(20):
        use()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(500):
        use()
    # What is closed by a thread of the library is closed a little later.
    end = time.monotonic() + 60
    while len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_name_is_not_cut_at_a_null_character():
    for make in (farcall.Broadcast, farcall.subscribe, farcall.open_pipe, farcall.serve_pipe):
        with pytest.raises(ValueError, match="null"):
            make("one\0two")
