# SPDX-License-Identifier: MPL-2.0

"""Frames on CUDA devices, between processes, on the stand-in driver without a GPU."""

import signal
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from cuda_support import Failed, Machine, Process, machine  # noqa: F401

SIZE = 300_000


def producer(machine: Machine, **settings: object) -> Process:
    process = machine.start(**settings)
    process.do(f"""
        producer = xmem.Producer(pool, max_slots=32)
        def publish(byte, stream=None, size={SIZE}):
            with producer.acquire((size,), device="cuda:0") as frame:
                array = Array(frame, stream or s)
                g.fill(stream or s, array.ptr, array.nbytes, byte)
                del array
                return frame.publish(pts=byte)
    """)
    return process


def consumer(machine: Machine, **settings: object) -> Process:
    process = machine.start(**settings)
    process.do("""
        wrong = g.word()
        consumer = xmem.Consumer(pool, timeout=HANG, max_held=4)
        def recv():
            return consumer.recv(HANG)
        def check(array, byte, stream):
            g.check(stream, array.ptr, array.nbytes, byte, wrong)
    """)
    return process


def first_round(made: Process, taken: Process) -> None:
    """Passes the first frame. Memory is allocated and imported once, which waits on the CPU."""
    made.do("publish(0)")
    taken.do("frame = recv(); del frame")


def pair(machine: Machine, **settings: object) -> tuple[Process, Process]:
    made, taken = producer(machine, **settings), consumer(machine, **settings)
    first_round(made, taken)
    return made, taken


def interrupt(process: Process) -> None:
    """Sends Ctrl-C until the process answers: it may not have called `waiting` yet."""
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(process.end)
        while wait([answer], timeout=0.2).not_done:
            process.process.send_signal(signal.SIGINT)
    answer.result()


def test_a_consumers_stream_waits_for_the_producers_write(machine):
    made, taken = pair(machine)
    with machine.held(made):
        made.do("publish(7)")
        taken.do("frame = recv(); array = Array(frame, s); check(array, 7, s)")
        assert taken.ask("frame.device, frame.__dlpack_device__(), array.device, frame.pts") == [
            "cuda:0",
            [2, 0],
            [2, 0],
            7,
        ]
        assert not taken.ask("g.is_done(s)"), "the stream did not wait"
    taken.do("g.finish(s)")
    assert taken.ask("g.read_word(wrong)") == 0
    assert taken.ask("array.readonly and array.shape == (300000,) and array.strides == (1,)")


def test_a_stream_of_frames_is_intact(machine):
    """The CPU never waits: the producer reuses slots after the consumer's kernels, and the consumer reads after the producer's."""
    made, taken = pair(machine)
    made.do("publish(0)")
    taken.do("""
        import threading
        count, missed = 0, []
        def read():
            global count
            g.here()
            with consumer:
                while True:
                    frame = recv()
                    array = Array(frame, s)
                    check(array, frame.pts % 256, s)
                    count += 1
                    if frame.pts == 255:
                        return
                    del frame, array
        thread = threading.Thread(target=read)
        thread.start()
    """)
    taken.eventually("count > 0")
    made.do("""
        for byte in range(1, 256):
            publish(byte)
    """)
    # The consumer may have missed the last frame.
    made.do("""
        import time
        while producer.num_consumers:
            publish(255)
            time.sleep(0.001)
    """)
    taken.do("thread.join(HANG); g.finish(s)")
    assert taken.ask("count") > 1
    assert taken.ask("g.read_word(wrong)") == 0


@pytest.mark.parametrize("stream", ["None", "gpu.LEGACY", "gpu.PER_THREAD"])
def test_default_streams(machine, stream):
    made, taken = pair(machine)
    with machine.held(made):
        made.do("publish(9)")
        taken.do(f"stream = {stream}; array = Array(recv(), stream)")
        taken.do("check(array, 9, stream or gpu.LEGACY)")
        assert not taken.ask("g.is_done(stream or gpu.LEGACY)")
    taken.do("g.finish(stream or gpu.LEGACY)")
    assert taken.ask("g.read_word(wrong)") == 0


