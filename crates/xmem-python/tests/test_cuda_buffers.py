# SPDX-License-Identifier: MPL-2.0

"""Buffers by number on CUDA devices, between processes, on the stand-in driver without a GPU. Names and examples are those of the
technical design."""

import pytest
from cuda_support import machine  # noqa: F401
from support import eventually
from test_cuda_frames import interrupt

SIZE = 1920 * 1080 * 3


def test_examples_of_the_design(machine):
    owner, reader = machine.start(), machine.start()
    owner.do(f"""
        from xmem import BufferPool
        pool = BufferPool(pool)

        # Preallocate.
        indices = pool.preallocate_cuda(size={SIZE}, count=8, device_id=0)
        assert len(set(indices)) == 8

        # Producer.
        buf = pool.acquire_cuda({SIZE}, device_id=0)
        assert buf.buffer in indices
        g.fill(s, buf.cuda_ptr_mut, {SIZE}, 7)
        pool.set_ref_count(buf.meta_index, 2)
        meta_index = buf.meta_index
    """)
    # Imported now, because an import waits on the CPU.
    reader.do("from xmem import BufferPool; pool = BufferPool(pool); wrong = g.word()")
    with machine.held(owner):
        owner.do("buf.forget(stream=s)")
        # Consumer.
        index = owner.ask("meta_index")
        reader.do(f"buf = pool.get({index})")
        reader.begin("ptr = buf.cuda_ptr")
    reader.end()
    reader.do(f"g.check(s, ptr, {SIZE}, 7, wrong); g.finish(s)")
    assert reader.ask("g.read_word(wrong), buf.readonly, buf.size, len(buf)") == [0, True, SIZE, SIZE]
    reader.fails("buf.cuda_ptr_mut", "CudaError", "this buffer is read-only")
    reader.do("buf.release(stream=s)")

    # Between host and device.
    owner.do(f"""
        cpu_buf = pool.acquire_cpu(1000)
        np.asarray(cpu_buf)[:] = np.arange(1000) % 256
        cpu_buf.set_meta(shape=[10, 100], content_type="test")
        cuda_buf = cpu_buf.copy_to_cuda(device_id=0)
        gpu1_buf = cuda_buf.copy_to_device(1)
        back = gpu1_buf.copy_to_cpu()
    """)
    assert owner.ask("np.asarray(back).ravel().tolist()") == [n % 256 for n in range(1000)]
    assert owner.ask("back.shape, back.content_type, cuda_buf.shape") == [[10, 100], "test", [10, 100]]
    for copy in ("cuda_buf", "gpu1_buf", "back"):
        index = owner.ask(f"{copy}.forget()")
        reader.do(f"buf = pool.get({index})")
        reader.do("buf.release()")


def test_a_reader_copies_as_in_section_7_of_the_design(machine):
    """Into its own buffers, which outlive those of the other process."""
    owner, reader = machine.start(), machine.start()
    owner.do("""
        pool_name, pool = pool, xmem.BufferPool(pool)
        cpu_buf = pool.acquire_cpu(1000)
        cpu_buf.set_meta(shape=[10, 100], content_type="test")
        np.asarray(cpu_buf)[:] = np.arange(1000).reshape(10, 100) % 256
        cuda_index = cpu_buf.copy_to_cuda(0).forget()
        cpu_index = cpu_buf.forget()
    """)
    cpu_index, cuda_index = owner.ask("cpu_index, cuda_index")
    reader.do(f"""
        pool = xmem.BufferPool(pool)
        cuda_buf = pool.get({cuda_index})
        cpu_buf = cuda_buf.copy_to_cpu()
        buf_gpu1 = cuda_buf.copy_to_device(1)
        cuda_buf.release()
        buf = pool.get({cpu_index})
        buf_gpu0, own = buf.copy_to_cuda(0), buf.copy_to_cpu()
        buf.release()
        copies = cpu_buf, buf_gpu1.copy_to_cpu(), buf_gpu0.copy_to_cpu(), buf_gpu0.copy_to_device(1).copy_to_cpu(), own
    """)
    owner.do("pool.wait_until_read(HANG); pool.close(); cpu_buf = None")
    assert reader.ask("[int((np.asarray(it).ravel() == np.arange(1000) % 256).sum()) for it in copies]") == [1000] * 5
    assert reader.ask("[it.device for it in (buf_gpu0, buf_gpu1, own)]") == [0, 1, None]
    assert reader.ask("buf_gpu1.shape, own.content_type, own.readonly") == [[10, 100], "test", False]
    reader.do("g.fill(s, buf_gpu0.cuda_ptr_mut, 1000, 3); g.finish(s)")
    assert reader.ask("int(np.asarray(buf_gpu0.copy_to_cpu()).sum())") == 3000
    # The other process reads them.
    index = reader.ask("buf_gpu0.forget()")
    owner.do(f"pool = xmem.BufferPool(pool_name); buf = pool.get({index})")
    assert owner.ask("int(np.asarray(buf.copy_to_cpu()).sum())") == 3000
    owner.do("buf = pool = None")


