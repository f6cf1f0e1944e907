# SPDX-License-Identifier: Apache-2.0
"""A WSGI application: the digest of what is posted, or as many bytes as the path says."""

import hashlib
import os


def application(environ, start_response):
    path = environ["PATH_INFO"].strip("/")
    digest, size = hashlib.sha256(), 0
    while environ["REQUEST_METHOD"] == "POST":
        data = environ["wsgi.input"].read(65536)
        if not data:
            break
        digest.update(data)
        size += len(data)
    if path == "pid":
        body = [b"%d\n" % os.getpid()]
    elif path.isdigit():
        block = bytes(range(256)) * 256
        body = (block[:min(len(block), int(path) - at)] for at in range(0, int(path), len(block)))
    else:
        body = [f"{size} {digest.hexdigest()}\n".encode()]
    start_response("200 OK", [("Content-Type", "application/octet-stream")])
    return body