def test_invalid_streams(machine):
    made, taken = pair(machine)
    made.do("publish(1)")
    taken.do("frame = recv()")
    taken.fails("frame.__dlpack__(stream=0)", "ValueError", "1 for the legacy")
    taken.fails("frame.__dlpack__(stream=-2)", "TypeError", "stream must be a handle")
    taken.fails("frame.__dlpack__(stream='x')", "TypeError", "stream must be a handle")
    waits = machine.calls(taken, "cuStreamWaitEvent")
    taken.do("array = Array(frame, -1)")
    assert machine.calls(taken, "cuStreamWaitEvent") == waits, "the caller waits after -1"


def test_synchronize_waits_for_a_view_of_stream_minus_one(machine):
    made, taken = pair(machine)
    with machine.held(made):
        made.do("publish(3)")
        taken.do("frame = recv(); array = Array(frame, -1)")
        taken.do("""
            import threading
            done = []
            thread = threading.Thread(target=lambda: (frame.synchronize(), done.append(1)))
            thread.start()
        """)
        # The wait releases the interpreter's lock, so this is answered.
        assert taken.ask("done") == []
    taken.do("thread.join(HANG); check(array, 3, s); g.finish(s)")
    assert taken.ask("g.read_word(wrong), done") == [0, [1]]


def test_the_cuda_array_interface_waits_on_the_cpu(machine):
    made, taken = pair(machine)
    with machine.held(made):
        made.do("publish(4)")
        taken.do("frame = recv()")
        taken.begin("array = InterfaceArray(frame)")
    taken.end()
    # On a stream that was not registered.
    taken.do("g.check(s, array.ptr, 300000, 4, wrong); g.finish(s)")
    assert taken.ask("g.read_word(wrong)") == 0
    interface = taken.ask("array.interface")
    assert interface["version"] == 3
    assert interface["shape"] == [SIZE]
    assert interface["typestr"] == "|u1"
    assert interface["strides"] is None
    assert interface["stream"] is None
    assert interface["data"][1] is True


def test_errors_of_cpu_access_name_the_copy(machine):
    made, taken = pair(machine)
    made.do("publish(5)")
    taken.do("frame = recv()")
    taken.fails("np.asarray(frame)", "TypeError", r"CUDA device 0.*frame\.cpu\(\)")
    taken.fails("memoryview(frame)", "BufferError", r"frame\.cpu\(\)")
    taken.fails("frame.__dlpack__(stream=1, dl_device=(1, 0), copy=False)", "BufferError", "cuda:0")
    taken.fails("frame.__dlpack__(stream=1, dl_device=(2, 1))", "BufferError", "cuda:0")
    assert taken.ask("bool((np.asarray(frame.cpu()) == 5).all())")
    assert taken.ask("bool((np.from_dlpack(frame, device='cpu') == 5).all())")
    assert taken.ask("frame.cpu().device, frame.cpu().readonly, frame.cpu().pts") == ["cpu", False, 5]


def test_frames_in_host_memory_have_nothing_of_cuda(machine):
    made, taken = pair(machine)
    made.do("""
        with producer.acquire((10,)) as frame:
            np.asarray(frame)[...] = 1
            frame.publish()
    """)
    taken.do("frame = recv()")
    taken.fails("frame.__cuda_array_interface__", "AttributeError", "host memory")
    taken.fails("frame.__dlpack__(stream=1)", "BufferError", "no streams")
    assert taken.ask("frame.device, frame.__dlpack_device__()") == ["cpu", [1, 0]]
    assert taken.ask("np.asarray(frame.cpu()).tolist()") == [1] * 10
    taken.do("frame.synchronize(); frame.record_stream(s)")
    made.fails("producer.acquire((10,)).publish(stream=1)", "ValueError", "no streams")


def test_a_copy_lies_on_the_device_and_may_be_written(machine):
    made, taken = pair(machine)
    with machine.held(made):
        made.do("publish(6)")
        taken.do("frame = recv()")
        taken.begin("copy = frame.copy()")
    taken.end()
    assert taken.ask("copy.device, copy.readonly, frame.readonly, copy.shape") == ["cuda:0", False, True, [SIZE]]
    taken.do("mine = Array(copy, s); check(mine, 6, s); g.fill(s, mine.ptr, mine.nbytes, 8); g.finish(s)")
    taken.do("check(Array(frame, s), 6, s); g.finish(s)")
    assert taken.ask("g.read_word(wrong), mine.readonly") == [0, False]
    taken.do("copied = Array(frame, s, copy=True)")
    assert taken.ask("copied.copied and not copied.readonly and copied.ptr != Array(frame, s).ptr")
    assert taken.ask("bool((np.asarray(copy.cpu()) == 8).all())")


