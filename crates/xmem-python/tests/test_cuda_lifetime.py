# SPDX-License-Identifier: MPL-2.0

"""The lifetime of frames on CUDA devices, between processes, on the stand-in driver without a GPU."""

import pytest
from cuda_support import machine  # noqa: F401
from test_cuda_frames import consumer, pair


def test_a_view_outlives_everything_but_its_process(machine):
    made, taken = pair(machine)
    made.do("publish(7)")
    taken.do("""
        frame = recv()
        views = [Array(frame, s), InterfaceArray(frame), Array(frame.planes[0], s)]
        del frame
        consumer.close()
    """)
    made.do("producer.end_stream(); producer.close()")
    made.close()
    for at in range(3):
        taken.do(f"g.check(s, views[{at}].ptr, 300000, 7, wrong)")
    taken.do("g.finish(s)")
    assert taken.ask("g.read_word(wrong)") == 0


# Another thread, which needs the interpreter's lock, provides the work for which the device waits.
HELPED = """
    import threading
    word, stream = g.word(), g.stream()
    g.wait_for_word(stream, word)
    ends = threading.Event()
    helps = threading.Thread(target=lambda: (ends.wait(), g.here(), g.set_word(s, word)))
    helps.start()
"""


@pytest.mark.parametrize("last", ["producer", "writable"])
def test_a_dropped_producer_waits_without_the_interpreter(machine, last):
    made, taken = pair(machine)
    made.do(HELPED)
    made.do("publish(7, stream); writable = producer.acquire((100,))")
    made.do("del writable" if last == "producer" else "del producer")
    taken.do("frame = recv()")
    made.do(f"ends.set(); del {last}; helps.join()")
    taken.do("frame.synchronize(); check(Array(frame, s), 7, s); g.finish(s)")
    assert taken.ask("g.read_word(wrong)") == 0


@pytest.mark.parametrize("last", ["buffers", "guard"])
def test_a_dropped_buffer_pool_waits_without_the_interpreter(machine, last):
    made, taken = machine.start(), machine.start()
    made.do("""
        buffers = xmem.BufferPool(pool)
        def publish(byte, stream):
            guard = buffers.acquire_cuda(1000)
            g.fill(stream, guard.cuda_ptr_mut, 1000, byte)
            buffers.set_ref_count(guard.meta_index, 2)
            return guard.forget(stream=stream)
    """)
    taken.do("wrong = g.word(); buffers = xmem.BufferPool(pool)")
    taken.do(f"guard = buffers.get({made.ask('publish(1, s)')}); guard.cuda_ptr; del guard")
    made.do(HELPED)
    made.do("guard = buffers.acquire_cpu(10)")
    taken.do(f"guard = buffers.get({made.ask('publish(7, stream)')})")
    made.do("del guard" if last == "buffers" else "del buffers")
    made.do(f"ends.set(); del {last}; helps.join()")
    taken.do("g.check(s, guard.cuda_ptr, 1000, 7, wrong); g.finish(s)")
    assert taken.ask("g.read_word(wrong)") == 0
    taken.do("del guard, buffers")


def test_a_dropped_end_of_a_channel_waits_without_the_interpreter(machine):
    made, taken = pair(machine)
    for process in (made, taken):
        process.do("path = pool + '.channel.sock'")
    made.do("channel = xmem.Channel(path)")
    taken.do("channel = xmem.Channel.connect(path, timeout=HANG)")
    # A small array is copied into the channel's pool, without waiting.
    made.do("channel.wait_for_receiver(HANG); consumer = xmem.Consumer(pool)")
    made.do("publish(1, size=20000); channel.send(consumer.recv(HANG))")
    taken.do("frame = channel.recv(timeout=HANG); del frame")
    made.do(HELPED)
    made.do("publish(7, stream, 20000); channel.send(consumer.recv(HANG))")
    taken.do("frame = channel.recv(timeout=HANG)")
    # Not by its finalizer, which would warn that it waits.
    made.do("end = channel._end; channel._finalizer.detach(); del channel; ends.set(); del end; helps.join()")
    taken.do("frame.synchronize(); check(Array(frame, s), 7, s); g.finish(s)")
    assert taken.ask("g.read_word(wrong)") == 0
    taken.do("del frame; channel.close(linger=0)")
    made.do("consumer.close()")


