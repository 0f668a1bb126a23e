# SPDX-License-Identifier: MPL-2.0

"""Frames and buffers in the queues and pipes of multiprocessing and the loaders of PyTorch, without a copy, and with kills."""

import contextlib
import gc
import multiprocessing
import multiprocessing.util
import os
import pickle
import signal
import socket
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from channel_support import HANG, Process, wait_until
from support import assert_whole, content, publish

import xmem
import xmem.multiprocessing
from xmem._xmem import _is_shared

spawn = multiprocessing.get_context("spawn")
fork = multiprocessing.get_context("fork")

# More than 64 KiB: such a frame is forwarded in place.
SHAPE = (200, 200, 3)


@pytest.fixture(autouse=True)
def runtime(directory, monkeypatch):
    """The directory of the channels between the processes."""
    monkeypatch.setenv("XMEM_RUNTIME_DIR", str(directory))
    xmem.multiprocessing.install()
    yield
    # Reset in this process for the next test.
    end = xmem.multiprocessing._receiver
    if end is not None:
        end.channel.close(linger=0)
        xmem.multiprocessing._receiver = None
    xmem.multiprocessing._pools.clear()


def echo(incoming, outgoing):
    """Forwards received objects until None."""
    xmem.multiprocessing.install()
    while (obj := incoming.get()) is not None:
        outgoing.put(obj)
        del obj


def describe(incoming, outgoing):
    """Describes received objects, and holds each until the next."""
    held = None
    while (held := incoming.get()) is not None:
        array = held if isinstance(held, np.ndarray) else np.asarray(held)
        outgoing.put((type(held).__name__, array.flags.writeable, array.copy()))
        del array


class Peer:
    """A process with two queues."""

    def __init__(self, target, context=spawn):
        self.to, self.back = context.Queue(), context.Queue()
        self.process = Process(target, self.to, self.back, context=context)

    def ask(self, obj):
        self.to.put(obj)
        del obj
        return self.back.get(timeout=HANG)

    def __enter__(self):
        self.process.__enter__()
        return self

    def __exit__(self, *error):
        if self.process.process.is_alive():
            self.to.put(None)
        self.process.__exit__(*error)


def frames(pool, count=1):
    """A producer, its consumer, and frames."""
    producer = xmem.Producer(pool)
    consumer = xmem.Consumer(pool, timeout=HANG, max_held=8)
    for seed in range(count):
        publish(producer, seed, SHAPE)
    return producer, consumer, [consumer.recv(HANG) for _ in range(count)]


@pytest.mark.parametrize("context", [spawn, fork], ids=["spawn", "fork"])
def test_frames_by_a_queue(pool, context):
    with Peer(describe, context) as peer:
        producer, consumer, (frame,) = frames(pool)

        def is_passed_on():
            kind, writeable, array = peer.ask(frame)
            assert (kind, writeable) == ("Frame", False)
            assert_whole(array, 0)
            # The other process holds it by its own lease after it has joined this pool. Before, it gets a copy.
            return [it["held"] for it in xmem.query(pool)["consumers"] if it["via"]] == [1]

        wait_until(is_passed_on)
        # This process also holds it as long as the other one does.
        del frame
        gc.collect()
        assert consumer.stats["held"] == 1
        peer.ask(np.arange(3))
        wait_until(lambda: consumer.stats["held"] == 0, "all is released")
        producer.close()


def test_frames_of_the_sender_that_is_killed_stay_whole(pool):
    """A frame is forwarded by the middle process, which is then killed."""
    with xmem.Producer(pool) as producer, Peer(relay) as peer:
        peer.to.put(pool)
        assert peer.back.get(timeout=HANG) == "joined"
        got = []
        for seed in range(4):
            publish(producer, seed, SHAPE)
            frame = peer.back.get(timeout=HANG)
            assert_whole(frame, seed)
            got.append((seed, frame))
        # This process has joined the pool to hold frames there, so the last ones were forwarded.
        wait_until(lambda: len(xmem.query(pool)["consumers"]) == 2, "this process has joined")
        peer.process.kill()
        for seed in range(10, 60):
            publish(producer, seed, SHAPE)
        for seed, frame in got:
            assert_whole(frame, seed)
        del frame, got
        gc.collect()
        wait_until(lambda: producer.stats["slots_held"] <= 5, "the history alone holds frames")


