# SPDX-License-Identifier: Apache-2.0
"""Send, Receive and Reply: messages through channels, as QNX has them.

Programs in C and C++ with farcall/message.h can be at the other end.

>>> import threading
>>> with Channel() as channel, channel.connect() as connection:
...     server = threading.Thread(target=lambda: channel.receive().reply(b"pong"))
...     server.start()
...     connection.send(b"ping")
...     server.join()
b'pong'

What the library refuses is raised as OSError with its errno; a send whose message was not answered
because the receiver has gone, as OSError with ESRCH or what farcall_send(3) says. A signal whose
handler returns ends a send with InterruptedError: the message may have been received by then, so it is
not sent again. A receive goes on.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pathlib
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from . import _farcall
from ._closing import Closing

_LIBRARY = "libfarcall-messages.so.0.1"
_UNBLOCK, _DISCONNECT = 1, 2
_ONE_WAY = 1
_SLICE = 0.0005  # seconds that a receiver waits in the library, which spins, before it polls
_LONGEST_POLL = 1e6  # seconds; poll() takes no more than twice as many
_FOR_EVER = 9e9  # seconds
_LONGEST = 2**63 - 1  # nanoseconds: without end, but a bound
_PATIENCE = 1.0  # seconds that a server has to answer where nobody is to wait

PULSE_DISCONNECT, PULSE_UNBLOCK, PULSE_DEATH = -1, -2, -3
"""Codes of pulses that the library sends."""


class _Info(ctypes.Structure):
    _fields_ = [
        ("connection", ctypes.c_int64),
        ("pid", ctypes.c_int),
        ("tid", ctypes.c_int),
        ("uid", ctypes.c_uint),
        ("gid", ctypes.c_uint),
        ("priority", ctypes.c_int),
        ("code", ctypes.c_int),
        ("value", ctypes.c_int64),
        ("length", ctypes.c_size_t),
        ("received", ctypes.c_size_t),
        ("room", ctypes.c_size_t),
        ("descriptor_count", ctypes.c_uint),
        ("descriptors", ctypes.c_int * 16),
    ]


class _Id(ctypes.c_int64):
    """What a message is answered by. Without an answer its sender is not left waiting, also where a signal
    ends what the receiver was doing before it has looked at what it got."""

    def end(self, error: int) -> None:
        if self.value > _ONE_WAY:
            _lib().error(self.value, error)
        self.value = 0

    def __del__(self) -> None:
        self.end(errno.ECONNABORTED)


class _Piece(ctypes.Structure):  # struct iovec
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class _Sending(ctypes.Structure):
    _fields_ = [
        ("send", ctypes.POINTER(_Piece)),
        ("send_count", ctypes.c_int),
        ("reply_count", ctypes.c_int),
        ("reply", ctypes.POINTER(_Piece)),
        ("descriptors", ctypes.POINTER(ctypes.c_int)),
        ("descriptor_count", ctypes.c_uint),
        ("flags", ctypes.c_uint),
        ("replied", ctypes.c_size_t),
    ]


class _Functions:
    """The library, loaded when it is first used."""

    def __init__(self) -> None:
        beside = pathlib.Path(__file__).with_name(_LIBRARY)
        self._library = ctypes.CDLL(str(beside) if beside.exists() else _LIBRARY, use_errno=True)
        size, number, text = ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
        info, wide = ctypes.POINTER(_Info), ctypes.c_int64
        memory = ctypes.c_void_p
        self.channel_create = self._get("channel_create", number, ctypes.c_uint)
        self.channel_destroy = self._get("channel_destroy", number, number)
        self.channel_descriptor = self._get("channel_descriptor", number, number)
        self.name_attach = self._get("name_attach", number, text, ctypes.c_uint, ctypes.c_uint)
        self.name_open = self._get("name_open", number, text)
        self.connect = self._get("connect", number, number)
        self.disconnect = self._get("disconnect", number, number)
        self.send = self._get("send_message", number, number, ctypes.POINTER(_Sending))
        self.send_one_way = self._get("send_one_way", number, number, text, size)
        self.receive = self._get("receive", _Id, number, memory, size, info)
        self.reply = self._get("reply", number, wide, number, text, size)
        self.error = self._get("error", number, wide, number)
        self.drop_descriptors = self._get("drop_descriptors", number, info)
        self.read = self._get("read", ctypes.c_ssize_t, wide, size, memory, size)
        self.pulse = self._get("pulse", number, number, number, number, wide)
        self.timeout = self._get("timeout", number, wide)
        self._caught_signal = ctypes.cast(self._get("caught_signal", None), memory).value

    def wait(self, timeout: float | None, function: Any, *arguments: Any) -> int:
        """Calls what may wait so long. Handlers of Python do not tell the library of signals, which would
        then wait on where it does not sleep just then. They all run on the main thread."""
        if timeout == 0 or threading.current_thread() is not threading.main_thread():
            self.timeout(_nanoseconds(timeout))
            return int(function(*arguments))
        _farcall.begin_noting(self._caught_signal)
        try:
            # From here on they count for the call.
            self.timeout(_LONGEST if timeout is None else _nanoseconds(timeout))
            return int(function(*arguments))
        finally:
            _farcall.end_noting()

    def _get(self, name: str, result: Any, *arguments: Any) -> Any:
        function = self._library["farcall_" + name]
        function.restype, function.argtypes = result, arguments
        return function


_loaded: _Functions | None = None


def _lib() -> _Functions:
    global _loaded
    if _loaded is None:
        _loaded = _Functions()
    return _loaded


def _fail(what: str | None = None) -> NoReturn:
    error = ctypes.get_errno()
    raise OSError(error, os.strerror(error), what) if what else OSError(error, os.strerror(error))


def _nanoseconds(timeout: float | None) -> int:
    return -1 if timeout is None or timeout >= _FOR_EVER else max(0, int(timeout * 1e9))


def _between(least: int, most: int, **numbers: int) -> None:
    """What ctypes would cut to its size, without a word, is refused."""
    for name, number in numbers.items():
        if not least <= number <= most:
            raise ValueError(f"{name} is from {least} to {most}, and not {number}")


def _name(name: str) -> bytes:
    encoded = os.fsencode(name)
    if b"\0" in encoded:
        raise ValueError("a name has no null character")
    return encoded


def _bytes(data: Any) -> bytes:
    return data if isinstance(data, bytes) else bytes(memoryview(data))


class Pulse:
    """A few bytes that somebody has sent and does not wait for."""

    __slots__ = ("code", "value", "priority", "pid", "uid", "gid", "connection")

    def __init__(self, info: _Info) -> None:
        self.code: int = info.code
        self.value: int = info.value
        self.priority: int = info.priority
        self.pid: int = info.pid
        self.uid: int = info.uid
        self.gid: int = info.gid
        self.connection: int = info.connection

    def __repr__(self) -> str:
        return f"<Pulse code={self.code} value={self.value} pid={self.pid}>"


class Message:
    """A message that was received: data, and who sent it, by the word of the kernel.

    Its sender waits until reply() or error() is called, once, by any thread; one that is dropped
    without is answered with ECONNABORTED. `length` is how long it was sent, `room` how long a reply may be. A `one_way` one is not
    to be answered.
    """

    __slots__ = ("_id", "data", "length", "priority", "pid", "tid", "uid", "gid", "connection", "room")

    def __init__(self, number: _Id, data: bytes, info: _Info) -> None:
        self._id = number
        self.data = data
        self.length: int = info.length
        self.priority: int = info.priority
        self.pid: int = info.pid
        self.tid: int = info.tid
        self.uid: int = info.uid
        self.gid: int = info.gid
        self.connection: int = info.connection
        self.room: int = info.room

    @property
    def one_way(self) -> bool:
        """Whether nobody waits for an answer, or no longer."""
        return self._id.value in (0, _ONE_WAY)

    def _answer(self, answer: Callable[..., int], *arguments: Any) -> None:
        # Where the answer is refused the sender waits on, for another one.
        if self.one_way:
            raise ValueError("this wants no answer, or has had it")
        result = answer(self._id.value, *arguments)
        if result >= 0 or ctypes.get_errno() == errno.ESRCH:
            self._id.value = 0
        if result < 0:
            _fail()

    def reply(self, data: Any = b"", status: int = 0) -> None:
        """Answers, with a status of 0 or more."""
        reply = _bytes(data)
        if not 0 <= status < 2**31:
            raise ValueError("a status is from 0 to 2**31 - 1")
        self._answer(_lib().reply, status, reply, len(reply))

    def error(self, number: int) -> None:
        """Answers: the sender's call raises OSError with that errno."""
        if not 0 < number < 2**31:
            raise ValueError("not an errno")
        self._answer(_lib().error, number)

    def __repr__(self) -> str:
        return f"<Message of {len(self.data)} bytes from process {self.pid}>"