def test_a_buffer_on_a_device_is_an_array(machine):
    owner, reader = machine.start(), machine.start()
    owner.do("""
        pool = xmem.BufferPool(pool)
        buf = pool.acquire_cuda(24)
        buf.set_meta(shape=[2, 3], dtype="float32")
        face = buf.__cuda_array_interface__
        # As an importer does: its stream writes the tensor.
        capsule = buf.__dlpack__(stream=s, max_version=(1, 1))
        g.fill(s, buf.cuda_ptr_mut, 24, 0)
    """)
    assert owner.ask("buf.device, buf.__dlpack_device__(), face['shape'], face['typestr'], face['data'][1]") == [
        0,
        [2, 0],
        [2, 3],
        "<f4",
        False,
    ]
    assert owner.ask("face['data'][0] == buf.cuda_ptr_mut and 'dltensor_versioned' in repr(capsule)")
    owner.fails("buf.forget()", "ViewsExist", "arrays over the buffer")
    # Without a stream, it is published after the streams of its views.
    owner.do("del capsule; index = buf.forget()")
    reader.do(f"""
        pool = xmem.BufferPool(pool)
        buf = pool.get({owner.ask("index")})
        face = buf.__cuda_array_interface__
        capsule = buf.__dlpack__(stream=s, max_version=(1, 1))
    """)
    assert reader.ask("face['shape'], face['data'][1], buf.__dlpack_device__()") == [[2, 3], True, [2, 0]]
    # The view holds the buffer.
    reader.do("buf.release()")
    owner.fails("pool.get_mut(index)", "Error", "holds it")
    reader.do("del capsule, buf")
    owner.do("pool.wait_until_read(HANG)")


def test_forget_publishes_behind_the_default_stream_and_those_of_arrays(machine):
    """A buffer that is being written is published, without `stream=` and without waiting."""
    owner, reader = machine.start(), machine.start()
    reader.do("pool = xmem.BufferPool(pool); wrong = g.word()")
    owner.do("""
        pool = xmem.BufferPool(pool)
        buf = pool.acquire_cuda(100_000)
        capsule = buf.__dlpack__(stream=s, max_version=(1, 1))
    """)
    with machine.held(owner):
        owner.do("""
            g.fill(s, buf.cuda_ptr_mut, 50_000, 7)
            g.fill(None, buf.cuda_ptr_mut + 50_000, 50_000, 8)
            del capsule
            index = buf.forget()
        """)
        reader.do(f"buf = pool.get({owner.ask('index')})")
        reader.begin("ptr = buf.cuda_ptr")
    reader.end()
    reader.do("g.check(s, ptr, 50_000, 7, wrong); g.check(s, ptr + 50_000, 50_000, 8, wrong); g.finish(s)")
    assert reader.ask("g.read_word(wrong)") == 0
    reader.do("buf.release()")


def test_errors_of_cpu_access_name_the_copy(machine):
    owner = machine.start()
    owner.do("""
        pool = xmem.BufferPool(pool)
        cpu, cuda = pool.acquire_cpu(10), pool.acquire_cuda(10)
    """)
    owner.fails("memoryview(cuda)", "BufferError", r"copy_to_cpu\(\)")
    owner.fails("np.asarray(cuda)", "BufferError", r"copy_to_cpu\(\)")
    owner.fails("cuda.cpu_ptr", "Error", "copy_to_cpu")
    owner.fails("cpu.cuda_ptr", "CudaError", "host memory")
    owner.fails("cpu.forget(stream=1)", "ValueError", "no streams")
    owner.fails("cpu.release(stream=1)", "ValueError", "no streams")
    owner.fails("pool.acquire_cuda(10, device_id=-1)", "ValueError", "start at 0")
    owner.fails("pool.acquire_cuda(10, device_id=5)", "NoCuda", "this process sees 2")
    # All of them still exist.
    assert owner.ask("cpu.forget() != cuda.forget()")


