# SPDX-License-Identifier: Apache-2.0
"""Coroutines wait without threads and without keeping their loop."""

import asyncio
import multiprocessing
import os
import threading

import pytest

import farcall


def test_a_coroutine_waits_while_others_run():
    async def main():
        a, b = farcall.pipe()
        turns = []

        async def count():
            for i in range(100):
                turns.append(i)
                await asyncio.sleep(0)
            await a.asend(b"done")

        counter = asyncio.create_task(count())
        assert await b.arecv() == b"done"
        await counter
        assert len(turns) == 100
        assert threading.active_count() == 1
    asyncio.run(main())


def echo(end):
    async def main():
        async for message in end:
            await end.asend(message)
    asyncio.run(main())


@pytest.mark.parametrize("size", [0, 64, 100_000])
def test_round_trips_with_another_process(size):
    async def main():
        message = os.urandom(size)
        for _ in range(200):
            await a.asend(message)
            assert await a.arecv() == message

    a, b = farcall.pipe(capacity="16K")
    process = multiprocessing.get_context("fork").Process(target=echo, args=(b,))
    process.start()
    b.close()
    asyncio.run(main())
    a.close()
    process.join()
    assert process.exitcode == 0


def test_a_sleeping_coroutine_is_woken_by_a_message():
    async def main():
        a, b = farcall.pipe()
        receiver = asyncio.create_task(b.arecv())
        while b.fileno() not in asyncio.get_running_loop()._selector.get_map():
            await asyncio.sleep(0)
        a.send(b"wake up")
        assert await receiver == b"wake up"
        assert b.fileno() not in asyncio.get_running_loop()._selector.get_map()
    asyncio.run(main())


def test_a_sender_waits_for_room():
    async def main():
        a, b = farcall.pipe(capacity=4096)
        messages = [bytes([i]) * 500 for i in range(100)]

        async def send():
            for message in messages:
                await a.asend(message)

        sender = asyncio.create_task(send())
        await asyncio.sleep(0)
        assert [await b.arecv() for _ in messages] == messages
        await sender
    asyncio.run(main())


def test_timeouts():
    async def main():
        a, b = farcall.pipe(capacity=4096)
        with pytest.raises(BlockingIOError):
            await b.arecv(timeout=0)
        with pytest.raises(TimeoutError):
            await b.arecv(timeout=0.01)
        while a.try_send(bytes(100)):
            pass
        with pytest.raises(BlockingIOError):
            await a.asend(bytes(100), timeout=0)
        with pytest.raises(TimeoutError):
            await a.asend(bytes(100), timeout=0.01)
        assert await b.arecv() == bytes(100)
    asyncio.run(main())


@pytest.mark.parametrize("timeout", [-1, float("nan"), -0.5])
def test_timeouts_that_are_none_take_and_send_nothing(timeout):
    async def main():
        a, b = farcall.pipe()
        b.send(b"for a")
        with pytest.raises(ValueError):
            await a.arecv(timeout)
        with pytest.raises(ValueError):
            await a.asend(b"for b", timeout)
        assert a.recv(timeout=0) == b"for a"
        assert b.try_recv() is None
        with pytest.raises(ValueError):
            await a.arecv(timeout)

    asyncio.run(main())


def test_a_cancelled_coroutine_loses_nothing():
    async def main():
        a, b = farcall.pipe()
        for i in range(100):
            receiver = asyncio.create_task(b.arecv())
            for _ in range(i % 7):
                await asyncio.sleep(0)
            receiver.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiver
            a.send(b"%d" % i)
            assert await b.arecv() == b"%d" % i
    asyncio.run(main())


def test_a_second_coroutine_is_refused():
    async def main():
        a, b = farcall.pipe()
        first = asyncio.create_task(b.arecv())
        while b.fileno() not in asyncio.get_running_loop()._selector.get_map():
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already"):
            await b.arecv()
        a.send(b"x")
        assert await first == b"x"
    asyncio.run(main())


def test_close_ends_the_wait_of_a_coroutine():
    async def main():
        a, b = farcall.pipe()
        receiver = asyncio.create_task(b.arecv())
        while b.fileno() not in asyncio.get_running_loop()._selector.get_map():
            await asyncio.sleep(0)
        b.close()
        with pytest.raises(ValueError, match="closed"):
            await receiver
        with pytest.raises(BrokenPipeError):
            a.send(b"")
    asyncio.run(main())


