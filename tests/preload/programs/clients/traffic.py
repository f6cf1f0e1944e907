# SPDX-License-Identifier: Apache-2.0
"""Random traffic in both directions at once, checked at both ends.

Usage: traffic.py server PORT CONNECTIONS
       traffic.py client PORT CONNECTIONS SECONDS SEED

Each direction of a connection is a stream of bytes that a seed determines, cut at random, sent
with pauses at random; each connection uses one of four ways: blocking calls in threads, select,
epoll level and epoll edge triggered. A stream ends with a half-close; the receiver compares what
came with what the seed says, to the last byte.
"""

import random
import select
import socket
import struct
import sys
import threading
import time
import traceback

BLOCK = 1 << 16
WAYS = ("blocking", "select", "level", "edge", "message")
HELLO = struct.Struct("!QQQ")


class Stream:
    """The bytes that a seed stands for."""

    def __init__(self, seed, size):
        self.random, self.left, self.ready = random.Random(seed), size, b""

    def take(self, most):
        while len(self.ready) < most and self.left > 0:
            part = self.random.randbytes(min(BLOCK, self.left))
            self.left -= len(part)
            self.ready += part
        out, self.ready = self.ready[:most], self.ready[most:]
        return out


class Direction:
    """What is checked of one direction: the received bytes, in order, against the seed."""

    def __init__(self, seed, size):
        self.expected, self.size, self.got = Stream(seed, size), size, 0

    def receive(self, data):
        if self.expected.take(len(data)) != data:
            raise SystemExit(f"wrong bytes around {self.got} of {self.size}")
        self.got += len(data)

    def end(self):
        if self.got != self.size:
            raise SystemExit(f"the stream ended at {self.got} of {self.size} bytes")


def pieces(choose):
    """Sizes of writes or reads: mostly small, sometimes very large."""
    return int(2 ** choose.uniform(0, choose.choice([4, 8, 14, 20, 23])))


def rest(choose):
    chance = choose.random()
    if chance < 0.01:
        time.sleep(choose.uniform(0, 0.02))
    elif chance < 0.03:
        time.sleep(0)


def send_all(connection, seed, size, choose):
    stream = Stream(seed, size)
    while data := stream.take(pieces(choose)):
        if choose.random() < 0.2 and len(data) > 3:
            cut = choose.randrange(1, len(data))
            sent = connection.sendmsg([data[:cut], data[cut:]])
            connection.sendall(data[sent:])
        else:
            connection.sendall(data)
        rest(choose)
    connection.shutdown(socket.SHUT_WR)


def receive_all(connection, seed, size, choose):
    direction = Direction(seed, size)
    while True:
        chance, most = choose.random(), pieces(choose)
        if chance < 0.1:
            peeked = connection.recv(most, socket.MSG_PEEK)
            data = connection.recv(max(1, len(peeked)), socket.MSG_WAITALL)
            if data[:len(peeked)] != peeked:
                raise SystemExit("MSG_PEEK saw other bytes")
        elif chance < 0.2 and direction.size - direction.got >= most:
            data = connection.recv(most, socket.MSG_WAITALL)
            if len(data) != most:
                raise SystemExit(f"MSG_WAITALL returned {len(data)} of {most} bytes")
        else:
            data = connection.recv(most)
        if not data:
            return direction.end()
        direction.receive(data)
        rest(choose)


def blocking(connection, out, into, choose):
    result = []

    def sender():
        send_all(connection, *out, random.Random(choose.random()))
        result.append(True)

    thread = threading.Thread(target=sender)
    thread.start()
    receive_all(connection, *into, choose)
    thread.join()
    if not result:
        raise SystemExit("the sending thread failed")


class Multiplexed:
    """Both directions in one thread, non-blocking."""

    def __init__(self, connection, out, into, choose):
        self.connection, self.choose = connection, choose
        self.stream, self.direction = Stream(*out), Direction(*into)
        self.pending = self.stream.take(pieces(choose))
        self.reading = self.writing = True
        connection.setblocking(False)

    def write(self, once):
        while self.writing:
            if not self.pending:
                self.connection.shutdown(socket.SHUT_WR)
                self.writing = False
                return
            try:
                sent = self.connection.send(self.pending)
            except BlockingIOError:
                return
            self.pending = self.pending[sent:] or self.stream.take(pieces(self.choose))
            if once:
                return

    def read(self, once):
        while self.reading:
            try:
                data = self.connection.recv(pieces(self.choose))
            except BlockingIOError:
                return
            if data:
                self.direction.receive(data)
            else:
                self.direction.end()
                self.reading = False
            if once:
                return


