# SPDX-License-Identifier: MPL-2.0

"""Channels with killed, stopped and slow processes, with other users and namespaces, and with many threads."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest
from channel_support import HANG, Process, digest, echo, forkserver, wait_until

import xmem


def nested(seed, size=40_000):
    """A nested message with its own checksums."""
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(0, 255, rng.integers(1, size), "u1") for _ in range(4)]
    grid = rng.integers(0, 1000, (60, 70)).T
    return {
        "seed": seed,
        "layers": [{"weights": a, "sum": digest(a)} for a in arrays],
        ("grid", 1): {"it": grid, "sum": digest(np.ascontiguousarray(grid))},
    }


def check(obj, seed=None):
    assert seed is None or obj["seed"] == seed
    for layer in obj["layers"]:
        assert digest(layer["weights"]) == layer["sum"], f"message {obj['seed']} changed"
    grid = obj["grid", 1]
    assert digest(np.ascontiguousarray(grid["it"])) == grid["sum"]


def checking(path, hold=3, pause=0.0):
    """Checks every message when it arrives, and the last few again later."""
    held = []
    last = None
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        for obj in channel:
            check(obj, None if last is None else last + 1)
            last = obj["seed"]
            held.append(obj)
            if len(held) > hold:
                check(held.pop(0))
            if pause:
                time.sleep(pause)
            del obj
        for obj in held:
            check(obj)


def test_load(place):
    """Sends messages of many sizes to three receivers, one of them slow."""
    with (
        Process(checking, place.path(), 3) as one,
        Process(checking, place.path(), 30) as two,
        Process(checking, place.path(), 0, 0.002) as slow,
        xmem.Channel(place.path()) as channel,
    ):
        wait_until(lambda: len(channel.senders) == 3)
        for seed in range(300):
            channel.send(nested(seed), timeout=HANG)
        channel.close()
        for child in (one, two, slow):
            child.join()


@pytest.mark.parametrize("seed", range(4))
def test_receivers_that_are_killed(place, seed):
    rng = random.Random(seed)
    with xmem.Channel(place.path()) as channel:
        steady = Process(checking, place.path(), 5)
        victims = [Process(checking, place.path(), 3) for _ in range(2)]
        wait_until(lambda: len(channel.senders) == 3)
        kills = sorted(rng.sample(range(10, 150), 2))
        timers = []
        number = 0
        while number < 200:
            if kills and number == kills[0]:
                kills.pop(0)
                victim = victims.pop()
                timers.append(threading.Timer(rng.random() * 0.01, victim.kill))
                timers[-1].start()
            channel.send(nested(number), timeout=HANG)
            number += 1
        # The creator of the channel removes the victims' files.
        for timer in timers:
            timer.join()
        channel.close()
        steady.join()


def endless(path, ready):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        ready.set()
        seed = 0
        while True:
            channel.send(nested(seed))
            seed += 1


@pytest.mark.parametrize("seed", range(4))
def test_senders_that_are_killed(place, seed):
    """Received messages are intact and in order, lost ones are not waited for, and nothing of the killed process remains."""
    rng = random.Random(seed)
    with xmem.Channel(place.path()) as channel:
        for _ in range(2):
            ready = forkserver.Event()
            child = Process(endless, place.path(), ready)
            assert ready.wait(HANG)
            held = []
            for number in range(rng.randrange(1, 40)):
                obj, sender = channel.recv_from(timeout=HANG)
                held.append(obj)
                check(obj, number)
            child.kill()
            number += 1
            try:
                while True:
                    obj = channel.recv(timeout=HANG, sender=sender)
                    check(obj, number)
                    number += 1
            except xmem.ProducerLost:
                pass
            for obj in held:
                check(obj)
            del obj, held
        wait_until(lambda: channel.senders == [])
        assert not channel.poll()
        place.wait_for_files(["c.lock", "c.sock"])


def maker(path, ready):
    with xmem.Channel(path) as channel:
        channel.wait_for_receiver(HANG)
        ready.set()
        for seed in range(10**9):
            channel.send(nested(seed))


def test_maker_that_is_killed(place):
    ready = forkserver.Event()
    with Process(maker, place.path(), ready) as child:
        channel = xmem.Channel.connect(place.path(), timeout=HANG)
        assert ready.wait(HANG)
        held = [channel.recv(timeout=HANG) for _ in range(10)]
        child.kill()
        seed = 10
        with pytest.raises(xmem.ProducerLost, match="without closing its end"):
            for obj in channel:
                check(obj, seed)
                seed += 1
        for obj in held:
            check(obj)
        with pytest.raises(xmem.ProducerLost):
            channel.send("hello", timeout=HANG)
        channel.close()
    # The next creator with this name takes the remaining files over.
    with Process(echo, place.path()), xmem.Channel(place.path()) as again:
        again.send(1, timeout=HANG)
        assert again.recv(timeout=HANG) == 1


def killed_with_its_maker(path):
    channel = xmem.Channel.connect(path, timeout=HANG)
    channel.send("joined")
    # The process runs until it is killed.
    while True:
        channel.recv(timeout=HANG)


def test_all_that_are_killed_leave_nothing_for_long(place):
    ready = forkserver.Event()
    with Process(maker, place.path(), ready) as child:
        with Process(killed_with_its_maker, place.path()) as other:
            assert ready.wait(HANG)
            wait_until(lambda: len(os.listdir(place.dir)) == 4)
            child.signal(signal.SIGSTOP)
            other.kill()
            child.kill()
    assert len(os.listdir(place.dir)) == 4
    xmem.Channel(place.path()).close()
    assert os.listdir(place.dir) == []


def test_receiver_that_is_stopped(place):
    with Process(checking, place.path()) as child, xmem.Channel(place.path()) as channel:
        channel.send(nested(0), timeout=HANG)
        child.signal(signal.SIGSTOP)
        with pytest.raises(xmem.Timeout):
            for seed in range(1, 100):
                channel.send(nested(seed), timeout=0.5)
        child.signal(signal.SIGCONT)
        # The caller must send the message again.
        channel.send(nested(seed), timeout=HANG)
        channel.close()
        child.join()


def test_receiver_that_is_not_waited_for(place):
    with Process(echo, place.path()) as child, xmem.Channel(place.path(), lossless_timeout=0.3) as channel:
        channel.send("hello", timeout=HANG)
        assert channel.recv(timeout=HANG) == "hello"
        child.signal(signal.SIGSTOP)
        with Process(echo, place.path()):
            wait_until(lambda: channel.receivers == 2)
            for number in range(30):
                channel.send(number, timeout=HANG)
                assert channel.recv(timeout=HANG) == number
            child.kill()
            channel.close()


def test_threads(place):
    """Several threads send and receive on the same ends."""
    with Process(echo, place.path()), Process(echo, place.path()), xmem.Channel(place.path()) as channel:
        wait_until(lambda: len(channel.senders) == 2)
        count, threads = 60, 4
        got, lock = [], threading.Lock()
        errors = []

        def send(thread):
            try:
                for number in range(count):
                    channel.send((thread, nested(thread * 1000 + number)), timeout=HANG)
            except BaseException as error:
                errors.append(error)

        def receive():
            try:
                while True:
                    with lock:
                        if len(got) == count * threads * 2:
                            return
                    try:
                        (thread, obj), sender = channel.recv_from(timeout=0.2)
                    except xmem.Timeout:
                        continue
                    check(obj)
                    with lock:
                        got.append((sender, thread, obj["seed"]))
                    del obj
            except BaseException as error:
                errors.append(error)

        workers = [threading.Thread(target=send, args=(n,)) for n in range(threads)]
        workers += [threading.Thread(target=receive) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(HANG)
            assert not worker.is_alive()
        assert errors == []
        assert len(set(got)) == count * threads * 2


def forked(path, inherited):
    """A child of a process whose other threads were busy during the fork."""
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        for seed in range(3):
            channel.send([nested(seed), inherited], timeout=HANG)
            obj, array = channel.recv(timeout=HANG)
            check(obj, seed)
            assert (array == inherited).all()


def test_forks_among_threads(place):
    """The other threads may hold any locks during the fork."""
    import multiprocessing

    fork = multiprocessing.get_context("fork")
    stop = threading.Event()
    with Process(echo, place.path("busy")), xmem.Channel(place.path("busy")) as busy, xmem.Channel(place.path()) as channel:
        busy.send(np.arange(50_000), timeout=HANG)
        inherited = busy.recv(timeout=HANG)

        def keep_busy():
            while not stop.is_set():
                busy.send([np.zeros(5000), inherited[:20_000]], timeout=HANG)
                busy.recv(timeout=HANG)

        def serve():
            while not stop.is_set():
                try:
                    obj, sender = channel.recv_from(timeout=0.1)
                except xmem.Timeout:
                    continue
                channel.send(obj, to=sender, timeout=HANG)
                del obj

        threads = [threading.Thread(target=keep_busy), threading.Thread(target=serve)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(15):
                with Process(forked, place.path(), inherited, context=fork) as child:
                    child.join()
        finally:
            stop.set()
            for thread in threads:
                thread.join(HANG)
        del inherited


def test_two_workers_from_two_threads(place):
    """Two channels do not affect each other."""
    errors = []

    def drive(name, base):
        try:
            with Process(echo, place.path(name)), xmem.Channel(place.path(name)) as channel:
                for seed in range(base, base + 80):
                    channel.send(nested(seed), timeout=HANG)
                    check(channel.recv(timeout=HANG), seed)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=drive, args=(f"w{n}", n * 1000)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert errors == []


class Wrapped:
    """Pickles as a temporary array without another reference."""

    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        return unwrap, (np.full(20_000, self.value),)


def unwrap(array):
    assert (array == array[0]).all()
    return Wrapped(int(array[0]))


def test_temporaries(place):
    """Arrays that are freed before the next one is created may have the same address."""
    with Process(echo, place.path()), xmem.Channel(place.path()) as channel:
        channel.send([Wrapped(number) for number in range(50)], timeout=HANG)
        assert [one.value for one in channel.recv(timeout=HANG)] == list(range(50))


def test_sent_arrays_do_not_change(place):
    """Sending and releasing change neither the sender's arrays nor the memory beside them."""
    with Process(echo, place.path()), xmem.Channel(place.path()) as channel:
        whole = np.arange(1_000_000)
        before = digest(whole)
        for number in range(20):
            part = whole[number * 1000 + 3 : number * 1000 + 5_003]
            channel.send({"part": part}, timeout=HANG)
            part[0] = part[0]
            back = channel.recv(timeout=HANG)
            assert (back["part"] == part).all()
            del back
        assert whole.flags.writeable and digest(whole) == before


