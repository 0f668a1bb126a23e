# SPDX-License-Identifier: MPL-2.0

"""Received arrays are forwarded in place: over several hops, several times, with the middle process killed."""

import collections
import contextlib
import gc
import itertools
import os
import time

import numpy as np
import pytest
from channel_support import HANG, Process, digest, echo, forkserver, wait_until

import xmem


def relay(path, onward, tells=True):
    """Forwards messages. Reports to the creator how many bytes of the last message it copied."""
    with xmem.Channel(onward, linger=1) as out, xmem.Channel.connect(path, timeout=HANG) as channel:
        out.wait_for_receiver(HANG)
        for obj in channel:
            before = out.stats()["copied_bytes"]
            out.send(obj, timeout=HANG)
            if tells:
                channel.send(out.stats()["copied_bytes"] - before)
            del obj


def sink(path, out, hold=0):
    """Describes messages, and holds the last few."""
    held = collections.deque(maxlen=hold)
    # The process before it may be killed.
    with xmem.Channel.connect(path, timeout=HANG) as channel, contextlib.suppress(xmem.ProducerLost):
        for obj in channel:
            out.put({name: digest(np.ascontiguousarray(a)) for name, a in obj.items()})
            held.append(obj)
            del obj
    if hold:
        # Checks all held messages after the other processes have ended.
        out.put([{name: digest(np.ascontiguousarray(a)) for name, a in obj.items()} for obj in held])


def digests(obj):
    return {name: digest(np.ascontiguousarray(a)) for name, a in obj.items()}


def make(seed):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 255, (400, 500, 3), "u1")
    return {"image": image, "crop": image[50:350, 100:400], "small": rng.random(20), "mask": rng.random((300, 100)).T}


def test_two_hops(place):
    a, b, c = place.path("a"), place.path("b"), place.path("c")
    out = forkserver.Queue()
    with (
        Process(sink, c, out),
        Process(relay, b, c, False),
        Process(relay, a, b),
        xmem.Channel(a) as channel,
    ):
        seeds = itertools.count()

        def is_passed_on():
            obj = make(next(seeds))
            channel.send(obj, timeout=HANG)
            assert out.get(timeout=HANG) == digests(obj)
            return channel.recv(timeout=HANG) < 5_000

        # The first process copies until the later ones reach the first pool.
        wait_until(lambda: sum(is_passed_on() for _ in range(20)) >= 15, "it is passed on where it lies")


def test_sent_on_twice(place):
    """The same array goes to two other processes, each of which keeps it as long as it needs."""
    a, b = place.path("a"), place.path("b")
    with Process(echo, a), Process(echo, b), xmem.Channel(a) as one, xmem.Channel(b) as two:
        original = np.random.default_rng(5).integers(0, 255, 300_000, "u1")
        one.send(original, timeout=HANG)
        received = one.recv(timeout=HANG)

        def both():
            results = []
            for channel in (one, two):
                before = channel.stats()["shared_bytes"]
                channel.send([received, received[1000:]], timeout=HANG)
                back = channel.recv(timeout=HANG)
                results.append((channel.stats()["shared_bytes"] - before, back))
                assert (back[0] == original).all() and (back[1] == original[1000:]).all()
            return all(shared > 500_000 for shared, _ in results)

        # Sometimes a process that has not reached the first pool yet joins it only to hold frames: then the array is copied.
        wait_until(lambda: sum(both() for _ in range(30)) >= 20, "it is sent on where it lies")
        # Released in any order.
        one.send(received)
        again = one.recv(timeout=HANG)
        del received
        gc.collect()
        for number in range(20):
            two.send(np.full(300_000, number, "u1"), timeout=HANG)
            two.recv(timeout=HANG)
        assert (again == original).all()


def test_the_process_in_between_is_killed(place):
    a, b = place.path("a"), place.path("b")
    out = forkserver.Queue()
    with Process(sink, b, out, 40) as last, xmem.Channel(a) as channel, Process(relay, a, b) as middle:
        sent = []

        def is_passed_on():
            obj = {"a": np.random.default_rng(len(sent)).integers(0, 255, 200_000, "u1")}
            channel.send(obj, timeout=HANG)
            sent.append(digests(obj))
            assert out.get(timeout=HANG) == sent[-1]
            return channel.recv(timeout=HANG) <= 5_000

        wait_until(is_passed_on)
        for _ in range(10):
            is_passed_on()
        middle.kill()
        # Slots of the killed process are reused; those that the last process holds are not.
        with xmem.Channel.connect(a, timeout=HANG) as other:
            for number in range(40):
                channel.send({"a": np.full(200_000, number, "u1")}, timeout=HANG)
                other.recv(timeout=HANG)
        assert out.get(timeout=HANG) == sent[-40:]
        last.join()
    wait_until(lambda: clean_of_killed(place))


