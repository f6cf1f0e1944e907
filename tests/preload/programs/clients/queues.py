# SPDX-License-Identifier: Apache-2.0
"""One end of ZeroMQ sockets. Usage: queues.py server|client ENDPOINT-PREFIX

The server answers requests, gathers what is pushed, and publishes what it gathered. The client's
end is made and closed many times.
"""

import hashlib
import random
import sys
import threading

import zmq

PLACES = ("answer", "gather", "publish")


def addresses(prefix):
    """tcp://127.0.0.1:PORT or ipc://PATH, three of each."""
    if prefix.startswith("tcp"):
        base, port = prefix.rsplit(":", 1)
        return [f"{base}:{int(port) + number}" for number in range(len(PLACES))]
    return [f"{prefix}-{place}" for place in PLACES]


def serve(context, where):
    answer, gather, publish = context.socket(zmq.ROUTER), context.socket(zmq.PULL), context.socket(zmq.XPUB)
    for one, address in zip((answer, gather, publish), where):
        one.set(zmq.LINGER, 5000)
        one.bind(address)
    print("ready", flush=True)
    poller = zmq.Poller()
    for one in (answer, gather, publish):
        poller.register(one, zmq.POLLIN)
    while True:
        for one, _ in poller.poll():
            parts = one.recv_multipart()
            if one is answer:
                if parts[-1] == b"end":
                    one.send_multipart([*parts[:-1], b"ended"])
                    context.destroy(linger=5000)
                    return
                one.send_multipart([*parts[:-1], hashlib.sha256(parts[-1]).digest(), parts[-1]])
            elif one is gather:
                publish.send_multipart([parts[0], hashlib.sha256(parts[1]).digest()])
            else:
                publish.send_multipart([b"welcome", b""])


def ask(context, address, seed):
    generator = random.Random(seed)
    for _ in range(5):
        with context.socket(zmq.REQ) as here:
            here.set(zmq.RCVTIMEO, 20000)
            here.connect(address)
            for _ in range(60):
                data = generator.randbytes(generator.choice((0, 1, 200, 5000, 300000)))
                here.send(data)
                digest, back = here.recv_multipart()
                assert back == data and digest == hashlib.sha256(data).digest()


def push(context, gather, publish):
    generator = random.Random(9)
    with context.socket(zmq.PUSH) as out, context.socket(zmq.SUB) as back:
        back.set(zmq.RCVTIMEO, 20000)
        back.connect(publish)
        back.subscribe(b"")
        back.recv_multipart()  # the server knows of the subscription
        out.connect(gather)
        wanted = []
        for number in range(3000):
            data = generator.randbytes(generator.choice((10, 1000, 20000)))
            wanted.append([b"%d" % number, hashlib.sha256(data).digest()])
            out.send_multipart([b"%d" % number, data])
            if number % 100 == 99:
                for one in wanted:
                    got = back.recv_multipart()
                    assert got == one, (got, one)
                wanted = []


def main():
    where, context = addresses(sys.argv[2]), zmq.Context()
    if sys.argv[1] == "server":
        serve(context, where)
        return
    failed = []
    threads = [threading.Thread(target=ask, args=(context, where[0], seed)) for seed in range(4)]
    threads.append(threading.Thread(target=push, args=(context, where[1], where[2])))
    threading.excepthook = failed.append
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed, failed
    with context.socket(zmq.REQ) as here:
        here.connect(where[0])
        here.send(b"end")
        assert here.recv() == b"ended"
    context.destroy(linger=5000)
    print("all messages are right")


main()