def test_a_pool_with_invalid_messages(place):
    """A pool with the content type of a channel that publishes arbitrary data."""
    with xmem.Producer(place.path()) as producer:
        with pytest.raises(ValueError, match="not a channel"):
            xmem.Channel.connect(place.path(), timeout=5)
        assert producer is not None


NOBODY = 65534


def as_user(uid, role, path, out, options):
    os.setgid(uid)
    os.setuid(uid)
    try:
        if role == "make":
            with xmem.Channel(path, **options) as channel:
                out.put("made")
                try:
                    out.put(channel.recv(timeout=8))
                except xmem.Timeout:
                    out.put(channel.stats()["why_refused"])
        else:
            with xmem.Channel.connect(path, timeout=3, **options) as channel:
                channel.send("from another user")
                out.put("joined")
    except Exception as error:
        out.put((type(error).__name__, str(error)))


@pytest.fixture
def open_place():
    # Root in a container may not be able to, either.
    if subprocess.run(["setpriv", f"--reuid={NOBODY}", "--clear-groups", "true"], capture_output=True).returncode != 0:
        pytest.skip("only root can start processes of other users")
    path = tempfile.mkdtemp()
    os.chmod(path, 0o1777)
    yield path
    left = os.listdir(path)
    shutil.rmtree(path)
    assert left == []


