# SPDX-License-Identifier: MPL-2.0

"""Arrays on CUDA devices in messages. They are forwarded, or copied on the device to a separate frame."""

from .._xmem import _is_shared, _place_of
from . import _loaders

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


def reduce_tensor(out, t, requires_grad, parameter):
    """A dense CUDA tensor of PyTorch. Its memory is reused only in the order of its stream."""
    import torch

    name = str(t.dtype).removeprefix("torch.")
    if name not in {*_TYPES.values(), "bfloat16"}:
        return NotImplemented
    t = t.detach().resolve_conj().resolve_neg()
    device, itemsize = t.device.index, t.element_size()
    extent = _extent(t.shape, [n * itemsize for n in t.stride()], itemsize)
    if not t.is_contiguous() and not (
        t.numel() * itemsize <= extent <= t.numel() * itemsize * _MOST_GAPS and _is_shared(t.data_ptr(), extent, device)
    ):
        t = t.contiguous()
        extent = t.numel() * itemsize
    stream = torch.cuda.current_stream(t.device)
    if extent:
        t.record_stream(stream)
    # PyTorch does not manage memory that another library allocated.
    keeps = t.untyped_storage().resizable()
    index = out.add(t.data_ptr(), extent, t, device=(device, stream.cuda_stream, keeps, None))
    strides = tuple(n * itemsize for n in t.stride())
    return _loaders.cuda_tensor, ((index, 0, tuple(t.shape), strides, name), requires_grad, parameter)


def _extent(shape, strides, itemsize):
    """The range of an array's bytes."""
    return 0 if 0 in shape else sum((n - 1) * stride for n, stride in zip(shape, strides)) + itemsize


def _dense(shape, itemsize):
    strides = []
    for n in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(n, 1)
    return tuple(reversed(strides))


def reduce_interface(out, a):
    """Whatever has the CUDA array interface, and by DLPack a CUDA device. It arrives as an xmem.Plane, or as
    CuPy's own."""
    place = part(out, a)
    return place if place is NotImplemented else (_loaders.cuda_array, (place, type(a).__module__.partition(".")[0]))


def part(out, a):
    """The form of an array in a message: the number of its block, the offset in the block, shape, strides, type."""
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
    extent = _extent(shape, strides, itemsize)
    if min(strides, default=0) < 0 or extent > count * itemsize * _MOST_GAPS:
        raise TypeError("this CUDA array has too many gaps between its elements: send a contiguous copy")
    if extent < count * itemsize or any(stride % itemsize for stride in strides):
        raise TypeError("the elements of this CUDA array overlap or aren't aligned: send a contiguous copy")
    device = a.__dlpack_device__()[1], interface.get("stream"), False, None
    return out.add(interface["data"][0], extent, a, device=device), 0, shape, strides, name


def plane_part(out, plane):
    """Adds an array of a frame. Does not wait for a received frame."""
    device, place = plane.__dlpack_device__()[1], _place_of(plane)
    if place is None or not _is_shared(*place[:2], device):
        return part(out, plane)
    address, size, *rest = place
    if size > plane.nbytes * _MOST_GAPS:
        raise TypeError("this CUDA array has too many gaps between its elements: send a contiguous copy")
    return out.add(address, size, plane, device=(device, None, True, plane)), *rest


def finish(plane, library):
    """Creates an array of the sender's library."""
    if library == "cupy":
        import cupy

        return cupy.from_dlpack(plane)
    return plane
