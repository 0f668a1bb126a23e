# SPDX-License-Identifier: MPL-2.0

"""Calls of functions in other processes: results, exceptions, methods by references, and ends."""

import concurrent.futures
import gc
import importlib
import operator
import os
import sys
import threading

import numpy as np
import pytest
from channel_support import HANG, Process, wait_until

import xmem


def serve(path):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        channel.serve()


class Counter:
    """An object with state that cannot be pickled."""

    def __init__(self, start):
        self.count = start
        self.lock = threading.Lock()

    def add(self, array):
        self.count += int(array.sum())
        return self.count


def fail(text):
    raise LookupError(text)


class Odd(Exception):
    def __init__(self):
        super().__init__(threading.Lock())


def fail_oddly():
    raise Odd


def test_results_and_exceptions(place):
    with Process(serve, place.path()) as worker, xmem.Channel(place.path()) as channel:
        assert channel.call(os.getpid, timeout=HANG) == worker.pid
        array = np.arange(100_000)
        doubled = channel.call(np.multiply, array, 2, timeout=HANG)
        assert np.array_equal(doubled, array * 2) and not doubled.flags.writeable
        assert channel.call(sorted, [1, 3, 2], reverse=True, timeout=HANG) == [3, 2, 1]
        with pytest.raises(LookupError, match="not here") as raised:
            channel.call(fail, "not here", timeout=HANG)
        assert "in fail" in raised.value.__notes__[0]
        with pytest.raises(RuntimeError, match="cannot be pickled"):
            channel.call(fail_oddly, timeout=HANG)
        # An invalid call is answered, and the answer does not belong to the next call.
        channel.send("job", timeout=HANG)
        assert channel.call(len, "four", timeout=HANG) == 4


class TwoArguments(Exception):
    """It pickles, and does not unpickle."""

    def __init__(self, a, b):
        super().__init__(a)


def fail_with_two():
    raise TwoArguments("first", "second")


def fail_for_a_cause():
    try:
        fail("the cause")
    except LookupError as error:
        raise ValueError("the outcome") from error


def test_exceptions_that_do_not_arrive_whole(place):
    with Process(serve, place.path()), xmem.Channel(place.path()) as channel:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="cannot be unpickled here") as raised:
                channel.call(fail_with_two, timeout=HANG)
            assert "in fail_with_two" in raised.value.__notes__[0] and "TwoArguments: first" in raised.value.__notes__[0]
            with pytest.raises(ValueError, match="the outcome") as raised:
                channel.call(fail_for_a_cause, timeout=HANG)
            assert "LookupError: the cause" in raised.value.__notes__[0]
        with pytest.raises(RuntimeError, match="cannot be pickled") as raised:
            channel.call(fail_oddly, timeout=HANG)
        assert "in fail_oddly" in raised.value.__notes__[0]
        assert channel.call(len, "four", timeout=HANG) == 4


FUTURE = concurrent.futures.Future()


def raise_the_same(_array):
    if not FUTURE.done():
        try:
            fail("in the future")
        except LookupError as error:
            FUTURE.set_exception(error)
    return next(FUTURE.result() for _ in range(1))


def test_an_exception_that_is_raised_again_has_one_note(place):
    with Process(serve, place.path()), xmem.Channel(place.path()) as channel:
        notes = []
        for _ in range(20):
            with pytest.raises(LookupError, match="in the future") as raised:
                channel.call(raise_the_same, np.zeros(100_000), timeout=HANG)
            notes.append(raised.value.__notes__)
        # The first one also has the place where it was raised first, as every other one.
        assert all(len(it) == 1 and "in fail\n" in it[0] for it in notes)
        assert len({len(it[0]) for it in notes}) == 1, notes[-1][0]


class NotThere:
    """As an object of a module that only its sender has."""

    def __reduce__(self):
        return importlib.import_module, ("xmem_not_there",)


class Unsendable:
    """An object whose pickling fails with an unusual error."""

    def __reduce__(self):
        raise LookupError("no way")


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("to_maker", [False, True])
def test_no_call_ends_the_server(place, to_maker):
    with xmem.Channel(place.path()) as maker, xmem.Channel.connect(place.path(), timeout=HANG) as joined:
        server, channel = (maker, joined) if to_maker else (joined, maker)
        serving = threading.Thread(target=server.serve)
        serving.start()
        with pytest.raises(ModuleNotFoundError, match="xmem_not_there") as raised:
            channel.call(len, NotThere(), timeout=HANG)
        assert "needs the modules of the function" in raised.value.__notes__[0]
        channel.send(NotThere(), timeout=HANG)
        with pytest.raises(RuntimeError, match=r"the called process raised SystemExit\(3\)"):
            channel.call(sys.exit, 3, timeout=HANG)
        with pytest.raises(RuntimeError, match="the result cannot be sent: LookupError"):
            channel.call(Unsendable, timeout=HANG)
        assert channel.call(len, "four", timeout=HANG) == 4
        maker.close()
        serving.join(HANG)
        assert not serving.is_alive()


