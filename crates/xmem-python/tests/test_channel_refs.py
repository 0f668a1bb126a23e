# SPDX-License-Identifier: MPL-2.0

"""References: objects that stay in their process, over several hops, with kills, and their lifetime."""

import contextlib
import gc
import os
import pickle
import time
import weakref

import numpy as np
import pytest
from channel_support import HANG, Process, forkserver, wait_until

import xmem
from xmem.channel import _arrays


class Stays:
    """An object that cannot be pickled at all."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        raise TypeError("it stays")


def keeper(path, other=None):
    """Holds received objects until a command to send them back, drop them, or pass them on."""
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        onward = xmem.Channel(other, linger=1) if other else None
        held = None
        for what, obj in channel:
            if what == "hold":
                held = obj
                channel.send(repr(obj))
            elif what == "back":
                channel.send(held)
            elif what == "drop":
                held = None
                channel.send("dropped")
            elif what == "on":
                onward.send(("hold", held), timeout=HANG)
                channel.send(onward.recv(timeout=HANG))
            elif what == "get":
                try:
                    held.get()
                except xmem.RefLost as error:
                    channel.send((str(error), held.is_here, held.type_name, held.is_held, held.is_alive, held.home_pid))
            elif what == "pickle":
                try:
                    pickle.dumps(held)
                except TypeError as error:
                    channel.send(str(error))
            del obj
        if onward:
            onward.close()


class Asker:
    def __init__(self, channel):
        self.channel = channel

    def __call__(self, what, obj=None):
        self.channel.send((what, obj), timeout=HANG)
        return self.channel.recv(timeout=HANG)


def is_gone(weak):
    def look():
        gc.collect()
        return weak() is None

    return look


def test_comes_back_as_itself(place):
    import os

    with Process(keeper, place.path()), xmem.Channel(place.path()) as channel:
        ask = Asker(channel)
        stays = Stays("one")
        assert "Stays" in ask("hold", [xmem.ref(stays), {"again": xmem.ref(stays)}])
        back = ask("back")
        assert back[0] is stays and back[1]["again"] is stays
        ask("hold", xmem.ref(stays))
        text, is_here, name, is_held, is_alive, pid = ask("get")
        assert "send the reference back" in text and str(os.getpid()) in text
        assert (is_here, name, is_held, is_alive, pid) == (False, "test_channel_refs.Stays", True, True, os.getpid())
        assert "Channel" in ask("pickle")


def test_held_by_the_receiver(place):
    with Process(keeper, place.path()), xmem.Channel(place.path()) as channel:
        ask = Asker(channel)
        stays = Stays("two")
        weak = weakref.ref(stays)
        # The large message is released, and the reference stays.
        ask("hold", [xmem.ref(stays), np.zeros(1_000_000)][0])
        del stays
        for _ in range(20):
            gc.collect()
            assert weak() is not None
            ask("other", None) if False else None
        assert ask("back") is weak()
        ask("drop")
        wait_until(is_gone(weak), "the object goes with its last reference")
        stays = Stays("three")
        handle = xmem.ref(stays)
        weak = weakref.ref(stays)
        del stays
        assert handle.get() is weak() and handle.is_here
        assert handle == xmem.ref(weak()) and hash(handle) == hash(xmem.ref(weak()))
        assert xmem.ref(handle) is handle
        del handle
        assert weak() is None


def test_held_until_the_holder_is_killed(place):
    with xmem.Channel(place.path()) as channel, Process(keeper, place.path()) as child:
        stays = Stays("four")
        weak = weakref.ref(stays)
        Asker(channel)("hold", xmem.ref(stays))
        del stays
        gc.collect()
        assert weak() is not None
        child.kill()
        wait_until(is_gone(weak), "a killed process holds nothing")


def test_over_several_hops(place):
    """The second process holds the object through the first, which only forwarded it."""
    two = place.path("second")
    with Process(keeper, two), Process(keeper, place.path(), two), xmem.Channel(place.path()) as channel:
        ask = Asker(channel)
        stays = Stays("five")
        weak = weakref.ref(stays)
        ask("hold", xmem.ref(stays))
        del stays
        assert "Stays" in ask("on")
        ask("drop")
        # The first process has released it, and the second one holds it.
        for _ in range(10):
            gc.collect()
            assert weak() is not None
        channel.close()
    wait_until(is_gone(weak))


def test_closing_the_channel_releases_references(place):
    with Process(keeper, place.path()):
        channel = xmem.Channel(place.path())
        stays = Stays("six")
        weak = weakref.ref(stays)
        Asker(channel)("hold", xmem.ref(stays))
        del stays
        channel.close()
        wait_until(is_gone(weak))


def test_comes_back_too_late(place):
    """Its holder had no lease left, so the object was not kept."""
    with Process(keeper, place.path()), xmem.Channel(place.path()) as channel:
        # Through another channel of this process, whose end here has dropped it.
        with xmem.Channel(place.path("other")) as first, xmem.Channel.connect(place.path("other"), timeout=HANG) as second:
            stays = Stays("seven")
            weak = weakref.ref(stays)
            first.send(xmem.ref(stays))
            assert second.recv(timeout=HANG) is stays
        token = xmem.ref(stays)._token
        del stays
        wait_until(is_gone(weak))
        from xmem.channel import _refs

        with pytest.raises(xmem.RefLost, match="no process held"):
            _refs.resolve(token, None)
        assert isinstance(xmem.RefLost("x"), ReferenceError)
        Asker(channel)("hold", 1)


def gives_back(path, sent):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        channel.send(channel.recv(timeout=HANG), timeout=HANG)
        assert channel.drain(HANG)
        sent.set()
        time.sleep(HANG)


def test_sent_back_by_a_process_that_ends_before_it_is_received(place):
    sent = forkserver.Event()
    with xmem.Channel(place.path()) as channel, Process(gives_back, place.path(), sent) as child:
        stays = Stays("back")
        weak = weakref.ref(stays)
        channel.send(xmem.ref(stays), timeout=HANG)
        del stays
        assert sent.wait(HANG)
        child.kill()
        wait_until(lambda: not channel.senders and channel.receivers == 0, "its end is seen")
        gc.collect()
        assert weak() is not None
        assert channel.recv(timeout=HANG) is weak()
        wait_until(is_gone(weak), "no process has it any more")


def has(path, results, go):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        ref = channel.recv(timeout=HANG)
        results.put(ref.is_held)
        go.wait(HANG)


def passes_on(path, onward):
    with xmem.Channel(onward) as out, xmem.Channel.connect(path, timeout=HANG) as channel:
        out.send(channel.recv(timeout=HANG), timeout=HANG)
        time.sleep(HANG)


def test_held_by_the_last_process_when_the_one_between_is_killed(place):
    results, go = forkserver.Queue(), forkserver.Event()
    onward = place.path("second")
    with (
        xmem.Channel(place.path()) as channel,
        Process(has, onward, results, go) as last,
        Process(passes_on, place.path(), onward) as between,
    ):
        stays = Stays("between")
        weak = weakref.ref(stays)
        channel.send(xmem.ref(stays), timeout=HANG)
        del stays
        assert results.get(timeout=HANG)
        between.kill()
        os.unlink(onward)
        os.unlink(onward.replace(".sock", ".lock"))
        wait_until(lambda: not channel.senders and channel.receivers == 0, "its end is seen")
        gc.collect()
        assert weak() is not None
        go.set()
        last.join()
        wait_until(is_gone(weak), "no process has it any more")


def relays(path, onward, own, count, results):
    """Forwards received objects, with a reference of its own on request. Its own objects end with it."""
    with xmem.Channel(onward) as out, xmem.Channel.connect(path, timeout=HANG) as channel:
        refs = [channel.recv(timeout=HANG) for _ in range(count)]
        refs = [ref for one in refs for ref in (one if isinstance(one, list) else [one])]
        mine = [Stays("mine")] if own else []
        refs += [xmem.ref(one) for one in mine]
        weak = [weakref.ref(one) for one in mine]
        out.send(refs, timeout=HANG)
        del refs, mine
        for _ in channel:
            gc.collect()
            results.put([one() is not None for one in weak])


def has_several(path, results, asked):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        refs = channel.recv(timeout=HANG)
        results.put([ref.is_held for ref in refs])
        while asked.get(timeout=HANG):
            results.put([ref.is_held for ref in refs])


def is_gone_from(channel, *names):
    wait_until(lambda: not channel.senders, "its end is seen")
    for name in names:
        os.unlink(name)
        os.unlink(name.replace(".sock", ".lock"))


def test_own_references_and_others_in_one_message(place):
    """Over two processes, the second of which is killed: the objects in the two before it stay."""
    results, asked, in_middle, unused = forkserver.Queue(), forkserver.Queue(), forkserver.Queue(), forkserver.Queue()
    one, two = place.path("one"), place.path("two")
    with (
        Process(has_several, two, results, asked),
        Process(relays, one, two, False, 1, unused) as second,
        xmem.Channel(place.path()) as channel,
    ):
        with Process(relays, place.path(), one, True, 1, in_middle) as middle:
            stays = Stays("first")
            weak = weakref.ref(stays)
            channel.send(xmem.ref(stays), timeout=HANG)
            del stays
            assert results.get(timeout=HANG) == [True, True]
            second.kill()
            os.unlink(two)
            os.unlink(two.replace(".sock", ".lock"))
            for _ in range(5):
                asked.put(True)
                assert results.get(timeout=HANG) == [True, True]
                channel.send("look", timeout=HANG)
                assert in_middle.get(timeout=HANG) == [True]
                gc.collect()
                assert weak() is not None
            # It removes the killed process's files.
            wait_until(lambda: not any(name.startswith("one.sock.") for name in os.listdir(place.dir)))
            # It keeps its objects only as long as it lives.
            middle.kill()
            is_gone_from(channel, one)
            asked.put(True)
            assert results.get(timeout=HANG) == [True, False]
            assert weak() is not None
        asked.put(False)
        wait_until(is_gone(weak), "no process has it any more")


def test_references_held_only_by_the_forwarding_process(place):
    """Of ten references, eight are held where their objects are. The others end with the process that forwarded them."""
    results, asked, unused = forkserver.Queue(), forkserver.Queue(), forkserver.Queue()
    onward = place.path("onward")
    with Process(has_several, onward, results, asked), xmem.Channel(place.path()) as channel:
        with Process(relays, place.path(), onward, False, 10, unused) as between:
            objects = [Stays(str(number)) for number in range(10)]
            weak = [weakref.ref(one) for one in objects]
            for one in objects:
                channel.send(xmem.ref(one), timeout=HANG)
            del objects, one
            assert results.get(timeout=HANG) == [True] * 10
            gc.collect()
            assert all(one() is not None for one in weak)
            between.kill()
            is_gone_from(channel, onward)
        asked.put(True)
        assert results.get(timeout=HANG) == [True] * 8 + [False] * 2
        wait_until(lambda: [one() is not None for one in weak] == [True] * 8 + [False] * 2, "two of them go")
        asked.put(False)
    wait_until(lambda: gc.collect() is not None and not any(one() for one in weak))


def many(path, count, go):
    with xmem.Channel.connect(path, timeout=HANG, budget=4) as channel:
        held = [channel.recv(timeout=HANG) for _ in range(count)]
        channel.send([ref.is_held for ref in held])
        go.wait(HANG)
        for ref in held:
            channel.send(ref)


def test_more_references_than_leases(place):
    """Past the budget, a reference does not hold its object and reports that. In its own process, the object is found by its id."""
    go = forkserver.Event()
    with Process(many, place.path(), 20, go), xmem.Channel(place.path()) as channel:
        objects = [Stays(str(number)) for number in range(20)]
        for obj in objects:
            channel.send(xmem.ref(obj), timeout=HANG)
        held = channel.recv(timeout=HANG)
        assert 1 <= sum(held) <= 5 and held[0]
        gone, objects[10] = weakref.ref(objects[10]), None
        if not held[10]:
            wait_until(is_gone(gone))
        go.set()
        for number, is_held in enumerate(held):
            if number == 10 and not is_held:
                with pytest.raises(xmem.RefLost):
                    channel.recv(timeout=HANG)
            else:
                assert channel.recv(timeout=HANG).name == str(number)


def makes(path, count):
    """Sends references to its own objects, and receives them back."""
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        for number in range(count):
            channel.send(xmem.ref(Stays(str(number))), timeout=HANG)
        for obj in channel:
            del obj


def collects(path, count, go):
    with xmem.Channel.connect(path, timeout=HANG, budget=4) as channel:
        held = [channel.recv(timeout=HANG) for _ in range(count)]
        channel.send([[ref.is_held for ref in refs] for refs in held], timeout=HANG)
        go.wait(HANG)


@pytest.mark.parametrize("per_message", [2, 8])
def test_more_references_are_sent_on_than_their_receiver_may_hold(place, per_message):
    """None of them blocks later messages."""
    count, go = 6, forkserver.Event()
    onward = place.path("onward")
    with (
        Process(makes, place.path(), count * per_message),
        Process(collects, onward, count, go),
        xmem.Channel(place.path()) as channel,
        xmem.Channel(onward) as out,
    ):
        out.wait_for_receiver(HANG)
        refs = [channel.recv(timeout=HANG) for _ in range(count * per_message)]
        for number in range(count):
            out.send(refs[number * per_message :][:per_message], timeout=HANG)
        held = out.recv(timeout=HANG)
        assert [len(one) for one in held] == [per_message] * count
        # The last one does not report that it is held.
        assert not any(held[-1])
        if per_message <= 4:
            assert all(held[0])
        go.set()


def one_of_many(path, out):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        out.put("joined")
        ref = channel.recv(timeout=HANG)
        out.put(ref.type_name)
        channel.recv(timeout=HANG)
        channel.send(ref)
        # A message of a process that has ended holds no reference any more.
        channel.recv(timeout=HANG)


def test_several_receivers_hold_it(place):
    out = forkserver.Queue()
    with xmem.Channel(place.path()) as channel:
        children = [Process(one_of_many, place.path(), out) for _ in range(3)]
        assert [out.get(timeout=HANG) for _ in children] == ["joined"] * 3
        stays = Stays("eight")
        weak = weakref.ref(stays)
        channel.send(xmem.ref(stays), timeout=HANG)
        assert [out.get(timeout=HANG) for _ in children] == ["test_channel_refs.Stays"] * 3
        del stays
        children.pop().kill()
        gc.collect()
        assert weak() is not None
        channel.send("send it back", timeout=HANG)
        for _ in children:
            assert channel.recv(timeout=HANG) is weak()
        channel.send("go", timeout=HANG)
        for child in children:
            child.join()
        wait_until(is_gone(weak))


def result(path, go):
    """A worker that sends a reference to its result, and keeps nothing itself."""
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        for number in range(10):
            channel.send(xmem.ref(Stays(f"result {number}")))
        for ref in channel:
            channel.send(ref.name)
            del ref
        go.set()


def test_kept_for_the_only_reference(place):
    go = forkserver.Event()
    with Process(result, place.path(), go), xmem.Channel(place.path()) as channel:
        refs = [channel.recv(timeout=HANG) for _ in range(10)]
        gc.collect()
        for number in (3, 0, 9):
            channel.send(refs[number], timeout=HANG)
            assert channel.recv(timeout=HANG) == f"result {number}"
        channel.close()
        assert go.wait(HANG)


def dies(path):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        channel.send(xmem.ref(Stays("nine")))
        channel.recv(timeout=HANG)


def first_message(path, out):
    """Reports the first message if it is a text, and takes the others."""
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        for number, obj in enumerate(channel):
            if number == 0:
                out.put(obj if isinstance(obj, str) else "an object")
            del obj


def test_a_process_that_joins_between_the_references_and_their_message(place, monkeypatch):
    """It gets no part of the message, because it could not hold the references."""
    path, out = place.path(), forkserver.Queue()
    copy = _arrays.gather
    with (
        contextlib.ExitStack() as processes,
        xmem.Channel(path) as channel,
        # Space for this process, and for one holder of forwarded frames.
        xmem.Producer(place.path("cam"), max_consumers=2) as producer,
        xmem.Consumer(place.path("cam")) as consumer,
    ):
        with producer.acquire((480, 640, 3), "uint8") as frame:
            frame.publish()
        image = np.asarray(consumer.recv(timeout=HANG))
        joined = 0

        def join():
            nonlocal joined
            processes.enter_context(Process(first_message, path, out))
            joined += 1
            wait_until(lambda: len(channel.senders) == joined)

        def join_and_copy(*place):
            join()
            copy(*place)

        def is_forwarded():
            channel.send(image, timeout=HANG)
            return channel.stats()["shared_bytes"] > 0

        join()
        wait_until(is_forwarded)
        # The first process that joins before the message is published cannot hold the image. So the message is made again, but not
        # its references.
        monkeypatch.setattr(_arrays, "gather", join_and_copy)
        channel.send([xmem.ref(Stays("one")), image, np.zeros((300, 300))[::2, ::2]], timeout=HANG)
        channel.send("the next message", timeout=HANG)
        assert joined == 3
        firsts = [out.get(timeout=HANG) for _ in range(joined)]
        assert sorted(firsts) == ["an object", "an object", "the next message"]
        channel.close()


def test_the_process_of_the_object_died(place):
    with xmem.Channel(place.path()) as channel, Process(dies, place.path()) as child:
        ref = channel.recv(timeout=HANG)
        assert ref.is_alive
        child.kill()
        assert ref.is_alive is False
        with pytest.raises(xmem.RefLost, match="ended"):
            ref.get()


def forked(path, ref):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        channel.send(ref.is_here)
        channel.send(ref)
        mine = xmem.ref(Stays("mine"))
        channel.send((mine, mine.is_here))
        channel.recv(timeout=HANG)


def test_fork(place):
    """A forked child is another process: references are not valid in it."""
    import multiprocessing

    with xmem.Channel(place.path()) as channel:
        stays = Stays("ten")
        ref = xmem.ref(stays)
        with Process(forked, place.path(), ref, context=multiprocessing.get_context("fork")):
            assert channel.recv(timeout=HANG) is False
            assert channel.recv(timeout=HANG) is stays
            mine, was_here = channel.recv(timeout=HANG)
            assert was_here and not mine.is_here and mine != ref
            channel.send("end")
