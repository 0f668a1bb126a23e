# SPDX-License-Identifier: MPL-2.0

"""Frames, and their use by other libraries."""

import asyncio
import ctypes
import gc
import re
import threading

import numpy as np
import pytest
from support import HANG, assert_whole, content, publish

import xmem

DTYPES = [
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "bool",
]  # fmt: skip


@pytest.fixture
def producer(pool):
    with xmem.Producer(pool, history=4) as producer:
        yield producer


@pytest.fixture
def consumer(producer):
    with xmem.Consumer(producer.pool, timeout=HANG) as consumer:
        yield consumer


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_has_names(producer, consumer, dtype):
    data = (np.arange(24) % 2 if dtype == "bool" else np.arange(24)).astype(dtype).reshape(2, 3, 4)
    with producer.acquire(data.shape, data.dtype) as frame:
        np.asarray(frame)[...] = data
        frame.publish()
    frame = consumer.recv(HANG)
    assert frame.dtype == dtype
    assert frame.shape == (2, 3, 4)
    assert frame.strides == data.strides
    for array in (np.asarray(frame), np.from_dlpack(frame), np.array(Interface(frame), copy=False)):
        assert array.dtype == data.dtype
        assert np.array_equal(array, data)
        assert not array.flags.writeable
    assert memoryview(frame).format == memoryview(data).format
    assert memoryview(frame).tobytes() == data.tobytes()


class Interface:
    """An object with only the array interface."""

    def __init__(self, frame):
        self.__array_interface__ = frame.__array_interface__
        self.frame = frame


@pytest.mark.parametrize("shape", [(0,), (5,), (3, 0, 2), (2, 3, 4, 5, 6, 2, 2, 2)])
def test_shapes(producer, consumer, shape):
    data = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    with producer.acquire(shape, np.float32) as frame:
        np.asarray(frame)[...] = data
        frame.publish()
    array = np.asarray(consumer.recv(HANG))
    assert array.shape == shape
    assert array.dtype == np.float32
    assert np.array_equal(array, data)


def test_spellings_of_a_type(producer):
    torch = pytest.importorskip("torch", reason="no PyTorch")

    for dtype in ("float32", np.float32, np.dtype("float32"), torch.float32):
        assert producer.acquire((2,), dtype).dtype == "float32"
    for short in ("u1", "|u1", "i2", "<i4", "=u8", "f2", "<f8", "b1"):
        assert producer.acquire((2,), short).dtype == np.dtype(short).name
    assert producer.acquire((2,), float).dtype == "float64"
    assert producer.acquire((2,), int).dtype == "int64"
    assert producer.acquire((2,), bool).dtype == "bool"
    assert producer.acquire(5).shape == (5,)
    assert producer.acquire((2,), torch.bfloat16).dtype == "bfloat16"
    with pytest.raises(ValueError, match="use one of uint8"):
        producer.acquire((2,), "complex64")
    with pytest.raises(ValueError, match='no such dtype: ">f4"'):
        producer.acquire((2,), ">f4")


def test_packed_formats_are_one_array(producer, consumer):
    with producer.acquire(format="RGB", width=5, height=4) as frame:
        assert frame.shape == (4, 5, 3)
        assert frame.strides == (16, 3, 1)
        np.asarray(frame)[...] = content(1, (4, 5, 3))
        frame.publish()
    frame = consumer.recv(HANG)
    assert (frame.format, frame.width, frame.height) == ("RGB", 5, 4)
    assert_whole(frame, 1)
    assert frame.nbytes == 60
    assert len(frame) == 4
    (plane,) = frame.planes
    assert_whole(plane, 1)
    # Rows are padded, so there is no contiguous view.
    with pytest.raises(BufferError, match="contiguous"):
        np.frombuffer(frame, np.uint8)
    copy = frame.copy()
    assert copy.strides == (15, 3, 1)
    assert np.frombuffer(copy, np.uint8).nbytes == 60


