#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One scheduler tells its workers what comes next, as inference servers do, in each way there is.

Usage: PYTHONPATH=build/release/python bench/python_steps.py [--workers N] [--rate N] [--steps N]
         [--rounds N] [--json FILE] [--plot FILE.png]

Each step is a pickled dictionary with the request numbers and their tokens. Measured are the time
from the scheduler's send to each worker's hands on the object, and the processor time of all
processes together, in percent of one processor. All ways take turns; the figures are over all
rounds.

Ways: farcall.Broadcast; a ring of chunks in shared memory whose flags all look at, yielding the
processor between two looks, as inference servers have it; a pipe or a queue for each worker of
multiprocessing; ZeroMQ PUB and SUB, where pyzmq is installed.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pickle
import statistics
import sys
import tempfile
import time
from multiprocessing import shared_memory

import farcall

fork = multiprocessing.get_context("fork")
END = b""


class Broadcast:
    """farcall.Broadcast: readers sleep as long as there is nothing."""

    name = "farcall.Broadcast"

    def __init__(self, workers):
        self.writer = farcall.Broadcast(policy="block", capacity="1M")
        self.invitations = [self.writer.invite() for _ in range(workers)]

    def send(self, message):
        self.writer.send(message)

    def receiver(self, rank):
        return self.invitations[rank].accept(start="oldest").recv

    def close(self):
        for invitation in self.invitations:
            invitation.close()
        self.writer.close()


class Flags:
    """A ring of chunks. Each has a flag of the writer's and one of each reader's.

    The writer takes a chunk that all readers have read, takes back their flags and sets its own. A
    reader waits for the writer's flag, copies, and sets its own. Whoever waits yields and looks
    again.
    """

    name = "shared_memory, flags polled"
    CHUNKS, BYTES, LENGTH = 10, 1 << 16, 4

    def __init__(self, workers):
        self.workers = workers
        self.data = self.CHUNKS * self.BYTES
        self.memory = shared_memory.SharedMemory(create=True, size=self.data + self.CHUNKS * (1 + workers))
        self.view = self.memory.buf
        self.view[self.data:] = bytes(self.CHUNKS * (1 + workers))
        self.at = 0

    def _flags(self):
        first = self.data + self.at * (1 + self.workers)
        return self.view[first:first + 1 + self.workers]

    def _next(self):
        self.at = (self.at + 1) % self.CHUNKS

    def send(self, message):
        with self._flags() as flags:
            while flags[0] and sum(flags[1:]) != self.workers:
                os.sched_yield()
            flags[0] = 0
            start = self.at * self.BYTES
            self.view[start:start + self.LENGTH] = len(message).to_bytes(self.LENGTH, "little")
            self.view[start + self.LENGTH:start + self.LENGTH + len(message)] = message
            flags[1:] = bytes(self.workers)
            flags[0] = 1
        self._next()

    def receiver(self, rank):
        def receive():
            with self._flags() as flags:
                while not flags[0] or flags[1 + rank]:
                    os.sched_yield()
                start = self.at * self.BYTES
                length = int.from_bytes(self.view[start:start + self.LENGTH], "little")
                message = bytes(self.view[start + self.LENGTH:start + self.LENGTH + length])
                flags[1 + rank] = 1
            self._next()
            return message
        return receive

    def close(self):
        self.view.release()
        self.memory.close()
        self.memory.unlink()


class Pipes:
    """A pipe for each worker."""

    name = "multiprocessing.Pipe for each"

    def __init__(self, workers):
        self.pipes = [fork.Pipe(duplex=False) for _ in range(workers)]

    def send(self, message):
        for _, writer in self.pipes:
            writer.send_bytes(message)

    def receiver(self, rank):
        return self.pipes[rank][0].recv_bytes

    def close(self):
        for ends in self.pipes:
            for end in ends:
                end.close()


class Queues:
    """A queue for each worker."""

    name = "multiprocessing.Queue for each"

    def __init__(self, workers):
        self.queues = [fork.Queue() for _ in range(workers)]

    def send(self, message):
        for queue in self.queues:
            queue.put(message)

    def receiver(self, rank):
        return self.queues[rank].get

    def close(self):
        for queue in self.queues:
            queue.close()


class ZeroMq:
    """PUB and SUB over a Unix socket."""

    name = "pyzmq PUB and SUB"

    def __init__(self, workers):
        import zmq
        self.zmq = zmq
        self.directory = tempfile.TemporaryDirectory()
        self.address = f"ipc://{self.directory.name}/steps"
        self.socket = None
        self.workers = workers

    def send(self, message):
        if self.socket is None:  # here, as a context does not outlive a fork
            self.context = self.zmq.Context()
            self.socket = self.context.socket(self.zmq.XPUB)
            self.socket.xpub_verbose = 1  # each subscription is told of, also where it is not new
            self.socket.rcvtimeo = 60000
            self.socket.bind(self.address)
            for _ in range(self.workers):
                self.socket.recv()  # a subscription
        self.socket.send(message)

    def receiver(self, rank):
        socket = self.zmq.Context().socket(self.zmq.SUB)
        socket.connect(self.address)
        socket.subscribe(b"")
        return socket.recv

    def close(self):
        if self.socket is not None:
            self.socket.close(linger=1000)
            self.context.term()
        self.directory.cleanup()


