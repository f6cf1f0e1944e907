# SPDX-License-Identifier: Apache-2.0
"""Messages between processes of one Linux machine, through memory that they share.

>>> import farcall
>>> a, b = farcall.pipe()
>>> a.send(b"hello")
>>> b.recv()
b'hello'

Every wait takes `timeout` in seconds: None waits for ever, 0 does not wait (BlockingIOError), else
TimeoutError. The end of what the other side sends is EOFError, its death ConnectionResetError, and to
send to nobody BrokenPipeError.
"""

from ._farcall import MessageTooLong, ProtocolError
from ._farcall import version as __version__
from .broadcast import Broadcast, Invitation, Subscriber, subscribe
from .calls import Caller, Door, Server, acall, call, caller, open_door, serve
from .connection import Connection, Pipe
from .pipes import PipeEnd, open_pipe, pipe, serve_pipe
from .queues import Queue

__all__ = [
    "Broadcast",
    "Caller",
    "Connection",
    "Door",
    "Invitation",
    "MessageTooLong",
    "Pipe",
    "PipeEnd",
    "ProtocolError",
    "Queue",
    "Server",
    "Subscriber",
    "acall",
    "call",
    "caller",
    "open_door",
    "open_pipe",
    "pipe",
    "serve",
    "serve_pipe",
    "subscribe",
]
