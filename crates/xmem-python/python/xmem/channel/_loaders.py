# SPDX-License-Identifier: MPL-2.0

"""Functions that recreate arrays, tensors, views and references from a message.

A message names these functions; the unpickler has methods of one :class:`Loader` stand for them, which knows the
message.
"""

from . import _refs
from .._xmem import _frame_of, _plane_of


def _outside(*_args):
    raise RuntimeError("this pickle is part of a message of an xmem.Channel: receive the message to unpickle it")


def array(*args):
    _outside(*args)


def storage(*args):
    _outside(*args)


def cuda_array(*args):
    _outside(*args)


def cuda_tensor(*args):
    _outside(*args)


def view(*args):
    _outside(*args)


def frame(*args):
    _outside(*args)


def plane(*args):
    _outside(*args)


def ref(*args):
    _outside(*args)


def call(*args):
    _outside(*args)


def answer(*args):
    _outside(*args)


class Loader:
    """Makes the parts of one message."""

    __slots__ = ("blocks", "refs", "call_number", "answered")

    def __init__(self, incoming):
        self.blocks = incoming.blocks()
        self.refs = incoming.refs
        # The number of the call that the message is, once it is known.
        self.call_number = None
        # The answer to a call that the message is, once its first words are known.
        self.answered = None

    def array(self, index, dtype, shape, axes, full, strides):
        """A NumPy array over a block."""
        import numpy

        made = numpy.ndarray(shape, dtype, buffer=self.blocks[index][0], strides=strides)
        if axes is not None:
            made = made.transpose(axes)
        if full is not None:
            made = numpy.broadcast_to(made, full)
        return made

    def storage(self, index):
        """A block as a storage, and the number of bytes that were omitted before it."""
        from . import _tensors

        block, _, shift = self.blocks[index]
        return _tensors.make_storage(block), shift

    def cuda_array(self, part, library):
        """An array on a device."""
        from . import _cuda

        return _cuda.finish(self.plane(part), library)

    def cuda_tensor(self, part, requires_grad, parameter):
        """An array on a device, for PyTorch."""
        from . import _tensors

        return _tensors.of_plane(self.plane(part), requires_grad, parameter)

    def view(self, index, format, shape):
        """A block as a memoryview."""
        made = memoryview(self.blocks[index][0])
        return made if format == "B" and shape is None else made.cast(format, shape)

    def _part(self, part):
        bytes_or_block, *rest = part
        return (self.blocks[bytes_or_block][0] if isinstance(bytes_or_block, int) else bytes_or_block, *rest)

    def frame(self, parts, known):
        """A frame of a pool."""
        return _frame_of([self._part(part) for part in parts], known)

    def plane(self, part):
        """One plane of a frame."""
        return _plane_of(self._part(part))

    def ref(self, token, tag):
        """A reference, or the object itself."""
        return _refs.resolve(token, None if tag is None else self.refs(tag))

    def call(self, number):
        """A call without its function and arguments."""
        from ._calls import Call

        self.call_number = number
        return Call(number)

    def answer(self, number, what):
        """An answer without its value or error."""
        from ._calls import Answer

        self.answered = Answer(number, what=what)
        return self.answered