def relay(incoming, outgoing):
    xmem.multiprocessing.install()
    consumer = xmem.Consumer(incoming.get(), timeout=HANG)
    outgoing.put("joined")
    for frame in consumer:
        outgoing.put(frame)
        del frame


def test_arrays_over_frames_and_others(pool):
    with Peer(describe) as peer:
        producer, consumer, (frame,) = frames(pool)
        array = np.asarray(frame)
        for part in (array, array[20:, ::2], array[:, :, 1].T):
            kind, writeable, copy = peer.ask(part)
            assert (kind, writeable) == ("ndarray", False)
            assert np.array_equal(copy, part)
        # Objects outside of xmem's memory are sent normally: the receiver has its own copy.
        for own in (np.arange(100_000), np.array(["a", None], dtype=object), array[:2, :2]):
            _, writeable, copy = peer.ask(own)
            assert writeable and np.array_equal(copy, own)
        del array, part, own, frame
        producer.close()


def test_received_frames_are_forwarded(pool):
    with Peer(echo) as peer:
        producer, consumer, (frame,) = frames(pool)
        for _ in range(3):
            assert_whole(peer.ask({"frame": frame, "number": 1})["frame"], 0)
        back = peer.ask([frame, np.asarray(frame)])
        assert back[0].pts == 0 and np.array_equal(back[0], back[1])
        # In one process by one queue.
        queue = spawn.SimpleQueue()
        queue.put(frame)
        assert queue.get() is frame
        producer.close()


def test_a_pipe_raises_at_once_and_reads_once(pool):
    producer, consumer, (frame,) = frames(pool)
    here, there = spawn.Pipe()
    here.send(frame)
    data = there.recv_bytes()
    assert pickle.loads(data) is frame
    with pytest.raises(xmem.RefLost, match="already received"):
        pickle.loads(data)
    with pytest.raises(TypeError):
        pickle.dumps(frame)
    producer.close()


class Sent:
    """An object that is kept until it is requested, and then cannot be unpickled, if its number is odd."""

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return unpickle, (self.number,)


def unpickle(number):
    if number % 2:
        raise LookupError(number)
    return number


def send_numbers(incoming, outgoing):
    ForkingPickler.register(Sent, xmem.multiprocessing._keep)
    for number in range(incoming.get()):
        outgoing.put(Sent(number))
    incoming.get()


def test_an_object_that_cannot_be_unpickled_is_an_error_of_its_thread_only():
    count = 40

    def receive(data):
        try:
            return pickle.loads(data)
        except LookupError as error:
            return [error.args[0]]

    with Peer(send_numbers) as peer, ThreadPoolExecutor(8) as threads:
        peer.to.put(count)
        data = [peer.back._reader.recv_bytes() for _ in range(count)]
        received = list(threads.map(receive, data))
    assert received == [[number] if number % 2 else number for number in range(count)]


def test_buffers(pool):
    with Peer(describe) as peer:
        buffers = xmem.BufferPool("buffers")
        # A buffer that is being written is published for one read.
        buf = buffers.acquire_cpu(1000)
        np.asarray(buf)[:] = 5
        index = buf.meta_index
        kind, writeable, array = peer.ask(buf)
        assert (kind, writeable, set(array)) == ("BufferGuard", False, {5})
        with pytest.raises(xmem.Closed):
            buf.size
        # The receiver holds it until the next one arrives.
        with pytest.raises(xmem.Error, match="holds it"):
            buffers.get_mut(index)

        # A buffer that is read is held here until it has arrived.
        with buffers.acquire_cpu(10_000) as buf:
            np.asarray(buf)[:] = 6
            buffers.set_ref_count(buf.meta_index, 2)
            index = buf.forget()
        buf = buffers.get(index)
        _, _, array = peer.ask(buf)
        assert set(array) == {6}
        del buf
        # An array over it keeps it.
        with buffers.acquire_cpu(10_000) as buf:
            np.asarray(buf)[:] = np.arange(10_000) % 256
            buffers.set_ref_count(buf.meta_index, 2)
            index = buf.forget()
        part = np.asarray(buffers.get(index))[100:9000:2]
        kind, writeable, array = peer.ask(part)
        assert (kind, writeable) == ("ndarray", False) and np.array_equal(array, part)
        del part
    buffers.wait_until_read(HANG)
    buffers.close()


