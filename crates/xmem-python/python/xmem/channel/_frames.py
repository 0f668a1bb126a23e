# SPDX-License-Identifier: MPL-2.0

"""Frames of pools in messages."""

from __future__ import annotations

from typing import Any

from . import _loaders
from .._xmem import Frame, Plane, _bytes_of, _is_shared, _known_of, _place_of


def _part(out, plane):
    """The form of a plane in a message: its bytes or the number of a block, the offset, shape, strides and type."""
    if plane.device != "cpu":
        from . import _cuda

        return _cuda.plane_part(out, plane)
    place = _place_of(plane)
    # Receivers do not need the bytes between its elements.
    if place is None or (place[1] != plane.nbytes and not _is_shared(*place[:2])):
        plane = plane.copy()
        place = _place_of(plane)
    address, size, *rest = place
    bytes_or_block = _bytes_of(plane) if size < out.inline else out.add(address, size, plane)
    return bytes_or_block, *rest


def reduce_frame(out, frame):
    return _loaders.frame, (tuple(_part(out, plane) for plane in frame.planes), _known_of(frame))


def reduce_plane(out, plane):
    return _loaders.plane, (_part(out, plane),)


reducers: dict[type, Any] = {Frame: reduce_frame, Plane: reduce_plane}
