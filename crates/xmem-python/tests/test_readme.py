# SPDX-License-Identifier: MPL-2.0

"""What the module's page shows runs."""

import re
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import HANG, torch_or_not

import xmem

TEXT = Path(__file__).parents[1].joinpath("README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(autouse=True)
def runtime_dir(directory, monkeypatch):
    """The pools of the page have names."""
    monkeypatch.setenv("XMEM_RUNTIME_DIR", str(directory / "run"))
    directory.joinpath("run").mkdir(mode=0o700)


def block(what):
    (found,) = [block for block in BLOCKS if what in block]
    return found


@pytest.mark.parametrize(("format", "names"), [("NV12", ["luma", "chroma"]), ("RGB", ["image"])])
def test_receive(format, names):
    def feed():
        with xmem.Producer("cam0", lossless=True) as producer:
            producer.wait_for_consumer(HANG)
            with producer.acquire(format=format, width=64, height=48) as frame:
                for plane in frame.planes:
                    np.asarray(plane)[...] = 7
                frame.publish()
            producer.end_stream()
            while producer.num_consumers:
                threading.Event().wait(0.001)

    thread = threading.Thread(target=feed)
    thread.start()
    names_there = {}
    exec(block("waits for a producer"), names_there)
    for name in names:
        assert (names_there[name] == 7).all()
        assert names_there[name].shape[0] in (48, 24)
    thread.join()


def test_publish():
    torch = torch_or_not("test_readme")
    image = np.full((480, 640, 3), 9, np.uint8)
    batch = [np.zeros((3, 224, 224), np.float32), np.ones((3, 224, 224), np.float32)]
    there = {"xmem": xmem, "np": np, "torch": torch, "image": image, "batch": batch}
    exec(block("framerate=30"), there)
    with xmem.Consumer("edges", start_from="oldest") as consumer:
        assert (np.asarray(consumer.recv(HANG)) == 9).all()
        assert np.asarray(consumer.recv(HANG))[:, 0, 0, 0].tolist() == [0, 1]
    there["producer"].close()


def test_what_it_says_of_pools():
    with xmem.Producer("cam0"):
        (entry,) = xmem.pools()
        assert (entry.name, entry.live) == ("cam0", True)
        assert xmem.query("cam0")["pool"] == "cam0"