def test_a_receiver_that_is_killed_leaves_nothing(pool, directory):
    """Killed while it holds a frame and while frames wait for it in its queue."""
    producer, consumer, got = frames(pool, 3)
    peer = Peer(describe)
    peer.ask(got[0])
    peer.to.put(got[1])
    assert len(peer.back.get(timeout=HANG)) == 3
    os.kill(peer.process.pid, signal.SIGSTOP)
    peer.to.put(got[2])
    peer.process.kill()
    # Frames that the receiver has not requested are kept for this time.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        xmem.multiprocessing.install(timeout=0.1)
        del got
        gc.collect()
        wait_until(lambda: consumer.stats["held"] == 0, "nothing is held for it")
        wait_until(lambda: len(xmem.query(pool)["consumers"]) == 1, "its leases have ended")
        # Its files are removed as well.
        wait_until(lambda: not list(directory.glob("mp.*")), "its files are removed")
    for seed in range(100):
        publish(producer, seed, SHAPE)
    producer.close()


class Late:
    """Is pickled while its process waits for its queues to be written, at the end of the process."""

    def __reduce__(self):
        wait_until(multiprocessing.util.is_exiting, "the process ends")
        time.sleep(0.1)
        return Late, ()


def put_and_end(queue, pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool, timeout=HANG) as consumer:
        publish(producer, 3, SHAPE)
        queue.put((Late(), consumer.recv(HANG)))


def install_put_and_end(queue, pool):
    xmem.multiprocessing.install()
    put_and_end(queue, pool)


@pytest.mark.parametrize(
    ("context", "target"), [(spawn, install_put_and_end), (fork, install_put_and_end), (fork, put_and_end)]
)
def test_a_sender_waits_for_its_receiver_when_it_ends(pool, context, target):
    queue = context.Queue()
    with Process(target, queue, pool, context=context) as sender:
        _, frame = queue.get(timeout=HANG)
        sender.join()
    assert_whole(frame, 3)


def echo_with_a_child(incoming, outgoing):
    """Forks a child that outlives it when it sends for the second time."""
    xmem.multiprocessing.install()
    outgoing.put(incoming.get())
    again = incoming.get()
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.close(reads)
        os.write(writes, b".")
        while os.path.exists(os.environ["XMEM_RUNTIME_DIR"]):
            time.sleep(0.01)
        os._exit(0)
    os.read(reads, 1)
    outgoing.put(again)
    incoming.get()


@pytest.mark.parametrize("target", [echo, echo_with_a_child])
def test_a_sender_that_was_killed_is_an_error(pool, target):
    with Peer(target) as peer:
        producer, consumer, (frame,) = frames(pool)
        peer.ask(frame)
        peer.to.put(frame)
        # As bytes, because receiving a frame sends a request to the sender.
        data = peer.back._reader.recv_bytes() if peer.back._poll(HANG) else None
        # Without `join`, which also waits for its child.
        peer.process.signal(signal.SIGKILL)
        wait_until(lambda: peer.process.process.exitcode is not None, "it was killed")
        with pytest.raises(xmem.RefLost, match="has ended"):
            pickle.loads(data)
        del frame
        gc.collect()
        wait_until(lambda: consumer.stats["held"] == 0, "nothing is held for it")
        producer.close()


def test_other_users_cannot_reach_a_sender(pool):
    producer, consumer, (frame,) = frames(pool)
    here, there = spawn.Pipe()
    here.send(frame)
    address = xmem.multiprocessing._sender.address
    assert os.stat(address).st_uid == os.geteuid()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(PermissionError):
            os.setresuid(42_101, 42_101, 42_101)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
                stranger.sendto(b"garbage", address)
        except PermissionError:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    # An ordinary user cannot become another one.
    assert os.waitstatus_to_exitcode(status) == (1 if os.geteuid() == 0 else 0)
    # What is no request is dropped, also that of this user.
    assert_whole(there.recv(), 0)
    del frame
    producer.close()


