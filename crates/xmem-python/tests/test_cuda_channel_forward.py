# SPDX-License-Identifier: MPL-2.0

"""Received arrays on CUDA devices are forwarded in place, and messages have arrays on several devices: between processes, on the
stand-in driver without a GPU."""

from pathlib import Path

import pytest
from cuda_support import Machine, Process, machine  # noqa: F401
from support import eventually
from test_cuda_channel import LIBRARY, close, ends, memory
from test_cuda_frames import interrupt

# The size of a `Device` array in bytes.
SIZE = 200_000


def chain(machine: Machine, **settings: object) -> tuple[Process, Process, Process, str]:
    """The first process creates a channel. The middle one joins it, and creates one that the last one joins."""
    first, middle, last = (machine.start(**settings) for _ in range(3))
    onward = machine.pool.replace("p.sock", "onward.sock")
    for process in (first, middle, last):
        process.do("wrong = g.word()")
        process.do(LIBRARY)
    first.do("channel = xmem.Channel(pool)")
    middle.do(f"channel = xmem.Channel.connect(pool, timeout=HANG); out = xmem.Channel({onward!r})")
    last.do(f"channel = xmem.Channel.connect({onward!r}, timeout=HANG)")
    middle.do("out.wait_for_receiver(HANG)")
    first.do("channel.wait_for_receiver(HANG)")
    return first, middle, last, onward


# Forwards messages. Returns the numbers of copied and forwarded bytes.
PASS_ON = """
    def pass_on(change=lambda obj: obj):
        before = out.stats()
        out.send(change(channel.recv(timeout=HANG)))
        now = out.stats()
        # The message's table counts as copied, and is smaller than any array here.
        return [(now[name] - before[name]) // 10000 * 10000 for name in ("copied_bytes", "shared_bytes")]
"""


def warm_up(first: Process, middle: Process, last: Process) -> None:
    """Frames are copied until the last process reaches the first one's pool."""
    middle.do(PASS_ON)

    def is_passed_on() -> bool:
        first.do("channel.send(Device(1))")
        copied, shared = middle.ask("pass_on()")
        assert copied + shared == SIZE
        last.do("check(channel.recv(timeout=HANG), 1); g.finish(s)")
        return copied == 0

    eventually(is_passed_on, "what was received is never passed on where it lies")


def finish(first: Process, middle: Process, last: Process) -> None:
    last.do("channel.close(linger=0)")
    middle.do("out.close(linger=0); channel.close(linger=0)")
    first.do("channel.close(linger=0)")


def test_received_arrays_are_forwarded_in_place(machine):
    first, middle, last, _ = chain(machine)
    warm_up(first, middle, last)
    # The module's functions that copy on a device.
    copies = machine.calls(middle, "cuMemcpyAsync")
    for byte in range(20):
        first.do(f"channel.send({{'a': Device({byte}), 'b': Device({byte + 100}), 'host': np.arange(40000)}})")
        # Two arrays of one frame, and arrays in host memory.
        assert middle.ask("pass_on(lambda obj: [obj['b'], obj['host'], obj['a'], obj['a']])") == [0, 2 * SIZE + 320_000]
        last.do(f"""
            b, host, a, again = channel.recv(timeout=HANG)
            check(b, {byte + 100}); check(a, {byte}); check(again, {byte}); g.finish(s)
            assert (host == np.arange(40000)).all()
        """)
    assert machine.calls(middle, "cuMemcpyAsync") == copies
    middle.do("out.send(Device(9, stream=s))")
    assert machine.calls(middle, "cuMemcpyAsync") > copies, "an array of its own is copied"
    last.do("check(channel.recv(timeout=HANG), 9); g.finish(s)")
    assert last.ask("g.read_word(wrong), a.device, a.shape, a.readonly") == [0, "cuda:0", [2000, 100], True]
    last.do("del a, b, again, host")
    finish(first, middle, last)


def test_the_last_process_holds_the_frame_when_the_middle_is_killed(machine):
    first, middle, last, onward = chain(machine)
    warm_up(first, middle, last)
    first.do("channel.send(Device(77))")
    assert middle.ask("pass_on()") == [0, SIZE]
    last.do("got = channel.recv(timeout=HANG); check(got, 77); g.finish(s)")
    middle.kill()
    Path(onward).unlink()
    # A new process takes the messages. The first one's slots are reused repeatedly.
    again = machine.start()
    again.do("wrong = g.word()")
    again.do(LIBRARY)
    again.do("channel = xmem.Channel.connect(pool, timeout=HANG)")
    first.do("channel.wait_for_receiver(HANG)")
    for byte in range(40):
        first.do(f"channel.send(Device({byte}))")
        again.do(f"check(channel.recv(timeout=HANG), {byte}); g.finish(s)")
    last.do("check(got, 77); g.finish(s)")
    assert last.ask("g.read_word(wrong)") == 0
    # Also if only one process remains that has it.
    again.do("channel.close(linger=0)")
    machine.kill_producer(first)
    last.do("check(got, 77); g.finish(s); del got; channel.close(linger=0)")
    assert last.ask("g.read_word(wrong)") == 0
    assert again.ask("g.read_word(wrong)") == 0


