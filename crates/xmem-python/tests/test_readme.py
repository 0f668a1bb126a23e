# SPDX-License-Identifier: MPL-2.0

"""Runs the examples of the pages."""

import ast
import asyncio
import contextlib
import multiprocessing
import operator
import os
import re
import selectors
import threading
from pathlib import Path

import numpy as np
import pytest
from channel_support import Process
from support import HANG, eventually, publish

import xmem

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "crates/xmem-python/README.md", ROOT / "docs/buffer-pool.md", *sorted(ROOT.glob("docs/python/*.md"))]
BLOCKS = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]


@pytest.fixture(autouse=True)
def runtime_dir(directory, monkeypatch):
    """The pools on the page have names."""
    monkeypatch.setenv("XMEM_RUNTIME_DIR", str(directory / "run"))
    directory.joinpath("run").mkdir(mode=0o700)


def block(what):
    (found,) = [block for block in BLOCKS if what in block]
    return found


@contextlib.contextmanager
def camera(format, frames=None):
    """Publishes frames of sevens until a consumer took `frames` of them or the block ends. Then the stream ends."""
    stop = threading.Event()

    def feed():
        with xmem.Producer("cam0", lossless=True) as producer:

            def is_over():
                return stop.is_set() or frames and any(it["received"] >= frames for it in producer.stats["consumers"])

            while not is_over():
                with contextlib.suppress(xmem.Timeout):
                    producer.wait_for_consumer(0.01)
                    with producer.acquire(format=format, width=64, height=48, timeout=0.01) as frame:
                        for plane in frame.planes:
                            np.asarray(plane)[...] = 7
                        frame.publish()
                    producer.publish_event("scene-change", b"now")
                    stop.wait(0.01)
            producer.end_stream()
            eventually(lambda: not producer.num_consumers, "a consumer stays")

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(("format", "names"), [("NV12", ["luma", "chroma"]), ("RGB", ["image"])])
def test_receive(format, names):
    there = {}
    with camera(format, frames=3):
        exec(block("waits for a producer"), there)
    for name in names:
        assert (there[name] == 7).all()
        assert there[name].shape[0] in (48, 24)


def test_other_uses_of_a_consumer():
    there = {"xmem": xmem, "selectors": selectors}
    with camera("RGB"):
        exec(block("NoProducer if there is none"), there)
        assert there["frame"] is None or there["frame"].shape == (48, 64, 3)
        there["consumer"].close()


