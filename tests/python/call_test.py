# SPDX-License-Identifier: Apache-2.0
"""Functions of one process that others call."""

import errno
import multiprocessing
import os
import pathlib
import queue
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

import farcall


def test_a_method_of_str_gets_text(path):
    with farcall.serve(path, str.upper):
        assert farcall.call(path, b"hello", timeout=60) == b"HELLO"
        assert farcall.call(path, "grüße".encode(), timeout=60) == "GRÜSSE".encode()
    assert not path.exists()


@pytest.mark.parametrize("result, reply", [(None, b""), (b"", b""), ("ä", "ä".encode()),
                                           (bytearray(b"12"), b"12"), (memoryview(b"345"), b"345")])
def test_what_a_function_returns_is_the_reply(path, result, reply):
    with farcall.serve(path, lambda data: result):
        assert farcall.call(path, b"") == reply


def test_where_nothing_can_be_served_the_path_is_told(tmp_path):
    path = str(tmp_path / "missing" / "called")
    program = f"""
import farcall
try:
    farcall.serve({path!r}, str.upper)
except FileNotFoundError as error:
    print(error.filename)
"""
    # What is used after it was freed shows.
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONMALLOC": "debug"},
                          stdout=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, path + "\n")


def test_it_is_called_in_another_process(path, server):
    with farcall.open_door(path) as door:
        assert door(b"abc") == b"cba"
        assert door.call(memoryview(b"12345")[1:3], timeout=60) == b"32"
        for size in (0, 1, 47, 48, 4095, 4096, 4097, 1_000_000):
            data = os.urandom(size)
            assert door.call(data) == data[::-1]


def test_a_function_knows_who_calls(path, server):
    with pytest.raises(RuntimeError):
        farcall.caller()
    assert farcall.call(path, b"who").decode() == str((os.getpid(), os.geteuid(), os.getegid()))


def test_an_exception_is_printed_and_ends_the_call(path, capfd, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: seen.append(what.exc_type))
    with farcall.serve(path, lambda data: 1 / len(data)), farcall.open_door(path) as door:
        for _ in range(3):
            with pytest.raises(ConnectionAbortedError):
                door.call(b"")
        with pytest.raises(ConnectionAbortedError):
            door.call(b"a float is no reply")
    assert seen == 3 * [ZeroDivisionError] + [TypeError]


def test_a_server_that_has_too_many_clients_says_so(path):
    program = """
import farcall, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with farcall.serve(sys.argv[1], lambda data: time.sleep(600)):
    print("ready", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program, path], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        refused = queue.Queue()

        def call(door):
            try:
                door.call(b"x")
            except OSError as error:
                refused.put(error)

        with farcall.open_door(path) as door:
            # Each call in progress has a session of its own.
            threads = [threading.Thread(target=call, args=[door]) for _ in range(64)]
            for thread in threads:
                thread.start()
            first = refused.get(timeout=60)
            process.kill()
            for thread in threads:
                thread.join()
    assert first.errno == errno.EUSERS
    assert first.strerror == "the server has too many clients"


def test_a_server_that_dies_is_told_from_one_that_has_gone(path, server):
    with farcall.open_door(path) as door:
        with pytest.raises(ConnectionAbortedError):
            door.call(b"die")
        with pytest.raises(BrokenPipeError):
            door.call(b"again")
    with pytest.raises(ConnectionRefusedError):
        farcall.open_door(path)


def test_a_server_that_ends_leaves_no_file(path, server):
    assert farcall.call(path, b"ab") == b"ba"
    server.stdin.close()
    server.wait(60)
    assert not path.exists()


def test_a_server_that_nobody_keeps_serves(path):
    import gc

    farcall.serve(path, bytes.upper)
    gc.collect()
    assert farcall.call(path, b"x") == b"X"
    [server] = [s for s in farcall.calls._servers if s.path == str(path)]
    server.close()
    assert not path.exists()


def test_a_program_that_ends_without_closing_leaves_no_file(path):
    program = f"import farcall; s = farcall.serve({str(path)!r}, bytes.upper); assert s.path"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
    assert not path.exists()


@pytest.mark.parametrize("pause", [0.09, 0.1, 0.11, 0.12])
def test_a_program_that_ends_finishes_its_calls(path, pause):
    program = f"""
import farcall, time
def answer(data):
    time.sleep(float(data))
    return data