PATIENCE = 30  # seconds without any progress


def run_select(connection, out, into, choose):
    both = Multiplexed(connection, out, into, choose)
    while both.reading or both.writing:
        readable, writable, _ = select.select([connection] if both.reading else [],
                                              [connection] if both.writing else [], [], PATIENCE)
        if not readable and not writable:
            raise SystemExit(f"select: nothing for {PATIENCE} s")
        if writable:
            both.write(True)
        if readable:
            both.read(True)
        rest(choose)


def run_epoll(connection, out, into, choose, edge):
    both = Multiplexed(connection, out, into, choose)
    with select.epoll() as epoll:
        more = select.EPOLLET if edge else 0
        epoll.register(connection, select.EPOLLIN | select.EPOLLOUT | more)
        writing = True
        while both.reading or both.writing:
            if writing and not both.writing and not edge:
                epoll.modify(connection, select.EPOLLIN)
                writing = False
            events = epoll.poll(PATIENCE)
            if not events:
                raise SystemExit(f"epoll: nothing for {PATIENCE} s")
            if events[0][1] & select.EPOLLOUT:
                both.write(not edge)
            if events[0][1] & (select.EPOLLIN | select.EPOLLHUP):
                both.read(not edge)
            rest(choose)


def run_messages(connection, out, into, choose):
    """In turns, as a server of requests: a length, so many bytes, and the next."""
    # Both know how both streams are cut, for who has sent waits for the other.
    mine, theirs = Stream(*out), Direction(*into)
    while mine.left or mine.ready or theirs.got < theirs.size:
        data = mine.take(1 + choose.randrange(3000))
        connection.sendall(struct.pack("!I", len(data)) + data)
        length = struct.unpack("!I", connection.recv(4, socket.MSG_WAITALL))[0]
        if length:
            theirs.receive(connection.recv(length, socket.MSG_WAITALL))
    connection.shutdown(socket.SHUT_WR)
    if connection.recv(1) != b"":
        raise SystemExit("bytes after the end")
    theirs.end()


def run(connection, way, out, into, seed):
    choose = random.Random(seed)
    connection.settimeout(None)
    if choose.random() < 0.5:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if way == "blocking":
        blocking(connection, out, into, choose)
    elif way == "select":
        run_select(connection, out, into, choose)
    elif way == "message":
        run_messages(connection, out, into, choose)
    else:
        run_epoll(connection, out, into, choose, way == "edge")


failures = []


def guarded(function, *arguments):
    try:
        function(*arguments)
    except BaseException as error:  # pylint: disable=broad-except
        where = traceback.extract_tb(error.__traceback__)
        failures.append("failed")
        print(f"failed: {type(error).__name__}: {error} in "
                        f"{[f'{frame.name}:{frame.lineno}' for frame in where[1:]]}", flush=True)


def serve(connection):
    with connection:
        hello = connection.recv(HELLO.size, socket.MSG_WAITALL)
        seed, there, back = HELLO.unpack(hello)
        ways = random.Random(seed)
        way = ways.choice(WAYS)
        # The server may go another way than the client, but takes turns only where both do.
        if way != "message":
            way = ways.choice([w for w in WAYS if w != "message"])
        run(connection, way, (seed + 2, back), (seed + 1, there), seed + 3)


def ask(port, seed, most):
    choose = random.Random(seed)
    there, back = (int(2 ** choose.uniform(0, most)) for _ in range(2))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(HELLO.pack(seed, there, back))
        way = random.Random(seed).choice(WAYS)
        run(connection, way, (seed + 1, there), (seed + 2, back), seed + 4)
    return there + back


def run_client(port, connections, seconds, seed):
    deadline, total, count, lock = time.monotonic() + seconds, [0], [0], threading.Lock()

    def worker(number):
        i = 0
        while time.monotonic() < deadline and not failures:
            size = ask(port, seed * 1_000_003 + number * 10_007 + i * 10, 23)
            i += 1
            with lock:
                total[0] += size
                count[0] += 1

    threads = [threading.Thread(target=guarded, args=(worker, n)) for n in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{count[0]} connections, {total[0]} bytes")


def run_server(port, connections):
    with socket.create_server(("127.0.0.1", port), backlog=connections * 4) as listener:
        while not failures:
            connection, _ = listener.accept()
            if connection.getpeername()[1] == 0:
                break
            threading.Thread(target=guarded, args=(serve, connection), daemon=True).start()


if sys.argv[1] == "server":
    guarded(run_server, int(sys.argv[2]), int(sys.argv[3]))
else:
    guarded(run_client, *map(int, sys.argv[2:6]))
sys.exit(1 if failures else 0)
