# SPDX-License-Identifier: MPL-2.0
"""Reads the planes of a frame with NumPy, by DLPack. Arguments: LIBRARY POOL"""

import ctypes
import sys

import numpy

lib = ctypes.CDLL(sys.argv[1])
lib.xmem_error.restype = ctypes.c_char_p
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Handle(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64)]


def ok(result):
    assert result == 0, (result, lib.xmem_error())


class Plane:
    """What NumPy asks for a tensor."""

    def __init__(self, frame, number):
        self.frame, self.number = frame, number

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        tensor = ctypes.c_void_p()
        ok(lib.xmem_frame_dlpack(self.frame, self.number, None, ctypes.byref(tensor)))
        return new_capsule(tensor.value, b"dltensor_versioned", None)


consumer, frame = Handle(), Handle()
ok(lib.xmem_consumer_open(sys.argv[2].encode(), None, ctypes.byref(consumer)))
ok(lib.xmem_consumer_next(consumer, ctypes.c_int64(-1), ctypes.byref(frame)))
planes = [numpy.from_dlpack(Plane(frame, number)) for number in range(2)]
# The arrays hold the frame.
ok(lib.xmem_frame_release(frame))
ok(lib.xmem_consumer_close(consumer))
for plane in planes:
    print(plane.shape, plane.dtype, plane.strides, plane.flags.writeable, plane.min(), plane.max())