def test_other_users_may_not_join(open_place):
    path, out = f"{open_place}/c.sock", forkserver.Queue()
    with xmem.Channel(path), Process(as_user, NOBODY, "join", path, out, {}):
        assert out.get(timeout=HANG)[0] == "Refused"


def test_pickles_of_other_users_are_refused(open_place):
    """Root can join any pool, so it must check whose messages it unpickles."""
    path, out = f"{open_place}/c.sock", forkserver.Queue()
    with Process(as_user, NOBODY, "make", path, out, {}):
        assert out.get(timeout=HANG) == "made"
        with pytest.raises(xmem.Refused, match=f"user {NOBODY}.*run any code.*allow_uids"):
            xmem.Channel.connect(path, timeout=HANG)
        # A creator of another user does not accept root's messages either.
        with pytest.raises(xmem.Refused, match="does not accept"):
            xmem.Channel.connect(path, timeout=2, allow_uids=[NOBODY])
        assert "user 0" in out.get(timeout=HANG)


def test_other_users_that_are_trusted(open_place):
    path, out = f"{open_place}/c.sock", forkserver.Queue()
    with xmem.Channel(path, allow_uids=[NOBODY]) as channel:
        # Trust applies in one direction: the other process must trust root.
        with Process(as_user, NOBODY, "join", path, out, {}):
            assert out.get(timeout=HANG)[0] == "Refused"
        with Process(as_user, NOBODY, "join", path, out, {"allow_uids": [0]}):
            assert out.get(timeout=HANG) == "joined"
            assert channel.recv(timeout=HANG) == "from another user"


SCRIPT = """
import sys, xmem
with xmem.Channel.connect(sys.argv[1], timeout=60) as channel:
    for obj in channel:
        channel.send(obj)
        del obj
"""


def test_another_pid_namespace(place):
    """Descriptors are sent over the socket, so no process needs access to another's /proc."""
    command = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip("there is no PID namespace to be had")
    with xmem.Channel(place.path()) as channel:
        child = subprocess.Popen([*command, sys.executable, "-c", SCRIPT, place.path()])
        try:
            for seed in range(20):
                obj = nested(seed)
                room = channel.empty(10_000, "u2")
                room[:] = seed
                channel.send([obj, room], timeout=HANG)
                back, array = channel.recv(timeout=HANG)
                check(back, seed)
                assert (array == seed).all()
        finally:
            channel.close()
            assert child.wait(HANG) == 0