WAYS = [Broadcast, Flags, Pipes, Queues, ZeroMq]


def step(number):
    """What a scheduler says: what to run, and how long each request is by now."""
    requests = {request: 128 + number % 512 for request in range(16)}
    return {"step": number, "requests": requests, "blocks": list(range(32)), "sent": time.monotonic_ns()}


def work(way, rank, ready, results):
    receive = way.receiver(rank)
    ready.release()
    late = []
    while (message := receive()) != END:
        late.append((time.monotonic_ns() - pickle.loads(message)["sent"]) / 1000)
    results.send(late)


def processor_time(processes):
    """Nanoseconds, of these processes and their threads."""
    total = 0
    for process in processes:
        tasks = f"/proc/{process}/task"
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
    return total


def run(kind, workers, rate, steps):
    """(microseconds of each step and worker, percent of a processor)"""
    way = kind(workers)
    ways_out = [fork.Pipe(duplex=False) for _ in range(workers)]
    ready = fork.Semaphore(0)
    processes = [fork.Process(target=work, args=(way, rank, ready, ways_out[rank][1]))
                 for rank in range(workers)]
    for process in processes:
        process.start()
    try:
        for _ in processes:
            if not ready.acquire(timeout=60):
                raise RuntimeError(f"{kind.name}: a worker has not begun")
        way.send(pickle.dumps(step(0)))  # connects
        time.sleep(0.1)
        pids = [os.getpid()] + [process.pid for process in processes]
        before, began = processor_time(pids), time.monotonic()
        for number in range(1, steps + 1):
            way.send(pickle.dumps(step(number), pickle.HIGHEST_PROTOCOL))
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
        used = (processor_time(pids) - before) / (time.monotonic() - began) / 1e7
        way.send(END)
        late = []
        for receiver, _ in ways_out:
            if not receiver.poll(60):
                raise RuntimeError(f"{kind.name}: a worker has said nothing")
            late += receiver.recv()[1:]
        for process in processes:
            process.join(60)
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
                process.join()
        way.close()
        for ends in ways_out:
            for end in ends:
                end.close()
    if len(late) != workers * steps:
        raise RuntimeError(f"{kind.name}: {len(late)} of {workers * steps} steps have come")
    return late, used


def draw(results, title, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [result["name"] for result in results]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 0.6 * len(names) + 1.6), layout="constrained",
                                         sharey=True)
    places = range(len(names))
    left.barh(places, [result["p50_us"] for result in results], color="tab:blue", label="half within")
    left.plot([result["p99_us"] for result in results], places, "k|", markersize=16, label="99 % within")
    left.set_xscale("log")
    left.set_xlim(left=min(result["p50_us"] for result in results) / 4)
    left.set_xlabel("from the scheduler to a worker, microseconds")
    left.set_yticks(places, names)
    left.invert_yaxis()
    left.legend(loc="lower right", fontsize="small")
    bars = right.barh(places, [result["processor_percent"] for result in results], color="tab:orange")
    right.bar_label(bars, fmt="%.1f", padding=3)
    right.set_xscale("log")
    used = [result["processor_percent"] for result in results]
    right.set_xlim(min(used) / 4, max(used) * 4)
    right.set_xlabel("all processes together, % of one processor")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=7, help="default: 7")
    parser.add_argument("--rate", type=float, default=200, help="steps a second; default: 200")
    parser.add_argument("--steps", type=int, default=600, help="in a round; default: 600")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE.png")
    arguments = parser.parse_args()
    if min(arguments.workers, arguments.rate, arguments.steps, arguments.rounds) <= 0:
        parser.error("workers, rate, steps and rounds are more than 0")

    ways = list(WAYS)
    with contextlib.suppress(ImportError):
        import zmq  # noqa: F401
    if "zmq" not in sys.modules:
        ways.remove(ZeroMq)
        print("pyzmq is not installed: not measured", file=sys.stderr)
    rounds = {kind: [] for kind in ways}
    for _ in range(arguments.rounds):
        for kind in ways:
            rounds[kind].append(run(kind, arguments.workers, arguments.rate, arguments.steps))

    results = []
    for kind, measured in rounds.items():
        late = sorted(value for values, _ in measured for value in values)
        used = [percent for _, percent in measured]
        results.append({"name": kind.name, "p50_us": statistics.median(late),
                        "p99_us": late[len(late) * 99 // 100],
                        "processor_percent": statistics.median(used),
                        "processor_percent_rounds": used})
    title = (f"{arguments.rate:g} steps a second to {arguments.workers} workers, "
             f"{len(os.sched_getaffinity(0))} processors")
    print(f"{title}, {arguments.rounds} rounds of {arguments.steps} steps\n")
    print(f"{'':32} {'half within':>12} {'99 % within':>12} {'all processes, % of one processor':>36}")
    for result in results:
        used = result["processor_percent_rounds"]
        spread = f"{result['processor_percent']:.1f} ({min(used):.1f} to {max(used):.1f})"
        print(f"{result['name']:32} {result['p50_us']:9.1f} us {result['p99_us']:9.1f} us {spread:>36}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"workers": arguments.workers, "rate": arguments.rate, "steps": arguments.steps,
                       "rounds": arguments.rounds, "ways": results}, file, indent=1)
    if arguments.plot:
        draw(results, title, arguments.plot)


if __name__ == "__main__":
    main()