def test_unreceived_frames_are_released_with_a_warning(pool):
    xmem.multiprocessing.install(timeout=0.1)
    producer, consumer, (frame,) = frames(pool)
    here, there = spawn.Pipe()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        here.send(frame)
        del frame
        wait_until(lambda: consumer.stats["held"] == 0, "it is released")
        wait_until(lambda: caught, "it warns")
    assert caught[0].category is xmem.PoolWarning and "timeout" in str(caught[0].message)
    with pytest.raises(xmem.RefLost, match="no longer keeps it"):
        there.recv()
    producer.close()


def tensors(incoming, outgoing):
    import torch

    while (tensor := incoming.get()) is not None:
        outgoing.put((type(tensor) is torch.Tensor, tensor.clone().numpy()))
        del tensor


def test_tensors(pool):
    torch = pytest.importorskip("torch", reason="no PyTorch")
    xmem.multiprocessing.install()
    with Peer(tensors) as peer:
        producer, consumer, (frame,) = frames(pool)
        tensor = torch.from_dlpack(frame)
        for part in (tensor, tensor[50:, ::3], tensor.permute(2, 0, 1), torch.arange(50_000)):
            is_tensor, copy = peer.ask(part)
            assert is_tensor and np.array_equal(copy, part.numpy())
        wait_until(lambda: len(xmem.query(pool)["consumers"]) == 2, "the receiver has joined")
        del tensor, part, frame
        producer.close()


def identity(batch):
    return batch


def as_tensor(frame):
    import torch

    return torch.from_dlpack(frame)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_data_loader(pool, workers):
    """A worker's tensors over frames arrive in place."""
    torch = pytest.importorskip("torch", reason="no PyTorch")
    import xmem.torch

    xmem.multiprocessing.install()
    with xmem.Producer(pool) as producer:
        made = xmem.torch.FrameDataset(pool, as_tensor, limit=20, timeout=HANG)
        loader = torch.utils.data.DataLoader(
            made, batch_size=None, collate_fn=identity, num_workers=workers, multiprocessing_context="fork"
        )
        batches = iter(loader)
        producer.wait_for_consumer(HANG, count=workers)
        sent = []
        for _ in range(20):
            for _ in range(2 * workers):
                publish(producer, len(sent), SHAPE)
                sent.append(content(len(sent), SHAPE))
            tensor = next(batches)
            assert sum(np.array_equal(tensor, one) for one in sent) == 1, "a frame is whole"
            assert _is_shared(tensor.data_ptr(), tensor.nbytes), "it was not copied by PyTorch"
            del tensor
        # The loader ends its workers while batches are in flight.
        producer.end_stream()
        del batches
        gc.collect()


# The document "CUDA IPC Refcounting implementation explained": both of its examples, which are equal. No differences.
PRODUCER = """
queue.put(tensor)
event.wait()
"""
CONSUMER = """
tensor = queue.get()
safe_to_use_tensor = tensor.clone()
event.set()
"""


def consume_tensor(queue, event, back):
    import torch  # noqa: F401

    names = {"queue": queue, "event": event}
    exec(CONSUMER, names)
    back.put(int(names["safe_to_use_tensor"].sum()))
    # Without the producer's wait: references are counted, so no process waits for an event.
    tensor = queue.get()
    back.put(int(tensor.sum()))