def test_a_buffer_is_released_in_the_order_of_the_reading_stream(machine):
    owner, reader = machine.start(), machine.start()
    owner.do("""
        pool = xmem.BufferPool(pool, max_buffers=16)
        def publish(byte, count=1):
            buf = pool.acquire_cuda(100000)
            g.fill(s, buf.cuda_ptr_mut, 100000, byte)
            pool.set_ref_count(buf.meta_index, count)
            return buf.forget(stream=s)
    """)
    reader.do("pool = xmem.BufferPool(pool); wrong = g.word()")
    index = owner.ask("publish(1)")
    reader.do(f"""
        buf = pool.get({index})
        ptr = buf.cuda_ptr
        word = g.word()
        g.wait_for_word(s, word)
        g.check(s, ptr, 100000, 1, wrong)
        buf.release(stream=s)
        other = g.stream()
    """)
    # All other buffers are reused repeatedly, but not this one.
    for byte in range(2, 42):
        index = owner.ask(f"publish({byte})")
        reader.do(f"buf = pool.get({index}); buf.cuda_ptr; buf.release()")
    reader.do("g.set_word(other, word); g.finish(s)")
    assert reader.ask("g.read_word(wrong)") == 0


def test_other_threads_run_while_a_device_is_waited_for(machine):
    owner = machine.start()
    owner.do("""
        pool = xmem.BufferPool(pool)
        pool.preallocate_cpu(1000, 2)
        pool.preallocate_cuda(1000, 2)
        buf = pool.acquire_cuda(1000)
        g.fill(s, buf.cuda_ptr_mut, 1000, 5)
        import threading
        copies = []
        def copy():
            copies.append(buf.copy_to_cpu())
    """)
    with machine.held(owner):
        owner.do("thread = threading.Thread(target=copy); thread.start()")
        # Other processes cannot get it meanwhile, and waiting for it releases the interpreter's lock.
        owner.do("""
            def size_or_error():
                try:
                    return str(buf.size)
                except xmem.Error as error:
                    return str(error)
        """)
        owner.eventually("'another thread is copying' in size_or_error()")
    owner.do("thread.join(HANG)")
    assert owner.ask("buf.size, len(copies)") == [1000, 1]


def test_a_copy_of_a_buffer_waits_for_the_default_stream(machine):
    """As in section 7 of the design: written, and then copied."""
    owner = machine.start()
    for copy in ("copy_to_cpu()", "copy_to_device(1)"):
        owner.do("""
            import threading
            pool_of_buffers = xmem.BufferPool(pool)
            buf = pool_of_buffers.acquire_cuda(1000)
            ptr, word = buf.cuda_ptr_mut, g.word()
            g.wait_for_word(None, word)
            g.fill(None, ptr, 1000, 7)
            copies = []
        """)
        # Before the word is set, no copy is complete.
        owner.do(f"""
            thread = threading.Thread(target=lambda: copies.append(buf.{copy}))
            thread.start()
            def is_copying():
                try:
                    return buf.size == 0
                except xmem.Error:
                    return True
        """)
        owner.eventually("is_copying()")
        owner.do("g.set_word(s, word); thread.join(HANG)")
        owner.do("copy = copies.pop(); copy = copy if copy.device is None else copy.copy_to_cpu()")
        assert owner.ask("(np.asarray(copy) == 7).all().item()")
        owner.do("del copy; buf.discard(); pool_of_buffers.close()")


def test_without_a_driver(machine):
    owner = machine.start_without()
    owner.do("pool = xmem.BufferPool(pool); cpu_buf = pool.acquire_cpu(1024)")
    for call in (
        "pool.preallocate_cuda(size=1920 * 1080 * 3, count=8, device_id=0)",
        "pool.acquire_cuda(1920 * 1080 * 3, device_id=0)",
        "cpu_buf.copy_to_cuda(device_id=0)",
        "cpu_buf.copy_to_device(1)",
    ):
        owner.fails(call, "NoCuda", "install NVIDIA's driver")
    owner.do("np.asarray(cpu_buf)[:] = 1; cpu_buf.forget()")


def test_the_release_of_a_buffer_can_be_interrupted(machine):
    owner = machine.start()
    owner.do("""
        pool = xmem.BufferPool(pool)
        word, late = g.word(), g.stream()
        guard = pool.acquire_cuda(1000)
        g.wait_for_word(late, word)
        g.fill(late, guard.cuda_ptr_mut, 1000, 1)
        index = guard.buffer
    """)

    def interrupted() -> bool:
        owner.begin("""
            interrupted = False
            try:
                waiting()
                guard.release(stream=late)
            except KeyboardInterrupt:
                interrupted = True
        """)
        interrupt(owner)
        assert owner.ask("interrupted")
        return owner.ask("'released' in repr(guard)")

    # The process may not have called `release` yet.
    eventually(interrupted, "it is never interrupted in `release`")
    # No process gets it before the stream is done.
    owner.do("guards = [pool.acquire_cuda(1000) for _ in range(20)]")
    assert owner.ask("index not in [guard.buffer for guard in guards]")
    owner.do("guards = None; g.set_word(s, word); g.finish(late)")
    owner.eventually("index in [guard.buffer for guard in [pool.acquire_cuda(1000) for _ in range(20)]]")


