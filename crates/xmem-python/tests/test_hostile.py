# SPDX-License-Identifier: MPL-2.0

"""A producer with a wrong description of its frames causes an exception. No reader accesses memory outside of a frame."""

import json
import random
import re
import tempfile

import pytest
from support import ENTRY, HALVES, HANG, LAYOUT, PLACE, Child

TENSOR = {"shape": [4, 6], "dtype": "float32"}
RGB = {"format": "RGB", "width": 16, "height": 8}
NV12 = {"format": "NV12", "width": 16, "height": 8}

# The words of an entry, of its slot's place and of its layout, as the core's `Entry`, `SharedPlace` and `FrameLayout` have them.
STAMP, PAYLOAD_AT, PAYLOAD_LEN, ATTACHED = (ENTRY + it for it in (0, 6, 7, 8))
MEMORY, SLOT_AT, SLOT_LEN = (PLACE + it for it in range(3))
SHAPE, STRIDES, FORMAT, PIXELS, OFFSETS, PITCHES = (LAYOUT + it for it in (1, 9, 25, 27, 28, 32))
# The halves of a layout's first word.
TYPE, PLANES = HALVES + LAYOUT, HALVES + LAYOUT + 1
WORDS = [*range(ENTRY, ENTRY + 16), *range(PLACE, PLACE + 3), *range(LAYOUT, LAYOUT + 34)]
MOST = 2**64 - 1
SIGN = 2**63


def kind(dtype, ndim):
    return dtype | ndim << 8


def attached(at, size):
    return at | size << 39


F32, BF16, F64 = 10, 9, 11


@pytest.fixture(scope="module")
def result_of():
    """A consumer's description of a frame whose entry has changed words."""
    with tempfile.TemporaryDirectory(prefix="xm") as directory:
        pool = f"{directory}/p.sock"
        with Child("lie", pool) as liar, Child("look", pool) as looker:
            assert liar.reply() == "made"
            assert looker.reply() == "ready"

            def result_of(arguments, lies, patience=HANG):
                liar.send(json.dumps([arguments, lies]))
                assert liar.reply() == "published"
                looker.send(str(patience))
                return json.loads(looker.reply())

            yield result_of
            liar.kill()


@pytest.mark.parametrize("arguments", [TENSOR, RGB, NV12])
def test_valid_data(result_of, arguments):
    what, size = result_of(arguments, {})
    assert what == "frame"
    assert size == {"shape": 96, "RGB": 16 * 8 * 3, "NV12": 16 * 12}[arguments.get("format", "shape")]


