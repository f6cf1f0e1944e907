# SPDX-License-Identifier: Apache-2.0
"""Sends back what comes, to any number of clients, with selectors. Usage: echo_server.py PORT"""

import selectors
import socket
import sys

selector = selectors.DefaultSelector()
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=128)
listener.setblocking(False)
selector.register(listener, selectors.EVENT_READ)
waiting = {}
ended = set()
while True:
    for key, events in selector.select():
        connection = key.fileobj
        if connection is listener:
            client, _ = listener.accept()
            client.setblocking(False)
            waiting[client] = bytearray()
            selector.register(client, selectors.EVENT_READ)
            continue
        buffer = waiting[connection]
        try:
            if events & selectors.EVENT_READ:
                data = connection.recv(65536)
                if data:
                    buffer += data
                else:
                    ended.add(connection)
            if buffer:
                del buffer[:connection.send(buffer)]
        except BlockingIOError:
            pass
        except ConnectionError:
            buffer.clear()
            ended.add(connection)
        wanted = 0 if connection in ended or len(buffer) > 1 << 20 else selectors.EVENT_READ
        if buffer:
            wanted |= selectors.EVENT_WRITE
        if wanted:
            selector.modify(connection, wanted)
        else:
            selector.unregister(connection)
            connection.close()
            ended.discard(connection)
            del waiting[connection]