def test_planar_formats_are_planes(producer, consumer):
    with producer.acquire(format="NV12", width=5, height=3) as frame:
        luma, chroma = (np.asarray(plane) for plane in frame.planes)
        luma[...] = content(1, luma.shape)
        chroma[...] = content(2, chroma.shape)
        del luma, chroma
        frame.publish()
    frame = consumer.recv(HANG)
    luma, chroma = frame.planes
    assert luma.shape == (3, 5)
    assert chroma.shape == (2, 3, 2)
    assert_whole(luma, 1)
    assert_whole(chroma, 2)
    for use in (lambda: len(frame), lambda: np.asarray(frame), lambda: np.from_dlpack(frame)):
        with pytest.raises(TypeError, match=r"NV12 isn't a single array: use its 2 plane\(s\) in frame\.planes"):
            use()
    # The query is answered; the use raises an error with the reason.
    for name in ("shape", "strides", "ndim"):
        assert getattr(frame, name, None) is None
        with pytest.raises(AttributeError, match=r"NV12 isn't a single array: use its 2 plane\(s\) in frame\.planes"):
            getattr(frame, name)
    with pytest.raises(BufferError, match=r"frame\.planes"):
        memoryview(frame)
    copy = frame.copy()
    assert_whole(copy.planes[0], 1)
    assert_whole(copy.planes[1], 2)


def test_metadata(producer, consumer):
    before = xmem_now()
    with producer.acquire((2,), room=100) as frame:
        frame.publish(pts=1, dts=2, duration=3, attachments={"boxes": b"\x00\x01", "empty": b""})
    frame = consumer.recv(HANG)
    assert (frame.pts, frame.dts, frame.duration, frame.sequence) == (1, 2, 3, 0)
    assert frame.attachments == {"boxes": b"\x00\x01", "empty": b""}
    assert before <= frame.timestamp <= frame.published_at <= xmem_now()
    assert frame.pool == producer.pool
    assert frame.content_type == "tensor/uint8"


@pytest.mark.parametrize("size", [1, 4032, 4096, 640 * 360])
def test_room_for_attachments(producer, consumer, size):
    # Any bytes behind the frame.
    some = {"boxes": b"\x01" * 500, "label": b"cat"}
    with producer.acquire((size,)) as frame:
        frame.publish(attachments=some)
    assert consumer.recv(HANG).attachments == some
    many = {"boxes": b"\x00" * 300_000}
    with producer.acquire((size,)) as frame, pytest.raises(xmem.Error, match=r"acquire\(\.\.\., room=\d+\)") as error:
        frame.publish(attachments=many)
    room = int(re.search(r"room=(\d+)", str(error.value))[1])
    with producer.acquire((size,), room=room) as frame:
        frame.publish(attachments=many)
    assert consumer.recv(HANG).attachments == many


def test_flags_content_type_and_attachments(producer, consumer):
    with producer.acquire((2,)) as frame:
        frame.publish(flags=1 << 13, content_type="image/jpeg", attachments={"a": bytearray(b"x")})
    frame = consumer.recv(HANG)
    assert (frame.flags, frame.content_type, frame.attachments) == (1 << 13, "image/jpeg", {"a": b"x"})
    publish(producer, 1)
    frame = consumer.recv(HANG)
    assert (frame.flags, frame.content_type) == (0, "tensor/uint8")


def xmem_now():
    import time

    return time.monotonic_ns()


def test_frames_cannot_be_written(producer, consumer):
    publish(producer, 1)
    frame = consumer.recv(HANG)
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(frame)[...] = 0
    with pytest.raises(TypeError):
        memoryview(frame)[0, 0, 0] = 0
    with pytest.raises(TypeError, match="not writable"):
        (ctypes.c_char * frame.nbytes).from_buffer(frame)
    copy = frame.copy()
    np.asarray(copy)[...] = 0
    assert_whole(frame, 1)
    assert not copy.readonly
    assert frame.readonly


def test_a_lease_lives_as_long_as_the_last_view(producer, consumer):
    publish(producer, 1)
    views = []
    frame = consumer.recv(HANG)
    views.append(np.asarray(frame)[5:7, ::-1])
    views.append(memoryview(frame)[10:])
    views.append(np.from_dlpack(frame).T)
    views.append(frame.planes[0])
    views.append(np.array(Interface(frame), copy=False))
    views.append(frame.__dlpack__(max_version=(1, 1)))
    views.append(frame.__dlpack__())
    del frame
    while views:
        assert consumer.stats["held"] == 1
        views.pop(0)
        gc.collect()
    assert consumer.stats["held"] == 0