def test_writes_into_a_copy_are_waited_for(machine):
    made, taken = pair(machine)
    made.do("publish(6)")
    taken.do("copy = recv().copy()")
    # Their streams are late.
    for byte, view in ((8, "copy.cpu()"), (9, "copy.copy().cpu()"), (10, "np.from_dlpack(copy, device='cpu')")):
        taken.do(f"mine = Array(copy, s); [g.fill(s, mine.ptr, mine.nbytes, {byte}) for _ in range(20)]; seen = {view}")
        assert taken.ask(f"bool((np.asarray(seen) == {byte}).all())"), view


def test_planes_and_rows_with_padding(machine):
    made, taken = pair(machine)
    # GStreamer aligns rows to four bytes.
    made.do("""
        import ctypes
        seeds = []
        def upload(plane, seed):
            array = Array(plane, s)
            data = content(seed, array.shape)
            itemsize = array.bits // 8
            for row in range(array.shape[0]):
                line = data[row].tobytes()
                seeds.append(line)
                g.upload(s, array.ptr + row * array.strides[0] * itemsize, line)
        with producer.acquire(format="NV12", width=30, height=20, device="cuda") as frame:
            for seed, plane in enumerate(frame.planes):
                upload(plane, seed)
            frame.publish(pts=1)
        with producer.acquire(format="RGB", width=31, height=20, device="cuda") as frame:
            upload(frame, 5)
            frame.publish(pts=2)
    """)
    assert "memory:CUDAMemory" in made.ask("producer.caps")
    taken.do("planar, packed = recv(), recv()")
    taken.fails("Array(planar, s)", "TypeError", "frame.planes")
    assert taken.ask("[plane.device for plane in planar.planes]") == ["cuda:0", "cuda:0"]
    for view in ("planar", "planar.copy()"):
        for seed in range(2):
            assert taken.ask(
                f"np.array_equal(np.asarray({view}.planes[{seed}].cpu()), "
                f"content({seed}, {view}.planes[{seed}].shape))"
            )
    assert taken.ask("packed.strides, packed.shape") == [[96, 3, 1], [20, 31, 3]]
    for view in ("packed.cpu()", "packed.copy().cpu()", "packed.copy().planes[0].copy().cpu()"):
        assert taken.ask(f"np.array_equal(np.asarray({view}), content(5, (20, 31, 3)))")
    # An array that is contiguous for NumPy is also accepted.
    assert taken.ask("np.asarray(packed.cpu()).flags.c_contiguous")
    assert taken.ask("InterfaceArray(packed).interface['strides']") == [96, 3, 1]
    assert taken.ask("Array(packed, s).strides") == [96, 3, 1]


def test_past_the_budget_frames_are_copied_on_the_device(machine):
    made = producer(machine)
    taken = machine.start()
    taken.do("""
        wrong = g.word()
        consumer = xmem.Consumer(pool, timeout=HANG, max_held=1)
    """)
    # Waiting for a copy has a timeout.
    made.do("publish(1); publish(2); g.finish(s)")
    taken.do("frames = [consumer.recv(HANG) for _ in range(2)]")
    assert taken.ask("[frame.readonly for frame in frames], consumer.stats['copied']") == [[True, False], 1]
    for at in range(2):
        taken.do(f"""
            array = Array(frames[{at}], s)
            g.check(s, array.ptr, array.nbytes, {at + 1}, wrong)
            g.finish(s)
        """)
    assert taken.ask("g.read_word(wrong), frames[1].device") == [0, "cuda:0"]


def test_a_capsule_of_before_version_1(machine):
    made, taken = pair(machine)
    made.do("publish(2)")
    taken.do("frame = recv(); array = Array(frame, s, versioned=False); check(array, 2, s); g.finish(s)")
    assert taken.ask("g.read_word(wrong), array.device") == [0, [2, 0]]


