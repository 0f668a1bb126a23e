# SPDX-License-Identifier: MPL-2.0

"""Arrays on CUDA devices in channels, between processes, on the stand-in driver without a GPU. PyTorch's CUDA support needs a GPU:
its tensors use the same code, which is not tested with them here."""

import pytest
from cuda_support import Machine, Process, machine  # noqa: F401
from support import eventually

SIZE = 200_000

# An array of a library, by the CUDA array interface. How it comes back is an xmem.Plane.
LIBRARY = """
    class Device:
        def __init__(self, byte, size=200000, stream=None, device=0):
            self.ptr, self.size, self.stream, self.device = g.allocate(size), size, stream, device
            g.fill(stream or 1, self.ptr, size, byte)
            if stream is None:
                # Its stream is None: there is nothing to wait for.
                g.finish(1)

        @property
        def __cuda_array_interface__(self):
            return {
                "version": 3, "shape": (self.size // 100, 100), "typestr": "|u1", "data": (self.ptr, False),
                "strides": None, "stream": self.stream,
            }

        def __dlpack_device__(self):
            return (2, self.device)

        def __del__(self):
            g.call("cuMemFree_v2", gpu.c_uint64(self.ptr))

    def check(plane, byte):
        array = Array(plane, s)
        g.check(s, array.ptr, array.nbytes, byte, wrong)
"""


def ends(machine: Machine, **settings: object) -> tuple[Process, Process]:
    """The creator of a channel, and a process that joined."""
    made, joined = machine.start(), machine.start(**settings)
    for process in (made, joined):
        process.do("wrong = g.word()")
        process.do(LIBRARY)
    made.do("channel = xmem.Channel(pool)")
    joined.do("channel = xmem.Channel.connect(pool, timeout=HANG)")
    made.do("channel.wait_for_receiver(HANG)")
    return made, joined


def memory(maker: Process, *receivers: Process) -> list[int]:
    """The numbers of slots and of copied messages. They increase if leases do not end."""
    return [maker.ask("channel.stats()['slots']"), *(it.ask("channel.stats()['copied_out']") for it in receivers)]


def close(*processes: Process) -> None:
    for process in reversed(processes):
        process.do("channel.close(linger=0)")


@pytest.mark.parametrize("stream", ["None", "s"])
def test_arrays_arrive_on_the_device(machine, stream):
    made, joined = ends(machine)
    made.do(f"channel.send({{'a': Device(7, stream={stream}), 'b': [Device(9), 'text'], 'host': np.arange(10000)}})")
    joined.do("got = channel.recv(timeout=HANG)")
    assert joined.ask("type(got['a']).__name__, got['a'].device, got['a'].shape, got['a'].readonly") == [
        "Plane",
        "cuda:0",
        [2000, 100],
        True,
    ]
    joined.do("check(got['a'], 7); check(got['b'][0], 9); g.finish(s)")
    assert joined.ask("g.read_word(wrong), got['b'][1], bool((got['host'] == np.arange(10000)).all())") == [0, "text", True]
    # Sent back: received arrays and new ones.
    joined.do("channel.send([got['a'], Device(3)]); del got")
    made.do("got = channel.recv(timeout=HANG); check(got[0], 7); check(got[1], 3); g.finish(s)")
    assert made.ask("g.read_word(wrong)") == 0
    close(made, joined)


def test_memory_is_used_again_when_the_last_array_is_gone(machine):
    made, joined = ends(machine)
    joined.do("word = g.word(); late = g.stream(); g.wait_for_word(late, word)")
    made.do("channel.send(Device(1))")
    joined.do("""
        got = channel.recv(timeout=HANG)
        array = Array(got, late)
        g.check(late, array.ptr, array.nbytes, 1, wrong)
        del got, array
    """)
    # It is still being read. All others are released.
    for byte in range(2, 42):
        made.do(f"channel.send(Device({byte}))")
        joined.do(f"check(channel.recv(timeout=HANG), {byte}); g.finish(s)")
    joined.do("g.set_word(s, word); g.finish(late)")
    assert joined.ask("g.read_word(wrong)") == 0
    joined.do("del word")

    def is_used_again() -> bool:
        before = memory(made, joined)
        for byte in range(20):
            made.do(f"channel.send(Device({byte}))")
            joined.do(f"check(channel.recv(timeout=HANG), {byte}); g.finish(s)")
        return memory(made, joined) == before

    # It is released shortly after its stream is done.
    eventually(is_used_again, "memory is not used again")
    assert joined.ask("g.read_word(wrong)") == 0
    close(made, joined)


