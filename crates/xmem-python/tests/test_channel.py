# SPDX-License-Identifier: MPL-2.0

"""The content of messages: types, cycles, identity, arrays with and without gaps, limits, the end."""

import array
import asyncio  # noqa: F401  (a module object is something that does not pickle)
import collections
import copy
import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import gc
import os
import pickle
import threading
import time
import warnings

import numpy as np
import pytest
from channel_support import HANG, Place, Process, describe, digest, echo, forkserver, wait_until

import xmem


@pytest.fixture
def pair(place):
    """A channel, and a process that sends all messages back."""
    with Process(echo, place.path()), xmem.Channel(place.path()) as channel:
        yield Trip(channel)


@pytest.fixture(scope="module")
def trip(tmp_path_factory):
    """One echoing process for all tests that only check the echo."""
    place = Place(tmp_path_factory.mktemp("shared"))
    with Process(echo, place.path()), xmem.Channel(place.path()) as channel:
        yield Trip(channel)
    place.assert_clean()


class Trip:
    def __init__(self, channel):
        self.channel = channel

    def __call__(self, obj, **options):
        self.channel.send(obj, timeout=HANG)
        return self.channel.recv(timeout=HANG, **options)


@dataclasses.dataclass
class Point:
    x: float
    y: float
    tag: object = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    values: tuple


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Node:
    def __init__(self, name):
        self.name = name
        self.others = []


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "obj",
    [
        None, True, 1, -(2**200), 1.5, float("inf"), 2j, "text", "späte Grüße 🎞", b"bytes", b"", ..., NotImplemented,
        bytearray(b"mutable"), [], (), {}, set(), frozenset({1, 2}), [1, [2, [3, [4]]]], (1, (2, (3,))), {1: "int", (1, 2): 3},
        {None: 1, True: 2, 2.5: 3, b"k": 4, frozenset({1}): 5}, {"nested": {"deep": [{"er": ({1, 2}, None)}]}},
        range(3, 9, 2), slice(1, None, 3), Point(1, 2, Point(3, 4)), Frozen((1, "a")), Colour.GREEN, Pair(1, [2]),
        collections.OrderedDict(b=1, a=2), collections.Counter("abca"), collections.deque([1, 2], maxlen=5),
        collections.defaultdict(list, a=[1]), datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone.utc),
        decimal.Decimal("1.10"), fractions.Fraction(1, 3), array.array("d", [1, 2, 3]), int, len, Point, os.path.join,
        ValueError("an error", 3).args, "x" * 1_000_000, b"y" * 3_000_000, list(range(100_000)),
    ],
    ids=lambda obj: f"{type(obj).__name__}-{str(obj)[:20]!r}",
)  # fmt: skip
def test_objects_that_pickle(trip, obj):
    back = trip(obj)
    assert type(back) is type(obj)
    assert back == obj
    if isinstance(obj, dict):
        assert [type(key) for key in back] == [type(key) for key in obj], "keys keep their types, and their order"


def test_cycles_and_shared_references(trip):
    me = []
    me.append(me)
    a, b = Node("a"), Node("b")
    a.others += [b, a]
    b.others.append(a)
    shared = [1]
    ring = {"list": me, "nodes": (a, b), "twice": [shared, shared], "self": None}
    ring["self"] = ring
    back = trip(ring)
    assert back["list"][0] is back["list"]
    one, two = back["nodes"]
    assert one.others[0] is two and one.others[1] is one and two.others[0] is one
    assert back["twice"][0] is back["twice"][1]
    assert back["self"] is back