def test_nothing_is_imported_or_waited_for_twice(machine):
    made, taken = pair(machine)

    def rounds(count):
        for byte in range(count):
            made.do(f"publish({byte})")
            taken.do(f"check(Array(recv(), s), {byte}, s)")
            # Frames are released in stream order. Past the budget they would be copied.
            taken.eventually("consumer.stats['held'] == 0")

    # The events of all slots are opened once.
    rounds(40)
    names = ["cuMemImportFromShareableHandle", "cuMemMap", "cuStreamSynchronize", "cuCtxSynchronize", "cuMemAlloc_v2"]
    before = [machine.calls(taken, name) for name in names]
    rounds(20)
    assert [machine.calls(taken, name) for name in names] == before
    taken.do("g.finish(s)")
    assert taken.ask("g.read_word(wrong)") == 0


def test_without_a_driver_frames_in_host_memory_go_on(machine):
    made = producer(machine)
    taken = machine.start_without()
    taken.do("consumer = xmem.Consumer(pool, timeout=HANG)")
    made.do("publish(1)")
    taken.fails("consumer.recv(HANG)", "NoCuda", "install NVIDIA's driver")
    made.do("""
        with producer.acquire((10,)) as frame:
            np.asarray(frame)[...] = 3
            frame.publish()
    """)
    assert taken.ask("np.asarray(consumer.recv(HANG)).tolist()") == [3] * 10
    taken.do("mine = xmem.Producer(pool + '.mine.sock')")
    taken.fails("mine.acquire((10,), device='cuda:0')", "NoCuda", "there is no usable CUDA driver")
    taken.do("mine.close()")


def test_missing_devices(machine):
    made = producer(machine)
    made.fails("producer.acquire((10,), device='cuda:9')", "NoCuda", "this process sees 2")
    for bad in ("gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0"):
        made.fails(f"producer.acquire((10,), device={bad!r})", "ValueError", "device is")
    made.do("publish(1)")
    # Devices are identified by UUID, not by ordinal.
    other = machine.start(gpu=False, CUDA_VISIBLE_DEVICES="1")
    other.do("consumer = xmem.Consumer(pool, timeout=HANG, start_from='oldest')")
    other.fails("consumer.recv(HANG)", "CudaError", "which this process cannot see")
    swapped = machine.start(gpu=False, CUDA_VISIBLE_DEVICES="1,0")
    swapped.do("frame = xmem.Consumer(pool, timeout=HANG, start_from='oldest').recv(HANG)")
    assert swapped.ask("frame.device, frame.__dlpack_device__()") == ["cuda:1", [2, 1]]
    assert swapped.ask("bool((np.asarray(frame.cpu()) == 1).all())")


def test_memory_by_handle(machine):
    made, taken = pair(machine, QUIRKS="no-vmm")
    with machine.held(made):
        made.do("publish(7)")
        taken.do("frame = recv(); array = Array(frame, s); check(array, 7, s)")
    taken.do("g.finish(s)")
    assert taken.ask("g.read_word(wrong)") == 0
    made.eventually("producer.stats['consumers'][0]['device'] == 'legacy'")
    # Such memory ends with its producer, which waits for its users.
    taken.do("del frame, array; consumer.close()")
    made.do("producer.close()")


@pytest.mark.parametrize("call", ["frame.synchronize()", "frame.cpu()", "frame.copy()", "InterfaceArray(frame)"])
def test_a_wait_for_a_device_ends_with_ctrl_c(machine, call):
    made, taken = pair(machine)
    with machine.held(made):
        made.do("publish(1)")
        taken.do("frame = recv()")
        taken.begin(f"waiting(); {call}")
        with pytest.raises(Failed, match="KeyboardInterrupt"):
            interrupt(taken)
    # The frame is still valid.
    assert taken.ask("bool((np.asarray(frame.cpu()) == 1).all())")


def test_past_the_budget_a_frame_that_is_not_finished_is_dropped(machine):
    made = producer(machine)
    taken = machine.start()
    taken.do("consumer = xmem.Consumer(pool, timeout=HANG, max_held=1)")
    made.do("publish(1)")
    taken.do("first = consumer.recv(HANG)")
    # This frame is finished, and copied.
    made.do("publish(2); g.finish(s)")
    taken.do("second = consumer.recv(HANG)")
    with machine.held(made):
        made.do("publish(3)")
        taken.do("""
            while consumer.stats["dropped"] == 0:
                consumer.try_recv()
        """)
    made.do("publish(4); g.finish(s)")
    assert taken.ask("consumer.recv(HANG).pts") == 4