def test_a_consumer_in_a_loop():
    there = {"xmem": xmem}
    with camera("RGB", frames=3):
        code = compile(block("Consumer.connect"), "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        asyncio.run(eval(code, there))
    assert there["frame"].shape == (48, 64, 3)


def test_events(capsys):
    with camera("RGB", frames=3):
        exec(block("events=True"), {"xmem": xmem})
    assert "scene-change scene-change; b'now' None\n" in capsys.readouterr().out


def test_channel():
    maker, joiner = block('"boxes": [1, 2, 3]').split("# ... others join it.\n")
    array = np.arange(10_000)
    thread = threading.Thread(target=exec, args=(joiner, {"xmem": xmem, "work": lambda job: job["image"].sum()}))
    thread.start()
    there = {"xmem": xmem, "array": array}
    exec(maker, there)
    assert there["result"] == array.sum()
    there["channel"].close()
    thread.join()


def test_a_pool_of_workers():
    workers, maker = block("wait_for_receiver(count=3)").split("channel.wait_for_receiver", 1)
    jobs = [np.full(2000, number) for number in range(20)]
    there = {"xmem": xmem, "jobs": jobs, "work": lambda job: int(job[-1])}
    exec(workers, there)
    with xmem.Channel("jobs") as channel:
        there["channel"] = channel
        threads = [threading.Thread(target=there["worker"]) for _ in range(3)]
        for thread in threads:
            thread.start()
        exec("results = []\n" + "channel.wait_for_receiver" + maker + "    results.append(result)", there)
        # The last workers still run.
        results = there["results"] + [channel.recv(timeout=HANG) for _ in range(3)]
        channel.close()
        for thread in threads:
            thread.join()
    assert sorted(result for result in results if result is not None) == list(range(20))


def test_channel_in_a_loop():
    with xmem.Channel("jobs") as channel:
        code = compile(block("aconnect"), "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        there = {"xmem": xmem, "work": sum}
        thread = threading.Thread(target=lambda: asyncio.run(eval(code, there)))
        thread.start()
        channel.send([1, 2, 3], timeout=HANG)
        assert channel.recv(timeout=HANG) == 6
        channel.close()
        thread.join()


class Model:
    """A model that cannot be pickled."""

    def __init__(self, path):
        self.path = path
        self.lock = threading.Lock()

    def detect(self, image):
        return [self.path, os.getpid(), int(image.sum())]


def serve():
    with xmem.Channel.connect("jobs", timeout=HANG) as channel:
        channel.serve()


def test_calls():
    image = np.ones(10_000)
    # Not of the server of processes, whose environment has another directory for pools.
    spawn = multiprocessing.get_context("spawn")
    with Process(serve, context=spawn) as worker, xmem.Channel("jobs") as channel:
        channel.wait_for_receiver(timeout=HANG)
        there = {"channel": channel, "load_model": Model, "operator": operator, "image": image}
        exec(block("channel.call(load_model"), there)
        assert isinstance(there["model"], xmem.Ref)
        assert there["boxes"] == ["model.pt", worker.pid, 10_000]
        del there["model"]


def test_buffers_by_number():
    seen = []
    there = {"numpy": np, "process": lambda array: seen.append(int(array[-1]))}
    exec(block("preallocate_cpu"), there)
    assert seen == [7]
    there.clear()


def test_publish():
    torch = pytest.importorskip("torch", reason="no PyTorch")
    image = np.full((480, 640, 3), 9, np.uint8)
    batch = [np.zeros((3, 224, 224), np.float32), np.ones((3, 224, 224), np.float32)]
    there = {"xmem": xmem, "np": np, "torch": torch, "image": image, "batch": batch}
    exec(block("framerate=30"), there)
    with xmem.Consumer("edges", start_from="oldest") as consumer:
        assert (np.asarray(consumer.recv(HANG)) == 9).all()
        assert np.asarray(consumer.recv(HANG))[:, 0, 0, 0].tolist() == [0, 1]
    there["producer"].close()


def test_publish_in_a_loop():
    image = np.full((480, 640, 3), 9, np.uint8)
    with xmem.Producer("edges", lossless=True) as producer, xmem.Consumer("edges") as consumer:
        code = compile(block("asyncio.to_thread"), "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        there = {"asyncio": asyncio, "np": np, "producer": producer, "image": image, "xmem": xmem}
        asyncio.run(eval(code, there))
        assert (np.asarray(consumer.recv(HANG)) == 9).all()
        # If there is no free slot, the task is cancelled as by Ctrl-C, and the loop ends.
        with pytest.raises(xmem.Timeout):
            while True:
                producer.acquire((8,), timeout=0).publish()
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(eval(code, there), 0.3))
        there.clear()


def test_pools_and_query():
    with xmem.Producer("cam0"):
        (entry,) = xmem.pools()
        assert (entry.name, entry.live) == ("cam0", True)
        assert xmem.query("cam0")["pool"] == "cam0"


def test_multiprocessing():
    import multiprocessing

    torch = pytest.importorskip("torch", reason="no PyTorch")
    import xmem.multiprocessing

    with xmem.Producer("cam0") as producer, xmem.Consumer("cam0", timeout=HANG) as consumer:
        publish(producer, 1)
        frame = consumer.recv(HANG)
        tensor, queue = torch.from_dlpack(frame), multiprocessing.SimpleQueue()
        there = {"xmem": xmem, "queue": queue, "frame": frame, "tensor": tensor}
        exec(block("queue.put((frame, tensor))"), there)
        assert there["frame"] is frame and torch.equal(there["tensor"], tensor)
