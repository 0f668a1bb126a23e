# SPDX-License-Identifier: MPL-2.0

"""Buffers by number, in one process and in several. Names and examples are those of the technical design."""

import ctypes
import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from channel_support import forkserver

import xmem
from xmem import BufferPool

SIZE = 1920 * 1080 * 3
HANG = 60


@pytest.fixture
def name(tmp_path):
    yield str(tmp_path / "my_pool.sock")
    gc.collect()
    assert os.listdir(tmp_path) == [], "a closed pool leaves nothing"


class Child:
    """A function in another process, with a pipe to it."""

    def __init__(self, target, *args, context=forkserver):
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *args))
        self.process.start()
        theirs.close()

    def reply(self):
        assert self.pipe.poll(HANG), "the child sends nothing"
        answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, *question):
        self.pipe.send(question)
        return self.reply()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(HANG)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.is_alive():
            try:
                self.pipe.send(("end",))
            except OSError:
                pass
        self.process.join(HANG)
        if self.process.is_alive():
            self.kill()
            raise AssertionError("the child did not end")
        self.pipe.close()


def peer(pipe, name, *options):
    """A process that executes commands with a pool."""
    pool = BufferPool(name, **dict(options))
    held = {}
    pipe.send("ready")
    while True:
        what, *args = pipe.recv()
        try:
            if what == "end":
                return
            if what == "get":
                held[args[0]] = pool.get(args[0])
                answer = int(np.asarray(held[args[0]]).sum(dtype=np.uint64))
            elif what == "connect":
                answer = pool.connect(args[0])
            elif what == "drop":
                answer = held.pop(args[0]) and None
            elif what == "write":
                with pool.acquire_cpu(args[0]) as buf:
                    np.asarray(buf)[:] = args[1]
                    pool.set_ref_count(buf.meta_index, args[2])
                    answer = buf.forget()
            elif what == "rewrite":
                buf = pool.get_mut(args[0])
                np.asarray(buf)[:] = args[1]
                answer = buf.forget()
            elif what == "preallocate":
                answer = pool.preallocate_cpu(1024, 2)
        except Exception as error:
            answer = error
        pipe.send(answer)


def test_example_of_the_design(name):
    pool = BufferPool(name)

    # Preallocate.
    indices = pool.preallocate_cpu(size=SIZE, count=8)
    assert len(set(indices)) == 8

    # Producer.
    buf = pool.acquire_cpu(SIZE)
    assert buf.buffer in indices
    assert buf.cpu_ptr == buf.cpu_ptr_mut != 0
    np.asarray(buf)[:] = 7
    pool.set_ref_count(buf.meta_index, 2)
    meta_index = buf.meta_index
    assert buf.forget() == meta_index

    # Consumer.
    buf = pool.get(meta_index)
    assert np.asarray(buf).sum(dtype=np.uint64) == 7 * SIZE
    assert len(buf) == buf.size == SIZE


def test_example_with_cuda(name):
    """The same example line by line without a driver: each call raises the reason."""
    pool = BufferPool(name)
    cpu_buf = pool.acquire_cpu(1024)
    calls = [
        lambda: pool.preallocate_cuda(size=1920 * 1080 * 3, count=8, device_id=0),
        lambda: pool.acquire_cuda(1920 * 1080 * 3, device_id=0),
        lambda: cpu_buf.copy_to_cuda(device_id=0),
        lambda: cpu_buf.copy_to_device(1),
    ]
    if has_cuda(pool):
        pytest.skip("there is CUDA here; test_cuda_buffers.py looks at these")
    for call in calls:
        with pytest.raises(xmem.NoCuda, match="CUDA") as raised:
            call()
        assert isinstance(raised.value, RuntimeError)
    for ptr in ("cuda_ptr", "cuda_ptr_mut"):
        with pytest.raises(xmem.CudaError, match="host memory"):
            getattr(cpu_buf, ptr)


