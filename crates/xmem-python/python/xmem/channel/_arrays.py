# SPDX-License-Identifier: MPL-2.0

"""NumPy arrays in messages."""

from . import _loaders
from .._xmem import _is_shared, _Room

# With gaps, an array that lies in shared memory is sent with them, up to this many times its size: as long as a receiver
# does not reach that memory, it is copied like that.
_MOST_GAPS = 4


def reduce_array(out, a):
    """A NumPy array with its bytes out of band. Its strides are kept if it has no gaps."""
    if a.dtype.hasobject or a.nbytes < out.inline:
        return NotImplemented
    full = None
    if 0 in a.strides:
        # Elements that are repeated along an axis are sent once.
        full = a.shape
        a = a[tuple(slice(0, 1) if s == 0 else slice(None) for s in a.strides)]
        if a.nbytes == 0:
            return NotImplemented
    axes = strides = None
    if not a.flags.c_contiguous:
        # In memory order it may have no gaps.
        order = sorted(range(a.ndim), key=lambda axis: -a.strides[axis])
        dense = a.transpose(order)
        if dense.flags.c_contiguous:
            axes = tuple(order.index(axis) for axis in range(a.ndim))
            a = dense
    address = a.__array_interface__["data"][0]
    if a.flags.c_contiguous:
        index = out.add(address, a.nbytes, a)
    else:
        extent = extent_of(a)
        if extent is not None and extent <= a.nbytes * _MOST_GAPS and _is_shared(address, extent):
            strides = a.strides
            index = out.add(address, extent, a)
        else:
            index = out.add(0, a.nbytes, a, gather=a)
    return _loaders.array, (index, a.dtype, a.shape, axes, full, strides)


def reduce_subclass(out, a):
    """An array of a subclass, as the array and its class. As in NumPy's pickles, its attributes are not sent."""
    import numpy

    if a.dtype.hasobject or a.nbytes < out.inline:
        return NotImplemented
    # It becomes read-only together with its plain view.
    out.owners.append(a)
    return _as_class, (a.view(numpy.ndarray), type(a))


def _as_class(a, kind):
    return a.view(kind)


def extent_of(a):
    """The range of an array's bytes. None: some bytes are before the first element."""
    if min(a.strides) < 0:
        return None
    return sum((n - 1) * stride for n, stride in zip(a.shape, a.strides)) + a.itemsize


def gather(room, offset, size, a):
    """Copies an array with gaps into a message's slot."""
    import numpy

    target = numpy.ndarray(a.shape, a.dtype, buffer=room, offset=offset)
    assert target.nbytes == size
    numpy.copyto(target, a)


def freeze(a):
    """Makes an array that was sent without a copy read-only, and the arrays that it is a view of."""
    import numpy

    chain = []
    # The base of an array may be a scalar of a record.
    while isinstance(a, numpy.ndarray | numpy.void):
        chain.append(a)
        a = a.base
    if isinstance(a, memoryview):
        a = a.obj
    if isinstance(a, _Room):
        for view in chain:
            if isinstance(view, numpy.ndarray):
                view.flags.writeable = False