def test_an_unused_capsule_frees_itself(producer, consumer):
    publish(producer, 1)
    frame = consumer.recv(HANG)
    capsules = [frame.__dlpack__(), frame.__dlpack__(max_version=(1, 0)), frame.__dlpack__(copy=True)]
    del frame
    assert consumer.stats["held"] == 1
    assert ["dltensor", "dltensor_versioned", "dltensor"] == [name_of(it) for it in capsules]
    capsules.clear()
    assert consumer.stats["held"] == 0


def name_of(capsule):
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get_name(capsule).decode()


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, up to its flags."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
    ]


def managed(capsule):
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get_pointer(capsule, b"dltensor_versioned")
    return address, Versioned.from_address(address)


def test_dlpack_by_the_standard(producer, consumer):
    publish(producer, 1)
    frame = consumer.recv(HANG)
    assert frame.__dlpack_device__() == (1, 0)
    read_only, copied = 1, 2
    assert managed(frame.__dlpack__(max_version=(1, 0)))[1].flags == read_only
    assert managed(frame.__dlpack__(max_version=(1, 0), copy=True))[1].flags == copied
    assert managed(frame.copy().__dlpack__(max_version=(2, 0)))[1].flags == 0
    frame.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="another device"):
        frame.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="stream"):
        frame.__dlpack__(stream=1)


def test_a_tensor_may_be_deleted_without_the_interpreter(producer, consumer):
    """As a library's own thread does."""
    publish(producer, 1)
    capsule = consumer.recv(HANG).__dlpack__(max_version=(1, 0))
    address, tensor = managed(capsule)
    set_name = ctypes.pythonapi.PyCapsule_SetName
    set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
    used = b"used_dltensor_versioned"
    set_name(capsule, used)
    # pthread_create runs the deleter itself, and ctypes releases the interpreter's lock for the call.
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    deleter = ctypes.cast(tensor.deleter, ctypes.c_void_p)
    assert consumer.stats["held"] == 1
    assert libc.pthread_create(ctypes.byref(thread), None, deleter, ctypes.c_void_p(address)) == 0
    assert libc.pthread_join(thread, None) == 0
    assert consumer.stats["held"] == 0
    del capsule


def test_views_are_given_back_from_any_thread(producer, consumer):
    for seed in range(4):
        publish(producer, seed)
    frames = [consumer.recv(HANG) for _ in range(4)]
    views = [[np.asarray(frame)] for frame in frames]
    del frames
    threads = [threading.Thread(target=view.clear) for view in views]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert consumer.stats["held"] == 0


def test_over_budget(producer):
    with xmem.Consumer(producer.pool, max_held=1, over_budget="raise") as consumer:
        publish(producer, 0)
        kept = consumer.recv(HANG)
        publish(producer, 1)
        with pytest.raises(xmem.OverBudget, match="budget of 1"):
            consumer.recv(HANG)
        del kept
        assert_whole(consumer.recv(HANG), 1)
    with xmem.Consumer(producer.pool, max_held=1) as consumer:
        publish(producer, 2)
        kept = consumer.recv(HANG)
        publish(producer, 3)
        copy = consumer.recv(HANG)
        assert_whole(copy, 3)
        assert not copy.readonly
        assert consumer.stats["copied"] == 1
        assert consumer.stats["held"] == 1
        assert_whole(kept, 2)
    with xmem.Consumer(producer.pool, max_held=1, over_budget="drop") as consumer:
        publish(producer, 4)
        kept = consumer.recv(HANG)
        publish(producer, 5)
        assert consumer.try_recv() is None
        assert consumer.stats["dropped"] == 1
        for waits in (consumer.recv, lambda time: asyncio.run(consumer.arecv(time))):
            publish(producer, 6)
            with pytest.raises(xmem.Timeout, match=r"in 0\.5 s, and 1 dropped: .* Release frames, raise max_held"):
                waits(0.5)
        with pytest.raises(xmem.Timeout, match=r"no frame arrived in 0\.5 s: check that the producer"):
            consumer.recv(0.5)
        assert_whole(kept, 4)