ARRAYS = {
    "plain": np.arange(100_000, dtype="f4"),
    "f order": np.asfortranarray(np.arange(60_000).reshape(200, 300)),
    "transposed": np.arange(60_000).reshape(20, 30, 100).transpose(2, 0, 1),
    "every second": np.arange(200_000)[::2],
    "window": np.arange(1_000_000).reshape(1000, 1000)[100:900, 3:700],
    "backwards": np.arange(50_000)[::-1],
    "column": np.arange(90_000).reshape(300, 300)[:, 7:8],
    "repeated": np.broadcast_to(np.arange(30_000), (50, 30_000)),
    "all the same": np.broadcast_to(np.float64(3), (100, 100)),
    "no bytes": np.empty((0, 5)),
    "one": np.array(5),
    "small": np.arange(10),
    "small with gaps": np.arange(10)[::3],
    "half": np.arange(50_000).astype("f2"),
    "complex": np.arange(50_000) * 1j,
    "bool": np.arange(50_000) % 3 == 0,
    "big endian": np.arange(50_000).astype(">i4"),
    "dates": np.arange("2000", "2100", dtype="M8[D]"),
    "spans": np.arange(50_000).astype("m8[ms]"),
    "bytes": np.array([b"abc", b"de"] * 5000),
    "text": np.array(["abc", "äö"] * 5000),
    "records": np.zeros(5000, dtype=[("a", "i4"), ("b", "f8", (3,))]),
    "void": np.zeros(5000, dtype="V7"),
    "objects": np.array([1, "a", None, [2]], dtype=object),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(trip, name):
    a = ARRAYS[name]
    before = a.copy()
    copied = trip.channel.stats()["copied_bytes"]
    back = trip({"a": a})["a"]
    assert (type(back), back.dtype, back.shape) == (np.ndarray, a.dtype, a.shape)
    np.testing.assert_array_equal(back, a)
    np.testing.assert_array_equal(a, before)
    if name in ("plain", "f order", "transposed"):
        assert back.strides == a.strides, "what has no gaps lies as it lay"
    if name == "repeated":
        assert back.strides[0] == 0, "and what is repeated is so"
        assert trip.channel.stats()["copied_bytes"] - copied < 2 * a.nbytes / 50
    if a.nbytes >= 4096 and name != "objects":
        assert not back.flags.writeable
        with pytest.raises(ValueError):
            back.setflags(write=True)
    else:
        back.fill(back.flat[0]) if back.size else None


def test_arrays_of_other_kinds(trip):
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(np.arange(10_000).reshape(100, 100))
    masked = np.ma.masked_array(np.arange(10_000), np.arange(10_000) % 2 == 0)
    records = np.rec.fromarrays([np.arange(1000), np.arange(1000.0)], names="a,b")
    back = trip([matrix, masked, records])
    assert [type(a) for a in back] == [np.matrix, np.ma.MaskedArray, np.recarray]
    assert (back[0] == matrix).all() and (back[1] == masked).all() and (back[2] == records).all()


def test_large_arrays_arrive_in_place(place):
    with Process(describe, place.path()), xmem.Channel(place.path()) as channel:
        big, small = np.arange(500_000), np.arange(10)
        channel.send([big, small, big[::2]])
        answer = channel.recv(timeout=HANG)
        assert answer == [
            ("ndarray", digest(big), False),
            ("ndarray", digest(small), True),
            ("ndarray", digest(np.ascontiguousarray(big[::2])), False),
        ]
        # The bytes of each array once, and little more.
        assert big.nbytes * 1.5 <= channel.stats()["copied_bytes"] < big.nbytes * 1.5 + 10_000


@pytest.mark.parametrize("size", [(2, 3), (40, 60), (), (0, 3), (5000,)])
@pytest.mark.parametrize("format", ["f2", "?", "u1", "i8", "c16", ">i4", "S3", [("a", "i4"), ("b", "f8")]])
def test_views_keep_their_type_and_shape(trip, format, size):
    count = int(np.prod(size))
    array = np.arange(48 * count, dtype="u1").view(format)[:count].reshape(size)
    for view in (memoryview(array), memoryview(array.T), memoryview(np.asfortranarray(array)).toreadonly()):
        back = trip(view)
        assert type(back) is memoryview and back.shape == view.shape and back.itemsize == view.itemsize
        assert np.asarray(back).tobytes() == np.asarray(view).tobytes()
        assert np.asarray(back).dtype == np.asarray(view).dtype


def test_views_of_steps(trip):
    view = memoryview(np.arange(20_000, dtype="f4").astype("f2"))[::3]
    back = trip(view)
    assert (back.format, back.shape) == ("e", view.shape) and np.array_equal(back, view)


def test_a_view_that_cannot_be_sent_is_refused(trip):
    class Pointers(ctypes.Structure):
        _fields_ = [("p", ctypes.c_void_p)]

    with pytest.raises((ValueError, TypeError, BufferError)):
        trip(memoryview(Pointers()))
    assert trip(1) == 1


def test_subclasses_of_arrays_arrive_in_place(place, tmp_path_factory):
    class Tracked(np.ndarray):
        pass

    globals()["Tracked"] = Tracked
    Tracked.__qualname__ = "Tracked"
    path = tmp_path_factory.mktemp("file") / "m"
    mapped = np.memmap(path, "u1", "w+", shape=(100_000,))
    mapped[:] = 7
    records = np.rec.fromarrays([np.arange(20_000), np.arange(20_000.0)], names="a,b")
    with xmem.Channel(place.path()) as channel, xmem.Channel.connect(place.path(), timeout=HANG) as other:
        for array in (mapped, records, np.arange(50_000).view(Tracked), np.arange(50_000).reshape(100, 500).view(Tracked).T):
            before = channel.stats()["copied_bytes"]
            channel.send(array, timeout=HANG)
            back = other.recv(timeout=HANG)
            assert type(back) is type(array) and back.dtype == array.dtype
            assert np.array_equal(back, array) and not back.flags.writeable
            assert channel.stats()["copied_bytes"] - before < array.nbytes + 5000
        del back


def test_views_of_one_array_are_copied_once(pair):
    whole = np.arange(1_000_000)
    parts = {"whole": whole, "again": whole, "head": whole[:600_000], "row": whole.reshape(1000, 1000)[8:800]}
    back = pair(parts)
    for name, part in parts.items():
        np.testing.assert_array_equal(back[name], part)
    assert back["whole"] is back["again"]
    assert np.shares_memory(back["head"], back["whole"])
    assert pair.channel.stats()["copied_bytes"] < whole.nbytes * 1.01


def test_buffers_of_other_objects(trip):
    data = os.urandom(300_000)
    view = memoryview(data)
    grid = memoryview(np.arange(10_000, dtype="i4").reshape(100, 100))
    back = trip([view, grid, view[:10], view[::2], pickle.PickleBuffer(bytearray(data))])
    assert back[0] == view and back[0].readonly
    assert (back[1].shape, back[1].format) == ((100, 100), "i") and back[1] == grid
    assert back[2] == data[:10] and back[3] == data[::2]
    assert bytes(back[4]) == data


class Own:
    """A type with its own decision about out-of-band data."""

    def __init__(self, data):
        self.data = data

    def __reduce_ex__(self, protocol):
        return type(self), (pickle.PickleBuffer(self.data),)


def test_own_types_out_of_band(trip):
    data = [os.urandom(50_000), os.urandom(100), os.urandom(70_000)]
    back = trip([Own(one) for one in data])
    assert [bytes(one.data) for one in back] == data
    assert memoryview(back[0].data).readonly


class Unsendable:
    def __init__(self, value):
        self.value = value
        self.lock = threading.Lock()


def make_unsendable(value):
    return Unsendable(value)


def test_registered_types(pair):
    with pytest.raises(TypeError) as raised:
        pair.channel.send(Unsendable(3))
    assert "xmem.ref" in raised.value.__notes__[0]
    pair.channel.register(Unsendable, lambda obj: (make_unsendable, (obj.value,)))
    pair.channel.send({"it": Unsendable(4)})
    # The other process does not know how the object was sent.
    with pytest.raises(xmem.Timeout):
        pair.channel.recv(timeout=0.5)


def test_objects_that_do_not_pickle(pair):
    with open(os.devnull) as file:
        for obj in (lambda: 1, threading.Lock(), file, (n for n in range(3)), asyncio):
            with pytest.raises((TypeError, pickle.PicklingError, AttributeError)):
                pair.channel.send([np.arange(100_000), obj])
    assert pair([1]) == [1], "nothing is broken by that"


def answer(path, number):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        for obj in channel:
            channel.send((number, obj))


def test_waiting_for_several(place):
    with xmem.Channel(place.path()) as channel:
        with pytest.raises(xmem.Timeout, match="0 of 3 processes joined"):
            channel.wait_for_receiver(0.01, count=3)
        with Process(answer, place.path(), 0), Process(answer, place.path(), 1), Process(answer, place.path(), 2):
            channel.wait_for_receiver(HANG, count=3)
            assert (channel.receivers, len(channel.senders)) == (3, 3)
            # To each of them another message.
            for to in channel.senders:
                channel.send(to, to=to, timeout=HANG)
            answers = [channel.recv_from(timeout=HANG) for _ in range(3)]
            assert all(obj == sender for (_, obj), sender in answers)
            assert sorted(number for (number, _), _ in answers) == [0, 1, 2]
            channel.close()


def missing(path):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        channel.send(1)
        # A class of a module that the other process does not have.
        import sys
        import types

        module = types.ModuleType("nowhere")
        exec("class Gone:\n    pass", module.__dict__)
        sys.modules["nowhere"] = module
        channel.send(module.Gone())
        channel.send(2)


def test_objects_that_do_not_unpickle(place):
    with Process(missing, place.path()), xmem.Channel(place.path()) as channel:
        assert channel.recv(timeout=HANG) == 1
        with pytest.raises(ModuleNotFoundError) as raised:
            channel.recv(timeout=HANG)
        assert "next one" in raised.value.__notes__[0]
        assert channel.recv(timeout=HANG) == 2


def test_private_copies(trip):
    a = np.arange(100_000)
    back = trip({"a": a, "b": a[::3], "t": a.reshape(100, 1000).T}, copy=True)
    for one in back.values():
        assert one.flags.writeable
        one += 1
    np.testing.assert_array_equal(back["a"], a + 1)
    np.testing.assert_array_equal(back["b"], a[::3] + 1)


@pytest.mark.parametrize("dtype", ["u1", "f4", "M8[s]", np.dtype([("a", "i4"), ("b", "f8")])])
def test_room_is_sent_without_a_copy(pair, dtype):
    channel = pair.channel
    a = channel.empty((300, 1000), dtype)
    assert a.dtype == dtype and a.shape == (300, 1000) and a.flags.writeable
    a[:] = np.zeros((300, 1000), dtype)
    a.reshape(-1)[:10] = np.ones(10, "u1").astype(dtype) if a.dtype.names is None else a.reshape(-1)[0]
    back = pair({"a": a, "half": a[:150], "every second": a[::2]})
    np.testing.assert_array_equal(back["a"], a)
    np.testing.assert_array_equal(back["half"], a[:150])
    np.testing.assert_array_equal(back["every second"], a[::2])
    stats = channel.stats()
    # The bytes between the rows, and after the last one, are sent as well.
    assert stats["shared_bytes"] == a.nbytes + a.nbytes // 2 + a[:299].nbytes
    assert stats["copied_bytes"] < 1000
    assert not a.flags.writeable, "it is other processes' too now"
    with pytest.raises(ValueError):
        a[0] = a[1]
    # Again, unchanged.
    np.testing.assert_array_equal(pair([a])[0], a)
    assert channel.stats()["copied_bytes"] < 2000


def test_room_goes_with_its_last_view(place):
    with Process(echo, place.path()), xmem.Channel(place.path(), max_slots=140, max_bytes=8 << 20) as channel:
        trip = Trip(channel)
        for number in range(50):
            a = channel.empty(1 << 20, "u1", timeout=HANG)
            a[:] = number
            b = trip([a])[0]
            assert b[0] == number and b[-1] == number
            del a, b


def test_room_of_objects_is_refused(place):
    with xmem.Channel(place.path()) as channel:
        with pytest.raises(ValueError):
            channel.empty(3, object)
        assert channel.empty(0).shape == (0,)
        assert channel.empty((2, 0, 3), "f4").nbytes == 0


def test_more_rooms_than_a_message_has_parts(pair):
    rooms = [pair.channel.empty(10_000, "i8") for _ in range(40)]
    for number, room in enumerate(rooms):
        room[:] = number
    back = pair(rooms)
    assert [int(one[0]) for one in back] == list(range(40)) and all((one == one[0]).all() for one in back)
    stats = pair.channel.stats()
    assert stats["shared_bytes"] > 0 and stats["copied_bytes"] > 0


def test_sizes_are_whole_and_not_negative(place):
    with xmem.Channel(place.path()) as channel:
        room = channel.room(np.uint16(65_472))
        arrays = [room.empty(np.int64(100), "u1")]
        left = room.left
        for shape in (-1, (-1,), (10, -10), (-2, -3), np.int64(-1), (np.int8(-1), 5)):
            for empty in (room.empty, channel.empty):
                with pytest.raises(ValueError, match="no negative size"):
                    empty(shape, "u1")
        # More elements than NumPy's arrays have, of which there is none.
        with pytest.raises(ValueError):
            room.empty((0, 1 << 62, 1 << 62), "u1")
        with pytest.raises(TypeError):
            room.empty(1.5, "u1")
        assert room.left == left
        arrays += [room.empty((np.uint8(200), np.uint8(200)), "u1"), room.empty(np.array([3, 4]), "u1")]
        assert [it.shape for it in arrays] == [(100,), (200, 200), (3, 4)]
        for number, array in enumerate(arrays):
            array[:] = number
        assert [set(it.flat) for it in arrays] == [{0}, {1}, {2}]
        assert channel.empty(np.int32(5), "u1").shape == (5,)


def test_many_arrays_in_one_room(pair):
    room = pair.channel.room(100 * 10_048)
    arrays = {number: room.empty(10_000, "u1") for number in range(90)}
    for number, array in arrays.items():
        array[:] = number
    assert room.left == 10 * 10_048
    floats = room.empty((50, 20))
    floats[:] = 1.5
    assert floats.ctypes.data % 64 == 0
    back = pair([arrays, floats])
    assert all((back[0][number] == number).all() for number in range(90)) and (back[1] == 1.5).all()
    stats = pair.channel.stats()
    assert stats["shared_bytes"] == 90 * 10_000 + floats.nbytes and stats["copied_bytes"] < 5000
    assert not arrays[3].flags.writeable
    with pytest.raises(ValueError, match="does not fit"):
        room.empty(200_000, "u1")
    assert room.empty(0).shape == (0,)


def test_messages_in_pieces_keep_their_memory(place):
    """The sender releases its arrays at once. The receiver holds the arrays in place and the copied ones."""
    with xmem.Channel(place.path()) as channel, xmem.Channel.connect(place.path(), timeout=HANG) as other:
        held = []
        for number in range(30):
            room = channel.empty(20_000, "u1")
            room[:] = number
            channel.send([room, np.full(30_000, number, "u1")], timeout=HANG)
            del room
            held.append(other.recv(timeout=HANG))
            if number % 3 == 2:
                held.pop(0)
        assert channel.stats()["shared_bytes"] == 30 * 20_000
        for room, array in held:
            assert (room == room[0]).all() and (array == room[0]).all()
        assert [int(room[0]) for room, _ in held] == list(range(10, 30))


def test_messages_keep_their_memory(pair):
    """A small part of a large message holds the memory of that message, until it is dropped. Then the memory is used again."""
    rows = [pair(np.full((1000, 1000), number, "u1"))[number] for number in range(10)]
    for number, row in enumerate(rows):
        assert (row == number).all()
    # The first ones may be copied, before the other process has joined.
    assert pair.channel.stats()["slots"] > 5, "it sends back where the messages are"
    del rows, row
    gc.collect()
    for number in range(60):
        assert (pair(np.full((1000, 1000), number, "u1"))[number] == number).all()
    assert pair.channel.stats()["slots"] < 40, "what was dropped is free"


def test_receiver_that_holds_everything(place):
    """Past the budget, a consumer gets copies and does not wait."""
    with Process(echo, place.path()), xmem.Channel(place.path(), budget=4) as channel:
        held = []
        for number in range(30):
            channel.send(np.full(50_000, number), timeout=HANG)
            held.append(channel.recv(timeout=HANG))
        assert all((one == number).all() for number, one in enumerate(held))
        assert channel.stats()["copied_out"] >= 20
        assert sum(one.flags.writeable for one in held) >= 20
        held.clear()
        channel.send(np.zeros(50_000), timeout=HANG)
        assert not channel.recv(timeout=HANG).flags.writeable


def holder(path, hold, go):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        held = [channel.recv(timeout=HANG) for _ in range(hold)]
        go.wait(HANG)
        del held
        for _ in channel:
            pass


def test_limit_of_bytes(place):
    go = forkserver.Event()
    message = np.zeros(1 << 20, "u1")
    with Process(holder, place.path(), 3, go), xmem.Channel(place.path(), max_bytes=8 << 20) as channel:
        with pytest.raises(xmem.PoolFull, match="max-bytes"):
            channel.send(np.zeros(9 << 20, "u1"), timeout=HANG)
        sent = 0
        channel.wait_for_receiver(HANG)
        with pytest.raises(xmem.Timeout, match="max_bytes|did not receive"):
            for _ in range(100):
                channel.send(message, timeout=1)
                sent += 1
        assert 3 <= sent <= 8
        go.set()
        for _ in range(20):
            channel.send(message, timeout=HANG)


def test_slow_receiver_is_waited_for(place):
    go = forkserver.Event()
    with Process(holder, place.path(), 0, go), xmem.Channel(place.path()) as channel:
        sent = 0
        channel.wait_for_receiver(HANG)
        with pytest.raises(xmem.Timeout, match="did not receive"):
            while True:
                channel.send(sent, timeout=0.5)
                sent += 1
        # 8 before it, and those that wait inside of it.
        assert 8 <= sent <= 16
        go.set()
        channel.send("more", timeout=HANG)


def counting(path, number, out):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        out.put((number, "joined"))
        out.put((number, [(n, digest(a)) for n, a in channel]))


def test_several_receivers_get_everything(place):
    out = forkserver.Queue()
    with xmem.Channel(place.path()) as channel:
        children = [Process(counting, place.path(), number, out) for number in range(3)]
        assert sorted(out.get(timeout=HANG) for _ in children) == [(n, "joined") for n in range(3)]
        rng = np.random.default_rng(1)
        arrays = [rng.integers(0, 255, 10_000 + 777 * n, "u1") for n in range(40)]
        for n, a in enumerate(arrays):
            channel.send((n, a), timeout=HANG)
        channel.close()
        wanted = [(n, digest(a)) for n, a in enumerate(arrays)]
        assert sorted(out.get(timeout=HANG) for _ in children) == [(n, wanted) for n in range(3)]
        for child in children:
            child.join()


def test_one_of_several_receivers(place):
    with Process(echo, place.path()), Process(echo, place.path()), xmem.Channel(place.path()) as channel:
        wait_until(lambda: len(channel.senders) == 2)
        one, two = channel.senders
        for n in range(20):
            channel.send(("one", n), to=one, timeout=HANG)
            channel.send(("two", n), to=two, timeout=HANG)
            assert channel.recv_from(sender=two, timeout=HANG) == (("two", n), two)
            assert channel.recv_from(timeout=HANG) == (("one", n), one)
        assert not channel.poll()
        with pytest.raises(xmem.ProducerLost):
            channel.send(1, to=12345)
        with pytest.raises(xmem.EndOfStream):
            channel.recv(sender=12345)


def test_late_joiner_gets_later_messages(place):
    with xmem.Channel(place.path()) as channel:
        with pytest.raises(xmem.Timeout, match="no process joined"):
            channel.send("lost?", timeout=0.1)
        with Process(echo, place.path()):
            channel.send("first", timeout=HANG)
            assert channel.recv(timeout=HANG) == "first"
            with Process(echo, place.path()):
                wait_until(lambda: channel.receivers == 2)
                channel.send("both", timeout=HANG)
                assert [channel.recv(timeout=HANG) for _ in range(2)] == ["both", "both"]
                channel.close()


def test_parts_of_records_are_sent_once(pair):
    """`send` returns after it has sent, whatever the arrays are views of."""
    fields = [("pose", "f8", (4, 4)), ("image", "u1", (480, 640))]
    for take in (
        lambda made: made[0]["image"],
        lambda made: made["image"][0],
        lambda made: made[0]["image"][10:, ::2],
        lambda made: made.view(np.recarray)[0].image,
        lambda made: made.view(np.recarray),
        lambda made: made[:0],
    ):
        made = pair.channel.empty(1, fields)
        part = take(made)
        if part.dtype.names is None:
            part[...] = 5
        pair.channel.send(part, timeout=HANG)
        back = pair.channel.recv(timeout=HANG)
        assert back.tobytes() == np.asarray(part).tobytes()
        if np.asarray(part).nbytes >= 4096 and part.flags.c_contiguous:
            assert not part.flags.writeable and not made.flags.writeable


def sender(path, count):
    channel = xmem.Channel.connect(path, timeout=HANG)
    for number in range(count):
        channel.send((number, np.full(20_000, number)))
    # The process exits without closing: sent messages still arrive.


@pytest.mark.parametrize("count", [0, 1, 3, 30])
def test_all_sent_messages_arrive(place, count):
    with xmem.Channel(place.path()) as channel, Process(sender, place.path(), count) as child:
        for number in range(count):
            n, a = channel.recv(timeout=HANG)
            assert n == number and (a == n).all()
        child.join()
        wait_until(lambda: channel.senders == [])
        with pytest.raises(xmem.Timeout):
            channel.recv(timeout=0.05)


def test_a_stream_that_was_cut_off_is_not_complete(place):
    """The loop ends normally if, and only if, it has got every message."""
    for linger, kill in ((0, False), (10, False), (0, True)):
        ready, go = forkserver.Event(), forkserver.Event()
        with Process(nine, place.path(), linger, ready, go) as maker:
            with xmem.Channel.connect(place.path(), timeout=HANG) as channel:
                assert ready.wait(HANG)
                if kill:
                    maker.kill()
                else:
                    go.set()
                    if linger == 0:
                        maker.process.join(HANG)
                got = []
                try:
                    got.extend(int(a[0]) for a in channel)
                    assert got == list(range(9))
                    assert not kill
                except xmem.ProducerLost:
                    assert linger == 0
                assert got == list(range(len(got)))
        if kill:
            xmem.Channel(place.path()).close()


def nine(path, linger, ready, go):
    channel = xmem.Channel(path)
    channel.wait_for_receiver(HANG)
    for n in range(9):
        channel.send(np.full(10_000, n), timeout=HANG)
    ready.set()
    if linger == 0:
        go.wait(HANG)
    channel.close(linger=linger)


def test_close_warns_of_messages_that_were_not_taken(place):
    channel = xmem.Channel(place.path())
    other = xmem.Channel.connect(place.path(), timeout=HANG)
    for number in range(5):
        channel.send(np.full(50_000, number), timeout=HANG)
    with pytest.warns(xmem.PoolWarning, match="was closed with unread messages"):
        channel.close(linger=0.1)
    other.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with xmem.Channel(place.path()) as channel, xmem.Channel.connect(place.path(), timeout=HANG) as other:
            channel.send(1, timeout=HANG)
            assert other.recv(timeout=HANG) == 1


def test_an_end_is_not_copied(pair):
    for make in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied"):
            make(pair.channel)
    assert pair(1) == 1


def test_a_consumer_of_a_channel_is_an_error(place):
    with xmem.Channel(place.path()) as channel, xmem.Consumer(place.path()) as consumer:
        channel.send(1, timeout=HANG)
        with pytest.raises(xmem.Error, match=r"xmem.Channel.connect"):
            consumer.recv(HANG)


def test_closing(place):
    channel = xmem.Channel(place.path())
    other = xmem.Channel.connect(place.path(), timeout=HANG)
    for number in range(5):
        channel.send(np.full(50_000, number))
    # The messages are not taken, so the end arrives first.
    threading.Timer(0.3, lambda: [other.recv(timeout=HANG) for _ in range(3)]).start()
    channel.close()
    assert [int(a[0]) for a in other] == [3, 4]
    with pytest.raises(xmem.EndOfStream, match="closed"):
        other.recv()
    with pytest.raises(xmem.EndOfStream):
        next(iter([other.recv()]))
    with pytest.raises(xmem.ProducerLost, match="has no receiver"):
        other.send(1)
    for call in (channel.recv, lambda: channel.send(1), channel.poll, channel.stats, lambda: channel.empty(3)):
        with pytest.raises(xmem.Closed):
            call()
    assert channel.closed and not other.closed
    channel.close()
    other.close()
    assert "closed" in repr(other)


def test_close_does_not_wait_for_the_end_of_a_receiver(place):
    end = time.monotonic() + HANG
    # If it waited, half a second each time, these would take longer than `HANG`.
    for number in range(100):
        channel = xmem.Channel(place.path(str(number)))
        other = xmem.Channel.connect(place.path(str(number)), timeout=HANG)
        channel.close(linger=0)
        assert time.monotonic() < end
        other.close(linger=0)


def test_close_wakes_waiting_threads(place):
    channel = xmem.Channel(place.path())
    errors = []

    def wait(call):
        try:
            call()
        except xmem.Error as error:
            errors.append(type(error))

    threads = [
        threading.Thread(target=wait, args=(call,))
        for call in (channel.recv, channel.recv, lambda: channel.send(1), lambda: channel.wait_for_receiver())
    ]
    for thread in threads:
        thread.start()
    channel.close(linger=0)
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive()
    assert errors == [xmem.Closed] * 4


def test_arrays_outlive_the_channel(place):
    channel = xmem.Channel(place.path())
    other = xmem.Channel.connect(place.path(), timeout=HANG)
    room = channel.empty(100_000, "u2")
    room[:] = 9
    channel.send([np.arange(100_000), room])
    a, b = other.recv(timeout=HANG)
    channel.close(), other.close()
    del channel, other
    gc.collect()
    assert (a == np.arange(100_000)).all() and (b == 9).all()
    room = room.copy()


def test_names_and_limits(place):
    channel = xmem.Channel(place.path())
    with pytest.raises(xmem.PoolInUse):
        xmem.Channel(place.path())
    with pytest.raises(xmem.NoProducer):
        xmem.Channel.connect(place.path("missing"), timeout=0.1)
    with pytest.raises(ValueError):
        xmem.Channel("")
    with pytest.raises(ValueError):
        xmem.Channel(place.path("few"), max_slots=1)
    with pytest.raises(ValueError):
        channel.recv(timeout=float("nan"))
    producer = xmem.Producer(place.path("pool"))
    with pytest.raises(ValueError, match="not a channel"):
        xmem.Channel.connect(place.path("pool"), timeout=HANG)
    producer.close()
    channel.close()


def test_a_channel_goes_to_a_child_as_an_argument(place):
    channel = xmem.Channel(place.path())
    with Process(given, channel):
        assert channel.recv(timeout=HANG) == "hello"
    channel.close()


def given(channel):
    channel.send("hello")
    channel.close()


def in_fork(channel, path, out):
    answers = []
    for call in (lambda: channel.send(1), channel.recv, channel.poll, channel.stats):
        try:
            call()
            answers.append("no error")
        except xmem.Error as error:
            answers.append(type(error).__name__)
    channel.close()
    with xmem.Channel.connect(path, timeout=HANG) as own:
        own.send(answers)
        out.wait(HANG)


def test_fork(place):
    import multiprocessing

    fork = multiprocessing.get_context("fork")
    out = fork.Event()
    with xmem.Channel(place.path()) as channel:
        held = []
        with Process(echo, place.path()):
            channel.send(np.arange(100_000))
            held.append(channel.recv(timeout=HANG))
            with Process(in_fork, channel, place.path(), out, context=fork) as child:
                assert channel.recv(timeout=HANG) == ["Forked"] * 4
                out.set()
                child.join()
            # The end of the child changed nothing here.
            channel.send(np.arange(100_000))
            np.testing.assert_array_equal(channel.recv(timeout=HANG), held[0])
            channel.close()


def test_interrupt(place):
    """Ctrl-C ends each wait."""
    import signal

    with xmem.Channel(place.path()) as channel:
        for call in (channel.recv, lambda: channel.send(1), lambda: channel.poll(None)):
            timer = threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                timer.start()
                call()
            timer.join()
        with pytest.raises(KeyboardInterrupt):
            timer = threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT))
            timer.start()
            xmem.Channel.connect(place.path("missing"))
