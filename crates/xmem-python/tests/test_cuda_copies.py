# SPDX-License-Identifier: MPL-2.0

"""The lifetime of private copies of frames on CUDA devices, on the stand-in driver without a GPU."""

import pytest
from cuda_support import Machine, Process, machine  # noqa: F401
from support import eventually
from test_cuda_frames import interrupt, pair

# cuMemFree frees at once, also memory that a kernel still uses.
AT_ONCE = {"QUIRKS": "free-does-not-wait"}

# A consumer, and a stream that is blocked until the word is set.
BLOCKED = """
    word, busy = g.word(), g.stream()
    g.wait_for_word(busy, word)
"""


def pair_without_waits(machine: Machine) -> tuple[Process, Process]:
    made, taken = pair(machine, **AT_ONCE)
    taken.do(BLOCKED)
    return made, taken


def freed(machine: Machine, taken: Process) -> int:
    return machine.calls(taken, "cuMemFree_v2")


def after_the_reaper(machine: Machine, made: Process, taken: Process) -> int:
    """Waits until memory that was dropped before would be freed, if it waited for nothing. Returns how often memory was freed."""
    made.do("publish(1)")
    before = freed(machine, taken)
    # Memory is freed in the order in which it was dropped.
    taken.do("other = recv().copy(); del other")
    eventually(lambda: freed(machine, taken) > before, "the other copy is not freed")
    return freed(machine, taken)


def freed_at_last(machine: Machine, taken: Process, count: int) -> None:
    eventually(lambda: freed(machine, taken) == count, f"the memory is not freed: {freed(machine, taken)} of {count}")


@pytest.mark.parametrize("way", ["frame.copy()", "frame.planes[0].copy()", "past the budget"])
def test_a_copy_is_freed_after_the_kernels_of_its_views(machine, way):
    made, taken = pair_without_waits(machine)
    if way == "past the budget":
        taken.do("held = []")
        for byte in range(5):
            made.do(f"publish({byte})")
            taken.do("held.append(recv())")
        assert taken.ask("consumer.stats['copied']") == 1
        taken.do("copy = held.pop(); held.clear()")
    else:
        made.do("publish(4)")
        taken.do(f"frame = recv(); copy = {way}; del frame")
    taken.do("array = Array(copy, busy); check(array, 4, busy); g.fill(busy, array.ptr, array.nbytes, 9); check(array, 9, busy)")
    taken.do("del array, copy")
    count = after_the_reaper(machine, made, taken)
    assert not taken.ask("g.is_done(busy)")
    taken.do("g.set_word(s, word); g.finish(busy)")
    assert taken.ask("g.read_word(wrong)") == 0
    freed_at_last(machine, taken, count + 1)


def test_a_copy_is_freed_after_all_streams(machine):
    """Of its views, and one that the program names."""
    made, taken = pair_without_waits(machine)
    made.do("publish(4)")
    taken.do("""
        copy = recv().copy()
        other_word, named = g.word(), g.stream()
        g.wait_for_word(named, other_word)
        array = Array(copy, busy)
        copy.record_stream(named)
        check(array, 4, busy)
        check(array, 4, named)
        del array, copy
    """)
    count = after_the_reaper(machine, made, taken)
    taken.do("g.set_word(s, word); g.finish(busy)")
    assert after_the_reaper(machine, made, taken) == count + 1
    taken.do("g.set_word(s, other_word); g.finish(named)")
    assert taken.ask("g.read_word(wrong)") == 0
    freed_at_last(machine, taken, count + 2)


def test_a_copy_whose_stream_was_destroyed(machine):
    """It is freed after all work of the device."""
    made, taken = pair_without_waits(machine)
    made.do("publish(4)")
    taken.do("""
        copy = recv().copy()
        array = Array(copy, busy)
        check(array, 4, busy)
        g.destroy(busy)
        del array, copy
    """)
    count = after_the_reaper(machine, made, taken)
    taken.do("g.set_word(s, word)")
    freed_at_last(machine, taken, count + 1)
    taken.do("g.finish(s)")
    assert taken.ask("g.read_word(wrong)") == 0


def test_a_copy_whose_stream_is_captured(machine):
    made, taken = pair_without_waits(machine)
    made.do("publish(4)")
    taken.do("""
        captured, copy = g.stream(), recv().copy()
        array = Array(copy, captured)
        g.begin_capture(captured)
    """)
    taken.fails("copy.cpu()", "CudaError", "captured into a graph")
    taken.do("del array, copy")
    count = after_the_reaper(machine, made, taken)
    # The capture was not disturbed.
    taken.do("g.end_capture(captured)")
    freed_at_last(machine, taken, count + 1)


def test_the_last_view_of_a_copy_goes_in_a_host_function(machine):
    """Programs must not call the driver here. The fixture of the machine checks this."""
    made, taken = pair(machine)
    made.do("publish(7)")
    taken.do("""
        views = [Array(recv().copy(), s)]
        callback = g.then(s, views.clear)
        g.finish(s)
    """)
    assert taken.ask("views") == []


# A copy whose writer is a stream that was destroyed. Non-blocking streams are not ordered with the default stream.
DESTROYED = """
    copy = recv().copy()
    array = Array(copy, busy)
    g.fill(busy, array.ptr, array.nbytes, 9)
    g.destroy(busy)
    import threading
    seen = []
    def look():
        seen.append(int(np.asarray(copy.cpu())[0]))
"""


def test_a_read_of_a_copy_waits_for_a_stream_that_was_destroyed(machine):
    made, taken = pair(machine)
    taken.do(BLOCKED)
    made.do("publish(7)")
    taken.do(DESTROYED)
    taken.do("thread = threading.Thread(target=look); thread.start(); thread.join(0.3)")
    assert taken.ask("seen") == []
    taken.do("g.set_word(s, word); thread.join(HANG)")
    assert taken.ask("seen") == [9]


def test_the_wait_for_a_stream_that_was_destroyed_ends_with_ctrl_c(machine):
    made, taken = pair(machine)
    taken.do(BLOCKED)
    made.do("publish(7)")
    taken.do(DESTROYED)
    taken.begin("""
        interrupted = False
        try:
            waiting()
            look()
        except KeyboardInterrupt:
            interrupted = True
    """)
    interrupt(taken)
    assert taken.ask("interrupted, seen") == [True, []]
    taken.do("g.set_word(s, word); look()")
    assert taken.ask("seen") == [9]
