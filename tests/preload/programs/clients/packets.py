# SPDX-License-Identifier: Apache-2.0
"""An echo of packets at a path (SOCK_SEQPACKET), and a client that counts and compares.

packets.py server PATH | client PATH SEED
"""

import os
import random
import selectors
import socket
import sys

LONGEST = 30_000


def serve(path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                client, _ = listener.accept()
                client.setblocking(False)
                selector.register(client, selectors.EVENT_READ)
                continue
            client = key.fileobj
            message, fds, _, _ = socket.recv_fds(client, LONGEST, 2)
            if message == b"end":
                selector.unregister(client)
                client.close()
            elif fds:
                socket.send_fds(client, [message], fds)
                for fd in fds:
                    os.close(fd)
            else:
                client.send(message)


def ask(path, seed):
    chance = random.Random(seed)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(path)
    for i in range(2000):
        # Several questions before the first answer is read.
        questions = [chance.randbytes(chance.choice((0, 1, 40, 900, LONGEST)))
                     for _ in range(chance.randrange(1, 4))]
        for question in questions:
            if i % 20 == 7:
                socket.send_fds(server, [question], [0])
            else:
                server.send(question)
        for question in questions:
            answer, fds, flags, _ = socket.recv_fds(server, LONGEST, 2)
            for fd in fds:
                os.close(fd)
            if answer != question or len(fds) != (i % 20 == 7) or flags != 0:
                sys.exit(f"round {i}: {len(question)} bytes came back as {len(answer)}")
    server.send(b"end")
    if server.recv(LONGEST) != b"":
        sys.exit("no end")
    print("all packets came back")


if sys.argv[1] == "server":
    serve(sys.argv[2])
else:
    ask(sys.argv[2], int(sys.argv[3]))
