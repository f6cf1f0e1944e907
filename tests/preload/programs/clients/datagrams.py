# SPDX-License-Identifier: Apache-2.0
"""Datagrams of three senders to one receiver, which waits in all ways: each comes whole, with the
right address, and in order. Loopback drops none that finds room.

Usage: datagrams.py server PORT SEED | datagrams.py client PORT SEED
"""

import random
import select
import socket
import struct
import sys
import threading
import time

SENDERS, SECONDS, END = 3, 2, 0xffffffff
HEAD = struct.Struct("!III")


def receive_some(receiver, events, choose, take):
    """Waits in one way or another, then takes what is there."""
    chance = choose.random()
    # Not settimeout(), with which Python polls.
    receiver.setblocking(chance < 0.4)
    if 0.4 <= chance < 0.6:
        select.select([receiver], [], [], 1)
    elif 0.6 <= chance < 0.7:
        poll = select.poll()
        poll.register(receiver, select.POLLIN)
        poll.poll(1000)
    elif 0.7 <= chance < 0.85:
        events.poll(1)
    for _ in range(choose.randrange(1, 200)):
        try:
            if choose.random() < 0.05:
                peeked = receiver.recvfrom(70000, socket.MSG_PEEK)
                received = receiver.recvfrom(70000)
                if peeked != received:
                    sys.exit(f"peeked at {peeked[1]}, received from {received[1]}")
            else:
                received = receiver.recvfrom(70000)
        except (BlockingIOError, socket.timeout):
            return
        take(*received)


def server(port, seed):
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 1, 0))
    receiver.bind(("127.0.0.1", port))
    events = select.epoll()
    events.register(receiver, select.EPOLLIN)
    choose, last, ended, count = random.Random(seed), {}, set(), [0]

    def take(data, sender):
        number, sequence, size = HEAD.unpack_from(data)
        if sequence == END:
            ended.add(number)
            return
        if data[HEAD.size:] != bytes([sequence & 255]) * size:
            sys.exit(f"{sender} sent other bytes than these {len(data)}")
        if sequence <= last.get(sender, -1):
            sys.exit(f"{sequence} of {sender} came after {last[sender]}")
        last[sender] = sequence
        count[0] += 1

    deadline = time.monotonic() + 30
    while len(ended) < SENDERS and time.monotonic() < deadline:
        receive_some(receiver, events, choose, take)
        if choose.random() < 0.05:
            time.sleep(choose.random() * 0.003)
    print(len(ended), "senders,", "many" if count[0] > 100 else count[0], "datagrams", flush=True)


def send(port, number, seed):
    choose = random.Random(seed * 7 + number)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    to = ("127.0.0.1", port)
    if number == 1:
        sender.connect(to)
    put = sender.send if number == 1 else lambda data: sender.sendto(data, to)
    deadline, sequence = time.monotonic() + SECONDS, 0
    while time.monotonic() < deadline:
        for _ in range(choose.randrange(1, 20)):
            size = choose.choice([0, 1, 50, 1000, 9000 if choose.random() < 0.1 else 3])
            put(HEAD.pack(number, sequence, size) + bytes([sequence & 255]) * size)
            sequence += 1
        time.sleep(choose.choice([0, 0.0001, 0.002]))
    # Until the server has gone: one that has no processor for a while loses some.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
        last.connect(to)
        for round_ in range(400):
            put_end = put if round_ < 5 else last.send
            try:
                put_end(HEAD.pack(number, END, 0))
            except ConnectionRefusedError:
                return
            time.sleep(0.05)


def client(port, seed):
    threads = [threading.Thread(target=send, args=(port, n, seed)) for n in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


{"server": server, "client": client}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