def test_the_end_ends_the_wait_of_a_coroutine():
    async def main():
        a, b = farcall.pipe()
        receiver = asyncio.create_task(b.arecv())
        while b.fileno() not in asyncio.get_running_loop()._selector.get_map():
            await asyncio.sleep(0)
        a.close()
        with pytest.raises(EOFError):
            await receiver
    asyncio.run(main())


def test_who_finishes_while_another_sends_is_refused():
    async def main():
        a, b = farcall.pipe(capacity=4096)
        while a.try_send(bytes(100)):
            pass
        sending = asyncio.create_task(a.asend(bytes(100)))
        await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError):
            a.finish()  # waiting would keep the loop, which alone can end the sending
        while not sending.done():
            await b.arecv(timeout=10)
            await asyncio.sleep(0)
        a.finish()
        with pytest.raises(EOFError):
            while True:
                assert await b.arecv(timeout=10) == bytes(100)
    asyncio.run(main())


async def turns_during(work):
    """How often another task has its turn, and what work() returns."""
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    result = await work()
    counter.cancel()
    return turns, result


def test_who_always_finds_a_message_keeps_nobody_from_running():
    async def main():
        a, b = farcall.pipe(capacity="16M")
        messages = [b"%d" % i for i in range(40_000)]

        async def send():
            for message in messages:
                await a.asend(message)

        async def receive():
            return [await b.arecv() for _ in range(15_000)] + [await b.arecv(timeout=60) for _ in range(15_000)]

        async def iterate():
            got = []
            async for message in b:
                got.append(message)
            return got

        turns, _ = await turns_during(send)
        assert turns >= 5
        turns, got = await turns_during(receive)
        assert turns >= 5
        a.close()
        turns, rest = await turns_during(iterate)
        assert turns >= 1
        assert got + rest == messages
    asyncio.run(main())


def test_who_is_cancelled_while_messages_keep_coming_loses_none():
    async def main():
        a, b = farcall.pipe(capacity="16M")
        for i in range(10_000):
            a.send(b"%d" % i)
        got = []

        async def receive():
            while True:
                got.append(await b.arecv())

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await receive()
        assert 0 < len(got) < 10_000
        while (message := b.try_recv()) is not None:
            got.append(message)
        assert got == [b"%d" % i for i in range(10_000)]
    asyncio.run(main())


def test_what_tasks_send_and_receive_at_once_stays_in_order():
    async def main():
        a, b = farcall.pipe(capacity="16M")
        messages = [b"%d" % i for i in range(20_000)]
        await asyncio.gather(*(a.asend(message) for message in messages))
        assert [b.try_recv() for _ in messages] == messages
        for message in messages:
            a.send(message)
        assert await asyncio.gather(*(b.arecv() for _ in messages)) == messages
    asyncio.run(main())


def test_who_always_finds_a_long_message_lets_others_run_more_often():
    async def main():
        a, b = farcall.pipe(capacity="32M")
        message = bytes(16384)

        async def send():
            for _ in range(1000):
                await a.asend(message)

        async def receive():
            for _ in range(1000):
                assert await b.arecv() == message

        turns, _ = await turns_during(send)
        assert turns >= 2
        turns, _ = await turns_during(receive)
        assert turns >= 2
    asyncio.run(main())


def test_who_has_no_time_gives_no_turn_to_others():
    async def main():
        a, b = farcall.pipe(capacity="16M")
        others = asyncio.create_task(asyncio.sleep(0))
        for _ in range(5000):
            await a.asend(b"x", timeout=0)
        for _ in range(5000):
            assert await b.arecv(timeout=0) == b"x"
        assert not others.done()
        await others
    asyncio.run(main())


def test_who_is_told_again_and_again_that_there_is_something_keeps_nobody_from_running():
    async def main():
        left = 2000

        def attempt():
            nonlocal left
            left -= 1
            return b"at last" if left == 0 else None

        async def receive():
            return await farcall._waiting.receive(
                farcall._waiting.Waiters(), attempt, lambda: -1, lambda: False, lambda: None)

        turns, got = await turns_during(receive)
        assert got == b"at last"
        assert turns >= 10
    asyncio.run(main())
