# SPDX-License-Identifier: Apache-2.0
"""Calls by coroutines."""

import asyncio
import contextlib
import errno
import os
import resource
import signal
import threading
import time

import pytest

import farcall


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def eventually(condition):
    for _ in range(5000):
        if condition():
            return True
        time.sleep(0.002)
    return False


async def let_in(door, data):
    """A server that is kept from the processor for a tenth of a second takes nobody in meanwhile."""
    for _ in range(1000):
        try:
            return await door.acall(data)
        except OSError as error:
            if error.errno != errno.EUSERS:
                raise
            await asyncio.sleep(0.001)
    return await door.acall(data)


def test_it_is_answered(path, server):
    async def main():
        assert await farcall.acall(path, b"hello") == b"olleh"
        assert await farcall.acall(path, bytearray(b"hello"), timeout=60) == b"olleh"
        with farcall.open_door(path) as door:
            for data in (b"", b"x" * 5000, b"ab" * 1_000_000):
                assert await door.acall(data, timeout=60) == data[::-1]

    asyncio.run(main())


def test_many_are_in_progress_at_once_in_one_thread(path, server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(1000, (hard - 500) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def main():
        with farcall.open_door(path) as door:
            for _ in range(2):
                requests = [b"slow %d" % i for i in range(count)]
                replies = await asyncio.gather(*(let_in(door, data) for data in requests))
                assert replies == [data[::-1] for data in requests]

    try:
        before = threading.active_count()
        asyncio.run(main())
        assert threading.active_count() == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_others_run_meanwhile(path):
    go_on = threading.Event()

    def answer(data):
        assert go_on.wait(60)
        return data

    async def main():
        with farcall.open_door(path) as door:
            task = asyncio.create_task(door.acall(b"x"))
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not task.done()
            go_on.set()
            assert await task == b"x"

    with farcall.serve(path, answer):
        asyncio.run(main())


def test_a_cancelled_one_is_given_up(path):
    reached, gone = threading.Event(), threading.Event()

    def answer(data):
        if data != b"give up":
            return data
        reached.set()

        def has_gone():
            try:
                farcall.caller()
            except RuntimeError:
                return True
            return False

        if eventually(has_gone):
            gone.set()

    async def main():
        with farcall.open_door(path) as door:
            task = asyncio.create_task(door.acall(b"give up"))
            while not reached.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(gone.wait, 60)
            assert await door.acall(b"next") == b"next"

    with farcall.serve(path, answer):
        asyncio.run(main())


def test_time_is_up(path):
    go_on = threading.Event()

    async def main():
        with farcall.open_door(path) as door:
            with pytest.raises(TimeoutError):
                await door.acall(b"x", timeout=0.02)
            with pytest.raises(TimeoutError):
                await farcall.acall(path, b"x", timeout=0.02)
            go_on.set()
            assert await door.acall(b"x", timeout=60) == b""

    def answer(data):
        go_on.wait(60)

    with farcall.serve(path, answer):
        asyncio.run(main())


def test_it_fails_as_call_does(path):
    def answer(data):
        raise SystemExit  # nothing is printed of it

    async def main():
        with pytest.raises(FileNotFoundError):
            await farcall.acall(path, b"")
        path.touch()
        with pytest.raises(ConnectionRefusedError):
            await farcall.acall(path, b"")
        with pytest.raises(ConnectionRefusedError):
            await farcall.acall(path, b"", timeout=0.02)
        with farcall.serve(path, bytes, longest=4):
            with pytest.raises(farcall.MessageTooLong):
                await farcall.acall(path, b"fives")
            door = farcall.open_door(path)
            assert await door.acall(b"four") == b"four"
            with pytest.raises(TypeError):
                await door.acall("text")
        with pytest.raises(BrokenPipeError):
            await door.acall(b"four")
        door.close()
        with pytest.raises(ValueError, match="closed"):
            await door.acall(b"")

    asyncio.run(main())


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_timeout_that_cannot_be_is_refused(tmp_path, timeout):
    path = tmp_path / "nobody"
    path.touch()
    with pytest.raises(ValueError):
        farcall.call(path, b"", timeout)

    async def main():
        await asyncio.wait_for(farcall.acall(path, b"", timeout), 10)

    with pytest.raises(ValueError):
        asyncio.run(main())


def test_it_waits_for_a_server(path):
    path.touch()

    async def main():
        task = asyncio.create_task(farcall.acall(path, b"late", timeout=60))
        await asyncio.sleep(0.05)
        with farcall.serve(path, bytes):
            assert await task == b"late"

    asyncio.run(main())


def test_a_server_dies(path, server):
    async def main():
        with farcall.open_door(path) as door:
            with pytest.raises(ConnectionAbortedError):
                await door.acall(b"die")
            with pytest.raises(BrokenPipeError):
                await door.acall(b"again")

    asyncio.run(main())


def test_a_stopped_server_holds_nobody_up(path, server):
    async def main():
        with farcall.open_door(path) as door:
            assert await door.acall(b"one") == b"eno"
            os.kill(server.pid, signal.SIGSTOP)
            try:
                os.waitpid(server.pid, os.WUNTRACED)
                with pytest.raises(TimeoutError):
                    await door.acall(b"in time", timeout=0.02)
                tasks = [asyncio.create_task(door.acall(b"%d" % i)) for i in range(20)]
                await asyncio.sleep(0.02)
                assert not any(task.done() for task in tasks)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert await asyncio.gather(*tasks) == [(b"%d" % i)[::-1] for i in range(20)]

    asyncio.run(main())


def test_a_door_may_be_closed_meanwhile(path, server):
    async def main():
        door = farcall.open_door(path)
        task = asyncio.create_task(door.acall(b"slow"))
        await asyncio.sleep(0)
        door.close()
        assert await task == b"wols"

    asyncio.run(main())


def test_a_forked_child_has_its_own(path, server):
    with farcall.open_door(path) as door:
        call = door.begin(b"parent")
        child = os.fork()
        if child == 0:
            try:
                with pytest.raises(RuntimeError):
                    call.try_take()
                call.close()
                assert asyncio.run(door.acall(b"child")) == b"dlihc"
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert eventually(lambda: (reply := call.try_take()) is not None and reply == b"tnerap")
        with pytest.raises(OSError):
            call.try_take()


def test_nothing_is_left_of_what_is_given_up(path, server):
    async def give_up(door, times):
        for _ in range(times):
            task = asyncio.create_task(let_in(door, b"slow"))
            await asyncio.sleep(0)
            task.cancel()
            # Where this thread has had no processor the answer may have come first.
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def main():
        with farcall.open_door(path) as door:
            await give_up(door, 50)
            assert await door.acall(b"x") == b"x"
            before = descriptors()
            await give_up(door, 1000)
            assert await door.acall(b"x") == b"x"
            assert eventually(lambda: descriptors() <= before + 4)

    asyncio.run(main())
