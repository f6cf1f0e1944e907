# SPDX-License-Identifier: Apache-2.0
"""Keeps values in memcached and looks whether they are what was kept.

Usage: memcached_client.py PORT|PATH THREADS VALUES_PER_THREAD
"""

import random
import socket
import sys
import threading

place = sys.argv[1]
threads, values = map(int, sys.argv[2:])
kept = []


def connect():
    if not place.startswith("/"):
        return socket.create_connection(("127.0.0.1", int(place)))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place)
    return connection


def work(number):
    choose = random.Random(number)
    with connect() as connection, connection.makefile("rb") as answers:
        data = {}
        for i in range(values):
            size = choose.choice([0, 1, 100, 1000, 10_000, 100_000 if i % 20 else 900_000])
            data[f"k{number}-{i}"] = choose.randbytes(size)
        for key, value in data.items():
            connection.sendall(f"set {key} 0 0 {len(value)}\r\n".encode() + value + b"\r\n")
            assert answers.readline() == b"STORED\r\n"
        # Pipelined: all questions before the first answer.
        asked = [key for key in data if len(data[key]) <= 10_000]
        connection.sendall("".join(f"get {key}\r\n" for key in asked).encode())
        right = sum(read_value(answers) == data[key] for key in asked)
        for key in data.keys() - set(asked):
            connection.sendall(f"get {key}\r\n".encode())
            right += read_value(answers) == data[key]
        kept.append(right)


def read_value(answers):
    head = answers.readline().split()
    value = answers.read(int(head[3]))
    assert answers.readline() == b"\r\n" and answers.readline() == b"END\r\n"
    return value


workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(sum(kept), "values kept")