def has_cuda(pool):
    try:
        pool.preallocate_cuda(size=1024, count=1)
    except xmem.NoCuda:
        return False
    return True


def test_other_processes_read_by_index(name):
    pool = BufferPool(name)
    with Child(peer, name) as one, Child(peer, name) as two:
        one.reply(), two.reply()
        buf = pool.acquire_cpu(SIZE)
        np.asarray(buf)[:] = 3
        pool.set_ref_count(buf.meta_index, 2)
        index = buf.forget()
        assert one.ask("get", index) == 3 * SIZE
        one.ask("drop", index)
        # One of two readers has taken and released it, so it still exists.
        assert two.ask("get", index) == 3 * SIZE
        with pytest.raises(xmem.Error):
            pool.get_mut(index)
        two.ask("drop", index)
        wait_until(lambda: is_empty(pool, index))
    pool.close()


def test_reader_that_dies_counts_as_having_released(name):
    pool = BufferPool(name)
    with Child(peer, name) as child:
        child.reply()
        index = pool.acquire_cpu(SIZE).forget()
        child.ask("get", index)
        child.kill()
    wait_until(lambda: is_empty(pool, index))


def is_empty(pool, index):
    try:
        pool.get(index)
    except xmem.Error:
        return True
    return False


def wait_until(is_so):
    end = time.monotonic() + HANG
    while not is_so():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.005)


def test_every_process_writes(name):
    pool = BufferPool(name)
    with Child(peer, name) as writer, Child(peer, name) as reader:
        writer.reply(), reader.reply()
        index = writer.ask("write", 100_000, 5, 3)
        assert reader.ask("get", index) == 500_000
        assert np.asarray(pool.get(index)).sum() == 500_000
        # Another process holds it.
        with pytest.raises(xmem.Error):
            writer.ask("rewrite", index, 6)
        reader.ask("drop", index)
        assert writer.ask("rewrite", index, 6) == index
        assert reader.ask("get", index) == 600_000
        reader.ask("drop", index)
        assert len(reader.ask("preallocate")) == 2
        # Editing a buffer of another process copies it.
        index = writer.ask("write", 100, 1, 2)
        copy = reader.ask("rewrite", index, 2)
        assert copy != index
        assert (np.asarray(pool.get(copy)).sum(), np.asarray(pool.get(index)).sum()) == (200, 100)
        with pytest.raises(xmem.Refused):
            pool.discard(index)
        gc.collect()
    pool.close()


def test_a_pipeline_in_one_pool(name):
    """Each process gets a buffer of the previous one and creates one for the next."""
    pool = BufferPool(name)
    with Child(peer, name) as one, Child(peer, name) as two:
        one.reply(), two.reply()
        for number in range(20):
            first = one.ask("write", 1000, number, 1)
            second = two.ask("rewrite", first, number + 1)
            with pool.get(second) as buf:
                assert np.asarray(buf).sum() == 1000 * (number + 1)
    pool.close()


def test_numbers_of_earlier_uses(name):
    pool, reader = BufferPool(name), BufferPool(name)
    old = pool.acquire_cpu(100).forget()
    reader.get(old).release()
    buf = pool.acquire_cpu(100)
    memory, new = buf.buffer, buf.meta_index
    assert old != new and memory != new
    buf.forget()
    for use in reader.get, pool.get, pool.get_mut, pool.discard:
        with pytest.raises(xmem.Error):
            use(old)
    assert reader.get(memory).meta_index == new


def test_writer_that_dies(name):
    with Child(peer, name) as writer:
        writer.reply()
        pool = BufferPool(name)
        index = writer.ask("write", 1000, 4, 2)
        held = np.asarray(pool.get(index))
        writer.kill()
        assert held.sum() == 4000, "what is held stays"
        pool.acquire_cpu(10).release()
        late = BufferPool(name)
        # With a probability of 1/255, this process has the number of the previous one.
        with pytest.raises(xmem.Error, match="no running process|nothing to read"):
            late.get(index)
    assert held.sum() == 4000
    late.close()
    pool.close()


