# SPDX-License-Identifier: MPL-2.0

"""Threads that use the same objects at the same time. With free-threaded Python they run in parallel."""

import subprocess
import sys
import sysconfig
import threading

import numpy as np
import pytest
from support import HANG, assert_whole, content, publish

import xmem

THREADS = 8


def all_at_once(work, count=THREADS):
    """Calls a function in many threads that start together. Raises the exception of any of them."""
    begin = threading.Barrier(count)
    errors = []

    def run(number):
        begin.wait(HANG)
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_the_module_needs_no_lock_of_the_interpreter():
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this Python is not free-threaded")
    program = "import sys, xmem; sys.exit(sys._is_gil_enabled())"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=HANG)


def test_one_consumer(pool):
    """Each frame is taken once, is intact, and is released in any thread."""
    count = 400
    with xmem.Producer(pool, lossless=True) as producer, xmem.Consumer(pool) as consumer:
        seen = [[] for _ in range(THREADS)]

        def work(number):
            if number == 0:
                for seed in range(count):
                    publish(producer, seed)
                producer.end_stream()
                return
            for frame in consumer:
                assert_whole(frame, frame.pts)
                seen[number].append(frame.pts)
                consumer.stats, consumer.caps  # noqa: B018

        all_at_once(work)
        assert sorted(sum(seen, [])) == list(range(count))
        assert all(one == sorted(one) for one in seen)
        assert consumer.stats["held"] == 0


def test_one_frame(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        with producer.acquire(format="NV12", width=64, height=48) as frame:
            for plane in frame.planes:
                np.asarray(plane)[...] = content(1, plane.shape)
            frame.publish()
        frame = consumer.recv(HANG)

        def work(number):
            for _ in range(200):
                luma, chroma = frame.planes
                for plane in (luma, chroma, frame.copy().planes[0]):
                    views = [memoryview(plane), np.asarray(plane), np.from_dlpack(plane), plane.copy()]
                    del views[number % 4]
                    assert_whole(views[0], 1)

        all_at_once(work)
        assert consumer.stats["held"] == 1
        del frame
        assert consumer.stats["held"] == 0


def test_one_slot(pool):
    """If many threads publish a slot, one succeeds. Views that could write prevent all of them from publishing."""
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        for _ in range(20):
            published = []
            with producer.acquire((60, 80, 3)) as frame:
                np.asarray(frame)[...] = content(1)

                def work(number, frame=frame, published=published):
                    if number % 2:
                        for _ in range(50):
                            memoryview(frame).release()
                        return
                    while not published:
                        try:
                            published.append(frame.publish())
                        except xmem.ViewsExist:
                            pass
                        except xmem.Error as error:
                            assert "already published" in str(error)

                all_at_once(work)
            assert len(published) == 1
            assert_whole(consumer.recv(HANG), 1)
        assert consumer.try_recv() is None


def test_closing_under_others(pool):
    for _ in range(10):
        with xmem.Producer(pool, lossless=True, lossless_timeout=HANG) as producer:
            consumer = xmem.Consumer(pool)

            def work(number, producer=producer, consumer=consumer):
                try:
                    while True:
                        if number == 0:
                            for seed in range(3):
                                publish(producer, seed)
                            consumer.close()
                            return
                        assert_whole(frame := consumer.recv(HANG), frame.pts)
                except xmem.Closed:
                    pass

            all_at_once(work)


def test_one_channel(directory):
    path = f"{directory}/c.sock"
    each = 50
    with xmem.Channel(path) as here, xmem.Channel.connect(path, timeout=HANG) as there:
        here.wait_for_receiver(HANG)
        got = []
        kept = [object() for _ in range(4)]

        def work(number):
            if number % 2:
                for turn in range(each):
                    array = np.full(5000, number * each + turn)
                    here.send((number, turn, array, xmem.ref(kept[turn % 4])), timeout=HANG)
                return
            for _ in range(each):
                sender, turn, array, ref = there.recv(timeout=HANG)
                assert (array == sender * each + turn).all()
                # This is their own process, so they are the objects themselves.
                assert ref is kept[turn % 4]
                got.append((sender, turn))

        all_at_once(work)
        assert sorted(got) == [(number, turn) for number in range(1, THREADS, 2) for turn in range(each)]


def test_one_room(directory):
    with xmem.Channel(f"{directory}/c.sock") as channel:
        room = channel.room(THREADS * 50 * 128)
        arrays = [[] for _ in range(THREADS)]

        def work(number):
            for turn in range(50):
                arrays[number].append(room.empty(16, np.int64))
                arrays[number][-1][:] = number * 100 + turn

        all_at_once(work)
        for number, mine in enumerate(arrays):
            assert all((array == number * 100 + turn).all() for turn, array in enumerate(mine))
        assert room.left == 0


def test_references_to_one_object():
    """They are equal, independent of the thread that created them first."""
    for _ in range(50):
        thing = object()
        refs = []
        all_at_once(lambda _, thing=thing, refs=refs: refs.append(xmem.ref(thing)))
        assert len(set(refs)) == 1


def test_one_buffer_pool(directory):
    with xmem.BufferPool(f"{directory}/b.sock", max_buffers=64) as pool:
        buffer = pool.acquire_cpu(5000)
        np.asarray(buffer)[:] = 200
        pool.set_ref_count(buffer.meta_index, THREADS * 200 + 1)
        index = buffer.forget()

        def work(number):
            for _ in range(200):
                with pool.acquire_cpu(5000) as buffer:
                    np.asarray(buffer)[:] = number
                    assert (np.asarray(buffer) == number).all()
                with pool.get(index) as buffer, buffer.clone_ref() as other:
                    assert (np.asarray(other) == 200).all()
                    assert buffer.size == other.size == 5000

        all_at_once(work)
        del buffer


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="newer versions refuse the module themselves")
def test_a_second_interpreter_gets_an_error():
    program = """if True:
        import _xxsubinterpreters
        _xxsubinterpreters.run_string(_xxsubinterpreters.create(isolated=False), '''if True:
            try:
                import xmem
            except ImportError as error:
                print(error)
        ''')
    """
    ended = subprocess.run([sys.executable, "-c", program], check=True, timeout=HANG, capture_output=True, text=True)
    assert ended.stdout.startswith("xmem works only in the main interpreter")
