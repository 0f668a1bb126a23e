# SPDX-License-Identifier: MPL-2.0

"""Converts objects to messages, and back."""

import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

from . import _frames, _loaders, _refs


class Outgoing:
    """The parts of a new message that are not in its pickle."""

    __slots__ = ("blocks", "owners", "refs", "leases", "storages", "small", "later", "inline")

    def __init__(self, inline):
        self.inline = inline
        # (address, size, whether the pickle takes it in its order, bytes left out before it, array to be gathered, where on a
        # CUDA device it lies)
        self.blocks = []
        # The owners of the blocks. Kept until the message is sent, so that no address or id is used for something else.
        self.owners = []
        self.refs = []
        # Frames of other processes that they hold, without duplicates, by identity.
        self.leases = {}
        # Storages of torch, by identity.
        self.storages = {}
        self.small = {}
        self.later = {}

    def add(self, address, size, owner, *, gather=None, in_order=False, device=None):
        """Adds a block. Returns its number.

        device: the number of the CUDA device that it lies on, the stream that is still to write it, whether its memory stays
        until that stream is done with it, and the Plane that it is, if it is one.
        """
        self.blocks.append((address, size, in_order, 0, gather, device))
        self.owners.append(owner)
        return len(self.blocks) - 1

    def add_later(self, owner):
        """Adds a block whose extent is determined at the end."""
        return self.add(0, 0, owner)

    def take_buffer(self, buffer):
        """Adds an out-of-band buffer of an object. Returns whether it is to be sent in band instead."""
        raw = buffer.raw()
        if raw.nbytes < self.inline:
            return True
        self.add(_address(raw), raw.nbytes, raw, in_order=True)
        return False

    def finish(self):
        for index, storage in self.later.items():
            address, size, shift = storage.place()
            self.blocks[index] = (address, size, False, shift, None, None)


def _address(raw):
    from .._xmem import _address_of

    return _address_of(raw)


def _reduce_view(out, view):
    if view.format not in _CASTABLE or 0 in view.shape:
        import numpy

        # `memoryview.cast` cannot make such a view. An error if NumPy cannot either.
        return memoryview, (numpy.asarray(view),)
    if not view.c_contiguous or view.nbytes < out.inline:
        # As plain bytes of the pickle.
        return _make_view, (view.tobytes(), view.format, view.shape)
    flat = view.cast("B")
    index = out.add(_address(flat), flat.nbytes, view)
    return _loaders.view, (index, view.format, view.shape)


_CASTABLE = set("cbB?hHiIlLqQnNfd")


def _make_view(data, format, shape):
    return memoryview(data).cast(format, shape)


def _reduce_ref(out, ref):
    # Keeps the object while the message is being sent and while a receiver has the reference: in its own process the object
    # itself, otherwise the lease of the received reference.
    out.refs.append(ref)
    if ref._target is not None:
        tag = 0
    elif ref.is_held:
        out.leases.setdefault(ref._lease.key, ref._lease)
        tag = 1 + list(out.leases).index(ref._lease.key)
    else:
        # The receiver does not hold it either.
        tag = None
    return _loaders.ref, (ref._token, tag)


_reducers: dict[type, Callable[..., Any]] = {memoryview: _reduce_view, _refs.Ref: _reduce_ref, **_frames.reducers}
_seen: set[str] = set()


def reducers():
    """The reducers of types that pickle does not handle itself."""
    for name, module in (("numpy", "_arrays"), ("torch", "_tensors")):
        if name not in _seen and name in sys.modules:
            if name == "numpy":
                from . import _arrays

                _reducers[sys.modules[name].ndarray] = _arrays.reduce_array
            else:
                from . import _tensors

                _reducers.update(_tensors.reducers())
            _seen.add(name)
    return _reducers


def _is_plain_array(kind):
    """Whether a class is NumPy's array with other methods, such as recarray and memmap, and pickles as that does."""
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None
        and issubclass(kind, numpy.ndarray)
        and kind is not numpy.ndarray
        and all(getattr(kind, it) is getattr(numpy.ndarray, it) for it in ("__reduce__", "__reduce_ex__", "__setstate__"))
    )


class Pickler(pickle.Pickler):
    """Pickles one object, and sends large data out of band."""

    def __init__(self, file, out, own_reducers):
        super().__init__(file, protocol=5, buffer_callback=out.take_buffer)
        self.out = out
        self.reducers = reducers()
        self.own_reducers = own_reducers

    def reducer_override(self, obj):
        kind = type(obj)
        if self.own_reducers:
            reduce = self.own_reducers.get(kind)
            if reduce is not None:
                return reduce(obj)
        reduce = self.reducers.get(kind)
        if reduce is None and _is_plain_array(kind):
            from . import _arrays

            return _arrays.reduce_subclass(self.out, obj)
        if reduce is None:
            return self.reduce_unknown(kind, obj)
        return reduce(self.out, obj)

    def reduce_unknown(self, kind, obj):
        if not isinstance(obj, type) and hasattr(kind, "__cuda_array_interface__"):
            torch = sys.modules.get("torch")
            if torch is not None and isinstance(obj, torch.Tensor):
                # A subclass that PyTorch pickles. Tensors on the CPU have the interface too.
                return NotImplemented
            from . import _cuda

            return _cuda.reduce_interface(self.out, obj)
        return NotImplemented


def dumps(obj, inline, own_reducers):
    """The pickle of an object, and its out-of-band data."""
    out = Outgoing(inline)
    file = io.BytesIO()
    try:
        Pickler(file, out, own_reducers).dump(obj)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        error.add_note("if an object cannot be pickled, send a reference to it, xmem.ref(obj), or register its type")
        raise
    out.finish()
    return file.getvalue(), out


class Unpickler(pickle.Unpickler):
    """Recreates the object of one message."""

    def __init__(self, incoming):
        self.loader = loader = _loaders.Loader(incoming)
        in_order = (memoryview(block) for block, is_in_order, _ in loader.blocks if is_in_order)
        super().__init__(io.BytesIO(incoming.pickle), buffers=in_order)

    def find_class(self, module, name):
        if module == _loaders.__name__:
            return getattr(self.loader, name)
        return super().find_class(module, name)


def loads(incoming):
    """The object of a message."""
    try:
        return Unpickler(incoming).load()
    except Exception as error:
        error.add_note("this message of an xmem.Channel could not be unpickled and is lost; you can receive the next one")
        raise
