# SPDX-License-Identifier: MPL-2.0

"""Frames of pools in messages."""

from __future__ import annotations

import dataclasses
from typing import Any

from .._xmem import Frame, Plane


@dataclasses.dataclass(frozen=True, eq=False)
class SentFrame:
    """A frame of a pool that came through a channel: its arrays, where they lie, and what was known of it there."""

    planes: tuple[Any, ...]
    """NumPy arrays, or xmem.Planes on a device; one, unless the frame's format is planar."""
    format: str | None
    width: int | None
    height: int | None
    pts: int | None
    dts: int | None
    duration: int | None
    timestamp: int | None
    published_at: int
    sequence: int
    flags: int
    content_type: str
    producer: str
    pool: str
    caps: str | None
    attachments: dict[str, bytes]

    @property
    def array(self) -> Any:
        """The frame as one array."""
        if len(self.planes) != 1:
            raise TypeError(
                f"a frame of format {self.format} is not one array but {len(self.planes)}: use frame.planes"
            )
        return self.planes[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        return numpy.array(self.array, dtype=dtype, copy=copy)


_KNOWN = [field.name for field in dataclasses.fields(SentFrame)][1:]


def _array(plane):
    import numpy

    try:
        return numpy.asarray(memoryview(plane))
    except (BufferError, ValueError) as error:
        message = f"this frame cannot be sent as NumPy arrays ({error}): send torch.from_dlpack(frame)"
        raise TypeError(message) from error


def reduce_frame(out, frame):
    # On a device they are sent as they are.
    planes = tuple(plane if plane.device != "cpu" else _array(plane) for plane in frame.planes)
    return SentFrame, (planes, *(getattr(frame, name) for name in _KNOWN))


def reduce_plane(out, plane):
    if plane.device != "cpu":
        from . import _cuda

        return _cuda.reduce_interface(out, plane)
    return _the_same, (_array(plane),)


def _the_same(array):
    return array


reducers = {Frame: reduce_frame, Plane: reduce_plane}
