# SPDX-License-Identifier: MPL-2.0

"""Writing frames on CUDA devices, between processes, on the stand-in driver without a GPU."""

import pytest
from cuda_support import machine  # noqa: F401
from test_cuda_frames import SIZE, interrupt, pair


@pytest.mark.parametrize(
    ("stream", "publish"),
    [
        # The given stream.
        ("s", "array = None; frame.publish(pts=1, stream=s)"),
        # The stream on which the array was created.
        ("s", "array = None; frame.publish(pts=1)"),
        ("gpu.PER_THREAD", "array = None; frame.publish(pts=1)"),
        ("None", "array = None; frame.publish(pts=1)"),
        ("s", "frame.publish(pts=1, trust_views=True)"),
    ],
)
def test_frames_are_published_before_they_are_written(machine, stream, publish):
    made, taken = pair(machine)
    with machine.held(made):
        made.do(f"""
            with producer.acquire(({SIZE},), device="cuda:0") as frame:
                array = Array(frame, {stream})
                assert not array.readonly
                g.fill({stream} or 1, array.ptr, array.nbytes, 7)
                {publish}
        """)
        taken.do("frame = recv(); array = Array(frame, s); check(array, 7, s)")
        assert not taken.ask("g.is_done(s)")
    taken.do("g.finish(s)")
    assert taken.ask("g.read_word(wrong), frame.pts") == [0, 1]


def test_a_frame_that_several_streams_write(machine):
    made, taken = pair(machine)
    made.do(f"""
        streams = [g.stream() for _ in range(3)]
        with producer.acquire((3, {SIZE}), device="cuda:0") as frame:
            for byte, stream in enumerate(streams):
                array = Array(frame, stream)
                g.fill(stream, array.ptr + byte * {SIZE}, {SIZE}, byte)
            del array
            frame.publish()
    """)
    taken.do("array = Array(recv(), s)")
    for byte in range(3):
        taken.do(f"g.check(s, array.ptr + {byte * SIZE}, {SIZE}, {byte}, wrong)")
    taken.do("g.finish(s)")
    assert taken.ask("g.read_word(wrong), array.shape") == [0, [3, SIZE]]


def test_streams_of_other_libraries(machine):
    made, taken = pair(machine)
    made.do("""
        class Torch:
            cuda_stream = s
        class CuPy:
            ptr = s
        class Standard:
            def __cuda_stream__(self):
                return (0, s)
        class Null:
            cuda_stream = 0
    """)
    for kind in ("Torch", "CuPy", "Standard", "Null"):
        made.do(f"""
            with producer.acquire((1000,), device="cuda:0") as frame:
                g.fill(s if {kind} is not Null else 1, Array(frame, 1).ptr, 1000, 9)
                frame.publish(stream={kind}())
        """)
        taken.do("array = Array(recv(), s); check(array, 9, s); g.finish(s)")
        assert taken.ask("g.read_word(wrong)") == 0
    made.fails("producer.acquire((10,), device='cuda:0').publish(stream=object())", "TypeError", "stream must be")


def test_arrays_that_could_still_write(machine):
    made, taken = pair(machine)
    made.do("frame = producer.acquire((1000,), device='cuda:0'); array = Array(frame, s)")
    made.fails("frame.publish()", "ViewsExist", "1 array")
    made.do("array.delete(); frame.publish()")
    made.fails("frame.publish()", "Error", "already published")
    # The same memory is read from here on.
    assert made.ask("Array(frame, s).readonly, frame.readonly") == [True, True]
    made.fails("Array(frame, s, versioned=False)", "BufferError", "before version 1")
    for call in ("frame.__dlpack__(stream=1, copy=True)", "frame.__dlpack__(dl_device=(1, 0))"):
        made.fails(call, "CudaError", "receive it")


def test_arrays_by_the_cuda_array_interface_keep_their_slot(machine):
    made, taken = pair(machine)
    made.do("""
        with producer.acquire((1000,), device="cuda:0") as frame:
            array = InterfaceArray(frame)
            assert not array.readonly
            g.fill(1, array.ptr, 1000, 5)
            frame.publish()
        del frame
        """)
    taken.do("array = Array(recv(), s); check(array, 5, s); g.finish(s)")
    assert taken.ask("g.read_word(wrong)") == 0
    taken.do("del array")
    # The block has ended, so the frame is released for all others. It is not overwritten while the array exists.
    made.do("""
        for byte in range(40):
            with producer.acquire((1000,), device="cuda:0") as frame:
                assert Array(frame, s).ptr != array.ptr
                frame.publish()
        ptr = array.ptr
        del array
    """)