def test_read_only(name):
    pool = BufferPool(name)
    index = pool.acquire_cpu(100).forget()
    buf = pool.get(index)
    assert buf.readonly
    array = np.asarray(buf)
    assert not array.flags.writeable
    with pytest.raises(ValueError):
        array[0] = 1
    with pytest.raises(xmem.Error, match="get_mut"):
        buf.cpu_ptr_mut
    with pytest.raises(xmem.Error):
        buf.set_meta(shape=[10, 10])
    assert memoryview(buf).readonly


def test_view_outlives_its_guard(name):
    pool = BufferPool(name)
    buf = pool.acquire_cpu(SIZE)
    np.asarray(buf)[:] = 1
    pool.set_ref_count(buf.meta_index, 3)
    index = buf.forget()
    row = np.asarray(pool.get(index)).reshape(1080, 1920, 3)[5]
    gc.collect()
    with pytest.raises(xmem.Error):
        pool.get_mut(index)
    with pool.get(index) as buf:
        other = np.asarray(buf)[:10]
    assert row.sum() == 1920 * 3 and other.sum() == 10
    with pytest.raises(xmem.Closed):
        buf.size
    del row
    with pytest.raises(xmem.Error):
        pool.get_mut(index)
    del other
    pool.get_mut(index).release()


def test_published_only_without_views(name):
    pool = BufferPool(name)
    buf = pool.acquire_cpu(100)
    array = np.asarray(buf)
    with pytest.raises(xmem.ViewsExist, match="del"):
        buf.forget()
    del array
    index = buf.forget()
    with pytest.raises(xmem.Closed):
        buf.forget()
    with pytest.raises(xmem.Closed):
        np.asarray(buf)
    # A reader that forgets the buffer keeps it until `pool.release`.
    reader = pool.get(index)
    assert reader.forget() == index
    assert not is_empty(pool, index)
    with pytest.raises(xmem.Error):
        pool.get_mut(index)
    assert pool.release(index)
    assert not pool.release(index)
    assert is_empty(pool, index)


def test_references_without_guards(name):
    pool = BufferPool(name)
    buf = pool.acquire_cpu(10)
    pool.set_ref_count(buf.meta_index, 2)
    index = buf.forget()
    pool.add_ref(index)
    pool.add_ref(index)
    with pytest.raises(xmem.Error):
        pool.get_mut(index)
    assert pool.release(index) and pool.release(index)
    pool.get_mut(index).release()
    with pytest.raises(ValueError):
        pool.set_ref_count(index, 0)
    with pytest.raises(xmem.Error):
        pool.set_ref_count(10_000, 1)


def test_clone_ref(name):
    pool = BufferPool(name)
    buf = pool.acquire_cpu(10)
    with pytest.raises(xmem.Error):
        buf.clone_ref()
    index = buf.forget()
    one = pool.get(index)
    two = one.clone_ref()
    assert two.meta_index == index and two.cpu_ptr == one.cpu_ptr
    one.release()
    with pytest.raises(xmem.Error):
        pool.get_mut(index)
    two.release()


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "int64", "bool", np.float64, np.dtype("u2")])
def test_shape_and_type_travel(name, dtype):
    pool = BufferPool(name)
    array = (np.arange(2 * 3 * 5).reshape(2, 3, 5) % 2).astype(dtype)
    buf = pool.acquire_cpu(array.nbytes)
    buf.set_meta(shape=array.shape, dtype=dtype, content_type="tensor/any", producer="test", timestamp=12)
    np.asarray(buf)[:] = array
    index = buf.forget()
    got = pool.get(index)
    assert (got.shape, got.dtype) == ((2, 3, 5), array.dtype.name)
    assert (got.content_type, got.producer, got.timestamp) == ("tensor/any", "test", 12)
    view = np.asarray(got)
    assert view.dtype == array.dtype and view.shape == (2, 3, 5)
    np.testing.assert_array_equal(view, array)
    assert bytes(memoryview(got).cast("B")) == array.tobytes()
    copy = got.copy_to_cpu()
    assert copy.meta_index != index and not copy.readonly
    np.testing.assert_array_equal(np.asarray(copy), array)