def test_a_frame_is_held_until_the_last_view_is_gone(machine):
    made, taken = pair(machine)
    made.do("publish(7)")
    taken.do("frame = recv(); views = [Array(frame, s), Array(frame, 1), InterfaceArray(frame)]")
    for name in ("frame", "views[0]", "views[1]"):
        taken.do(f"del {name}" if name == "frame" else f"{name} = None")
        taken.do("g.finish(s); g.finish(1)")
        assert taken.ask("consumer.stats['held']") == 1
    taken.do("views[2] = None")
    taken.eventually("consumer.stats['held'] == 0")


def test_the_lease_ends_behind_all_streams_that_views_were_given_to(machine):
    made, taken = pair(machine)
    made.do("publish(7)")
    taken.do("""
        streams = [g.stream() for _ in range(3)]
        words = [g.word() for _ in streams]
        for stream, word in zip(streams, words):
            g.wait_for_word(stream, word)
        frame = recv()
        # One by DLPack, one by a plane, and one whose use the module does not know.
        views = [Array(frame, streams[0]), Array(frame.planes[0], streams[1])]
        frame.record_stream(streams[2])
        for stream in streams:
            g.check(stream, views[0].ptr, 300000, 7, wrong)
        del frame, views
    """)
    for at in (1, 0, 2):
        # The device is blocked, so the result does not depend on timing.
        assert taken.ask("consumer.stats['held']") == 1, f"stream {at} still reads"
        made.do("publish(1); publish(2); publish(3)")
        taken.do(f"g.set_word(s, words[{at}]); g.finish(s); g.finish(streams[{at}])")
    taken.eventually("consumer.stats['held'] == 0")
    assert taken.ask("g.read_word(wrong)") == 0


def test_a_kernel_releases_a_frame_by_its_word(machine):
    made, taken = pair(machine)
    taken.do("gate = g.word(); stream = g.stream(); g.wait_for_word(stream, gate)")
    for byte in (1, 2, 3):
        made.do(f"publish({byte})")
        # No library knows of the stream, so that only the word holds the frame.
        taken.do(f"""
            frame = recv()
            word = frame.release_word()
            assert word.__cuda_array_interface__["data"] == (word.ptr, False)
            g.check(stream, InterfaceArray(frame).ptr, 300000, {byte}, wrong)
            g.end_lease(stream, word.ptr)
            del frame, word
            g.finish(gpu.LEGACY)
        """)
    # More than there are slots.
    made.do("""
        for byte in range(40):
            publish(100 + byte)
        g.finish(s)
    """)
    assert taken.ask("consumer.stats['held']") == 3
    taken.do("g.set_word(s, gate)")
    taken.eventually("consumer.stats['held'] == 0")
    assert taken.ask("g.read_word(wrong)") == 0


def test_a_released_frame_is_held_by_its_arrays(machine):
    made, taken = pair(machine)
    made.do("publish(7)")
    taken.do("frame = recv(); word = frame.release_word(); g.end_lease(s, word.ptr); g.finish(s)")
    for byte in range(40):
        made.do(f"publish({100 + byte})")
    taken.do("check(Array(frame, s), 7, s); g.finish(s)")
    assert taken.ask("consumer.stats['held'], g.read_word(wrong)") == [1, 0]
    taken.do("del frame")
    taken.eventually("consumer.stats['held'] == 0")


def test_a_word_without_a_kernel_holds_its_frame_until_it_is_ended(machine):
    made, taken = pair(machine)
    made.do("publish(7)")
    # Two kernels: each has a word.
    taken.do("frame = recv(); words = [frame.release_word() for _ in range(2)]; del frame")
    assert taken.ask("words[0].ptr != words[1].ptr")
    for word in range(2):
        # Nothing ends it by itself, so this does not depend on time.
        assert taken.ask("consumer.stats['held']") == 1
        taken.do(f"words[{word}].end(); words[{word}].end()")
    taken.eventually("consumer.stats['held'] == 0")
    # The words are used again, and more of them are made than a page has.
    made.do("publish(8)")
    taken.do("frame = recv(); words = [frame.release_word() for _ in range(1500)]; del frame")
    assert taken.ask("len({word.ptr for word in words})") == 1500
    taken.do("""
        for word in words:
            g.end_lease(s, word.ptr)
        g.finish(s)
    """)
    taken.eventually("consumer.stats['held'] == 0")