def test_a_call_is_answered_before_an_interrupt_ends_the_server(place):
    with xmem.Channel(place.path()) as channel, xmem.Channel.connect(place.path(), timeout=HANG) as joined:
        raised = []

        def serving():
            try:
                joined.serve()
            except KeyboardInterrupt as error:
                raised.append(error)

        thread = threading.Thread(target=serving)
        thread.start()
        with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
            channel.call(interrupt, timeout=HANG)
        thread.join(HANG)
        assert raised


def call_slowly(path, go):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        channel.call(wait_for_file, go, timeout=HANG)


def test_a_caller_that_is_killed_does_not_end_the_server(place):
    go = place.dir / "go"
    with xmem.Channel(place.path()) as channel:
        serving = threading.Thread(target=channel.serve)
        serving.start()
        with Process(call_slowly, place.path(), str(go)) as caller:
            wait_until(lambda: channel.stats()["received"] == 1, "the call")
            caller.kill()
        wait_until(lambda: not channel.senders, "the caller has left")
        go.touch()
        with xmem.Channel.connect(place.path(), timeout=HANG) as joined:
            assert joined.call(len, "12345", timeout=HANG) == 5
        channel.close()
        serving.join(HANG)
    go.unlink()


def test_methods_by_references(place):
    with Process(serve, place.path()), xmem.Channel(place.path()) as channel:
        counter = channel.call(Counter, 5, timeout=HANG)
        assert isinstance(counter, xmem.Ref) and counter.type_name.endswith("Counter")
        array = np.ones(10_000)
        assert channel.call(operator.methodcaller("add", array), counter, timeout=HANG) == 10_005
        assert channel.call(operator.methodcaller("add", array), counter, timeout=HANG) == 20_005
        assert channel.call(operator.attrgetter("count"), counter, timeout=HANG) == 20_005
        del counter
        gc.collect()


def test_a_reference_to_an_object_of_a_killed_process(place):
    with xmem.Channel(place.path()) as channel:
        with Process(serve, place.path()) as killed:
            counter = channel.call(Counter, 5, timeout=HANG)
            killed.kill()
        wait_until(lambda: not channel.senders, "it has left")
        with Process(serve, place.path()):
            channel.wait_for_receiver(HANG)
            with pytest.raises(xmem.RefLost, match="its process has ended"):
                channel.call(operator.methodcaller("add", np.ones(2)), counter, timeout=HANG)
            channel.close()


def test_an_unknown_number_is_named_as_it_was_given(place):
    with xmem.Channel(place.path()) as channel:
        with pytest.raises(xmem.ProducerLost, match="process 99 of the channel is not connected"):
            channel.send("a", to=99, timeout=HANG)


def test_one_of_several(place):
    with Process(serve, place.path()) as one, Process(serve, place.path()) as other:
        with xmem.Channel(place.path()) as channel:
            channel.wait_for_receiver(HANG, count=2)
            with pytest.raises(ValueError, match="2 processes joined.*to="):
                channel.call(os.getpid, timeout=HANG)
            pids = {channel.call(os.getpid, to=sender, timeout=HANG) for sender in channel.senders}
            assert pids == {one.pid, other.pid}


def test_a_process_that_is_killed_ends_its_call(place):
    with Process(serve, place.path()) as worker, xmem.Channel(place.path()) as channel:
        channel.call(os.getpid, timeout=HANG)
        with pytest.raises(xmem.ProducerLost, match="ended without closing its end"):
            channel.call(os._exit, 7, timeout=HANG)
        worker.process.join(HANG)
        wait_until(lambda: channel.receivers == 0, "it has left")


def test_a_late_answer_does_not_answer_another_call(place):
    with Process(serve, place.path()), xmem.Channel(place.path()) as channel:
        assert channel.call(len, "12", timeout=HANG) == 2
        with pytest.raises(xmem.Timeout):
            channel.call(wait_for_file, str(place.dir / "go"), timeout=0.05)
        (place.dir / "go").touch()
        assert channel.call(len, "123", timeout=HANG) == 3
        (place.dir / "go").unlink()


def wait_for_file(path):
    wait_until(lambda: os.path.exists(path), path)
    return "late"


def test_the_maker_serves_those_that_join(place):
    with xmem.Channel(place.path()) as channel:
        serving = threading.Thread(target=channel.serve)
        serving.start()
        with xmem.Channel.connect(place.path(), timeout=HANG) as joined:
            assert joined.call(len, "12345", timeout=HANG) == 5
        channel.close()
        serving.join(HANG)
        assert not serving.is_alive()