@pytest.mark.parametrize("text", ["x" * 33, "x" * 31 + "é", "a\0b"])
@pytest.mark.parametrize("field", ["content_type", "producer"])
def test_texts_are_not_truncated(name, field, text):
    with BufferPool(name) as pool:
        buf = pool.acquire_cpu(8)
        buf.set_meta(**{field: "x" * 32})
        with pytest.raises(ValueError, match=f"{field} is .*: use at most 32 bytes, and no null byte"):
            buf.set_meta(timestamp=1, **{field: text})
        assert (getattr(buf, field), buf.timestamp) == ("x" * 32, None)
        buf.release()


def test_order_that_it_does_not_have(name):
    """A request for Fortran order by the buffer protocol must not return C order."""
    pool = BufferPool(name)
    fortran = 0x58  # PyBUF_F_CONTIGUOUS
    get_buffer, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get_buffer.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
    release.argtypes = [ctypes.c_void_p]
    view = ctypes.create_string_buffer(256)
    for shape, is_both in [([2, 3], False), ([6], True), ([1, 6, 1], True)]:
        buf = pool.acquire_cpu(6)
        buf.set_meta(shape=shape, dtype="uint8")
        if is_both:
            get_buffer(buf, view, fortran)
            release(view)
        else:
            with pytest.raises(BufferError, match="Fortran"):
                get_buffer(buf, view, fortran)
        buf.release()


def test_shape_that_does_not_fit(name):
    pool = BufferPool(name)
    buf = pool.acquire_cpu(100)
    for shape, dtype in [([101], "uint8"), ([26], "float32"), ([2**62, 8], "uint8"), ([1] * 9, "uint8")]:
        with pytest.raises(ValueError):
            buf.set_meta(shape=shape, dtype=dtype)
    buf.set_meta(shape=[50], dtype="uint16")
    with pytest.raises(ValueError, match=r"shape \[50\] and type int64 does not fit into 100 bytes"):
        buf.set_meta(dtype="int64")
    assert (buf.shape, buf.dtype) == ((50,), "uint16")
    buf.set_meta(dtype="uint8")
    assert np.asarray(buf).shape == buf.shape == (50,)
    with pytest.raises(ValueError, match="uint8"):
        buf.set_meta(dtype="complex128")
    with pytest.raises(ValueError, match="byte order"):
        buf.set_meta(dtype=np.dtype(">i4"))
    with pytest.raises(ValueError):
        pool.acquire_cpu(0)


@pytest.mark.parametrize(
    "use",
    [
        lambda pool: pool.preallocate_cpu(8, -1),
        lambda pool: pool.acquire_cpu(2**64),
        lambda pool: pool.get(-1),
        lambda pool: pool.get_mut(2**32),
        lambda pool: pool.discard(-1),
        lambda pool: pool.add_ref(-1),
        lambda pool: pool.release(-1),
        lambda pool: pool.give_up([0, -1]),
        lambda pool: pool.set_ref_count(0, 2**31),
        lambda pool: pool.acquire_cpu(8).set_meta(shape=(-1,)),
        lambda pool: pool.acquire_cpu(8).set_meta(timestamp=2**63),
        lambda pool: pool.acquire_cpu(8).copy_to_cuda(2**31),
        lambda pool: BufferPool(pool.name, max_held=-1),
        lambda pool: BufferPool(pool.name, max_buffers=2**32),
    ],
)
def test_invalid_indices(name, use):
    with BufferPool(name) as pool, pytest.raises(ValueError, match="is not between"):
        use(pool)