farcall.serve({str(path)!r}, answer)
print("ready", flush=True)
time.sleep(0.1)
"""
    data = str(pause).encode()
    finished = 0
    for _ in range(100):
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout.readline() == "ready\n"
            try:
                assert farcall.call(path, data) == data
                finished += 1
            except ConnectionAbortedError:
                finished += 1  # the function was done, and the process gone before the reply went
            except (FileNotFoundError, ConnectionRefusedError, BrokenPipeError):
                pass  # this process had no processor before the other ended, and has not called
            assert server.wait(60) == 0
        assert not path.exists()
        if finished == 5:
            break
    assert finished == 5


def test_time_is_up(path):
    over = threading.Event()
    with farcall.serve(path, lambda data: over.wait(60) and None), farcall.open_door(path) as door:
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            door.call(b"", timeout=0.05)
        assert time.monotonic() - begun >= 0.05
        over.set()
        assert door.call(b"", timeout=60) == b""


def stop(pid):
    """Returns when none of its threads runs any more."""
    os.kill(pid, signal.SIGSTOP)
    tasks = pathlib.Path(f"/proc/{pid}/task")
    end = time.monotonic() + 60
    while any(task.joinpath("stat").read_text().rpartition(") ")[2][0] != "T" for task in tasks.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.001)


def test_time_is_up_for_a_server_that_has_stopped(path, server):
    with farcall.open_door(path) as door:
        assert door(b"ab") == b"ba"
        stop(server.pid)
        try:
            for stopped in (lambda: door.call(b"", timeout=0.05),
                            lambda: farcall.call(path, b"", timeout=0.05),
                            lambda: farcall.open_door(path, timeout=0.05)):
                begun = time.monotonic()
                with pytest.raises(TimeoutError):
                    stopped()
                assert time.monotonic() - begun >= 0.05
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert door.call(b"cd", timeout=60) == b"dc"


def test_opening_waits_for_a_server(path):
    with pytest.raises(FileNotFoundError) as caught:
        farcall.open_door(path)
    assert caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError):
        farcall.open_door(path, timeout=0.05)
    servers = []
    later = threading.Timer(0.05, lambda: servers.append(farcall.serve(path, bytes.upper)))
    later.start()
    assert farcall.open_door(path, timeout=60).call(b"x") == b"X"
    later.join()
    servers[0].close()


def test_the_file_says_who_may_call(path):
    with farcall.serve(path, bytes.upper):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = os.umask(0)
    with farcall.serve(path, bytes.upper, mode=0o644):
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    os.umask(before)


def test_what_cannot_be_served_is_refused(path, tmp_path):
    with farcall.serve(path, bytes.upper, longest=4):
        with pytest.raises(OSError) as caught:
            farcall.serve(path, bytes.upper)
        assert caught.value.strerror == "somebody serves calls there already"
        with pytest.raises(farcall.MessageTooLong):
            farcall.call(path, b"12345")
    with pytest.raises(TypeError):
        farcall.serve(path, "no function")
    with pytest.raises(FileNotFoundError):
        farcall.serve(tmp_path / "none" / "there", bytes.upper)
    with pytest.raises(TypeError):
        farcall.open_door(3)


def test_what_is_closed_is_refused(path):
    server = farcall.serve(path, bytes.upper)
    door = farcall.open_door(path)
    server.close()
    server.close()
    assert server.closed
    with pytest.raises(BrokenPipeError):
        door.call(b"")
    door.close()
    with pytest.raises(ValueError):
        door.call(b"")


def test_threads_call_and_serve_at_the_same_time(path):
    inside = threading.Barrier(4)

    def answer(data):
        inside.wait(60)
        return data

    results = []
    with farcall.serve(path, answer), farcall.open_door(path) as door:
        threads = [threading.Thread(target=lambda i=i: results.append(door.call(bytes([i]))))
                   for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == [bytes([i]) for i in range(4)]


def ask(path, pipe):
    with farcall.open_door(path) as door:
        pipe.send(door.call(b"from a child"))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_call_their_parent(path, method):
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    with farcall.serve(path, bytes.upper):
        child = context.Process(target=ask, args=(path, there))
        child.start()
        assert here.poll(60) and here.recv() == b"FROM A CHILD"
        child.join()


def test_a_door_outlives_a_fork(path, server):
    with farcall.open_door(path) as door:
        assert door(b"ab") == b"ba"
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if door(b"cd") == b"dc" else 1)
            except BaseException:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert door(b"ef") == b"fe"


def test_a_signal_ends_a_call_with_its_handlers_exception_and_no_call_twice(path):
    calls = []
    over = threading.Event()

    def answer(data):
        calls.append(data)
        if data == b"first":
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.02)
            return b"answered"
        os.kill(os.getpid(), signal.SIGINT)
        over.wait(60)
        return b""

    noticed = []
    before = signal.signal(signal.SIGUSR1, lambda *_: noticed.append(1))
    try:
        with farcall.serve(path, answer), farcall.open_door(path) as door:
            assert door.call(b"first") == b"answered"
            assert noticed
            with pytest.raises(KeyboardInterrupt):
                door.call(b"second")
            over.set()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == [b"first", b"second"]


def test_a_signal_that_comes_early_or_late_ends_a_call(path, server):
    program = f"""