def test_refcounting_explained(pool):
    """"CUDA IPC Refcounting implementation explained": with an event; and as the document
    requires, where the sender's tensor may be deleted at once."""
    torch = pytest.importorskip("torch", reason="no PyTorch")
    xmem.multiprocessing.install()
    queue, event, back = spawn.Queue(), spawn.Event(), spawn.Queue()
    with Process(consume_tensor, queue, event, back) as consumer:
        producer, reader, (first, second) = frames(pool, 2)
        wanted = [int(torch.from_dlpack(frame).sum()) for frame in (first, second)]
        exec(PRODUCER, {"queue": queue, "event": event, "tensor": torch.from_dlpack(first)})
        assert back.get(timeout=HANG) == wanted[0]
        tensor = torch.from_dlpack(second)
        queue.put(tensor)
        del tensor, first, second
        assert back.get(timeout=HANG) == wanted[1]
        wait_until(lambda: reader.stats["held"] == 0, "all is released")
        consumer.join()
        producer.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_manager_passes_frames_on(pool, method):
    """Its process has not called install()."""
    context = multiprocessing.get_context(method)
    producer, consumer, (frame,) = frames(pool)
    with context.Manager() as manager:
        shared, queue = manager.dict(), manager.Queue()
        shared["frame"] = frame
        queue.put({"frame": frame})
        assert_whole(shared["frame"], 0)
        # The manager still has it.
        assert_whole(shared["frame"], 0)
        got = queue.get(timeout=HANG)["frame"]
        assert type(got) is xmem.Frame
        assert_whole(got, 0)
    del frame, got
    producer.close()


def slowly(frame):
    time.sleep(0.3)
    return int(np.asarray(frame).sum())


def give_back(frame):
    return frame


def test_what_waited_too_long_in_a_pool_is_an_error_of_the_call(pool):
    xmem.multiprocessing.install(timeout=0)
    producer, consumer, made = frames(pool, 4)
    with spawn.Pool(1) as workers, warnings.catch_warnings():
        warnings.simplefilter("ignore", xmem.PoolWarning)
        # The sender forgets what is older than its timeout about once a second.
        results = [workers.apply_async(time.sleep, (3,))] + [workers.apply_async(slowly, (frame,)) for frame in made]
        results[0].get(timeout=HANG)
        for result in results[1:]:
            with pytest.raises(xmem.RefLost):
                result.get(timeout=HANG)
        # The worker lives.
        xmem.multiprocessing.install(timeout=600)
        assert workers.map_async(slowly, made).get(timeout=HANG) == [int(content(seed, SHAPE).sum()) for seed in range(4)]
    with ProcessPoolExecutor(1, mp_context=spawn) as executor, warnings.catch_warnings():
        warnings.simplefilter("ignore", xmem.PoolWarning)
        assert executor.submit(slowly, made[0]).result(HANG) == int(content(0, SHAPE).sum())
        xmem.multiprocessing.install(timeout=0)
        busy, lost = executor.submit(time.sleep, 3), executor.submit(slowly, made[1])
        busy.result(HANG)
        with pytest.raises(xmem.RefLost):
            lost.result(HANG)
        xmem.multiprocessing.install(timeout=600)
        assert_whole(executor.submit(give_back, made[2]).result(HANG), 2)
    producer.close()


def test_a_queue_raises_what_was_lost(pool):
    """Also in a function that runs in a pool."""
    xmem.multiprocessing.install(timeout=0)
    producer, consumer, (frame,) = frames(pool)
    queue = spawn.SimpleQueue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", xmem.PoolWarning)
        queue.put(frame)
        wait_until(lambda: not xmem.multiprocessing._sender.kept, "it is forgotten")
    with pytest.raises(xmem.RefLost):
        queue.get()
    producer.close()


def test_warnings_as_errors_end_no_service(pool, monkeypatch):
    xmem.multiprocessing.install(timeout=0)
    caught = []
    monkeypatch.setattr("threading.excepthook", caught.append)
    producer, consumer, (frame, other) = frames(pool, 2)
    with Peer(describe) as peer, warnings.catch_warnings():
        warnings.simplefilter("error", xmem.PoolWarning)
        unread = spawn.SimpleQueue()
        unread.put(frame)
        wait_until(lambda: caught, "there is a warning")
        assert "were not received and have been released" in str(caught[0].exc_value)
        xmem.multiprocessing.install(timeout=600)
        # Other receivers are still answered.
        kind, _, array = peer.ask(other)
        assert kind == "Frame"
        assert_whole(array, 1)
    del frame, other
    producer.close()
