# SPDX-License-Identifier: MPL-2.0

"""Arrays on CUDA devices in messages: copied on the device, into a frame beside the message."""

from . import _loaders

# As libraries like their arrays.
_ALIGN = 256
# With gaps, an array is sent with them up to this many times its size.
_MOST_GAPS = 4

_TYPES = {
    f"{order}{kind}": name
    for order in "<|"
    for kind, name in {
        "u1": "uint8", "i1": "int8", "u2": "uint16", "i2": "int16", "u4": "uint32", "i4": "int32", "u8": "uint64",
        "i8": "int64", "f2": "float16", "f4": "float32", "f8": "float64", "b1": "bool",
    }.items()
}  # fmt: skip


class Arrays:
    """The arrays of a message on one device."""

    __slots__ = ("ordinal", "stream", "keeps", "blocks", "size")

    def __init__(self, ordinal, stream):
        self.ordinal = ordinal
        # The one that the copies are put on.
        self.stream = stream
        # Whether what is copied stays as it is until the stream gets there, although its array is gone.
        self.keeps = True
        # (offset, address, size, stream that is still to write it)
        self.blocks = []
        self.size = 0

    def add(self, ptr, size, ready_on, keeps):
        offset = -(-self.size // _ALIGN) * _ALIGN
        self.blocks.append((offset, ptr, size, ready_on))
        self.size = offset + size
        self.keeps &= keeps
        return offset

    def to_send(self):
        return self.ordinal, self.stream, self.keeps, self.blocks


def _arrays(out, ordinal, stream):
    """Those of the message; None: it has some on another device already."""
    if out.device is None:
        out.device = Arrays(ordinal, stream)
    return out.device if out.device.ordinal == ordinal else None


def reduce_tensor(out, t, requires_grad, parameter):
    """A dense CUDA tensor of PyTorch's. Its memory stays on its stream, whoever lets go of it."""
    import torch

    name = str(t.dtype).removeprefix("torch.")
    if name not in {*_TYPES.values(), "bfloat16"}:
        return NotImplemented
    t = t.detach().resolve_conj().resolve_neg().contiguous()
    stream = torch.cuda.current_stream(t.device)
    arrays = _arrays(out, t.device.index, stream.cuda_stream)
    if arrays is None:
        return NotImplemented
    offset = 0
    if t.numel():
        t.record_stream(stream)
        # Memory that another library allocated, such as a received frame's, is not PyTorch's to keep.
        keeps = arrays.stream == stream.cuda_stream and t.untyped_storage().resizable()
        offset = arrays.add(t.data_ptr(), t.numel() * t.element_size(), stream.cuda_stream, keeps)
    out.owners.append(t)
    part = None, offset, tuple(t.shape), _dense(t.shape, t.element_size()), name
    return _loaders.cuda_tensor, (part, requires_grad, parameter)


def _dense(shape, itemsize):
    strides = []
    for n in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(n, 1)
    return tuple(reversed(strides))


def reduce_interface(out, a):
    """Whatever has the CUDA array interface, and says by DLPack on which device it is. It arrives as an xmem.Plane, or as
    CuPy's own."""
    place = part(out, a)
    return place if place is NotImplemented else (_loaders.cuda_array, (place, type(a).__module__.partition(".")[0]))


def part(out, a):
    """An array as it travels: none of the message's blocks, where in its memory on a device it begins, shape, strides, type."""
    interface = a.__cuda_array_interface__
    name = _TYPES.get(interface["typestr"])
    if name is None or interface.get("mask") is not None or not hasattr(a, "__dlpack_device__"):
        return NotImplemented
    shape = tuple(interface["shape"])
    itemsize = int(interface["typestr"][2:])
    strides = interface.get("strides")
    strides = _dense(shape, itemsize) if strides is None else tuple(strides)
    count = 1
    for n in shape:
        count *= n
    extent = sum((n - 1) * stride for n, stride in zip(shape, strides)) + itemsize if count else 0
    if min(strides, default=0) < 0 or extent > count * itemsize * _MOST_GAPS:
        raise TypeError("this array on a CUDA device has too many gaps to be sent: send a copy without")
    if extent < count * itemsize or any(stride % itemsize for stride in strides):
        raise TypeError("the elements of this array on a CUDA device overlap, or lie askew: send a copy of it")
    arrays = _arrays(out, a.__dlpack_device__()[1], 1)
    if arrays is None:
        raise TypeError("the arrays of a message on CUDA devices have to lie on the same one: send several messages")
    offset = arrays.add(interface["data"][0], extent, interface.get("stream"), False) if count else 0
    out.owners.append(a)
    return None, offset, shape, strides, name


def finish(plane, library):
    """An array of the library that it was sent from."""
    if library == "cupy":
        import cupy

        return cupy.from_dlpack(plane)
    return plane
