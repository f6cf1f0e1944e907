# SPDX-License-Identifier: Apache-2.0
"""What the tests of queues share."""

import time

# Where things are in the memory of a queue (queue.h): both sides, the first entry of a process, data.
PUT, GET, PROCESS, DATA = 192, 320, 640, 8768
ENTRIES = (DATA - PROCESS) // 64  # of processes that each has one of


def produce(q, number, count):
    for i in range(count):
        q.put((number, i, b"x" * (i % 300)))


def consume(q, results):
    seen = []
    while (item := q.get()) is not None:
        seen.append(item[:2])
    results.put(seen)


def wait_for(condition):
    while not condition():
        time.sleep(0.001)


def is_in_state(pid, state):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == state


def is_asleep(pid):
    return is_in_state(pid, "S")
