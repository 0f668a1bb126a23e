# SPDX-License-Identifier: MPL-2.0

"""Runs the CUDA examples of the module's page on the stand-in driver without a GPU. An array class replaces the parts of PyTorch that
the page uses."""

import re
from pathlib import Path

from cuda_support import machine  # noqa: F401

PAGES = Path(__file__).parents[3] / "docs"
TEXT = "".join(PAGES.joinpath(name).read_text() for name in ("python/gpu.md", "buffer-pool.md"))
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)

TORCH = """
class torch:
    class from_dlpack(Array):
        def __init__(self, source):
            super().__init__(source, s)

        def copy_(self, image):
            g.fill(s, self.ptr, self.nbytes, image)
"""


def block(what):
    (found,) = [block for block in BLOCKS if what in block]
    return found


def test_frames(machine):
    shown = block('device="cuda:0"')
    made, taken = machine.start(), machine.start()
    made_here, taken_here = shown.split("# Another one:")
    make, publish = made_here.split("with producer", 1)
    folder = machine.folder / "run"
    folder.mkdir(mode=0o700)
    for process in (made, taken):
        process.do(f"os.environ['XMEM_RUNTIME_DIR'] = {str(folder)!r}")
        process.do(TORCH)
    taken.do("""
        wrong, seen = g.word(), 0
        def model(tensor):
            global seen
            seen += 1
            g.check(s, tensor.ptr, tensor.nbytes, 7, wrong)
    """)
    made.do(make)
    taken.begin(taken_here)
    made.do("producer.wait_for_consumer(HANG); image = 7")
    for _ in range(3):
        made.do("with producer" + publish)
    made.do("producer.end_stream()")
    taken.end()
    taken.do("g.finish(s)")
    assert taken.ask("g.read_word(wrong)") == 0
    assert 0 < taken.ask("seen") <= 3
    made.do("producer.close()")


def test_buffers(machine):
    shown = block("pool.preallocate_cuda(")
    owner, reader = machine.start(), machine.start()
    write, read = shown.split("buf = pool.get(index)")
    owner.do("pool = xmem.BufferPool(pool); decode_to = lambda ptr, stream: g.fill(stream, ptr, 1920 * 1080 * 3, 9); stream = s")
    reader.do("""
        pool = xmem.BufferPool(pool)
        wrong = g.word()
        process = lambda ptr, stream: g.check(stream, ptr, 1920 * 1080 * 3, 9, wrong)
        stream = s
    """)
    owner.do(write)
    reader.do(f"index = {owner.ask('index')}")
    reader.do("buf = pool.get(index)" + read)
    reader.do("g.finish(s)")
    assert reader.ask("g.read_word(wrong)") == 0