def test_words_that_no_kernel_can_store_to(machine):
    made, taken = pair(machine)
    made.do("publish(7)")
    taken.do("frame = recv(); word = frame.release_word(); copied = frame.copy().release_word()")
    taken.do("""
        import json
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            raised = []
            for call in (frame.release_word, word.end):
                try:
                    call()
                    raised.append(None)
                except Exception as error:
                    raised.append(type(error).__name__)
            del word, copied, frame
            os.write(write, json.dumps(raised).encode())
            os._exit(0)
        os.close(write)
        raised = json.loads(os.read(read, 1000))
        os.waitpid(child, 0)
    """)
    # The child ends nothing of its parent.
    assert taken.ask("raised, consumer.stats['held']") == [["Forked", None], 1]
    # A context that fails ends the holds in it.
    taken.do("del frame; g.trap(s); g.call('cuStreamSynchronize', gpu.c_void_p(s), may=(700,))")
    taken.eventually("consumer.stats['held'] == 0")
    # The frames of a killed process come back.
    again = consumer(machine)
    made.do("publish(9)")
    again.do("word = recv().release_word()")
    assert again.ask("consumer.stats['held']") == 1
    again.kill()
    made.eventually("all(it['held'] == 0 for it in producer.stats['consumers'])")
    # Frames in host memory have none.
    host = consumer(machine)
    made.do("""
        with producer.acquire((10,)) as frame:
            frame.publish()
    """)
    host.fails("recv().release_word()", "CudaError", "host memory")


def test_views_that_are_dropped_while_streams_read_are_not_overwritten(machine):
    made, taken = pair(machine)
    with machine.held(taken):
        for byte in (1, 2, 3):
            made.do(f"publish({byte})")
            taken.do(f"array = Array(recv(), s); check(array, {byte}, s); del array")
        # More than there are slots.
        made.do("""
            for byte in range(40):
                publish(100 + byte)
            g.finish(s)
        """)
    taken.do("g.finish(s)")
    assert taken.ask("g.read_word(wrong)") == 0
    taken.eventually("consumer.stats['held'] == 0")


def test_the_stream_of_a_thread_that_is_gone(machine):
    """Stream handle 2 is another stream in each thread."""
    made, taken = pair(machine)
    made.do("publish(7)")
    taken.do("""
        import threading
        frame = recv()
        views = []
        word = g.word()
        def use():
            g.here()
            g.wait_for_word(gpu.PER_THREAD, word)
            views.append(Array(frame, gpu.PER_THREAD))
            check(views[0], 7, gpu.PER_THREAD)
        thread = threading.Thread(target=use)
        thread.start()
        thread.join(HANG)
        del frame
        views.clear()
    """)
    made.do("""
        for byte in range(40):
            publish(100 + byte)
        g.finish(s)
    """)
    assert taken.ask("consumer.stats['held']") == 1
    taken.do("g.set_word(s, word)")
    taken.eventually("consumer.stats['held'] == 0")
    assert taken.ask("g.read_word(wrong)") == 0


def test_the_last_view_goes_in_a_host_function(machine):
    """Programs must not call the driver here. The fixture of the machine checks this."""
    made, taken = pair(machine)
    made.do("publish(7)")
    taken.do("""
        views = [Array(recv(), s)]
        callback = g.then(s, views.clear)
        g.finish(s)
    """)
    assert taken.ask("views") == []
    taken.eventually("consumer.stats['held'] == 0")
    # The same for a slot that is being written.
    made.do("""
        frame = producer.acquire((1000,), device="cuda:0")
        views = [Array(frame, s)]
        g.fill(s, views[0].ptr, 1000, 1)
        del frame
        callback = g.then(s, views.clear)
        g.finish(s)
    """)
    assert made.ask("views") == []


def test_a_stream_that_was_destroyed(machine):
    """Programs should not destroy a stream while arrays use it. If they do, nothing is lost."""
    made, taken = pair(machine)
    made.do("publish(7)")
    taken.do("stream = g.stream(); array = Array(recv(), stream); check(array, 7, stream); g.destroy(stream); del array")
    taken.eventually("consumer.stats['held'] == 0")
    assert taken.ask("g.read_word(wrong)") == 0


