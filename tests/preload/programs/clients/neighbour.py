# SPDX-License-Identifier: Apache-2.0
"""Questions and answers over TCP and UDP at one port; every answer is checked.

Usage: neighbour.py server PORT | neighbour.py client PORT SECONDS
"""

import os
import select
import socket
import sys
import time


def server(port):
    listener = socket.create_server(("127.0.0.1", port))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", port))
    connections = [listener, datagrams]
    while True:
        for ready in select.select(connections, [], [])[0]:
            if ready is listener:
                connections.append(listener.accept()[0])
            elif ready is datagrams:
                data, sender = datagrams.recvfrom(2000)
                datagrams.sendto(data[::-1], sender)
            elif data := ready.recv(2000):
                ready.sendall(data[::-1])
            else:
                connections.remove(ready)
                ready.close()
                if len(connections) == 2:
                    return


def client(port, seconds):
    stream = socket.create_connection(("127.0.0.1", port))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.connect(("127.0.0.1", port))
    deadline, count = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        for line in stream, datagrams:
            question = os.urandom(count % 1000 + 1)
            line.settimeout(10)
            line.send(question)
            answer = b""
            while len(answer) < len(question):
                answer += line.recv(2000)
            if answer != question[::-1]:
                sys.exit(f"a wrong answer, number {count}")
        count += 1
    print("right" if count > 50 else f"{count} only", flush=True)


if sys.argv[1] == "server":
    server(int(sys.argv[2]))
else:
    client(int(sys.argv[2]), float(sys.argv[3]))
