# SPDX-License-Identifier: MPL-2.0

"""torch tensors in messages. Imported only if torch is already imported."""

import torch

from . import _loaders

# The sent bytes of a storage begin at a multiple of this, so that elements of any type stay aligned.
ALIGN = 64


class Storage:
    """A storage of a message. The bytes between the first and the last one that a tensor uses are sent."""

    __slots__ = ("index", "first", "last", "storage")

    def __init__(self, index, storage):
        self.index = index
        self.storage = storage
        self.first = None
        self.last = 0

    def use(self, first, last):
        self.first = first if self.first is None else min(self.first, first)
        self.last = max(self.last, last)

    def place(self):
        """The address, the size in bytes, and the number of bytes omitted before it."""
        first = (self.first or 0) // ALIGN * ALIGN
        return self.storage.data_ptr() + first, max(self.last - first, 0), first


def reduce_storage_of_message(out, storage):
    return _loaders.storage, (storage.index,)


def _storage(out, storage):
    """The entry for a storage in the message. Tensors share it."""
    # Not by identity, because small received storages may be several objects over the same bytes.
    key = (storage.data_ptr(), storage.nbytes())
    known = out.storages.get(key)
    if known is None:
        known = out.storages[key] = Storage(out.add_later(storage), storage)
        out.later[known.index] = known
    return known


def _small(out, storage):
    """The bytes of a storage that is sent in the pickle. All tensors over it share them."""
    key = (storage.data_ptr(), storage.nbytes())
    small = out.small.get(key)
    if small is None:
        small = out.small[key] = (bytearray(bytes(storage)), storage)
    return small[0]


def reduce_storage(out, storage):
    if storage.device.type != "cpu":
        return NotImplemented
    if storage.nbytes() < out.inline:
        return make_small_storage, (_small(out, storage),)
    known = _storage(out, storage)
    known.use(0, storage.nbytes())
    return make_untyped, (known,)


def extent_of(t):
    """The first and the last byte of its storage that a tensor uses."""
    if t.numel() == 0:
        return 0, 0
    steps = sum((size - 1) * stride for size, stride in zip(t.size(), t.stride()))
    first = t.storage_offset() * t.element_size()
    return first, first + (steps + 1) * t.element_size()


def reduce_tensor(out, t):
    """A tensor on the CPU: its storage out of band, shared with the message's other tensors; strides and offset kept. One on a
    CUDA device is copied there, and arrives without gaps."""
    if t.device.type == "cuda" and t.layout is torch.strided and not (t.is_quantized or t.is_nested or t.__dict__):
        from . import _cuda

        return _cuda.reduce_tensor(out, t, t.requires_grad, type(t) is torch.nn.Parameter)
    if t.device.type != "cpu" or t.is_quantized or t.is_nested:
        # Use torch's own reduction, which copies.
        return NotImplemented
    parameter = type(t) is torch.nn.Parameter
    # The tensor's Python attributes.
    extra = (t.__dict__ or None, None, None, set_attributes) if t.__dict__ else ()
    if t.layout is not torch.strided:
        made = _reduce_sparse(t)
        return made if made is NotImplemented else (*made, *extra)
    requires_grad = t.requires_grad
    t = t.detach().resolve_conj().resolve_neg()
    storage = t.untyped_storage()
    if storage.nbytes() < out.inline:
        first, last = extent_of(t)
        if last - first > storage.nbytes():
            return NotImplemented
        return (
            make_small_tensor,
            (_small(out, storage), t.dtype, t.storage_offset(), tuple(t.size()), t.stride(), requires_grad, parameter),
            *extra,
        )
    known = _storage(out, storage)
    known.use(*extent_of(t))
    arguments = (known, t.dtype, t.storage_offset(), tuple(t.size()), t.stride(), requires_grad, parameter)
    return (make_tensor, arguments, *extra)


def _reduce_sparse(t):
    requires_grad = t.requires_grad
    t = t.detach()
    if t.layout is torch.sparse_coo:
        return make_coo, (t._indices(), t._values(), tuple(t.size()), t.is_coalesced(), requires_grad)
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return make_compressed, (
            t.layout, t.crow_indices(), t.col_indices(), t.values(), tuple(t.size()), requires_grad,
        )  # fmt: skip
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return make_compressed, (
            t.layout, t.ccol_indices(), t.row_indices(), t.values(), tuple(t.size()), requires_grad,
        )  # fmt: skip
    return NotImplemented


def set_attributes(t, attributes):
    t.__dict__.update(attributes)


def make_storage(block):
    if len(block) == 0:
        return torch.UntypedStorage(0)
    # torch has no read-only tensors, and would only warn.
    return torch.frombuffer(block.unprotected(), dtype=torch.uint8).untyped_storage()


def make_untyped(storage):
    return storage[0]


def make_small_storage(data):
    return torch.frombuffer(data, dtype=torch.uint8).untyped_storage() if data else torch.UntypedStorage(0)


def _finish(t, requires_grad, parameter):
    if parameter:
        return torch.nn.Parameter(t, requires_grad=requires_grad)
    if requires_grad:
        t.requires_grad_(True)
    return t


def make_tensor(storage, dtype, offset, size, stride, requires_grad, parameter):
    storage, shift = storage
    t = torch.empty(0, dtype=dtype)
    t.set_(storage, offset - shift // dtype.itemsize, size, stride)
    return _finish(t, requires_grad, parameter)


def of_plane(plane, requires_grad, parameter):
    return _finish(torch.from_dlpack(plane), requires_grad, parameter)


def make_small_tensor(data, dtype, offset, size, stride, requires_grad, parameter):
    t = torch.empty(0, dtype=dtype)
    t.set_(make_small_storage(data), offset, size, stride)
    return _finish(t, requires_grad, parameter)


def make_coo(indices, values, size, is_coalesced, requires_grad):
    t = torch.sparse_coo_tensor(indices, values, size, check_invariants=False, is_coalesced=is_coalesced)
    return _finish(t, requires_grad, False)


def make_compressed(layout, compressed, plain, values, size, requires_grad):
    t = torch.sparse_compressed_tensor(compressed, plain, values, size, layout=layout, check_invariants=False)
    return _finish(t, requires_grad, False)


def reducers():
    """By exact type. Subclasses of torch have their own reductions."""
    return {
        torch.Tensor: reduce_tensor,
        torch.nn.Parameter: reduce_tensor,
        torch.UntypedStorage: reduce_storage,
        Storage: reduce_storage_of_message,
    }
