# SPDX-License-Identifier: MPL-2.0

"""Runs the examples."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from cuda_support import machine  # noqa: F401
from support import HANG

import xmem

EXAMPLES = Path(__file__).parents[3] / "examples" / "python"


def run(name, *arguments):
    ended = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        timeout=HANG,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def source(pool, gst_launch):
    """A pipeline that publishes live video in this format."""
    started = []

    def start(format, pattern):
        started.append(
            gst_launch(
                f"videotestsrc is-live=true pattern={pattern} ! video/x-raw,format={format},width=640,height=480,"
                f"framerate=30/1 ! xmemsink pool={pool}"
            )
        )

    yield start
    for process in started:
        process.send_signal(signal.SIGINT)
        process.wait(HANG)


@pytest.mark.parametrize("format", ["NV12", "NV21", "I420", "YV12", "RGB", "BGR", "BGRx", "YUY2", "UYVY", "GRAY8"])
def test_preview(pool, directory, source, format):
    source(format, "blue" if format != "GRAY8" else "white")
    picture = directory / "now.png"
    assert f"{format} 640x480" in run("preview.py", pool, picture)
    image = cv2.imread(str(picture))
    assert image.shape == (480, 640, 3)
    # Below the text, the picture has one colour: blue, as far as the format can represent it.
    colour = image[100:].reshape(-1, 3)
    wanted = (235, 235, 235) if format == "GRAY8" else (255, 0, 0)
    assert np.abs(colour.astype(int) - wanted).max() <= 4
    # The text is white on black.
    assert 0 < np.count_nonzero(image[:48].min(axis=2) > 200) < np.count_nonzero(image[:48].max(axis=2) < 50)
    picture.unlink()


def test_detect(pool, source):
    source("RGB", "ball")
    lines = run("detect.py", pool, "--frames", 5).splitlines()
    assert len(lines) == 6
    for line in lines[:5]:
        x0, y0, x1, y1 = map(int, re.search(r"the best at (\d+),(\d+) to (\d+),(\d+)", line).groups())
        assert (x1 - x0, y1 - y0) == (32, 32)
        assert 0 <= x0 < 640 and 0 <= y0 < 480
    assert lines[5].endswith("0 copied")


def buffers(name, directory, *options, environment=None):
    """The output of a producer and a consumer of buffers that are connected by a pipe."""
    pool = directory / f"{name}.sock"
    environment = os.environ | (environment or {})
    with subprocess.Popen(
        [sys.executable, EXAMPLES / "buffer_producer.py", pool, *options], stdout=subprocess.PIPE, env=environment
    ) as producer:
        command = [sys.executable, EXAMPLES / "buffer_consumer.py", pool]
        read = subprocess.run(command, stdin=producer.stdout, capture_output=True, text=True, timeout=HANG, env=environment)
        producer.stdout.close()
        assert (read.returncode, producer.wait(HANG)) == (0, 0), read.stderr
    return read.stdout.splitlines()


@pytest.mark.parametrize("device", [None, 0])
def test_buffers(directory, request, device):
    if device is None:
        lines = buffers("host", directory)
    else:
        machine = request.getfixturevalue("machine")
        lines = buffers("cuda", directory, "--device", str(device), environment=machine.environment())
    assert len(lines) == 20
    where = "host" if device is None else f"device {device}"
    for number, line in enumerate(lines):
        assert re.fullmatch(rf"buffer \d+ on {where}: \(1080, 1920, 3\) uint8, mean {number}", line), line


SIMULATED = """
pixels, result, blocks_done = np.arange(1000, dtype=np.uint8), np.zeros(1, np.uint64), np.zeros(1, np.uint32)
word = np.ones(1, np.uint32)
total[3, 4](pixels, result, blocks_done, word)
assert result[0] == pixels.sum(), result
assert (blocks_done[0], word[0]) == (3, 0)
# Not by a block that is not the last.
word[0] = 1
total[3, 4](pixels, result, blocks_done, word)
assert word[0] == 1
"""

COMPILED = """
from numba import types
arrays = [types.Array(element, 1, "C") for element in (types.uint8, types.uint64, types.uint32, types.uint32)]
ptx, _ = cuda.compile_ptx(total.py_func, tuple(arrays), cc=(8, 0))
print(ptx)
"""


def numba(code, **environment):
    """Runs code with the names of the example."""
    if importlib.util.find_spec("numba") is None:
        pytest.skip("no Numba")
    code = f"import runpy; globals().update(runpy.run_path({str(EXAMPLES / 'release_word.py')!r}))" + code
    ended = subprocess.run(
        [sys.executable, "-c", code], timeout=HANG, capture_output=True, text=True, env=os.environ | environment
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_kernel_of_release_word_in_a_simulator():
    numba(SIMULATED, NUMBA_ENABLE_CUDASIM="1")


def test_the_kernel_of_release_word_is_compiled():
    ptx = numba(COMPILED)
    # The fence for the whole system is before the store of 0.
    assert re.search(r"\.entry .*membar\.sys.*st\.global\.u32", ptx, re.DOTALL), ptx


@pytest.mark.parametrize("start", ["spawn", "fork", "forkserver"])
def test_worker_pool(directory, start):
    output = run("worker_pool.py", "--channel", directory / "jobs.sock", "--workers", 3, "--jobs", 20, "--start", start)
    jobs, total, workers = map(int, re.fullmatch(r"(\d+) jobs, (\d+) in all, by (\d+) workers\n", output).groups())
    # Each job is done once, by any worker.
    assert (jobs, total) == (20, sum(range(20)))
    assert 1 <= workers <= 3


def test_edges(pool, directory, source):
    pytest.importorskip("torch", reason="no PyTorch")
    source("RGB", "smpte")
    target = f"{directory}/edges.sock"
    example = subprocess.Popen([sys.executable, EXAMPLES / "edges.py", pool, target])
    try:
        with xmem.Consumer(target, timeout=HANG) as consumer:
            frame = consumer.recv(HANG)
            edges = np.array(frame)
            assert (frame.format, edges.shape) == ("GRAY8", (480, 640))
            # Of the seven bars, two pairs of neighbours have the same mean of red, green and blue.
            row = edges[100, 5:-5] > 60
            assert np.count_nonzero(np.diff(row.astype(int)) == 1) == 4
            assert edges[100, 20:60].max() < 10
    finally:
        example.send_signal(signal.SIGINT)
        example.wait(HANG)


def test_edges_of_nothing(pool, directory):
    pytest.importorskip("torch", reason="no PyTorch")
    with xmem.Producer(pool) as producer:
        producer.end_stream()
        assert run("edges.py", pool, f"{directory}/edges.sock") == "0 frames\n"