CASES = {
    "more rows than there are": (TENSOR, {SHAPE: 5}, "float32 of shape .5, 6. .*does not match its 96 bytes"),
    "more columns": (TENSOR, {SHAPE + 1: 7}, "does not match"),
    "one row too far": (TENSOR, {STRIDES: 28}, "does not match"),
    "before the payload": (TENSOR, {STRIDES: MOST - 23}, "does not match"),
    "the largest size": (TENSOR, {SHAPE: MOST}, "does not match"),
    "sizes that overflow": (TENSOR, {SHAPE: 1 << 62, SHAPE + 1: 1 << 62}, "does not match"),
    "sizes that overflow, times nothing": (
        TENSOR,
        {TYPE: kind(F32, 3), SHAPE: 0, SHAPE + 1: 1 << 62, SHAPE + 2: 1 << 62},
        "does not match",
    ),
    "strides of nothing that overflow": (
        TENSOR,
        {TYPE: kind(F32, 3), SHAPE: 0, SHAPE + 1: 2, SHAPE + 2: 2, STRIDES + 1: 1 << 62, STRIDES + 2: MOST - (1 << 62) + 1},
        None,
    ),
    "strides that overflow": (TENSOR, {STRIDES: SIGN - 1}, "does not match"),
    "the lowest stride": (TENSOR, {STRIDES: SIGN}, "does not match"),
    "a stride that is no whole element": (TENSOR, {STRIDES + 1: 3}, "does not match"),
    # Inside of the memory, but a copy would have a terabyte.
    "one element, over and over": (TENSOR, {SHAPE: 1 << 38, STRIDES: 0}, "does not match"),
    "a larger type": (TENSOR, {TYPE: kind(F64, 2)}, "float64 of shape .* does not match"),
    "a type that there is not": (TENSOR, {TYPE: kind(200, 2)}, "unknown element type"),
    "more dimensions than there may be": (TENSOR, {TYPE: kind(F32, 9)}, "more than 8 dimensions"),
    "dimensions that are missing": (TENSOR, {TYPE: kind(F32, 8)}, None),
    "memory of a device": (TENSOR, {MEMORY: 1 | 1 << 32}, None),
    "a payload that ends outside": (TENSOR, {PAYLOAD_LEN: 1 << 40}, "a payload lies outside its slot"),
    "a payload that begins outside": (TENSOR, {PAYLOAD_AT: MOST - 8}, "a payload lies outside its slot"),
    "a payload of nothing": (TENSOR, {PAYLOAD_LEN: 0}, "does not match its 0 bytes"),
    "a slot that lies outside": (TENSOR, {SLOT_AT: 1 << 40}, "a slot lies outside its region"),
    "a slot that ends outside": (TENSOR, {SLOT_LEN: MOST}, "a slot lies outside its region"),
    "attachments outside": (TENSOR, {ATTACHED: attached(1 << 38, 8)}, "attachments lie outside"),
    "attachments that are none": (TENSOR, {ATTACHED: attached(0, 7)}, "invalid attachments"),
    "a picture that is too high": (RGB, {PIXELS: 16 | 9 << 32}, "RGB of 16x9 .*does not match its 384 bytes"),
    "a picture that is too wide": (RGB, {PIXELS: 17 | 8 << 32}, "RGB of 17x8 .* does not match"),
    "the largest picture": (RGB, {PIXELS: MOST}, "does not match"),
    "the largest picture, in no room": (RGB, {PIXELS: MOST, PITCHES: 0}, "does not match"),
    "the first plane outside": (NV12, {OFFSETS: 1 << 40}, "does not match"),
    "the second plane outside": (NV12, {OFFSETS + 1: 16 * 8 + 1}, "NV12 of 16x8 .* does not match"),
    "a plane at the end of all memory": (NV12, {OFFSETS + 1: MOST}, "does not match"),
    "rows before the payload": (NV12, {PITCHES: (2**32 - 16) | 16 << 32}, "does not match"),
    "rows that are too long": (NV12, {PITCHES: 16 | (2**31 - 1) << 32}, "does not match"),
    "fewer planes": (NV12, {PLANES: 1}, "in 1 plane.* does not match"),
    "more planes": (NV12, {PLANES: 3}, "in 3 plane.* does not match"),
    "more planes than there may be": (NV12, {PLANES: 5}, "more than 4 planes"),
    "another format": (RGB, {FORMAT: int.from_bytes(b"RGBA\0\0\0\0", "little")}, "RGBA of 16x8 .* does not match"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_invalid_data(result_of, case):
    arguments, lies, message = CASES[case]
    what, text = result_of(arguments, lies)
    if message is None:
        assert what in ("frame", "Error")
    else:
        assert what == "Error"
        assert re.search(message, text), text
    # The next frame is received normally.
    assert result_of(TENSOR, {}) == ["frame", 96]


@pytest.mark.parametrize("lie", [{STAMP: 4}, {MEMORY: 1 | 7 << 32}], ids=["another sequence", "memory of no kind"])
def test_a_frame_that_cannot_be_found_is_skipped(result_of, lie):
    what, _ = result_of(TENSOR, lie, 0.05)
    assert what == "Timeout"
    assert result_of(TENSOR, {}) == ["frame", 96]


def test_random_invalid_data(result_of):
    """A consumer does not crash with any content of an entry."""
    chance = random.Random(5)
    edges = [0, 1, 2, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, SIGN - 1, SIGN, MOST]
    seen = set()
    for _ in range(2000):
        lies = {}
        for _ in range(chance.randrange(1, 4)):
            word = chance.choice(WORDS)
            value = chance.choice([*edges, chance.randrange(300), chance.getrandbits(64), chance.getrandbits(16)])
            lies[word] = value
        # A frame whose slot has other content is skipped.
        what, _ = result_of(chance.choice([TENSOR, RGB, NV12]), lies, 0.005)
        seen.add(what)
    assert {"frame", "Error"} <= seen