def test_iterating_ends_with_the_stream(producer):
    with xmem.Consumer(producer.pool) as consumer:
        for seed in range(3):
            publish(producer, seed)
        producer.end_stream()
        assert [frame.pts for frame in consumer] == [0, 1, 2]
        with pytest.raises(xmem.EndOfStream):
            consumer.recv(HANG)
    with xmem.Consumer(producer.pool, on_eos="wait") as consumer:
        with pytest.raises(xmem.Timeout, match="no frame arrived in 0.01 s"):
            consumer.recv(0.01)
        with pytest.raises(xmem.Timeout, match="no frame arrived in 1e-300 s"):
            consumer.recv(1e-300)


def test_newest_only(pool):
    with xmem.Producer(pool, history=8) as producer, xmem.Consumer(pool, newest_only=True) as consumer:
        for seeds in (range(4), range(4, 5), range(5, 8)):
            for seed in seeds:
                publish(producer, seed)
            frame = consumer.recv(HANG)
            assert frame.pts == seeds[-1]
            assert_whole(frame, seeds[-1])
            assert consumer.try_recv() is None
        stats = consumer.stats
        assert (stats["received"], stats["missed"]) == (3, 5)


def test_max_rate(pool):
    # One frame in an hour.
    with xmem.Producer(pool, history=8) as producer, xmem.Consumer(pool, max_rate=1 / 3600) as consumer:
        for seed in range(4):
            publish(producer, seed)
        producer.end_stream()
        assert [frame.pts for frame in consumer] == [0]
        stats = consumer.stats
        assert (stats["received"], stats["missed"], stats["skipped"]) == (1, 0, 3)
        assert producer.stats["consumers"][0]["skipped"] == 3


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 1e-300])
def test_impossible_rates_are_refused(pool, rate):
    with pytest.raises(ValueError, match="isn't a valid max_rate: give the most frames per second"):
        xmem.Consumer(pool, max_rate=rate)


@pytest.mark.parametrize("lossless", [False, True])
def test_few_bytes_for_a_consumer_that_keeps_frames(pool, lossless):
    # Five of them, of 256 KiB.
    with (
        xmem.Producer(pool, lossless=lossless, history=1, max_bytes=5 << 18) as producer,
        xmem.Consumer(pool) as consumer,
        pytest.warns(xmem.PoolWarning, match="hold only 3 frame"),
    ):
        assert consumer.stats["budget"] == 8
        kept = []
        for seed in range(20):
            # The variable holds the frame and its slot until the next frame is assigned.
            frame = producer.acquire((1 << 18,), room=0, timeout=HANG)
            np.asarray(frame)[...] = seed
            frame.publish(timeout=HANG)
            kept.append(consumer.recv(HANG))
        stats = consumer.stats
        assert (stats["budget"], stats["held"], stats["copied"]) == (3, 3, 17)
        assert [np.asarray(frame)[0] for frame in kept] == list(range(20))


def test_start_from(producer):
    for seed in range(3):
        publish(producer, seed)
    with xmem.Consumer(producer.pool, start_from="newest") as consumer:
        assert consumer.recv(HANG).pts == 2
    with xmem.Consumer(producer.pool, start_from="oldest") as consumer:
        assert consumer.recv(HANG).pts == 0
    with xmem.Consumer(producer.pool) as consumer:
        assert consumer.try_recv() is None


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_frames_and_planes_are_true(pool, shape):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        for arguments in ({"shape": shape}, {"format": "NV12", "width": 64, "height": 48}):
            with producer.acquire(**arguments) as written:
                assert written and written.planes[0]
                written.publish()
            frame = consumer.recv(HANG)
            assert frame and frame.planes[0]


def test_a_frame_in_no_dmabuf_is_an_error_with_a_remedy(producer, consumer):
    publish(producer, 1)
    frame = consumer.recv(HANG)
    with pytest.raises(xmem.Error, match="dmabuf=True"):
        frame.dmabuf()
    with xmem.Consumer(producer.pool, timeout=HANG, start_from="newest", dmabuf=True) as device:
        # The frame is not skipped.
        for _ in range(2):
            with pytest.raises(xmem.Error, match="dmabuf=allow on xmemsink"):
                device.recv(HANG)