import farcall, sys
d = farcall.open_door({str(path)!r})
try:
    print("ready", flush=True)
    while True: d.call(b"x")
except KeyboardInterrupt:
    sys.exit(42)
"""
    for pause in (0, 0.01, 0.1):
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "ready\n"
            time.sleep(pause)
            child.send_signal(signal.SIGINT)
            assert child.wait(60) == 42


def test_a_function_goes_when_its_server_does(path):
    import weakref

    class Answer:
        def __call__(self, data):
            return data

    answer = Answer()
    gone = weakref.ref(answer)
    with farcall.serve(path, answer):
        del answer
        assert farcall.call(path, b"x") == b"x"
        assert gone() is not None
    end = time.monotonic() + 60
    while gone() is not None:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_thread_that_serves_keeps_its_locals(path):
    local = threading.local()
    calls = {}

    def answer(data):
        me = threading.get_native_id()
        calls[me] = calls.get(me, 0) + 1
        local.calls = getattr(local, "calls", 0) + 1
        return b"kept" if local.calls == calls[me] else b"lost"

    with farcall.serve(path, answer), farcall.open_door(path) as door:
        assert {door.call(b"") for _ in range(100)} == {b"kept"}
    assert max(calls.values()) > 1


def test_what_a_thread_keeps_goes_with_it(path, monkeypatch):
    import weakref

    class Kept:
        pass

    local = threading.local()
    kept = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)

    def answer(data):
        local.kept = Kept()
        kept.append(weakref.ref(local.kept))
        raise RuntimeError  # which ends the thread

    with farcall.serve(path, answer), farcall.open_door(path) as door:
        for _ in range(100):
            with pytest.raises(ConnectionAbortedError):
                door.call(b"")
        end = time.monotonic() + 60
        while any(one() is not None for one in kept):
            assert time.monotonic() < end
            time.sleep(0.01)
    assert len(kept) == 100


def test_a_function_may_fork(path):
    from farcall import _farcall

    def answer(data):
        child = os.fork()
        if child == 0:  # this thread is the only one there, and is in Python
            try:
                os._exit(_farcall.end_calls())
            except BaseException:
                os._exit(99)
        return bytes([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])])

    with farcall.serve(path, answer), farcall.open_door(path) as door:
        assert [door.call(b"") for _ in range(20)] == [b"\x01"] * 20


def test_a_server_that_is_slow_to_answer_is_waited_for(path):
    program = "import farcall, sys; s = farcall.serve(sys.argv[1], bytes); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program, path], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, env={**os.environ, "LD_PRELOAD": os.environ["SLOW_ACCEPT"]}) as slow:
        try:
            assert slow.stdout.readline() == b"\n"
            with farcall.open_door(path, timeout=20) as door:
                assert door(b"abc") == b"abc"
        finally:
            slow.kill()


@pytest.mark.parametrize("uses_it", [False, True])
def test_a_door_that_a_thread_of_the_parent_calls_is_closed_in_a_child(path, uses_it):
    begun, over = threading.Event(), threading.Event()

    def answer(data):
        if data == b"long":
            begun.set()
            over.wait(60)
        return data

    with farcall.serve(path, answer), farcall.open_door(path) as door:
        thread = threading.Thread(target=door.call, args=(b"long",))
        thread.start()
        assert begun.wait(60)
        if (pid := os.fork()) == 0:
            try:
                if uses_it:
                    assert door.call(b"short", timeout=60) == b"short"
                before = len(os.listdir("/proc/self/fd"))
                door.close()
                os._exit(0 if len(os.listdir("/proc/self/fd")) < before else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        over.set()
        thread.join()