def test_a_slot_that_is_given_back_while_it_is_written(machine):
    """The next owner of the slot waits."""
    made, taken = pair(machine)
    made.do("""
        other, word = g.stream(), g.word()
        g.wait_for_word(s, word)
        with producer.acquire((300000,), device="cuda:0") as frame:
            array = Array(frame, s)
            g.fill(s, array.ptr, array.nbytes, 1)
            ptr = array.ptr
            del array
        del frame
    """)
    # All slots except for the published one are free again, shortly after.
    made.eventually("producer.stats['slots_held'] == 1")
    made.do("""
        # Until it is that slot.
        kept = []
        while True:
            frame = producer.acquire((300000,), device="cuda:0")
            if Array(frame, -1).ptr == ptr:
                break
            kept = [*kept[-8:], frame]
        array = Array(frame, other)
        g.fill(other, array.ptr, array.nbytes, 2)
        array.delete()
        frame.publish(pts=77)
    """)
    # The returned slot is still being written; this write must be first.
    made.do("g.set_word(g.stream(), word); g.finish(s); g.finish(other)")
    taken.do("""
        while True:
            frame = recv()
            if frame.pts == 77:
                break
        check(Array(frame, s), 2, s)
        g.finish(s)
    """)
    assert taken.ask("g.read_word(wrong)") == 0


def test_a_lossless_producer_waits_for_room(machine):
    made = machine.start()
    made.do("producer = xmem.Producer(pool, lossless=True, max_slots=16)")
    taken = machine.start()
    taken.do("wrong = g.word(); consumer = xmem.Consumer(pool, timeout=HANG, max_held=2)")
    made.begin("""
        for byte in range(50):
            with producer.acquire((1000,), device="cuda:0", timeout=HANG) as frame:
                array = Array(frame, s)
                g.fill(s, array.ptr, 1000, byte)
                array.delete()
                frame.publish(pts=byte)
        producer.end_stream()
    """)
    taken.do("""
        seen = []
        for frame in consumer:
            array = Array(frame, s)
            g.check(s, array.ptr, 1000, frame.pts, wrong)
            seen.append(frame.pts)
            del frame, array
            # Past the budget the frame would be copied, or dropped if it is not complete soon.
            eventually(lambda: consumer.stats["held"] < 2, "frames stay held")
        g.finish(s)
    """)
    made.end()
    assert taken.ask("seen") == list(range(50))
    assert taken.ask("g.read_word(wrong)") == 0


def test_a_device_that_is_full(machine):
    made = machine.start(MEMORY=64 << 20)
    made.do("producer = xmem.Producer(pool)")
    made.fails("producer.acquire((1 << 30,), device='cuda:0')", "CudaError", "no room")
    made.do("producer.acquire((1 << 20,), device='cuda:0').publish()")


def test_a_frame_that_several_streams_write_is_published_without_waiting_for_them(machine):
    made, taken = pair(machine)
    made.do("""
        streams, word = [g.stream() for _ in range(3)], g.word()
        # Not the stream on which it is published, which is the last one.
        g.wait_for_word(streams[1], word)
        with producer.acquire((300000,), device="cuda:0") as frame:
            for at, stream in enumerate(streams):
                array = Array(frame, stream)
                g.fill(stream, array.ptr + at * 100000, 100000, 3)
                array.delete()
            frame.publish(pts=5)
    """)
    taken.do("frame = recv(); check(Array(frame, s), 3, s); other = g.stream()")
    # Long enough for a thread that does not wait for that stream.
    for _ in range(5):
        made.do("publish(1)")
        taken.do("next = recv(); check(Array(next, other), 1, other); g.finish(other); del next")
    assert not taken.ask("g.is_done(s)")
    made.do("g.set_word(s, word)")
    taken.do("g.finish(s)")
    assert taken.ask("g.read_word(wrong), frame.pts") == [0, 5]


def test_a_wait_for_earlier_work_in_a_slot_can_be_interrupted(machine):
    made, taken = pair(machine)
    made.do("""
        word = g.word()
        g.wait_for_word(s, word)
        with producer.acquire((300000,), device="cuda:0") as frame:
            array = Array(frame, s)
            ptr = array.ptr
            del array
        del frame
    """)
    # All slots except for the published one are free again, shortly after.
    made.eventually("producer.stats['slots_held'] == 1")
    made.do("""
        # Until it is that slot, whose stream is not done.
        kept = []
        while True:
            frame = producer.acquire((300000,), device="cuda:0")
            if Array(frame, -1).ptr == ptr:
                break
            kept = [*kept[-8:], frame]
    """)
    made.begin("""
        try:
            waiting()
            InterfaceArray(frame)
        except KeyboardInterrupt:
            interrupted = True
    """)
    interrupt(made)
    assert made.ask("interrupted")
    made.do("g.set_word(g.stream(), word); array = InterfaceArray(frame); g.fill(1, array.ptr, 300000, 4); frame.publish(pts=6)")
    taken.do("frame = recv(); check(Array(frame, s), 4, s); g.finish(s)")
    assert taken.ask("g.read_word(wrong), frame.pts") == [0, 6]
