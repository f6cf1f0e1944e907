# SPDX-License-Identifier: Apache-2.0
"""Send, Receive, Reply between threads, processes, and with programs in C."""

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from farcall import messages

SERVE = """
import os, signal, sys
from farcall import messages
with messages.Channel(sys.argv[1], disconnect=True) as channel:
    print("ready", flush=True)
    for what in channel:
        if isinstance(what, messages.Pulse):
            if what.code == 1: break
        elif what.data == b"die": os.kill(os.getpid(), signal.SIGKILL)
        elif what.data == b"fail": what.error(5)
        elif what.data == b"drop": del what
        elif what.data == b"sleep": kept = what
        elif what.data == b"who": what.reply(f"{what.pid} {what.uid}".encode())
        elif not what.one_way: what.reply(what.data[::-1], len(what.data) % 100)
"""


@pytest.fixture
def name():
    return f"farcall-python-messages-{os.getpid()}"


@pytest.fixture
def server(name):
    """Another process that receives there."""
    with subprocess.Popen([sys.executable, "-c", SERVE, name], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_messages_are_answered(name, server):
    with messages.connect(name, timeout=60) as connection:
        assert connection.send(b"abc") == b"cba"
        assert connection.send_with_status(memoryview(b"12")) == (2, b"21")
        for size in (0, 1, 100, 16383, 16384, 16385, 1_000_000):
            data = os.urandom(size)
            assert connection.send(data, room=size, timeout=60) == data[::-1]
        assert connection.send(b"who").decode() == f"{os.getpid()} {os.geteuid()}"


def test_errors_are_raised(name, server):
    with messages.connect(name, timeout=60) as connection:
        with pytest.raises(OSError) as caught:
            connection.send(b"fail")
        assert caught.value.errno == errno.EIO
        with pytest.raises(ConnectionAbortedError):
            connection.send(b"drop")
        with pytest.raises(TimeoutError):
            connection.send(b"sleep", timeout=0.05)
        assert connection.send(b"abc") == b"cba"
        with pytest.raises(OSError):
            connection.send(b"die")
        with pytest.raises(OSError):
            connection.send(b"again")
    server.wait(60)  # what it has open is closed one by one, and its name may be the last
    with pytest.raises(FileNotFoundError) as caught:
        messages.connect(name)
    assert caught.value.filename == name
    with pytest.raises(ValueError):
        connection.send(b"closed")


def test_a_connection_waits_for_a_server_that_has_stopped(name, server):
    os.kill(server.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, server.pid, os.WSTOPPED)
    handled = 0

    def handle(*_):
        nonlocal handled
        handled += 1
        if handled == 3:
            os.kill(server.pid, signal.SIGCONT)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        connection = messages.connect(name, timeout=None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with connection:
        assert handled >= 3
        assert connection.send(b"abc") == b"cba"


class Opens:
    """What connect() has the library do, which fails with each of these errors before it is asked."""

    def __init__(self, monkeypatch, *errors, ever=0):
        functions = messages._lib()
        self.left, self.ever, self.bounds = list(errors), ever, []
        self.bound, self.name_open = functions.timeout, functions.name_open
        monkeypatch.setattr(functions, "timeout", self.say)
        monkeypatch.setattr(functions, "name_open", self.open)

    def say(self, nanoseconds):
        self.bounds.append(nanoseconds)
        return self.bound(nanoseconds)

    def open(self, name):
        error = self.left.pop(0) if self.left else self.ever
        if not error:
            return self.name_open(name)
        ctypes.set_errno(error)
        return -1


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_connection_is_waited_for_as_long_as_there_is_time(name, server, monkeypatch, timeout):
    opens = Opens(monkeypatch, errno.EINTR, errno.ETIMEDOUT, errno.ENOENT)
    with messages.connect(name, timeout) as connection:
        bounds = opens.bounds[:4]
        assert connection.send(b"abc") == b"cba"
    if timeout is None:
        assert bounds == [messages._LONGEST] * 4
    else:
        assert 60e9 >= bounds[0] >= bounds[1] >= bounds[2] > bounds[3] > 0


@pytest.mark.parametrize("said, raised", [(errno.EINTR, TimeoutError), (errno.ETIMEDOUT, TimeoutError),
                                          (errno.ENOENT, FileNotFoundError)])
def test_a_connection_is_not_waited_for_any_longer(name, monkeypatch, said, raised):
    opens = Opens(monkeypatch, ever=said)
    with pytest.raises(raised) as caught:
        messages.connect(name, timeout=0.05)
    assert caught.value.filename == name
    assert all(0 <= bound <= 0.05e9 for bound in opens.bounds) and opens.bounds


def test_a_connection_is_tried_at_once(name, server, monkeypatch):
    opens = Opens(monkeypatch, errno.ENOENT)
    with pytest.raises(FileNotFoundError):
        messages.connect(name)
    assert len(opens.bounds) == 1 and 0 < opens.bounds[0] <= 1e9
    messages.connect(name).close()


def test_numbers_that_would_be_cut_are_refused():
    with messages.Channel() as channel, channel.connect() as connection:
        connection.pulse(2**31 - 1, -(2**63))
        pulse = channel.receive(timeout=60)
        assert (pulse.code, pulse.value) == (2**31 - 1, -(2**63))
        for code, value, priority in [
            (2**31, 0, 0), (2**32 + 2, 0, 0), (-1, 0, 0),
            (1, 2**63, 0), (1, 2**64 + 5, 0), (1, -(2**63) - 1, 0),
            (1, 0, 2**33), (1, 0, -1),
        ]:
            with pytest.raises(ValueError):
                connection.pulse(code, value, priority)
        # A room of -1 would be all memory.
        for room in (-1, 2**64 + 8):
            with pytest.raises(ValueError):
                connection.send(b"x", timeout=0, room=room)
        with pytest.raises(BlockingIOError):
            channel.receive(timeout=0)


def test_names_and_modes_that_would_be_cut_are_refused(name):
    for mode in (-1, 2**32 + 0o600):
        with pytest.raises(ValueError):
            messages.Channel(name, mode=mode)
    with pytest.raises(ValueError):
        messages.Channel(name + "\0more")
    with messages.Channel(name):
        with pytest.raises(ValueError):
            messages.connect(name + "\0more", timeout=1)


def test_pulses_and_what_is_sent_one_way():
    with messages.Channel(disconnect=True, room=4) as channel:
        connection = channel.connect()
        connection.pulse(3, -5, priority=1)
        pulse = channel.receive(timeout=60)
        assert (pulse.code, pulse.value, pulse.uid) == (3, -5, os.geteuid())
        sender = threading.Thread(target=connection.send_one_way, args=(b"123456",))
        sender.start()
        message = channel.receive(timeout=60)
        sender.join()
        assert (message.data, message.length, message.one_way) == (b"1234", 6, True)
        with pytest.raises(ValueError):
            message.reply(b"nobody waits")
        connection.close()
        assert channel.receive(timeout=60).code == messages.PULSE_DISCONNECT


def test_a_message_is_answered_once():
    with messages.Channel() as channel, channel.connect() as connection:
        got = []
        sender = threading.Thread(target=lambda: got.append(connection.send(b"x")))
        sender.start()
        message = channel.receive(timeout=60)
        with pytest.raises(ValueError):
            message.reply(b"", status=-1)
        message.reply(bytearray(b"first"))
        with pytest.raises(ValueError):
            message.error(errno.EIO)
        sender.join()
        assert got == [b"first"]


@pytest.mark.parametrize(
    "refused",
    [
        lambda message: message.error(134),
        lambda message: message.error(2**31),
        lambda message: message.reply(status=2**31),
        lambda message: message.reply(status=1.5),
    ],
)
def test_a_refused_answer_leaves_nobody_waiting(refused):
    with messages.Channel() as channel, channel.connect() as connection:
        seen = []

        def send():
            for _ in range(2):
                try:
                    seen.append(connection.send(b"x", timeout=60))
                except OSError as error:
                    seen.append(error.errno)

        thread = threading.Thread(target=send)
        thread.start()
        message = channel.receive(60)
        with pytest.raises((OSError, ValueError, ctypes.ArgumentError)):
            refused(message)
        message.reply(b"another")
        message = channel.receive(60)
        with pytest.raises((OSError, ValueError, ctypes.ArgumentError)):
            refused(message)
        del message
        thread.join()
        assert seen == [b"another", errno.ECONNABORTED]


def test_receiving_waits_as_long_as_it_is_told():
    with messages.Channel() as channel:
        with pytest.raises(BlockingIOError):
            channel.receive(timeout=0)
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            channel.receive(timeout=0.05)
        assert time.monotonic() - begun >= 0.05
        assert select.select([channel], [], [], 0) == ([], [], [])
        with channel.connect() as connection:
            connection.pulse(1)
            assert select.select([channel], [], [], 60) == ([channel], [], [])
            assert channel.receive(timeout=0).code == 1
    with pytest.raises(ValueError):
        channel.receive()


@pytest.mark.parametrize("timeout", [30 * 86400, 1e9, 1e10, 1e300, float("inf")])
def test_a_wait_may_be_of_any_length(timeout):
    with messages.Channel() as channel, channel.connect() as connection:
        # What comes later than the first look: so it is waited for in every way.
        later = threading.Timer(0.05, connection.pulse, [1])
        later.start()
        assert channel.receive(timeout=timeout).code == 1
        later.join()
        sender = threading.Thread(target=lambda: channel.receive(timeout=timeout).reply(b"pong"))
        sender.start()
        assert connection.send(b"ping", timeout=timeout) == b"pong"
        sender.join()


def test_a_message_is_whole_or_none(monkeypatch):
    with messages.Channel() as channel, channel.connect() as connection:
        gone = threading.Event()
        read = messages._lib().read

        def read_late(*arguments):
            assert gone.wait(60)
            while (got := read(*arguments)) >= 0:  # that it has gone is known a moment later
                time.sleep(0.001)
            return got

        def give_up():
            with pytest.raises(TimeoutError):
                connection.send(bytes(100_000), timeout=0.2)
            gone.set()

        monkeypatch.setattr(messages._lib(), "read", read_late)
        sender = threading.Thread(target=give_up)
        sender.start()
        later = threading.Thread(target=lambda: gone.wait(60) and connection.pulse(2))
        later.start()
        assert channel.receive(timeout=60).code == 2
        sender.join()
        later.join()


def lingering():
    """A socket whose last close takes ten minutes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            client.send(bytes(1 << 16))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
    client.setblocking(True)  # for such a socket close() waits for nobody
    return client, server


def test_descriptors_that_came_along_keep_nobody_waiting(monkeypatch):
    client, server = lingering()
    receive = messages._lib().receive

    def receive_the_last(*arguments):
        number = receive(*arguments)
        if number.value > 0:
            client.close()  # which is not the last close any more
        return number

    monkeypatch.setattr(messages._lib(), "receive", receive_the_last)
    text = ctypes.create_string_buffer(b"x", 1)
    piece = messages._Piece(ctypes.addressof(text), 1)
    sending = messages._Sending(
        send=ctypes.pointer(piece), send_count=1,
        descriptors=(ctypes.c_int * 1)(client.fileno()), descriptor_count=1)
    with messages.Channel() as channel, channel.connect() as connection:
        sent = threading.Thread(
            target=messages._lib().send, args=(connection._number, ctypes.byref(sending)))
        sent.start()
        received = []
        receiver = threading.Thread(target=lambda: received.append(channel.receive(timeout=60)))
        receiver.start()
        receiver.join(60)
        server.close()  # ends the wait of whoever closes
        assert received and received[0].data == b"x"
        received[0].reply()
        sent.join()


def test_a_name_is_had_once(name):
    with messages.Channel(name):
        with pytest.raises(OSError):
            messages.Channel(name)
    messages.Channel(name).close()


@pytest.mark.parametrize("statement", ["channel.receive()", "channel.receive(1000)", "connection.send(b'x')"])
def test_ctrl_c_ends_every_wait(statement):
    program = f"""
import sys
from farcall import messages
channel = messages.Channel()
connection = channel.connect()
try:
    print("ready", flush=True)
    {statement}
except KeyboardInterrupt:
    sys.exit(42)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 42


@pytest.mark.parametrize("structure, name", [(messages._Info, "struct farcall_info"),
                                             (messages._Sending, "struct farcall_message"),
                                             (messages._Piece, "struct iovec")])
def test_structures_are_those_of_the_header(structure, name, tmp_path):
    c_names = {"base": "iov_base", "length": "iov_len"} if name == "struct iovec" else {}
    fields = [field for field, _ in structure._fields_]
    offsets = "".join(f'printf("%zu %zu\\n", offsetof({name}, {c_names.get(f, f)}), '
                      f'sizeof((({name}*)0)->{c_names.get(f, f)}));' for f in fields)
    program = tmp_path / "layout"
    program.with_suffix(".c").write_text(
        f"#include <farcall/message.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        f'int main(void) {{ printf("%zu\\n", sizeof({name})); {offsets} }}')
    include = os.path.join(os.environ["FARCALL_SOURCE"], "include")
    subprocess.run(["cc", "-I", include, program.with_suffix(".c"), "-o", program], check=True)
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    assert int(said[0]) == messages.ctypes.sizeof(structure)
    here = [getattr(structure, field) for field in fields]
    assert said[1:] == [f"{field.offset} {field.size}" for field in here]


def interrupted_at(channel, step):
    """Receives; a signal comes before the instruction of _try() of that number. False: it has fewer."""
    steps = 0

    def trace(frame, event, _):
        nonlocal steps
        if frame.f_code is not messages.Channel._try.__code__:
            return trace
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps += 1
            if steps == step:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        channel.receive(timeout=60).reply(b"answer")
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_signal_leaves_no_sender_waiting(size):
    answers = []

    def send():
        try:
            answers.append(connection.send(bytes(size), timeout=10))
        except OSError as error:
            answers.append(error.errno)

    with messages.Channel() as channel, channel.connect() as connection:
        for step in range(1, 1000):
            sender = threading.Thread(target=send)
            sender.start()
            interrupted = interrupted_at(channel, step)
            while interrupted and sender.is_alive():
                with contextlib.suppress(TimeoutError):  # it had not been received
                    channel.receive(timeout=0.01).reply(b"answer")
            sender.join()
            assert answers[-1] in (b"answer", errno.ECONNABORTED), f"instruction {step}"
            if not interrupted:
                break
    assert errno.ECONNABORTED in answers and len(answers) > 20


def test_nothing_is_left_of_many(name):
    def round():
        with messages.Channel(name) as channel, channel.connect() as connection:
            connection.pulse(1)
            assert channel.receive(60).code == 1

    for _ in range(50):
        round()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(500):
        round()
    end = time.monotonic() + 60
    while len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_message_that_there_is_no_memory_for_is_answered(monkeypatch):
    def refuse(*_):
        raise MemoryError

    errors = []

    def send():
        try:
            connection.send(bytes(100_000), timeout=20)
        except OSError as error:
            errors.append(error.errno)

    with messages.Channel() as channel, channel.connect() as connection:
        with monkeypatch.context() as patched:
            patched.setattr(messages.Channel, "_rest", staticmethod(refuse))
            thread = threading.Thread(target=send)
            thread.start()
            with pytest.raises(MemoryError):
                channel.receive(timeout=60)
            thread.join()
    assert errors == [errno.ENOMEM]
