# SPDX-License-Identifier: MPL-2.0

"""The errors. The extension module raises these."""


class Error(Exception):
    """Anything that this module raises of its own."""


class Timeout(Error, TimeoutError):
    """Nothing came in the time that was given."""


class NoProducer(Timeout):
    """There is no producer of that pool, or none in the time that was given."""


class Refused(Error, PermissionError):
    """The producer, or the system, does not let this process in."""


class Closed(Error):
    """The consumer, producer or frame was closed before."""


class EndOfStream(Error):
    """The producer's stream is over."""


class ProducerLost(Error):
    """The producer is gone: it was stopped or killed, or waits for this consumer no longer."""


class OverBudget(Error):
    """This consumer holds as many frames as it may."""


class PoolFull(Error):
    """All slots are in use, and the pool may not grow."""


class PoolInUse(Error):
    """The pool has another producer already."""


class ViewsExist(Error, BufferError):
    """Arrays that could write to a frame still exist, so it cannot be published."""


class Forked(Error):
    """The object belongs to the process that made it, and this is a forked child of it."""


class CudaError(Error, RuntimeError):
    """Something cannot be done with a CUDA device. Frames in host memory are not affected."""


class NoCuda(CudaError):
    """There is no CUDA driver or no such device that this process could use, or the driver is too old."""


class PoolWarning(RuntimeWarning):
    """Something works, but hardly as it is meant: a pool is not there, a budget was cut, a producer goes on without
    a consumer, two wait for each other."""


# Tracebacks name them as users do.
for _name, _class in list(globals().items()):
    if isinstance(_class, type):
        _class.__module__ = "xmem"