def test_the_slot_is_reused_after_the_last_release(machine):
    first, middle, last, _ = chain(machine)
    warm_up(first, middle, last)
    last.do("kept = []")
    for byte in range(12):
        first.do(f"channel.send(Device({byte}))")
        assert middle.ask("pass_on()") == [0, SIZE]
        last.do("kept.append(channel.recv(timeout=HANG))")
    last.do("""
        for byte, plane in enumerate(kept):
            check(plane, byte)
        g.finish(s)
        del kept, plane
    """)

    def are_used_again() -> bool:
        before = memory(first, middle, last)
        for byte in range(40):
            first.do(f"channel.send(Device({byte}))")
            assert middle.ask("pass_on()") == [0, SIZE]
            last.do(f"check(channel.recv(timeout=HANG), {byte}); g.finish(s)")
        return memory(first, middle, last) == before

    # They are released shortly after their stream is done.
    eventually(are_used_again, "slots are not used again")
    assert last.ask("g.read_word(wrong)") == 0
    finish(first, middle, last)


def test_memory_that_ends_with_its_producer_is_copied_and_counted(machine):
    first, middle, last, _ = chain(machine, QUIRKS="no-vmm")
    middle.do(PASS_ON)
    for byte in range(10):
        first.do(f"channel.send(Device({byte}))")
        assert middle.ask("pass_on()") == [SIZE, 0]
        last.do(f"check(channel.recv(timeout=HANG), {byte}); g.finish(s)")
    assert last.ask("g.read_word(wrong)") == 0
    finish(first, middle, last)


def test_arrays_are_copied_while_a_receiver_cannot_reach_the_first_pool(machine):
    first, middle, last, onward = chain(machine)
    warm_up(first, middle, last)
    # A process that starts now cannot join the first pool.
    hidden = Path(machine.pool + ".hidden")
    Path(machine.pool).rename(hidden)
    another = machine.start()
    another.do("wrong = g.word()")
    another.do(LIBRARY)
    another.do(f"channel = xmem.Channel.connect({onward!r}, timeout=HANG)")
    middle.eventually("out.receivers == 2")
    for byte in range(10):
        first.do(f"channel.send([Device({byte}), Device({byte + 100})])")
        assert middle.ask("pass_on()") == [2 * SIZE, 0]
        for process in (last, another):
            process.do(f"""
                one, two = channel.recv(timeout=HANG)
                check(one, {byte}); check(two, {byte + 100}); g.finish(s)
                del one, two
            """)
            assert process.ask("g.read_word(wrong)") == 0
    # Without it, nothing is copied any more.
    another.do("channel.close(linger=0)")
    middle.eventually("out.receivers == 1")
    first.do("channel.send(Device(1))")
    assert middle.ask("pass_on()") == [0, SIZE]
    last.do("check(channel.recv(timeout=HANG), 1); g.finish(s)")
    assert last.ask("g.read_word(wrong)") == 0
    hidden.rename(machine.pool)
    finish(first, middle, last)


def test_small_or_new_arrays_are_copied_beside_forwarded_ones(machine):
    first, middle, last, _ = chain(machine)
    warm_up(first, middle, last)
    middle.do("def more(obj): return [*obj, Device(5, stream=s)]")
    for byte in range(10):
        first.do(f"channel.send([Device({byte}), Device({byte + 100}, size=30000)])")
        assert middle.ask("pass_on(more)") == [SIZE + 30_000, SIZE]
        last.do(f"""
            big, small, new = channel.recv(timeout=HANG)
            check(big, {byte}); check(small, {byte + 100}); check(new, 5); g.finish(s)
        """)
    assert last.ask("g.read_word(wrong), small.shape, big.shape") == [0, [300, 100], [2000, 100]]
    last.do("del big, small, new")
    finish(first, middle, last)


FRAMES = """
    producer = xmem.Producer(pool + ".frames.sock")

    def publish(byte, **what):
        with producer.acquire(device="cuda:0", **what) as frame:
            for plane in frame.planes:
                array = Array(plane, s)
                g.fill(s, array.ptr, array.nbytes, byte)
                del array, plane
            frame.publish(pts=byte)
"""


