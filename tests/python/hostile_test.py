# SPDX-License-Identifier: Apache-2.0
"""What a peer that has gone wrong writes into the shared memory ends in an exception."""

import mmap
import os
import random
import socket
import struct
import subprocess
import sys

import pytest

import farcall
from farcall import _farcall

CAPACITY = 4096
READY, PIECE = 1 << 32, 1 << 33


class Attacker:
    """Holds the descriptors of one end, and does with them as it likes."""

    def __init__(self):
        self.victim, other = farcall.pipe(capacity=CAPACITY)
        self.descriptors = [os.dup(descriptor) for descriptor in other._pass()]
        other.close()
        # What this end writes, and the victim reads.
        self.size = os.fstat(self.descriptors[0]).st_size
        self.memory = mmap.mmap(self.descriptors[0], self.size)
        self.data = self.size - CAPACITY

    def write(self, position, value):
        self.memory[position : position + len(value)] = value

    def header(self, value, rest=b""):
        self.write(self.data, struct.pack("<Q", value) + rest)

    def close(self):
        self.victim.close()
        self.memory.close()
        for descriptor in self.descriptors:
            os.close(descriptor)


@pytest.fixture
def attacker():
    attacker = Attacker()
    yield attacker
    attacker.close()


def assert_broken(victim):
    for _ in range(3):
        with pytest.raises(farcall.ProtocolError):
            victim.recv(timeout=0)
    with pytest.raises(farcall.ProtocolError):
        victim.recv_into(bytearray(10))
    with pytest.raises(farcall.ProtocolError):
        victim.recv()


def test_an_attacker_can_also_send_what_is_right(attacker):
    attacker.header(READY | 5, b"hello")
    assert attacker.victim.recv() == b"hello"


@pytest.mark.parametrize("header", [READY | 0xFFFFFFFF, READY | CAPACITY, (1 << 64) - 1, 1 << 63,
                                    PIECE | READY, PIECE | READY | 4])
def test_a_header_that_cannot_be_breaks_the_pipe(attacker, header):
    attacker.header(header)
    assert_broken(attacker.victim)


def test_a_message_that_claims_to_be_huge_is_not_believed_before_it_comes(attacker):
    attacker.header(PIECE | READY | 100, struct.pack("<Q", 1 << 62) + bytes(92))
    for _ in range(3):
        with pytest.raises(MemoryError):
            attacker.victim.recv(timeout=0)
    with pytest.raises(farcall.MessageTooLong) as caught:
        attacker.victim.recv_into(bytearray(1000))
    assert caught.value.needed == 1 << 62
    assert attacker.victim.poll()


def test_garbage_anywhere_ends_in_an_exception_or_in_bytes():
    outcomes = set()
    for seed in range(300):
        attacker = Attacker()
        chance = random.Random(seed)
        for _ in range(chance.choice([1, 10, 200])):
            attacker.write(chance.randrange(attacker.size - 8) & ~7, chance.randbytes(8))
        if seed % 3 == 0:  # a message follows that is right
            attacker.header(READY | 40, bytes(40))
        for operation in (attacker.victim.try_recv, lambda: attacker.victim.send(bytes(100), timeout=0),
                          attacker.victim.try_recv, attacker.victim.poll):
            try:
                outcomes.add(type(operation()))
            except (farcall.ProtocolError, EOFError, ConnectionResetError, BrokenPipeError,
                    BlockingIOError, MemoryError) as error:
                outcomes.add(type(error))
        attacker.close()
    assert bytes in outcomes and farcall.ProtocolError in outcomes


def test_garbage_while_the_victim_works_does_not_crash_it():
    """The victim is another process: it says itself how it ended."""
    attacker = Attacker()
    program = """
import farcall, sys
from farcall import _farcall
end = _farcall.adopt_pipe(farcall.PipeEnd, [int(n) for n in sys.argv[1:]], 4096)
print("ready", flush=True)
try:
    while True:
        end.recv(timeout=60)
except (farcall.ProtocolError, MemoryError, EOFError, ConnectionResetError) as error:
    print(type(error).__name__)
"""
    numbers = [os.dup(descriptor) for descriptor in attacker.victim._pass()]
    with subprocess.Popen([sys.executable, "-c", program, *map(str, numbers)], pass_fds=numbers,
                          stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        chance = random.Random(7)
        while child.poll() is None:
            attacker.write(attacker.data + chance.randrange(CAPACITY // 8) * 8, chance.randbytes(8))
        assert child.returncode == 0
        assert child.stdout.read().strip() in ("ProtocolError", "MemoryError")
    for number in numbers:
        os.close(number)
    attacker.close()


def wrong_descriptors():
    regular = os.memfd_create("farcall-test")
    os.truncate(regular, 8192)
    one, other = socket.socketpair()
    reader, writer = os.pipe()
    return {"files": [regular] * 4, "pipes": [reader, writer, reader, writer],
            "sockets": [one.detach(), other.detach(), reader, writer], "nothing": [-1, -1, -1, -1],
            "closed": [1000, 1001, 1002, 1003],
            "unsealed": [regular, os.dup(socket.socket(socket.AF_UNIX).detach()), os.dup(regular),
                         os.dup(socket.socket(socket.AF_UNIX).detach())]}


@pytest.mark.parametrize("kind", ["files", "pipes", "sockets", "nothing", "closed", "unsealed"])
def test_descriptors_that_are_no_end_are_refused_and_stay_open(kind):
    descriptors = wrong_descriptors()[kind]
    with pytest.raises(OSError):
        _farcall.adopt_pipe(farcall.PipeEnd, descriptors)
    for descriptor in {d for d in descriptors if 0 <= d < 1000}:
        os.close(descriptor)


@pytest.mark.parametrize("descriptors", [[], [1], [1, 2, 3], ["a", "b", "c", "d"], [1 << 40] * 4])
def test_descriptors_that_are_no_numbers_are_refused(descriptors):
    with pytest.raises((TypeError, IndexError, OverflowError, OSError)):
        _farcall.adopt_pipe(farcall.PipeEnd, descriptors)


def test_an_end_of_more_memory_than_agreed_is_refused():
    _, b = farcall.pipe(capacity="1M")
    descriptors = [os.dup(descriptor) for descriptor in b._pass()]
    with pytest.raises(farcall.ProtocolError):
        _farcall.adopt_pipe(farcall.PipeEnd, descriptors, 4096)
    for descriptor in descriptors:
        os.close(descriptor)