def test_limit_of_buffers(name):
    pool = BufferPool(name, max_buffers=4)
    held = [pool.acquire_cpu(100) for _ in range(4)]
    with pytest.raises(xmem.PoolFull):
        pool.acquire_cpu(100)
    held.pop().release()
    pool.acquire_cpu(100).release()


def test_closed_pool(name):
    with BufferPool(name) as pool:
        array = np.asarray(pool.acquire_cpu(100))
    array[:] = 3
    with pytest.raises(xmem.Closed):
        pool.acquire_cpu(10)
    assert "closed" in repr(pool)


@pytest.mark.parametrize("how", ["forget", "release", "discard", "__exit__"])
def test_a_buffer_that_was_given_back_keeps_no_pool(name, how):
    with BufferPool(name) as pool:
        buf = pool.acquire_cpu(100)
        view = np.asarray(buf) if how == "release" else None
        getattr(buf, how)(*[None] * 3 if how == "__exit__" else [])
    del view
    assert os.listdir(os.path.dirname(name)) == []
    with pytest.raises(xmem.Closed):
        buf.size


def test_a_buffer_that_is_held_keeps_its_pool(name):
    with BufferPool(name) as pool:
        buf = pool.get(pool.acquire_cpu(100).forget())
    assert os.listdir(os.path.dirname(name)) != []
    copy = buf.copy_to_cpu()
    assert copy.meta_index != buf.clone_ref().meta_index


def inherited(pipe, pool, array):
    """In a forked child, the pool belongs to the parent."""
    try:
        pool.acquire_cpu(10)
        pipe.send("no error")
    except xmem.Error as error:
        pipe.send(type(error).__name__)
    pipe.send(int(array.sum()))


def test_fork(name):
    pool = BufferPool(name)
    buf = pool.acquire_cpu(1000)
    np.asarray(buf)[:] = 2
    index = buf.forget()
    array = np.asarray(pool.get(index))
    with Child(inherited, pool, array, context=multiprocessing.get_context("fork")) as child:
        assert child.reply() == "Forked"
        assert child.reply() == 2000
    assert child.process.exitcode == 0
    with pytest.raises(xmem.Error):
        pool.get_mut(index)
    del array
    assert is_empty(pool, index)


def test_a_guard_is_true(name):
    assert BufferPool(name).acquire_cpu(1)


def test_from_blob_as_in_the_design(name):
    """Python's torch has no from_blob; frombuffer is the equivalent for host memory."""
    torch = pytest.importorskip("torch", reason="no PyTorch")
    pool = BufferPool(name)
    buf = pool.acquire_cpu(1080 * 1920 * 3)
    tensor = torch.frombuffer(buf, dtype=torch.uint8).reshape(1080, 1920, 3)
    tensor.fill_(5)
    assert tensor.data_ptr() == buf.cpu_ptr
    del tensor
    index = buf.forget()
    assert np.asarray(pool.get(index)).sum(dtype=np.uint64) == 5 * 1080 * 1920 * 3


def test_an_edit_is_published_again(name):
    pool = BufferPool(name)
    buf = pool.acquire_cpu(10)
    buf.set_meta(shape=(10,), content_type="test/edit")
    np.asarray(buf)[:] = 1
    pool.set_ref_count(buf.meta_index, 3)
    index = buf.forget()
    # The end of the guard uses one read; `forget` uses none.
    with pool.get_mut(index) as buf:
        np.asarray(buf)[0] = 7
        with pytest.raises(xmem.Error, match="or it is being written"):
            pool.get(index)
    assert pool.get_mut(index).forget() == index
    with pool.get(index) as buf:
        assert np.asarray(buf).tolist() == [7] + 9 * [1]
        assert buf.content_type == "test/edit"


def test_a_failed_edit_is_not_published(name):
    pool = BufferPool(name)
    index = pool.acquire_cpu(10).forget()
    with pytest.raises(RuntimeError), pool.get_mut(index) as buf:
        array = np.asarray(buf)
        array[0] = 7
        raise RuntimeError
    del array
    gc.collect()
    assert is_empty(pool, index)
    # No reader reads it.
    index = pool.acquire_cpu(10).forget()
    pool.discard(index)
    assert is_empty(pool, index)
    with pytest.raises(xmem.Error):
        pool.discard(10_000)


