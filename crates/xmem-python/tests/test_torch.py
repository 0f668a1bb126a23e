# SPDX-License-Identifier: MPL-2.0

"""PyTorch on frames."""

import contextlib
import gc
import subprocess
import sys
import threading
import time

import pytest
from support import HANG, assert_whole, content, publish

import xmem

torch = pytest.importorskip("torch", reason="no PyTorch")

import xmem.torch  # noqa: E402  (needs PyTorch itself)


def test_tensors_share_the_frame_s_memory(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        with producer.acquire((60, 80, 3), torch.uint8) as frame:
            torch.from_dlpack(frame)[...] = torch.from_numpy(content(3))
            frame.publish()
        frame = consumer.recv(HANG)
        tensor = torch.from_dlpack(frame)
        address = frame.__array_interface__["data"][0]
        assert tensor.data_ptr() == address
        assert_whole(tensor.numpy(), 3)
        part = tensor.permute(2, 0, 1)[1:]
        del frame, tensor
        gc.collect()
        assert consumer.stats["held"] == 1
        assert torch.equal(part, torch.from_numpy(content(3)).permute(2, 0, 1)[1:])
        del part
        assert consumer.stats["held"] == 0


def test_padded_and_planar_formats(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        for format, shapes in (("RGB", [(5, 7, 3)]), ("I420", [(5, 7), (3, 4), (3, 4)]), ("P010_10LE", [(5, 7), (3, 4, 2)])):
            with producer.acquire(format=format, width=7, height=5) as frame:
                for plane in frame.planes:
                    torch.from_dlpack(plane).fill_(200)
                frame.publish()
            frame = consumer.recv(HANG)
            tensors = [torch.from_dlpack(plane) for plane in frame.planes]
            assert [tuple(tensor.shape) for tensor in tensors] == shapes
            assert all((tensor == 200).all() for tensor in tensors)


def test_a_copy_may_be_written(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        publish(producer, 1)
        frame = consumer.recv(HANG)
        torch.from_dlpack(frame.copy()).zero_()
        torch.from_dlpack(frame, copy=True).zero_()
        assert_whole(frame, 1)


def test_tensors_that_write_keep_a_frame_from_being_published(pool):
    with xmem.Producer(pool) as producer, producer.acquire((4,), "float32") as frame:
        tensor = torch.from_dlpack(frame)[1:]
        with pytest.raises(xmem.ViewsExist):
            frame.publish()
        del tensor
        frame.publish()


def test_a_write_into_a_frame_harms_no_other_process(pool):
    """PyTorch does not support read-only tensors: such a write kills the process and changes nothing."""
    code = "import sys, torch, xmem; torch.from_dlpack(xmem.Consumer(sys.argv[1], start_from='newest').recv()).fill_(9)"
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        publish(producer, 1)
        frame = consumer.recv(HANG)
        ended = subprocess.run([sys.executable, "-c", code, pool], timeout=HANG, capture_output=True, check=False)
        assert ended.returncode != 0
        assert_whole(frame, 1)


@contextlib.contextmanager
def feeding(pool):
    """A lossless pool has frames from its first consumer until the end of the block."""
    stop = threading.Event()

    def feed():
        seed = 0
        with xmem.Producer(pool, lossless=True) as producer:
            producer.wait_for_consumer(HANG)
            while not stop.is_set():
                publish(producer, seed)
                seed += 1
                stop.wait(0.005)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("limit", [1, 4, 7])
def test_data_loader(pool, workers, limit):
    frames = xmem.torch.FrameDataset(pool, limit=limit, timeout=HANG)
    loader = torch.utils.data.DataLoader(frames, batch_size=None, num_workers=workers)
    with feeding(pool):
        batches = list(loader)
    # The limit is that of all workers together.
    assert len(batches) == limit
    assert all(batch.shape == (60, 80, 3) for batch in batches)


def begin_late(worker):
    time.sleep(worker)


# The producer waits for the first worker, which has taken more items than the loader wants at first.
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_that_begins_late(pool, context):
    frames = xmem.torch.FrameDataset(pool, limit=20, timeout=HANG)
    loader = torch.utils.data.DataLoader(
        frames,
        batch_size=None,
        num_workers=2,
        worker_init_fn=begin_late,
        multiprocessing_context=context,
        persistent_workers=True,
    )
    with feeding(pool):
        for _ in range(2):
            assert len(list(loader)) == 20


def test_a_data_set_holds_no_frame_between_two_items(pool):
    with xmem.Producer(pool, history=4) as producer:
        items = iter(xmem.torch.FrameDataset(pool, lambda frame: frame.pts, timeout=HANG))
        thread = threading.Thread(target=lambda: (producer.wait_for_consumer(HANG), publish(producer, 5)))
        thread.start()
        assert next(items) == 5
        thread.join()
        [consumer] = producer.stats["consumers"]
        assert consumer["held"] == 0


def test_transforms_and_the_end_of_the_stream(pool):
    with xmem.Producer(pool, history=4) as producer:
        for seed in range(3):
            publish(producer, seed)
        producer.end_stream()
        frames = xmem.torch.FrameDataset(
            pool, lambda frame: torch.from_dlpack(frame).float().mean(), start_from="oldest", timeout=HANG
        )
        means = list(frames)
        assert means == [torch.from_numpy(content(seed)).float().mean() for seed in range(3)]


def test_a_data_set_has_no_events(pool):
    with pytest.raises(ValueError, match="has only frames"):
        xmem.torch.FrameDataset(pool, events=True)
