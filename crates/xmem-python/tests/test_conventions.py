# SPDX-License-Identifier: MPL-2.0

"""Frames, errors and arguments as other Python libraries have them."""

import errno
import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from fractions import Fraction

import numpy as np
import pytest
from support import HANG, content, eventually, publish
from test_buffer_pool import Child

import xmem


@pytest.mark.parametrize("name", ["uint8", "uint16", "float16", "float64", "bool"])
def test_a_type_is_that_of_numpy(pool, name):
    buffers = xmem.BufferPool(pool + ".b")
    buf = buffers.acquire_cpu(64)
    buf.set_meta(shape=(4,), dtype=name)
    with xmem.Producer(pool) as producer, producer.acquire((4,), name) as frame:
        for it in (frame, frame.planes[0], buf):
            assert it.dtype == getattr(np, name if name != "bool" else "bool_") and it.dtype == name
            assert isinstance(it.dtype, np.dtype) and np.zeros(3, it.dtype).dtype == it.dtype
    buffers.close()


def test_a_type_without_numpy_is_a_name(pool):
    code = """
import sys
sys.modules["numpy"] = None
import xmem
with xmem.Producer(sys.argv[1]) as producer:
    assert producer.acquire((4,), "uint16").dtype == "uint16"
    assert producer.acquire((4,), "bfloat16").dtype == "bfloat16"
"""
    subprocess.run([sys.executable, "-c", code, pool], check=True, timeout=HANG)


@pytest.mark.parametrize("shape", [(60, 80, 3), (48, 50)])
def test_pillow_reads_frames(pool, shape):
    image = pytest.importorskip("PIL.Image")
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        publish(producer, 3, shape)
        frame = consumer.recv(HANG)
        assert np.array_equal(np.asarray(image.fromarray(frame)), content(3, shape))
        # Rows with gaps.
        with producer.acquire(format="RGB", width=50, height=20) as made:
            np.asarray(made)[...] = content(1, (20, 50, 3))
            made.publish()
        frame = consumer.recv(HANG)
        assert np.array_equal(np.asarray(image.fromarray(frame)), content(1, (20, 50, 3)))
        assert frame.tobytes() == content(1, (20, 50, 3)).tobytes()


def test_attributes_of_arrays(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        publish(producer, 3)
        frame = consumer.recv(HANG)
        assert frame.__array_interface__["strides"] is None
        assert (frame.size, frame.tobytes()) == (60 * 80 * 3, content(3).tobytes())
        plane = frame.planes[0]
        assert (plane.size, plane.tobytes()) == (60 * 80 * 3, content(3).tobytes())
        with producer.acquire(format="NV12", width=64, height=48) as made:
            assert not hasattr(made, "size")
            with pytest.raises(BufferError, match="planes"):
                made.tobytes()
        references = [weakref.ref(it) for it in (frame, plane, made)]
        assert all(it() is not None for it in references)
        del frame, plane, made
        gc.collect()
        assert all(it() is None for it in references)


def test_paths(directory):
    path = directory / "p.sock"
    with xmem.Producer(path) as producer, xmem.Consumer(path) as consumer:
        publish(producer, 1)
        assert consumer.recv(HANG).pts == 1
        assert consumer.pool == producer.pool == str(path)
        assert xmem.query(path)["published"] == 1
    with xmem.BufferPool(directory / "b.sock") as buffers:
        assert buffers.name == str(directory / "b.sock")
    with xmem.Channel(directory / "c.sock"):
        pass
    for make in (xmem.Producer, xmem.Consumer, xmem.BufferPool, xmem.query):
        for no_name in (7, b"bytes", None):
            with pytest.raises(TypeError):
                make(no_name)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (25.0, "25/1"),
        (29.97, "30000/1001"),
        (29.97002997002997, "30000/1001"),
        (23.976, "24000/1001"),
        (59.94, "60000/1001"),
        (12.5, "25/2"),
        (7.5, "15/2"),
        (0.0, "0/1"),
        (30, "30/1"),
        (Fraction(25, 2), "25/2"),
        (np.float64(25), "25/1"),
    ],
)
def test_rates(pool, rate, text):
    with xmem.Producer(pool, framerate=rate) as producer, producer.acquire(format="GRAY8", width=4, height=4) as frame:
        assert f"framerate=(fraction){text}" in frame.caps


def test_no_shape(pool):
    with xmem.Producer(pool) as producer, pytest.raises(ValueError, match=r"use \(1,\)"):
        producer.acquire(())


def test_errors_of_the_system(directory):
    """They are OSError with their number, besides xmem.Error."""
    (directory / "file").write_text("")
    found = []
    for name in ("file/p.sock", "missing/p.sock"):
        with pytest.raises((OSError, ValueError)) as raised:
            xmem.Producer(directory / name)
        found.append(raised.value)
    assert all(not isinstance(it, OSError) or it.errno for it in found)
    if os.geteuid() != 0:
        (directory / "closed").mkdir(mode=0o500)
        with pytest.raises(PermissionError) as raised:
            xmem.Producer(directory / "closed" / "p.sock")
        assert isinstance(raised.value, xmem.Error) and raised.value.errno == errno.EACCES
    with pytest.raises(OSError) as raised, xmem.Producer(directory / "p.sock") as producer:
        producer.acquire((1 << 50,))
    assert isinstance(raised.value, xmem.SystemFailure) and raised.value.errno in (errno.ENOMEM, errno.ENOSPC, errno.EFBIG)
    assert "no memory for a region" in str(raised.value) and "[Errno" not in str(raised.value)


def test_a_buffer_of_another_process_is_one_for_an_old_library(pool):
    """A DLPack capsule of before version 1 cannot be read-only. The mapping is."""
    with Child(written, pool) as child:
        index = child.reply()
        with xmem.BufferPool(pool).get(index) as got:
            assert "dltensor" in repr(got.__dlpack__())
        here = xmem.BufferPool(pool)
        buf = here.acquire_cpu(64)
        own = here.get(buf.forget())
        with pytest.raises(BufferError, match="before version 1"):
            own.__dlpack__()
        own.release()


def written(pipe, name):
    pool = xmem.BufferPool(name)
    buf = pool.acquire_cpu(64)
    pipe.send(buf.forget())
    pipe.recv()


def test_a_loop_whose_producer_left_warns_once(pool):
    producer = xmem.Producer(pool)
    with xmem.Consumer(pool) as consumer:
        producer.close()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            thread = threading.Thread(target=lambda: [frame.pts for frame in consumer])
            thread.start()
            eventually(lambda: caught, "no warning")
            with xmem.Producer(pool) as producer:
                producer.wait_for_consumer(HANG)
                publish(producer, 1)
                producer.end_stream()
                thread.join(HANG)
        assert not thread.is_alive()
    (warning,) = caught
    assert "end_stream()" in str(warning.message) and "on_producer_lost" in str(warning.message)


def test_buffers_that_nobody_reads_warn_together(pool):
    with xmem.BufferPool(pool) as buffers, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(16):
            buffers.acquire_cpu(64).forget(timeout=0.05)
        eventually(lambda: buffers.stats["unread"] == 0, "they are kept")
        eventually(lambda: caught, "no warning")
    assert len(caught) == 1




def test_the_multiprocessing_module_needs_no_import():
    code = "import sys, xmem; assert 'multiprocessing' not in sys.modules; xmem.multiprocessing.install()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG)
