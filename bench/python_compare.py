#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Farcall for Python beside what Python has: one run, in which all take turns.

Usage: PYTHONPATH=build/release/python bench/python_compare.py [--rounds N] [--quick]
Prints the median of the rounds, the least and the most, and how many times as fast farcall is.
Round trips are of 64 bytes between two processes, on a processor each where there are two.
"""

import argparse
import asyncio
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from multiprocessing import managers, shared_memory

import farcall

MESSAGE = b"x" * 64
fork = multiprocessing.get_context("fork")
PROCESSORS = sorted(os.sched_getaffinity(0))


def pin(number):
    os.sched_setaffinity(0, {PROCESSORS[number % len(PROCESSORS)]})


def with_child(child, here):
    """What `here` returns while `child` runs in another process."""
    def run():
        pin(1)
        child()

    process = fork.Process(target=run)
    process.start()
    try:
        return here()
    finally:
        process.join()


def per_turn(count, turn):
    for _ in range(count // 10):
        turn()
    began = time.perf_counter()
    for _ in range(count):
        turn()
    return (time.perf_counter() - began) / count * 1e6


def round_trips(make, send, receive, count):
    a, b = make()

    def child():
        a.close()
        put, get = getattr(b, send), getattr(b, receive)
        while (message := get()) != b"":
            put(message)

    def here():
        put, get = getattr(a, send), getattr(a, receive)

        def turn():
            put(MESSAGE)
            get()
        result = per_turn(count, turn)
        put(b"")
        return result
    return with_child(child, here)


def spinning_flag(count):
    """No library at all: a flag in shared memory that both sides look at without end."""
    memory = shared_memory.SharedMemory(create=True, size=256)
    flags = memory.buf

    def child():
        for _ in range(count + count // 10):
            while flags[0] == 0:
                pass
            flags[0] = 0
            flags[64:128] = flags[128:192]
            flags[192] = 1

    def here():
        def turn():
            flags[128:192] = MESSAGE
            flags[0] = 1
            while flags[192] == 0:
                pass
            flags[192] = 0
        return per_turn(count, turn)

    try:
        return with_child(child, here)
    finally:
        flags.release()
        memory.close()
        memory.unlink()


def zmq_pair(count):
    import zmq
    address = f"ipc://@farcall-bench-{os.getpid()}"  # no file

    def child():
        with zmq.Context() as context, context.socket(zmq.PAIR) as there:
            there.connect(address)
            while (message := there.recv()) != b"":
                there.send(message)

    def here():
        with zmq.Context() as context, context.socket(zmq.PAIR) as end:
            end.bind(address)

            def turn():
                end.send(MESSAGE)
                end.recv()
            result = per_turn(count, turn)
            end.send(b"")
            return result
    return with_child(child, here)


def echo(data):
    return data


def farcall_call(count, measure=lambda door, count: per_turn(count, lambda: door.call(MESSAGE))):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "echo")

        def child():
            with farcall.serve(path, echo):
                over.wait()

        def here():
            with farcall.open_door(path, timeout=10) as door:
                result = measure(door, count)
            over.set()
            return result

        over = fork.Event()
        return with_child(child, here)


class Manager(managers.BaseManager):
    """An object of another process whose methods are called."""


class Echo:
    def echo(self, data):
        return data


Manager.register("Echo", Echo)


def manager_call(count):
    with Manager(ctx=fork) as manager:
        os.sched_setaffinity(manager._process.pid, {PROCESSORS[1 % len(PROCESSORS)]})
        remote = manager.Echo()
        return per_turn(count, lambda: remote.echo(MESSAGE))


def asyncio_farcall(count):
    a, b = farcall.pipe()

    def child():
        async def echo():
            while (message := await b.arecv()) != b"":
                await b.asend(message)
        asyncio.run(echo())

    async def main():
        for _ in range(count // 10):
            await a.asend(MESSAGE)
            await a.arecv()
        began = time.perf_counter()
        for _ in range(count):
            await a.asend(MESSAGE)
            await a.arecv()
        took = time.perf_counter() - began
        await a.asend(b"")
        return took / count * 1e6
    return with_child(child, lambda: asyncio.run(main()))


def asyncio_call(count):
    async def main(door):
        for _ in range(count // 10):
            await door.acall(MESSAGE)
        began = time.perf_counter()
        for _ in range(count):
            await door.acall(MESSAGE)
        return (time.perf_counter() - began) / count * 1e6
    return farcall_call(count, lambda door, _: asyncio.run(main(door)))


def asyncio_socket(count):
    a, b = socket.socketpair()

    def child():
        async def echo():
            a.close()
            reader, writer = await asyncio.open_unix_connection(sock=b)
            try:
                while True:
                    writer.write(await reader.readexactly(len(MESSAGE)))
            except asyncio.IncompleteReadError:
                writer.close()
        asyncio.run(echo())

    async def main():
        reader, writer = await asyncio.open_unix_connection(sock=a)
        for _ in range(count // 10):
            writer.write(MESSAGE)
            await reader.readexactly(len(MESSAGE))
        began = time.perf_counter()
        for _ in range(count):
            writer.write(MESSAGE)
            await reader.readexactly(len(MESSAGE))
        took = time.perf_counter() - began
        writer.close()
        await writer.wait_closed()
        b.close()
        return took / count * 1e6
    return with_child(child, lambda: asyncio.run(main()))


def queue_items(make, count):
    """Microseconds per item, from one process to another."""
    q = make()

    def child():
        for i in range(count):
            q.put(i)

    def here():
        q.get()
        began = time.perf_counter()
        for _ in range(count - 1):
            q.get()
        return (time.perf_counter() - began) / (count - 1) * 1e6
    return with_child(child, here)


def broadcast_cost(readers, seconds):
    """Percent of a processor that one writer, every 5 ms, and its readers take in total."""
    w = farcall.Broadcast(policy="block")
    invitations = [w.invite() for _ in range(readers)]

    def read(invitation):
        for _ in invitation.accept(start="oldest"):
            pass

    processes = [fork.Process(target=read, args=(invitation,)) for invitation in invitations]
    for process in processes:
        process.start()
    while w.readers < readers:
        time.sleep(0.01)
    time.sleep(0.2)

    def used():
        """Seconds, of all; what /proc/PID/stat says is too coarse for waits that are so short."""
        total = 0
        for pid in [os.getpid(), *(process.pid for process in processes)]:
            with open(f"/proc/{pid}/schedstat") as schedstat:
                total += int(schedstat.read().split()[0])
        return total / 1e9

    before, began = used(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        w.send(MESSAGE)
        time.sleep(0.005)
    cost = (used() - before) / (time.perf_counter() - began) * 100
    for invitation in invitations:
        invitation.close()
    w.close()
    for process in processes:
        process.join()
    return cost


def show(title, unit, rows, rounds):
    """All rows of one round before the next round, so that all see the same machine."""
    results = {name: [] for name, _ in rows}
    for _ in range(rounds):
        for name, measure in rows:
            results[name].append(measure())
    first = statistics.median(results[rows[0][0]])
    print(f"\n{title}: median (least to most) of {rounds} rounds")
    for name, values in results.items():
        median = statistics.median(values)
        times = "" if name == rows[0][0] else f"  {median / first:6.1f} times farcall's"
        print(f"  {name:34} {median:9.2f} {unit} ({min(values):.2f} to {max(values):.2f}){times}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    arguments = parser.parse_args()
    n = 1000 if arguments.quick else 10000
    everywhere = os.sched_getaffinity(0)
    pin(0)
    rows = [
        ("farcall.pipe", lambda: round_trips(farcall.pipe, "send", "recv", n * 5)),
        ("multiprocessing.Pipe, bytes", lambda: round_trips(multiprocessing.Pipe, "send_bytes", "recv_bytes", n)),
        ("shared_memory, a spinning flag", lambda: spinning_flag(n)),
    ]
    try:
        import zmq  # noqa: F401
        rows.append(("pyzmq PAIR over ipc", lambda: zmq_pair(n)))
    except ImportError:
        print("pyzmq is not installed: not measured")
    show("Round trip of 64 bytes", "us", rows, arguments.rounds)
    show("Call of a function with 64 bytes", "us", [
        ("farcall.open_door", lambda: farcall_call(n * 5)),
        ("multiprocessing.managers", lambda: manager_call(n))], arguments.rounds)
    show("Round trip of 64 bytes in coroutines", "us", [
        ("farcall asend, arecv", lambda: asyncio_farcall(n)),
        ("farcall acall", lambda: asyncio_call(n)),
        ("asyncio streams, unix socket", lambda: asyncio_socket(n))], arguments.rounds)
    show("Items through a queue", "us per item", [
        ("farcall.Queue", lambda: queue_items(farcall.Queue, n * 10)),
        ("multiprocessing.Queue", lambda: queue_items(multiprocessing.Queue, n * 2)),
        ("multiprocessing.SimpleQueue", lambda: queue_items(multiprocessing.SimpleQueue, n * 2))],
        arguments.rounds)
    os.sched_setaffinity(0, everywhere)
    show("One writer every 5 ms, 7 readers", "% of a processor", [
        ("farcall.Broadcast", lambda: broadcast_cost(7, 1 if arguments.quick else 3))], arguments.rounds)


if __name__ == "__main__":
    main()