@pytest.mark.parametrize("what", [{"shape": (100, 300, 4)}, {"format": "NV12", "width": 640, "height": 320}])
def test_frames_are_forwarded_while_they_are_still_written(machine, what):
    made, joined = ends(machine)
    source = machine.start()
    source.do(FRAMES)
    made.do("consumer = xmem.Consumer(pool + '.frames.sock')")

    def is_passed_on() -> bool:
        source.do(f"publish(3, **{what!r})")
        before = made.ask("channel.stats()['copied_bytes']")
        made.do("channel.send(consumer.recv(HANG))")
        joined.do("frame = channel.recv(timeout=HANG); [check(plane, 3) for plane in frame.planes]; g.finish(s); del frame")
        return made.ask("channel.stats()['copied_bytes']") < before + 10_000

    eventually(is_passed_on, "frames are never passed on where they lie")
    # Stopped: neither the forwarding process nor the receiver waits for the device.
    with machine.held(source):
        source.do(f"publish(9, **{what!r})")
        made.do("frame = consumer.recv(HANG); channel.send(frame); channel.send(list(frame.planes)); del frame")
        joined.do("""
            frame, planes = channel.recv(timeout=HANG), channel.recv(timeout=HANG)
            for plane in (*frame.planes, *planes):
                check(plane, 9)
        """)
        assert not joined.ask("g.is_done(s)")
    joined.do("g.finish(s)")
    assert joined.ask("g.read_word(wrong), frame.pts, frame.device, len(frame.planes) == len(planes)") == [0, 9, "cuda:0", True]
    joined.do("del frame, planes, plane")
    made.do("consumer.close()")
    source.do("producer.close()")
    close(made, joined)


def test_a_copy_waits_for_the_write_of_its_source(machine):
    made, joined = ends(machine)
    source = machine.start()
    source.do(FRAMES)
    made.do("consumer = xmem.Consumer(pool + '.frames.sock')")
    source.do("publish(1, shape=(20000,))")
    made.do("channel.send(consumer.recv(HANG))")
    joined.do("frame = channel.recv(timeout=HANG); check(frame, 1); g.finish(s); del frame")
    with machine.held(source):
        source.do("publish(9, shape=(20000,))")
        before = made.ask("channel.stats()['copied_bytes']")
        made.do("channel.send(consumer.recv(HANG))")
        assert made.ask("channel.stats()['copied_bytes']") >= before + 20_000
        joined.do("frame = channel.recv(timeout=HANG); check(frame, 9)")
        assert not joined.ask("g.is_done(s)")
    joined.do("g.finish(s)")
    assert joined.ask("g.read_word(wrong)") == 0
    joined.do("del frame")
    made.do("consumer.close()")
    source.do("producer.close()")
    close(made, joined)


BOTH = """
    g1 = Gpu(1)
    s1 = g1.stream()
    word1 = g1.word()
    g.here()

    class OnSecond(Device):
        def __init__(self, byte, **what):
            g1.here()
            super().__init__(byte, device=1, **what)
            g.here()

    def check_both(first, second, byte):
        check(first, byte)
        array = Array(second, s1)
        assert array.device == (2, 1), array.device
        g1.here()
        g1.check(s1, array.ptr, array.nbytes, byte + 1, word1)
        g1.finish(s1)
        g.here()
        g.finish(s)

    def wrong_of_both():
        g1.here()
        there = g1.read_word(word1)
        g.here()
        return g.read_word(wrong) + there
"""


def test_a_message_has_arrays_on_several_devices(machine):
    first, middle, last, _ = chain(machine)
    for process in (first, middle, last):
        process.do(BOTH)
    middle.do(PASS_ON)

    def is_passed_on(byte: int = 1) -> bool:
        first.do(f"channel.send({{'first': Device({byte}), 'second': OnSecond({byte + 1}), 'host': [{byte}]}})")
        copied, shared = middle.ask("pass_on()")
        assert copied + shared == 2 * SIZE
        last.do(f"got = channel.recv(timeout=HANG); check_both(got['first'], got['second'], {byte})")
        assert last.ask("got['second'].device, got['host']") == ["cuda:1", [byte]]
        return copied == 0

    eventually(is_passed_on, "what was received is never passed on where it lies")
    for byte in range(10):
        assert is_passed_on(byte)
    assert last.ask("wrong_of_both()") == 0
    last.do("del got")
    finish(first, middle, last)


def test_copies_are_on_the_devices_of_their_arrays(machine):
    made, joined = ends(machine)
    for process in (made, joined):
        process.do(BOTH)
    made.do("channel.send([Device(4), OnSecond(5), Device(0)])")
    joined.do("got = channel.recv(timeout=HANG, copy=True); check_both(got[0], got[1], 4)")
    assert joined.ask("wrong_of_both(), [plane.readonly for plane in got]") == [0, [False] * 3]
    joined.do("del got")
    close(made, joined)


