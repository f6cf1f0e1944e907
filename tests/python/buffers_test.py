# SPDX-License-Identifier: Apache-2.0
"""What can be sent, and received into, without being made bytes first."""

import array
import ctypes
import mmap

import pytest

import farcall


def sources():
    numbers = array.array("i", range(300))
    memory = mmap.mmap(-1, 4096)
    memory[:5] = b"hello"
    structure = (ctypes.c_int * 4)(1, 2, 3, 4)
    return [b"bytes", bytearray(b"bytearray"), memoryview(b"slice of a view")[3:9], numbers,
            memoryview(numbers), memory, structure, memoryview(bytes(64)).cast("B", [8, 8])]


@pytest.mark.parametrize("source", sources(), ids=lambda source: type(source).__name__)
def test_what_has_a_buffer_is_sent_as_its_bytes(source):
    a, b = farcall.pipe()
    a.send(source)
    assert b.recv() == memoryview(source).tobytes()


def test_a_buffer_with_gaps_is_refused():
    a, b = farcall.pipe()
    with pytest.raises(BufferError):
        a.send(memoryview(b"0123456789")[::2])
    assert b.try_recv() is None


@pytest.mark.parametrize("target", [bytearray(400), array.array("I", [0] * 100),
                                    memoryview(bytearray(500))[50:450], mmap.mmap(-1, 400),
                                    (ctypes.c_char * 400)()], ids=lambda target: type(target).__name__)
def test_what_has_a_writable_buffer_is_received_into(target):
    a, b = farcall.pipe()
    message = bytes(range(200)) * 2
    a.send(message)
    assert b.recv_into(target) == 400
    assert memoryview(target).tobytes() == message


def test_a_long_message_is_received_into_a_buffer():
    a, b = farcall.pipe(capacity="64K")
    message = bytes(range(256)) * 60  # 15 KiB: in one piece
    target = bytearray(len(message))
    a.send(message)
    assert b.recv_into(target) == len(message) and target == message
    longer = bytes(range(256)) * 180  # 45 KiB: in several
    target = bytearray(len(longer))
    a.send(longer)
    assert b.recv_into(target) == len(longer) and target == longer


def test_a_buffer_cannot_shrink_while_it_is_received_into():
    a, b = farcall.pipe()
    target = bytearray(100)
    import threading
    resized = []

    def resize():
        while not resized:
            try:
                target.extend(b"x" * 100)
                del target[100:]
            except BufferError:
                resized.append(True)
    thread = threading.Thread(target=resize)
    receiver = threading.Thread(target=b.recv_into, args=(target,))
    receiver.start()
    thread.start()
    thread.join()  # it has been refused
    a.send(b"y" * 100)
    receiver.join()
    assert target[:100] == b"y" * 100