class _Numbered(Closing):
    """What the library knows by a number."""

    __slots__ = ("_number", "__weakref__")
    _number: int

    @property
    def closed(self) -> bool:
        """Whether close() has been called."""
        return self._number < 0

    def _open(self) -> int:
        if self._number < 0:
            raise ValueError("this is closed")
        return self._number

    def _end(self, number: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is sent or received by it any more."""
        number, self._number = self._number, -1
        if number >= 0:
            self._end(number)

    def __del__(self) -> None:
        if hasattr(self, "_number"):
            self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("open its name in the other process")


class Connection(_Numbered):
    """Where messages are sent: what connect() and Channel.connect() return. Threads may share it."""

    __slots__ = ()

    def __init__(self, number: int) -> None:
        self._number = number

    def send(self, data: Any, timeout: float | None = None, room: int = 65536) -> bytes:
        """Sends a bytes-like object and waits for the reply, of at most `room` bytes."""
        return self.send_with_status(data, timeout, room)[1]

    def send_with_status(
        self, data: Any, timeout: float | None = None, room: int = 65536
    ) -> tuple[int, bytes]:
        """As send(); returns the status that the receiver has chosen, and the reply."""
        message = _bytes(data)
        if not 0 <= room < 2**63:
            raise ValueError("a room is from 0 to 2**63 - 1")
        memory = ctypes.create_string_buffer(max(room, 1))
        sent = _Piece(ctypes.cast(ctypes.c_char_p(message), ctypes.c_void_p), len(message))
        reply = _Piece(ctypes.addressof(memory), room)
        sending = _Sending(
            send=ctypes.pointer(sent), send_count=1, reply_count=1, reply=ctypes.pointer(reply)
        )
        number, functions = self._open(), _lib()
        status = functions.wait(timeout, functions.send, number, ctypes.byref(sending))
        if status < 0:
            _fail()
        return status, ctypes.string_at(memory, sending.replied)

    def send_one_way(self, data: Any, timeout: float | None = None) -> None:
        """Waits until the message has been received, and for no reply."""
        message = _bytes(data)
        number, functions = self._open(), _lib()
        if functions.wait(timeout, functions.send_one_way, number, message, len(message)) < 0:
            _fail()

    def pulse(self, code: int, value: int = 0, priority: int = 0) -> None:
        """Queues a pulse and does not wait. code: 0 or more; priority 0: the thread's own.

        ValueError where they do not fit: 32 bits, with a sign, for code and priority, 64 for value.
        """
        _between(0, 2**31 - 1, code=code, priority=priority)
        _between(-(2**63), 2**63 - 1, value=value)
        if _lib().pulse(self._open(), priority, code, value) < 0:
            _fail()

    def _end(self, number: int) -> None:
        _lib().disconnect(number)


class Channel(_Numbered):
    """Where messages and pulses are received, in turn by priority.

    name: by which processes connect that the permissions `mode` let; without one, this process's own.
    unblock: a sender that gives up stays until it is answered, and there is a pulse PULSE_UNBLOCK;
    disconnect: a pulse PULSE_DISCONNECT when nobody holds a connection any more.
    room: bytes to which one-way messages are cut; others are received whole.
    """

    __slots__ = ("_room",)

    def __init__(
        self,
        name: str | None = None,
        mode: int = 0o600,
        unblock: bool = False,
        disconnect: bool = False,
        room: int = 16384,
    ) -> None:
        self._number = -1
        self._room = max(room, 1)
        flags = _UNBLOCK * unblock | _DISCONNECT * disconnect
        if name is None:
            number = _lib().channel_create(flags)
        else:
            _between(0, 0o7777, mode=mode)
            number = _lib().name_attach(_name(name), flags, mode)
        if number < 0:
            _fail(name)
        self._number = number

    def connect(self) -> Connection:
        """A connection of this process."""
        number = _lib().connect(self._open())
        if number < 0:
            _fail()
        return Connection(number)

    def fileno(self) -> int:
        """For select and event loops: readable when there may be something to receive."""
        number = _lib().channel_descriptor(self._open())
        if number < 0:
            _fail()
        return int(number)

    def _try(self, time_left: float) -> Message | Pulse | None:
        memory, info, functions = ctypes.create_string_buffer(self._room), _Info(), _lib()
        while True:
            channel, number = self._open(), _Id(0)
            functions.timeout(_nanoseconds(time_left))
            try:
                number = functions.receive(channel, memory, self._room, ctypes.byref(info))
                if number.value == 0:
                    return Pulse(info)
                if number.value > 0:
                    if info.descriptor_count != 0:
                        functions.drop_descriptors(ctypes.byref(info))
                    data = ctypes.string_at(memory, info.received)
                    if info.received != info.length and number.value != _ONE_WAY:
                        data += self._rest(number.value, info)
                    return Message(number, data, info)
            except BaseException as failed:  # nobody will answer it
                number.end(errno.ENOMEM if isinstance(failed, MemoryError) else errno.ECONNABORTED)
                if info.descriptor_count != 0:
                    functions.drop_descriptors(ctypes.byref(info))
                if not isinstance(failed, ProcessLookupError):
                    raise
                time_left = 0  # its sender has gone meanwhile
                continue
            if ctypes.get_errno() in (errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR):
                return None
            _fail()

    @staticmethod
    def _rest(number: int, info: _Info) -> bytes:
        rest = ctypes.create_string_buffer(info.length - info.received)
        got = _lib().read(number, info.received, rest, len(rest))
        if got < 0:
            _fail()
        return ctypes.string_at(rest, got)

    def receive(self, timeout: float | None = None) -> Message | Pulse:
        """The most urgent of what waits, or waits for it; TimeoutError, BlockingIOError for 0."""
        deadline = None if timeout is None else time.monotonic() + timeout
        poll = None
        time_left = _SLICE if timeout is None else min(timeout, _SLICE)
        while (found := self._try(time_left)) is None:
            time_left = 0
            if timeout == 0:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            if poll is None:
                poll = select.poll()
                poll.register(self.fileno(), select.POLLIN)
            poll.poll(None if left is None else min(left, _LONGEST_POLL) * 1000 + 1)
        return found

    def __iter__(self) -> Iterator[Message | Pulse]:
        """What is received, without end. The loop's variable has a message until the next one comes: one
        that is not answered is to be deleted (`del`), or its sender waits as long."""
        while True:
            yield self.receive()

    def _end(self, number: int) -> None:
        _lib().channel_destroy(number)


def connect(name: str, timeout: float | None = 0) -> Connection:
    """A connection to the channel of that name.

    `timeout`: waits so long until there is one and its server answers. With 0 there has to be one, and
    its server has a second to answer.
    """
    waits = timeout is None or timeout > 0
    end = None if timeout is None else time.monotonic() + (timeout if waits else _PATIENCE)
    full_name, functions = _name(name), _lib()
    while True:
        left = None if end is None else max(0.0, end - time.monotonic())
        number = functions.wait(left, functions.name_open, full_name)
        if number >= 0:
            return Connection(number)
        # Where there is no bound the library has one of its own.
        error = ctypes.get_errno()
        is_over = end is not None and time.monotonic() >= end
        if error == errno.EINTR and is_over:
            error = errno.ETIMEDOUT
        again = (errno.EINTR, errno.ETIMEDOUT) + (errno.ENOENT,) * waits
        if error not in again or is_over:
            raise OSError(error, os.strerror(error), name)
        if error == errno.ENOENT:
            time.sleep(0.005)
