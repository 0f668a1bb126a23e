# SPDX-License-Identifier: MPL-2.0

"""Device functions of the tests outside of xmem: kernels, streams, memory, and arrays by DLPack and by the CUDA array interface,
as of a library that supports exactly these.

The driver is `libcuda.so.1`, which is the stand-in without a GPU in the tests.
"""

import ctypes
from ctypes import byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path

PTX = Path(__file__).parents[3] / "tools/xmem-cuda-standin/src/kernels.ptx"

CUDA = 2  # kDLCUDA
NOT_READY = 600
NON_BLOCKING = 1
RELAXED = 2
LEGACY, PER_THREAD = 1, 2

HostFunction = ctypes.CFUNCTYPE(None, c_void_p)


class Gpu:
    """A device with the test kernels. Its primary context is current in this thread."""

    def __init__(self, ordinal=0):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.ordinal = ordinal
        self.call("cuInit", c_uint32(0))
        self.context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(self.context), c_int(ordinal))
        self.here()
        self.module = c_void_p()
        self.call("cuModuleLoadData", byref(self.module), c_char_p(PTX.read_bytes()))

    def call(self, name, *arguments, may=()):
        code = getattr(self.driver, name)(*arguments)
        assert code == 0 or code in may, f"{name}: error {code}"
        return code

    def here(self):
        """Makes the context current in this thread."""
        self.call("cuCtxSetCurrent", self.context)

    def stream(self):
        """A stream that is not ordered with the default stream."""
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), c_uint32(NON_BLOCKING))
        return stream.value

    def destroy(self, stream):
        self.call("cuStreamDestroy_v2", c_void_p(stream))

    def finish(self, stream):
        self.call("cuStreamSynchronize", c_void_p(stream))

    def is_done(self, stream):
        return self.call("cuStreamQuery", c_void_p(stream), may=(NOT_READY,)) == 0

    def allocate(self, size):
        ptr = c_uint64()
        self.call("cuMemAlloc_v2", byref(ptr), c_size_t(size))
        return ptr.value

    def word(self):
        """A word with the value 0. Never freed."""
        ptr = self.allocate(4)
        self.call("cuMemsetD8_v2", c_uint64(ptr), c_uint8(0), c_size_t(4))
        # The call uses the default stream, for which non-blocking streams do not wait.
        self.finish(None)
        return ptr

    def write(self, ptr, data):
        self.call("cuMemcpyHtoD_v2", c_uint64(ptr), c_char_p(data), c_size_t(len(data)))

    def read(self, ptr, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, c_uint64(ptr), c_size_t(size))
        return data.raw

    def read_word(self, ptr):
        return int.from_bytes(self.read(ptr, 4), "little")

    def copy(self, stream, to, source, size):
        self.call("cuMemcpyDtoDAsync_v2", c_uint64(to), c_uint64(source), c_size_t(size), c_void_p(stream))

    def upload(self, stream, to, data):
        """`data` must exist until the stream is done."""
        self.call("cuMemcpyHtoDAsync_v2", c_uint64(to), c_char_p(data), c_size_t(len(data)), c_void_p(stream))

    def launch(self, name, stream, *arguments):
        function = c_void_p()
        self.call("cuModuleGetFunction", byref(function), self.module, c_char_p(name.encode()))
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(it) for it in arguments))
        one = c_uint32(1)
        self.call("cuLaunchKernel", function, one, one, one, one, one, one, c_uint32(0), c_void_p(stream), pointers, None)

    def fill(self, stream, ptr, size, byte):
        self.launch("xmem_fill", stream, c_uint64(ptr), c_uint64(size), c_uint32(byte), c_uint32(0))

    def check(self, stream, ptr, size, byte, result):
        """Adds the number of bytes that differ from `byte` to the word at `result`."""
        self.launch("xmem_check", stream, c_uint64(ptr), c_uint64(size), c_uint32(byte), c_uint64(result))

    def end_lease(self, stream, word):
        """Stores 0 there, after a fence for the whole system."""
        self.launch("xmem_end_lease", stream, c_uint64(word))

    def trap(self, stream):
        self.launch("xmem_trap", stream)

    def wait_for_word(self, stream, ptr):
        """Blocks the stream until the word is 1."""
        self.call("cuStreamWaitValue32_v2", c_void_p(stream), c_uint64(ptr), c_uint32(1), c_uint32(0))

    def set_word(self, stream, ptr):
        self.call("cuStreamWriteValue32_v2", c_void_p(stream), c_uint64(ptr), c_uint32(1), c_uint32(0))

    def begin_capture(self, stream):
        """Captures the stream's work into a graph from now on, instead of running it."""
        self.call("cuStreamBeginCapture_v2", c_void_p(stream), c_uint32(RELAXED))

    def end_capture(self, stream):
        self.call("cuStreamEndCapture", c_void_p(stream), byref(c_void_p()))

    def then(self, stream, function):
        """Lets the driver call a function on another thread. Returns the objects that must exist until then."""
        callback = HostFunction(lambda _: function())
        self.call("cuLaunchHostFunc", c_void_p(stream), callback, None)
        return callback


class Device(ctypes.Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("version", c_uint32 * 2),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", Tensor),
    ]


_capsule = ctypes.pythonapi
_capsule.PyCapsule_GetPointer.restype = c_void_p
_capsule.PyCapsule_GetPointer.argtypes = [ctypes.py_object, c_char_p]
_capsule.PyCapsule_SetName.argtypes = [ctypes.py_object, c_char_p]
_capsule.PyCapsule_GetName.restype = c_char_p
_capsule.PyCapsule_GetName.argtypes = [ctypes.py_object]


class Array:
    """An array by DLPack, as a library takes it that works on this stream."""

    _managed = None

    def __init__(self, source, stream=None, versioned=True, **wishes):
        if versioned:
            wishes["max_version"] = (1, 1)
        capsule = source.__dlpack__(stream=stream, **wishes)
        name = _capsule.PyCapsule_GetName(capsule)
        assert name == (b"dltensor_versioned" if versioned else b"dltensor")
        self._managed = _capsule.PyCapsule_GetPointer(capsule, name)
        kind = Versioned if versioned else Legacy
        managed = kind.from_address(self._managed)
        # A consumed capsule has another name. The names must exist forever.
        self._name = b"used_" + name
        _keep.append(self._name)
        _capsule.PyCapsule_SetName(capsule, self._name)
        # Without the interpreter, as other libraries may do.
        self._delete = ctypes.CFUNCTYPE(None, c_void_p)(managed.deleter)
        tensor = managed.tensor
        self.ptr = (tensor.data or 0) + tensor.byte_offset
        self.device = (tensor.device.device_type, tensor.device.device_id)
        self.shape = tuple(tensor.shape[: tensor.ndim])
        self.strides = tuple(tensor.strides[: tensor.ndim])
        self.bits = tensor.dtype.bits
        self.readonly = bool(versioned and managed.flags & 1)
        self.copied = bool(versioned and managed.flags & 2)

    @property
    def nbytes(self):
        count = 1
        for size in self.shape:
            count *= size
        return count * self.bits // 8

    def delete(self):
        if self._managed:
            managed, self._managed = self._managed, None
            self._delete(managed)

    def __del__(self):
        self.delete()


_keep = []


class InterfaceArray:
    """An array by the CUDA array interface. It keeps its source, as the interface requires."""

    def __init__(self, source):
        self.source = source
        self.interface = interface = source.__cuda_array_interface__
        self.ptr, self.readonly = interface["data"]
        self.shape = interface["shape"]