@pytest.mark.parametrize("count", [1, 3])
def test_reads_use_up_the_count_as_in_section_8_of_the_design(name, count):
    """Each `get` counts, in any process. Uses more buffers than the limit."""
    pool = BufferPool(name)
    for _ in range(300):
        buf = pool.acquire_cpu(100)
        pool.set_ref_count(buf.meta_index, count)
        meta_index = buf.meta_index
        buf.forget()
        for _ in range(count):
            buf = pool.get(meta_index)
            buf.release()
    assert is_empty(pool, meta_index)
    with Child(peer, name) as one, Child(peer, name) as two:
        one.reply(), two.reply()
        for _ in range(300 // count):
            buf = pool.acquire_cpu(100)
            pool.set_ref_count(buf.meta_index, 3)
            index = buf.forget()
            for child in one, one, two:
                child.ask("get", index)
                child.ask("drop", index)
        pool.wait_until_read(HANG)
    assert pool.stats["slots_held"] == 0


def test_a_timeout_warns_of_readers_that_did_not_come(name):
    pool = BufferPool(name)
    with Child(peer, name) as reader:
        reader.reply()
        # A process is connected after its first read.
        index = pool.acquire_cpu(100).forget()
        reader.ask("get", index)
        reader.ask("drop", index)
        with pytest.warns(xmem.PoolWarning, match=rf"1 of its 1 readers.*process {reader.process.pid}") as warned:
            index = pool.acquire_cpu(100).forget(timeout=0.001)
            pool.wait_until_read(HANG)
            wait_until(lambda: is_empty(pool, index))
            # Another thread warns, soon after the buffer is empty.
            wait_until(lambda: warned)
    pool.close()
    with BufferPool(name) as pool:
        buf = pool.get(pool.acquire_cpu(100).forget())
        with pytest.raises(ValueError, match="without a timeout"):
            buf.forget(timeout=1)
        with pytest.raises(ValueError, match="valid timeout"):
            pool.acquire_cpu(100).forget(timeout=-1)
        buf.release()
        pool.acquire_cpu(100).forget()
        with pytest.raises(xmem.Timeout, match="still has unread buffers"):
            pool.wait_until_read(0.01)


def test_a_warning_that_waits_for_the_interpreter_delays_no_reader(name):
    program = """if True:
        import ctypes, sys, xmem
        pool = xmem.BufferPool(sys.argv[1])
        index = pool.acquire_cpu(4).forget()
        pool.acquire_cpu(4).forget(timeout=0.01)
        print(index, flush=True)
        ctypes.PyDLL(None).getchar()    # keeps the interpreter
    """
    writer = [sys.executable, "-W", "ignore", "-c", program, name]
    with subprocess.Popen(writer, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        index = int(writer.stdout.readline())
        # Meanwhile the buffer with the timeout is emptied.
        time.sleep(0.3)
        with BufferPool(name) as pool:
            pool.get(index).release()
    assert writer.returncode == 0


def test_a_warning_at_the_end_of_a_program(name):
    """The warning comes after the thread for warnings has ended."""
    program = """if True:
        import atexit, ctypes, sys
        # Runs last.
        atexit.register(ctypes.PyDLL(None).usleep, 300_000)
        import xmem
        pool = xmem.BufferPool(sys.argv[1])
        pool.acquire_cpu(4).forget(timeout=0.1)
    """
    subprocess.run([sys.executable, "-c", program, name], check=True, timeout=HANG)


def test_a_buffer_for_named_readers(name):
    pool = BufferPool(name)
    with Child(peer, name) as one, Child(peer, name) as two:
        for child in one, two:
            child.reply()
            child.ask("connect", pool.acquire_cpu(100).buffer)
        readers = {reader.pid: reader for reader in pool.readers}
        assert set(readers) == {one.process.pid, two.process.pid}
        named = readers[one.process.pid]
        assert repr(named) == f"<xmem.Reader {named.id}, {json.dumps(named.name)}, process {named.pid}>"
        with pytest.raises(TypeError, match="Reader cannot be pickled.*send its pid"):
            pickle.dumps(named)
        buf = pool.acquire_cpu(100)
        index = buf.forget(to=list(readers.values()))
        for _ in range(2):
            pool.get(index).release()
            one.ask("get", index), one.ask("drop", index)
        with pytest.raises(xmem.Timeout):
            pool.wait_until_read(0.001)
        two.kill()
        pool.wait_until_read(HANG)

        # An error changes nothing.
        buf = pool.acquire_cpu(100)
        gone = readers[two.process.pid]
        with pytest.raises(xmem.Error, match=f"reader {gone.id} .* is not connected"):
            buf.forget(to=[gone])
        with pytest.raises(ValueError, match="at least one"):
            buf.forget(to=[])
        array = np.asarray(buf)
        with pytest.raises(xmem.ViewsExist):
            buf.forget(to=[named], timeout=0)
        del array
        gc.collect()
        with pytest.warns(xmem.PoolWarning, match=rf"1 of its 1 readers.*process {named.pid}") as warned:
            buf.forget(to=[named], timeout=0.001)
            pool.wait_until_read(HANG)
            wait_until(lambda: warned)
    pool.close()


def test_preallocated_buffers_stay(name):
    pool = BufferPool(name)
    large, small = pool.preallocate_cpu(3 << 20, 8), pool.preallocate_cpu(1 << 20, 8)
    assert (pool.stats["set_aside"], pool.stats["set_aside_bytes"]) == (16, 32 << 20)
    for _ in range(700):
        assert pool.acquire_cpu(1 << 20).buffer in small
    assert pool.acquire_cpu(3 << 20).buffer in large
    assert pool.give_up(small) == 8
    assert pool.stats["set_aside"] == 8


def test_a_reader_copies_into_a_buffer_of_its_own(name):
    owner, reader = BufferPool(name), BufferPool(name)
    buf = owner.acquire_cpu(100)
    buf.set_meta(shape=(10, 10))
    np.asarray(buf)[:] = 7
    index = buf.forget()
    with reader.get(index) as buf:
        copy = buf.copy_to_cpu()
    np.asarray(copy)[0] = 1
    assert np.asarray(copy).sum() == 10 + 90 * 7
    owner.wait_until_read(HANG)
    gc.collect()
    with owner.get(copy.forget()) as buf:
        assert buf.shape == (10, 10)
        assert np.asarray(buf).sum() == 10 + 90 * 7


def test_a_batch_of_sixteen(name):
    owner, reader = BufferPool(name, max_held=16), BufferPool(name, max_held=16)
    batch = [reader.get(owner.acquire_cpu(100).forget()) for _ in range(16)]
    index = owner.acquire_cpu(100).forget()
    with pytest.raises(xmem.OverBudget, match="max_held"):
        reader.get(index)
    del batch
    reader.get(index)


def test_a_buffer_in_host_memory_by_dlpack(name):
    pool = BufferPool(name)
    buf = pool.acquire_cpu(24)
    buf.set_meta(shape=(2, 3), dtype="float32")
    array = np.from_dlpack(buf)
    array[:] = 1.5
    assert (array.shape, array.dtype, buf.__dlpack_device__(), buf.device) == ((2, 3), "float32", (1, 0), None)
    with pytest.raises(xmem.ViewsExist):
        buf.forget()
    del array
    gc.collect()
    buf = pool.get(buf.forget())
    array = np.from_dlpack(buf)
    assert array.sum() == 9 and not array.flags.writeable
    assert not hasattr(buf, "__cuda_array_interface__")
