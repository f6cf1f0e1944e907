# SPDX-License-Identifier: Apache-2.0
"""A parent with children at the other ends of pairs. Usage: pairs.py SEED"""

import hashlib
import multiprocessing
import os
import random
import socket
import subprocess
import sys


def answer(connection):
    while True:
        data = connection.recv()
        if data is None:
            break
        connection.send((len(data), hashlib.sha256(data).hexdigest()))


def by_multiprocessing(generator, method):
    context = multiprocessing.get_context(method)
    ends = []
    for _ in range(3):
        here, there = context.Pipe()
        process = context.Process(target=answer, args=(there,))
        process.start()
        there.close()
        ends.append((here, process))
    for _ in range(400):
        here, _process = generator.choice(ends)
        data = generator.randbytes(generator.choice((1, 100, 5000, 70000)))
        here.send(data)
        assert here.recv() == (len(data), hashlib.sha256(data).hexdigest())
    for here, process in ends:
        here.send(None)
        process.join(30)
        assert process.exitcode == 0, process.exitcode


def by_fork(generator):
    """A child that only forks keeps both; descriptors go there and come back."""
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        while True:
            data, descriptors, _flags, _address = socket.recv_fds(there, 65536, 4)
            if not data:
                os._exit(0)
            if descriptors:
                data = b"".join(os.pread(one, 100, 0) for one in descriptors)
                for one in descriptors:
                    os.close(one)
            there.sendall(data)
    there.close()
    with open(__file__, "rb") as file:
        begin = os.pread(file.fileno(), 100, 0)
        for round_ in range(600):
            if round_ % 5 == 4:
                socket.send_fds(here, [b"x"], [file.fileno()])
                wanted = begin
            else:
                wanted = generator.randbytes(generator.choice((1, 64, 3000)))
                here.sendall(wanted)
            got = b""
            while len(got) < len(wanted):
                got += here.recv(65536)
            assert got == wanted, (round_, len(got), len(wanted))
    here.close()
    assert os.waitpid(child, 0)[1] == 0


def by_program(generator):
    here, there = socket.socketpair()
    with subprocess.Popen(["/bin/cat"], stdin=there, stdout=there) as process:
        there.close()
        for _ in range(300):
            data = generator.randbytes(generator.choice((1, 64, 3000)))
            here.sendall(data)
            got = b""
            while len(got) < len(data):
                got += here.recv(65536)
            assert got == data
        here.shutdown(socket.SHUT_WR)
        assert here.recv(1) == b""
        assert process.wait(30) == 0


def main():
    generator = random.Random(int(sys.argv[1]))
    by_multiprocessing(generator, "fork")
    by_multiprocessing(generator, "spawn")
    by_fork(generator)
    by_program(generator)
    print("all answers are right")


if __name__ == "__main__":
    main()