def test_views_outlive_a_producer_that_is_killed(machine):
    made, taken = pair(machine)
    made.do("publish(7); g.finish(s)")
    taken.do("frame = recv(); view = Array(frame, s)")
    machine.kill_producer(made)
    taken.do("check(view, 7, s); check(Array(frame, s), 7, s); g.finish(s)")
    assert taken.ask("g.read_word(wrong), bool((np.asarray(frame.cpu()) == 7).all())") == [0, True]


def test_a_frame_that_a_killed_producer_did_not_finish(machine):
    made, taken = pair(machine)
    with machine.held(made):
        made.do("publish(7)")
        taken.do("frame = recv()")
        machine.kill_producer(made)
    for code in ("Array(frame, s)", "InterfaceArray(frame)", "frame.synchronize()", "frame.cpu()", "frame.copy()"):
        taken.fails(code, "CudaError", "producer is gone")


def test_frames_of_a_killed_consumer_come_back(machine):
    made, taken = pair(machine)
    made.do("publish(7)")
    taken.do("frame = recv(); view = Array(frame, s)")
    assert made.ask("producer.stats['consumers'][0]['held']") == 1
    with machine.held(taken):
        taken.do("check(view, 7, s); del view, frame")
        taken.kill()
    made.eventually("producer.num_consumers == 0")
    # More than there are slots: none is held.
    made.do("""
        for byte in range(40):
            publish(byte)
    """)
    again = consumer(machine)
    made.do("publish(9)")
    again.do("check(Array(recv(), s), 9, s); g.finish(s)")
    assert again.ask("g.read_word(wrong)") == 0


@pytest.mark.parametrize("how", ["trap", "views"])
def test_a_context_in_error_gives_its_leases_back(machine, how):
    made, taken = pair(machine)
    made.do("publish(7)")
    taken.do("frame = recv(); array = Array(frame, s)")
    if how == "views":
        # They wait for a stream when it fails.
        with machine.held(taken):
            taken.do("g.trap(s); check(array, 7, s); del array, frame")
    else:
        taken.do("g.trap(s); g.call('cuStreamSynchronize', gpu.c_void_p(s), may=(700,))")
        taken.fails("Array(frame, s)", "CudaError", "start the process again")
        taken.do("del array, frame")
    taken.eventually("consumer.stats['held'] == 0")
    made.do("publish(8)")
    made.do("""
        with producer.acquire((10,)) as frame:
            np.asarray(frame)[...] = 3
            frame.publish()
    """)


def test_a_producer_with_a_failed_kernel(machine):
    made, taken = pair(machine)
    made.do("frame = producer.acquire((1000,), device='cuda:0'); array = Array(frame, s); g.trap(s)")
    made.do("g.call('cuStreamSynchronize', gpu.c_void_p(s), may=(700,)); del array")
    made.fails("frame.publish()", "CudaError", "start the process again")
    made.do("frame.__exit__(None, None, None)")


def test_a_forked_child_is_refused_and_takes_nothing(machine):
    made, taken = pair(machine)
    made.do("publish(7)")
    taken.do("""
        frame = recv()
        view = Array(frame, s)
        import json
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            raised = []
            for call in (lambda: Array(frame, s), lambda: frame.cpu(), lambda: frame.__cuda_array_interface__):
                try:
                    call()
                except Exception as error:
                    raised.append(type(error).__name__)
            view.delete()
            del frame
            os.write(write, json.dumps(raised).encode())
            os._exit(0)
        os.close(write)
        raised = json.loads(os.read(read, 1000))
        os.waitpid(child, 0)
    """)
    assert taken.ask("raised") == ["Forked"] * 3
    assert taken.ask("consumer.stats['held']") == 1
    for byte in range(40):
        made.do(f"publish({100 + byte})")
    taken.do("check(view, 7, s); g.finish(s)")
    assert taken.ask("g.read_word(wrong)") == 0


def test_interpreters_end_while_frames_are_held(machine):
    made, taken = pair(machine)
    made.do("publish(7)")
    taken.do("""
        frame = recv()
        cycle = {"view": Array(frame, s)}
        cycle["self"] = cycle
        kept = InterfaceArray(frame)
    """)
    taken.close()
    assert taken.process.returncode == 0
    made.eventually("producer.num_consumers == 0")
    made.do("frame = producer.acquire((1000,), device='cuda:0'); view = Array(frame, s)")
    made.close()
    assert made.process.returncode == 0