# A buffer that a stream writes when the word is set. Non-blocking streams are not ordered with the default stream.
WRITTEN_LATE = """
    pool = xmem.BufferPool(pool)
    word, late = g.word(), g.stream()
    buf = pool.acquire_cuda(1000)
    view = Array(buf, late)
    g.wait_for_word(late, word)
    g.fill(late, view.ptr, 1000, 7)
    index = None
"""


@pytest.mark.parametrize("stream", ["", "stream=late"])
def test_forget_refuses_a_stream_that_is_captured(machine, stream):
    """The buffer stays as it was."""
    owner, reader = machine.start(), machine.start()
    owner.do(WRITTEN_LATE)
    owner.do("g.begin_capture(late); del view")
    options = f"timeout=0.001, {stream}" if stream else "timeout=0.001"
    owner.fails(f"buf.forget({options})", "CudaError", "captured into a graph")
    # The capture was not disturbed.
    owner.do("g.end_capture(late); pool.set_ref_count(buf.meta_index, 1)")
    owner.do(f"index = buf.forget({stream})")
    reader.do(f"pool = xmem.BufferPool(pool); wrong = g.word(); buf = pool.get({owner.ask('index')})")
    reader.begin("g.check(s, buf.cuda_ptr, 1000, 7, wrong); g.finish(s)")
    owner.do("g.set_word(s, word)")
    reader.end()
    assert reader.ask("g.read_word(wrong)") == 0
    reader.do("buf.release()")


def test_forget_waits_for_a_stream_that_was_destroyed(machine):
    """Other streams cannot wait for it, so the CPU waits for all work of the device."""
    owner = machine.start()
    owner.do(WRITTEN_LATE)
    owner.do("""
        g.destroy(late)
        del view
        import threading
        def forget():
            global index
            index = buf.forget()
        thread = threading.Thread(target=forget)
        thread.start()
        thread.join(0.3)
    """)
    assert owner.ask("index") is None
    owner.fails("buf.size", "Error", "another thread")
    owner.do("g.set_word(s, word); thread.join(HANG)")
    assert owner.ask("index is not None and bool((np.asarray(pool.get(index).copy_to_cpu()) == 7).all())")


@pytest.mark.parametrize("call", ["forget()", "copy_to_cpu()"])
def test_the_wait_for_a_stream_that_was_destroyed_ends_with_ctrl_c(machine, call):
    owner = machine.start()
    owner.do(WRITTEN_LATE)
    owner.do("g.destroy(late); del view")
    owner.begin(f"""
        interrupted = False
        try:
            waiting()
            buf.{call}
        except KeyboardInterrupt:
            interrupted = True
    """)
    interrupt(owner)
    assert owner.ask("interrupted, buf.size") == [True, 1000]
    owner.do("g.set_word(s, word)")
    assert owner.ask("bool((np.asarray(buf.copy_to_cpu()) == 7).all())")
    owner.do("index = buf.forget()")


def test_a_buffer_that_is_dropped_waits_for_a_stream_that_was_destroyed(machine):
    """It comes back when the device has done all work, and not before."""
    owner = machine.start()
    owner.do(WRITTEN_LATE)
    owner.do("number = buf.buffer; g.destroy(late); del view, buf")
    given = "number in [guard.buffer for guard in [pool.acquire_cuda(1000) for _ in range(20)]]"
    assert owner.ask(given) is False
    owner.do("g.set_word(s, word)")
    owner.eventually(given)


def test_a_release_waits_for_a_stream_that_was_destroyed(machine):
    """The next writer may write the buffer at once."""
    owner = machine.start()
    owner.do(WRITTEN_LATE)
    owner.do("""
        g.destroy(late)
        del view
        number = buf.buffer
        import threading
        thread = threading.Thread(target=lambda: buf.release(stream=late))
        thread.start()
        thread.join(0.3)
        guards = [pool.acquire_cuda(1000) for _ in range(20)]
    """)
    assert owner.ask("number not in [guard.buffer for guard in guards] and thread.is_alive()")
    owner.do("g.set_word(s, word); thread.join(HANG); guards = None")
    owner.eventually("number in [guard.buffer for guard in [pool.acquire_cuda(1000) for _ in range(20)]]")