def clean_of_killed(place):
    # The socket of the killed creator is replaced by the next one.
    for name in ("b",):
        if os.path.exists(place.path(name)):
            xmem.Channel(place.path(name)).close()
    return os.listdir(place.dir) == []


def test_frames_of_a_pool(place):
    """Arrays of an xmem.Consumer's frames: a detector forwards the frame with the boxes, without a copy."""
    with (
        Process(echo, place.path()),
        xmem.Channel(place.path()) as channel,
        xmem.Producer(place.path("cam")) as producer,
        xmem.Consumer(place.path("cam")) as consumer,
    ):
        numbers = itertools.count()

        def is_passed_on():
            number = next(numbers)
            with producer.acquire((480, 640, 3), "uint8") as frame:
                np.asarray(frame)[:] = number % 256
                frame.publish(pts=number)
            received = consumer.recv(timeout=HANG)
            before = channel.stats()["shared_bytes"]
            channel.send({"frame": np.asarray(received), "boxes": [1, 2]}, timeout=HANG)
            del received
            back = channel.recv(timeout=HANG)
            assert (back["frame"] == number % 256).all()
            shared = channel.stats()["shared_bytes"] - before
            assert shared in (0, 480 * 640 * 3)
            return number > 5 and shared

        wait_until(is_passed_on)


@pytest.mark.parametrize("format", ["RGB", "NV12"])
def test_frames_themselves(place, format):
    """Also with padding at the end of each row: 642 pixels."""
    with (
        Process(echo, place.path()),
        xmem.Channel(place.path()) as channel,
        xmem.Producer(place.path("cam")) as producer,
        xmem.Consumer(place.path("cam")) as consumer,
    ):
        numbers = itertools.count()

        def is_passed_on():
            number = next(numbers)
            with producer.acquire(format=format, width=642, height=480) as frame:
                for plane in frame.planes:
                    np.asarray(plane)[:] = number % 256
                frame.publish(pts=number)
            received = consumer.recv(timeout=HANG)
            before = channel.stats()
            channel.send([received, {"plane": received.planes[0]}], timeout=HANG)
            wanted = [np.asarray(plane).shape for plane in received.planes]
            caps = received.caps
            del received
            back, again = channel.recv(timeout=HANG)
            assert (back.format, back.width, back.height, back.pts, back.caps) == (format, 642, 480, number, caps)
            assert [plane.shape for plane in back.planes] == wanted
            assert all((np.asarray(plane) == number % 256).all() for plane in back.planes)
            assert isinstance(again["plane"], xmem.Plane)
            assert (np.asarray(again["plane"]) == number % 256).all()
            if format == "RGB":
                assert np.asarray(back).shape == (480, 642, 3)
            else:
                with pytest.raises(TypeError, match="planes"):
                    np.asarray(back)
            after = channel.stats()
            if after["shared_bytes"] - before["shared_bytes"] <= 480 * 642:
                return False
            assert after["copied_bytes"] - before["copied_bytes"] < 5000
            return True

        wait_until(is_passed_on)


def about(frame):
    names = (it for it in dir(frame) if not it.startswith("_"))
    known = {it: getattr(frame, it) for it in names if it not in ("planes", "readonly", "strides")}
    known = {name: value for name, value in known.items() if not callable(value)}
    return known | {"planes": [(plane.shape, plane.dtype) for plane in frame.planes]}


@pytest.mark.parametrize("shape", [(480, 641), (3, 4), (0, 4)])
@pytest.mark.parametrize("dtype", ["uint16", "bfloat16"])
def test_frames_keep_their_metadata(place, shape, dtype):
    """A frame from a channel has all its metadata, and can be read in every way."""
    with (
        Process(echo, place.path()),
        xmem.Channel(place.path()) as channel,
        xmem.Producer(place.path("cam"), caps="other/tensors, a=1") as producer,
        xmem.Consumer(place.path("cam")) as consumer,
    ):
        with producer.acquire(shape, dtype, room=100) as frame:
            frame.publish(pts=1, dts=2, duration=3, timestamp=time.monotonic_ns(), attachments={"boxes": b"\x00\x01"})
        received = consumer.recv(timeout=HANG)
        channel.send([received, received.copy()], timeout=HANG)
        back, copy = channel.recv(timeout=HANG)
        assert type(back) is type(copy) is xmem.Frame
        assert about(back) == about(copy) == about(received)
        assert repr(back) == repr(received)
        for it in (back, copy):
            if dtype == "uint16":
                assert np.array_equal(np.asarray(it), np.asarray(received))
                assert np.array_equal(np.from_dlpack(it), np.asarray(received))
        # Large attachments are in shared memory, in the message with which they arrived.
        assert back.readonly == (received.nbytes >= 4096)
        private = back.copy()
        assert not private.readonly
        # And forwarded again.
        channel.send(back, timeout=HANG)
        assert about(channel.recv(timeout=HANG, copy=True)) == about(received)