def test_copies_are_the_receivers_own(machine):
    made, joined = ends(machine)
    made.do("channel.send([Device(5), np.zeros(10000)])")
    joined.do("got = channel.recv(timeout=HANG, copy=True)")
    assert joined.ask("got[0].readonly, got[0].device") == [False, "cuda:0"]
    close(made, joined)
    made.kill()
    joined.do("check(got[0], 5); g.finish(s)")
    assert joined.ask("g.read_word(wrong)") == 0


def test_past_the_budget_arrays_are_copied(machine):
    made = machine.start()
    joined = machine.start()
    for process in (made, joined):
        process.do("wrong = g.word()")
        process.do(LIBRARY)
    made.do("channel = xmem.Channel(pool)")
    joined.do("channel = xmem.Channel.connect(pool, timeout=HANG, budget=2); kept = []")
    made.do("channel.wait_for_receiver(HANG)")
    for byte in range(6):
        made.do(f"channel.send(Device({byte}))")
        joined.do("kept.append(channel.recv(timeout=HANG))")
    joined.do("""
        for byte, plane in enumerate(kept):
            check(plane, byte)
        g.finish(s)
    """)
    assert joined.ask("g.read_word(wrong), any(not plane.readonly for plane in kept)") == [0, True]
    close(made, joined)


def test_frames_on_a_device(machine):
    made, joined = ends(machine)
    made.do("""
        producer = xmem.Producer(pool + ".frames.sock")
        consumer = xmem.Consumer(pool + ".frames.sock")
        with producer.acquire((100, 30, 3), device="cuda:0") as frame:
            array = Array(frame, s)
            g.fill(s, array.ptr, array.nbytes, 4)
            del array
            frame.publish(pts=77)
        channel.send(consumer.recv(HANG))
    """)
    joined.do("got = channel.recv(timeout=HANG); check(got, 4); g.finish(s)")
    assert joined.ask("type(got).__name__, got.pts, got.shape, got.device") == ["Frame", 77, [100, 30, 3], "cuda:0"]
    assert joined.ask("g.read_word(wrong)") == 0
    made.do("producer.close()")
    close(made, joined)


def test_a_receiver_without_the_device_gets_an_error_and_goes_on(machine):
    made = machine.start()
    made.do("wrong = g.word()")
    made.do(LIBRARY)
    made.do("channel = xmem.Channel(pool)")
    joined = machine.start_without()
    joined.do("channel = xmem.Channel.connect(pool, timeout=HANG)")
    made.do("channel.wait_for_receiver(HANG); channel.send(Device(1)); channel.send('next')")
    joined.fails("channel.recv(timeout=HANG)", "NoCuda", "install NVIDIA's driver")
    assert joined.ask("channel.recv(timeout=HANG)") == "next"
    close(made, joined)


def test_arrays_that_cannot_be_sent(machine):
    made, joined = ends(machine)
    # An invalid address.
    made.do("bad = Device(1); ptr, bad.ptr = bad.ptr, 4096")
    made.fails("channel.send(bad)", "CudaError")
    made.do("bad.ptr = ptr; channel.send('next')")
    assert joined.ask("channel.recv(timeout=HANG)") == "next"
    close(made, joined)


def test_processes_that_are_killed(machine):
    made, joined = ends(machine)
    made.do("channel.send(Device(6))")
    joined.do("got = channel.recv(timeout=HANG)")
    again = machine.start()
    again.do("wrong = g.word()")
    again.do(LIBRARY)
    again.do("channel = xmem.Channel.connect(pool, timeout=HANG)")
    joined.kill()
    made.eventually("channel.receivers == 1")
    made.do("channel.send(Device(8))")
    again.do("got = channel.recv(timeout=HANG)")
    machine.kill_producer(made)
    again.do("check(got, 8); g.finish(s)")
    assert again.ask("g.read_word(wrong)") == 0
    again.do("channel.close(linger=0)")


def test_arrays_whose_memory_stays_on_its_stream_are_not_waited_for(machine):
    """As for PyTorch's tensors, with an array that stays: the copy is queued behind the stream that writes it."""
    made, joined = ends(machine)
    made.do("""
        from xmem.channel import _loaders, _pickling

        kept = []
        def reduce(out, a):
            kept.append(a)
            index = out.add(a.ptr, a.size, a, device=(0, s, True, None))
            return _loaders.cuda_array, ((index, 0, (a.size,), (1,), "uint8"), "")

        channel.send(Device(0))
        _pickling._reducers[Device] = reduce
    """)
    joined.do("got = channel.recv(timeout=HANG)")
    with machine.held(made):
        made.do("channel.send(Device(5, stream=s))")
        joined.do("got = channel.recv(timeout=HANG); check(got, 5)")
        assert not joined.ask("g.is_done(s)")
    joined.do("g.finish(s)")
    assert joined.ask("g.read_word(wrong)") == 0
    close(made, joined)
