# SPDX-License-Identifier: MPL-2.0

"""No array that was made in any way reads or writes another frame after a call that ends the lease of its memory."""

import gc
import warnings

import numpy as np
import pytest
from support import HANG

import xmem

SIZE = 4096


def of_numpy(buffer):
    return np.ndarray(SIZE, np.uint8, buffer=buffer)


def of_recarray(buffer):
    return np.recarray(SIZE, dtype=[("x", "u1")], buf=buffer).x


def of_chararray(buffer):
    return np.char.chararray(SIZE, buffer=buffer).view(np.uint8)


def of_torch(buffer):
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        # PyTorch has no read-only tensors.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(buffer, dtype=torch.uint8)


def of_torch_asarray(buffer):
    return pytest.importorskip("torch").asarray(buffer)


def of_asarray(buffer):
    return np.asarray(buffer)


def of_frombuffer(buffer):
    return np.frombuffer(buffer, np.uint8)


def of_from_dlpack(buffer):
    array = np.from_dlpack(buffer)
    if not array.flags.writeable and not buffer.readonly:
        pytest.skip("this NumPy makes read-only arrays of DLPack")
    return array


def of_view(buffer):
    return np.ndarray(SIZE, np.uint8, buffer=memoryview(buffer).obj)


def of_released_view(buffer):
    with memoryview(buffer) as view:
        return np.ndarray(SIZE, np.uint8, buffer=view)


def of_cast(buffer):
    return np.ndarray(SIZE, np.uint8, buffer=memoryview(buffer).cast("B"))


def of_plane(buffer):
    if not hasattr(buffer, "planes"):
        pytest.skip("a buffer has no planes")
    return np.ndarray(SIZE, np.uint8, buffer=memoryview(buffer.planes[0]))


FORGET = [of_numpy, of_recarray, of_chararray]
COUNTED = [of_torch, of_torch_asarray, of_asarray, of_frombuffer, of_from_dlpack, of_view, of_released_view, of_cast, of_plane]


def bytes_of(array):
    return np.asarray(array).tobytes()


@pytest.mark.parametrize("make", FORGET)
def test_a_call_that_keeps_the_address_only_is_refused(pool, make):
    with xmem.Producer(pool) as producer:
        frame = producer.acquire(SIZE)
        buffers = xmem.BufferPool(pool + ".b")
        buf = buffers.acquire_cpu(SIZE)
        index = buf.clone_ref().meta_index if buf.readonly else buf.meta_index
        for owner in (frame, frame.planes[0], buf):
            with pytest.raises(BufferError, match="use numpy.asarray.*memoryview"):
                make(owner)
            # The same call on a view holds the memory.
            assert bytes_of(make(memoryview(owner))) == bytes_of(np.asarray(owner))
        assert frame.publish() == 0
        buf.forget()
        got = buffers.get(index)
        with pytest.raises(BufferError, match="use numpy.asarray.*memoryview"):
            make(got)
        buffers.close()


@pytest.mark.parametrize("make", COUNTED)
def test_a_frame_is_not_published_while_it_can_be_written(pool, make):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        frame = producer.acquire(SIZE)
        array = make(frame)
        array[:] = 1
        with pytest.raises(xmem.ViewsExist):
            frame.publish()
        del array
        gc.collect()
        frame.publish()
        received = consumer.recv(HANG)
        assert np.asarray(received).max() == 1
        # Afterwards an array of it is read-only, and holds the frame.
        if "torch" not in make.__name__:
            assert not make(frame).flags.writeable


@pytest.mark.parametrize("make", COUNTED)
def test_an_array_of_a_frame_that_was_given_back_writes_no_other_frame(pool, make):
    with xmem.Producer(pool, max_slots=8, history=1) as producer, xmem.Consumer(pool, max_held=3) as consumer:
        with producer.acquire(SIZE) as frame:
            array = make(frame)
        frames = []
        for seed in range(3):
            with producer.acquire(SIZE) as frame:
                np.asarray(frame)[:] = seed
                frame.publish()
            frames.append(consumer.recv(HANG))
            array[:] = 99
        assert [set(np.asarray(frame).tolist()) for frame in frames] == [{0}, {1}, {2}]


@pytest.mark.parametrize("make", COUNTED)
@pytest.mark.parametrize("how", ["release", "block", "close"])
def test_an_array_of_a_buffer_that_was_released_reads_no_other(pool, make, how):
    writer, reader = xmem.BufferPool(pool, max_buffers=2), xmem.BufferPool(pool)
    buf = writer.acquire_cpu(SIZE)
    np.asarray(buf)[:] = 1
    got = reader.get(buf.forget())
    array = make(got)
    if how == "release":
        got.release()
    else:
        with got:
            pass
    used = [writer.acquire_cpu(SIZE)]
    with pytest.raises(xmem.PoolFull):
        writer.acquire_cpu(SIZE)
    np.asarray(used[0])[:] = 7
    assert set(array.tolist()) == {1}
    used.clear()
    if how == "close":
        reader.close()
        writer.close()
        del reader, writer, got
        gc.collect()
        assert set(array.tolist()) == {1}
    del array
    gc.collect()


@pytest.mark.parametrize("make", COUNTED)
def test_a_buffer_is_not_forgotten_while_an_array_exists(pool, make):
    buffers = xmem.BufferPool(pool)
    buf = buffers.acquire_cpu(SIZE)
    array = make(buf)
    with pytest.raises(xmem.ViewsExist):
        buf.forget()
    del array
    gc.collect()
    buffers.get(buf.forget()).release()


@pytest.mark.parametrize("make", FORGET + COUNTED)
def test_a_received_frame_is_held_by_any_array(pool, make):
    with xmem.Producer(pool, max_slots=8, history=1) as producer, xmem.Consumer(pool, max_held=3) as consumer:
        with producer.acquire(SIZE) as frame:
            np.asarray(frame)[:] = 5
            frame.publish()
        array = make(consumer.recv(HANG))
        gc.collect()
        for _ in range(8):
            with producer.acquire(SIZE) as frame:
                np.asarray(frame)[:] = 6
                frame.publish()
            consumer.recv(HANG)
        assert set(array.tolist()) == {5}