def test_a_frame_holds_its_message(place):
    with xmem.Channel(place.path()) as here, xmem.Channel.connect(place.path(), timeout=HANG) as there:
        here.wait_for_receiver(HANG)
        with xmem.Producer(place.path("cam")) as producer, xmem.Consumer(place.path("cam")) as consumer:
            for number in range(2):
                with producer.acquire(format="NV12", width=642, height=480) as frame:
                    for plane in frame.planes:
                        np.asarray(plane)[...] = number + 1
                    frame.publish()
            frames = [consumer.recv(timeout=HANG) for _ in range(2)]
            for frame in frames:
                here.send(frame, timeout=HANG)
            del frame, frames
            first, second = there.recv(timeout=HANG), there.recv(timeout=HANG)
        chroma = np.asarray(first.planes[1])[5:, ::3]
        del first
        for number in range(20):
            here.send(np.full(500_000, number, "u1"), timeout=HANG)
            assert (there.recv(timeout=HANG) == number).all()
        assert (chroma == 1).all()
        assert (np.asarray(second.planes[0]) == 2).all()


def test_planes_that_are_being_written(place):
    with xmem.Channel(place.path()) as here, xmem.Channel.connect(place.path(), timeout=HANG) as there:
        here.wait_for_receiver(HANG)
        with xmem.Producer(place.path("cam")) as producer:
            with producer.acquire((100, 100)) as frame:
                np.asarray(frame)[...] = 5
                (plane,) = frame.planes
                here.send(plane, timeout=HANG)
                # Nothing prevents publishing it.
                frame.publish()
            assert (np.asarray(there.recv(timeout=HANG)) == 5).all()
            with pytest.raises(xmem.Closed, match="`with` block"):
                here.send(plane, timeout=HANG)


def test_crops_of_received_arrays(place):
    """A window of an array in shared memory is not copied either."""
    with Process(echo, place.path()), xmem.Channel(place.path()) as channel:
        original = np.random.default_rng(5).integers(0, 255, (1000, 1000), "u1")
        channel.send(original, timeout=HANG)
        received = channel.recv(timeout=HANG)

        def shared():
            before = channel.stats()["copied_bytes"]
            channel.send([received[100:900, 300:700], received[:, 7]], timeout=HANG)
            window, column = channel.recv(timeout=HANG)
            assert (window == original[100:900, 300:700]).all() and (column == original[:, 7]).all()
            return channel.stats()["copied_bytes"] - before < 5000

        wait_until(shared)


def test_a_receiver_that_cannot_reach_the_first_pool_gets_copies(place):
    """Each pair of processes determines whether frames can be forwarded, and no message is lost."""
    with (
        Process(echo, place.path()),
        xmem.Channel(place.path()) as channel,
        # Space for this process, but for no holder of forwarded frames.
        xmem.Producer(place.path("cam"), max_consumers=1) as producer,
        xmem.Consumer(place.path("cam")) as consumer,
    ):
        for number in range(30):
            with producer.acquire((480, 640, 3), "uint8") as frame:
                np.asarray(frame)[:] = number
                frame.publish()
            channel.send(np.asarray(consumer.recv(timeout=HANG)), timeout=HANG)
            assert (channel.recv(timeout=HANG) == number).all()
        assert channel.stats()["shared_bytes"] == 0


def hoarder(path, count, budget, go):
    """Holds this number of lists, and nothing else."""
    with xmem.Channel.connect(path, timeout=HANG, budget=budget) as channel:
        held = []
        while len(held) < count:
            obj = channel.recv(timeout=HANG)
            if isinstance(obj, list):
                held.append(obj)
            del obj
        channel.send([[[int(a[0]) for a in arrays] for arrays in held], channel.stats()["copied_out"]])
        go.wait(HANG)


# With the smaller one not even the first message can be held where it lies.
@pytest.mark.parametrize("budget", [2, 8])
def test_receiver_that_holds_all_forwarded_frames(place, budget):
    """Leases in the origin pools are limited as well. Past the limit, arrays are copied and nothing is lost."""
    go = forkserver.Event()
    with (
        Process(echo, place.path("first")),
        xmem.Channel(place.path("first")) as first,
        Process(hoarder, place.path("second"), 40, budget, go),
        xmem.Channel(place.path("second")) as second,
    ):

        def is_passed_on():
            first.send(np.zeros(100_000), timeout=HANG)
            second.send(first.recv(timeout=HANG), timeout=HANG)
            return second.stats()["shared_bytes"] > 0

        wait_until(is_passed_on)
        for number in range(40):
            arrays = []
            for part in range(4):
                first.send(np.full(100_000, number * 4 + part), timeout=HANG)
                arrays.append(first.recv(timeout=HANG))
            second.send(arrays, timeout=HANG)
            del arrays
        values, copied_out = second.recv(timeout=HANG)
        assert values == [[number * 4 + part for part in range(4)] for number in range(40)]
        assert copied_out > 0
        go.set()