def test_a_threads_own_stream_is_waited_for_by_the_thread_that_sends(machine):
    """`asend` sends on another thread, where the handle of that stream is another stream."""
    made, joined = ends(machine)
    made.do("""
        import asyncio, threading

        channel.send(Device(1))
        word, other = g.word(), g.stream()
        g.wait_for_word(gpu.PER_THREAD, word)
        # None of these calls waits for that stream.
        late = Device(7, stream=gpu.PER_THREAD)

        async def send():
            task = asyncio.create_task(channel.asend(late))
            # Long enough for a thread that does not wait.
            for _ in range(20):
                g.fill(other, word, 0, 0)
                await asyncio.to_thread(lambda: (g.here(), g.finish(other)))
            too_early = task.done()
            g.set_word(other, word)
            await task
            return too_early

        too_early = asyncio.run(send())
    """)
    joined.do("channel.recv(timeout=HANG); got = channel.recv(timeout=HANG); check(got, 7); g.finish(s)")
    assert not made.ask("too_early")
    assert joined.ask("g.read_word(wrong)") == 0
    joined.do("del got")
    close(made, joined)


def test_sending_can_be_interrupted_while_a_device_is_busy(machine):
    made, joined = ends(machine)
    made.do("arrays = [Device(7), Device(8, stream=s)]")
    # Memory is allocated for the first message.
    made.do("channel.send(arrays)")
    joined.do("channel.recv(timeout=HANG)")
    with machine.held(made):
        made.begin("""
            try:
                waiting()
                channel.send(arrays)
            except KeyboardInterrupt:
                interrupted = True
        """)
        interrupt(made)
    assert made.ask("interrupted")
    made.do("channel.send(Device(9))")
    joined.do("got = channel.recv(timeout=HANG); check(got, 9); g.finish(s)")
    assert joined.ask("g.read_word(wrong)") == 0
    joined.do("del got")
    close(made, joined)


def test_frames_past_the_budget_of_their_pool_are_copied(machine):
    """Also if the budget is that of another pool. None of them blocks their receiver."""
    first, middle, last, onward = chain(machine)
    last.do(f"channel.close(linger=0); channel = xmem.Channel.connect({onward!r}, timeout=HANG, budget=3)")
    middle.eventually("out.receivers == 1")
    warm_up(first, middle, last)
    # Memory for it counts until it is released, shortly after its stream is done.
    first.eventually("not any(it['held'] for it in xmem.query(pool)['consumers'] if it['via'])")
    # One lease there, and three in the origin pool.
    middle.do("def get(count): return [channel.recv(timeout=HANG) for _ in range(count)]")
    first.do("for byte in range(3): channel.send(np.full(100_000, byte, 'u1'))")
    middle.do("before = out.stats()['shared_bytes']; out.send(get(3))")
    assert middle.ask("out.stats()['shared_bytes'] - before") == 300_000
    last.do("kept = channel.recv(timeout=HANG)")
    first.do("for byte in (7, 8): channel.send(Device(byte))")
    middle.do("before = out.stats()['shared_bytes']; out.send(get(2))")
    assert middle.ask("out.stats()['shared_bytes'] - before") == 2 * SIZE
    last.do("got = channel.recv(timeout=HANG); check(got[0], 7); check(got[1], 8); g.finish(s)")
    assert last.ask("g.read_word(wrong), [plane.readonly for plane in got]") == [0, [True, False]]
    assert last.ask("[int(array.max()) for array in kept]") == [0, 1, 2]
    last.do("del kept, got")
    finish(first, middle, last)


def test_arrays_that_are_not_sent_are_not_copied_on_any_device(machine):
    """There is no slot on the second device, so no stream may still read memory of the first one."""
    made, joined = ends(machine)
    made.do(BOTH)
    made.do("channel.close(); channel = xmem.Channel(pool + '.small.sock', max_bytes=4_000_000)")
    joined.do("channel.close(); channel = xmem.Channel.connect(pool + '.small.sock', timeout=HANG)")
    joined.do(BOTH)
    made.do("channel.wait_for_receiver(HANG); arrays = [Device(1), OnSecond(2, size=8_000_000)]")
    # Memory is allocated for the first message.
    made.do("channel.send(Device(3))")
    joined.do("channel.recv(timeout=HANG)")
    copies = machine.calls(made, "cuMemcpyAsync")
    with machine.held(made):
        made.fails("channel.send(arrays)", "PoolFull", "raise max-bytes")
    assert machine.calls(made, "cuMemcpyAsync") == copies
    # No part of the message arrives.
    made.do("channel.send([Device(4), OnSecond(5)])")
    joined.do("got = channel.recv(timeout=HANG); check_both(*got, 4)")
    assert joined.ask("wrong_of_both()") == 0
    joined.do("del got")
    close(made, joined)
