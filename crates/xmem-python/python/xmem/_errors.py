# SPDX-License-Identifier: MPL-2.0

"""The errors. The extension module raises these."""


class Error(Exception):
    """The base of all errors of this module."""


class SystemFailure(Error, OSError):
    """The system refused something, because descriptors, memory, threads or rights are missing. `errno` has the reason."""

    def __str__(self) -> str:
        # The message has the error's number already.
        return str(self.args[-1]) if self.args else ""


class Timeout(Error, TimeoutError):
    """The timeout has passed."""


class NoProducer(Timeout):
    """The pool has no producer, or had none before the timeout."""


class Refused(SystemFailure, PermissionError):
    """The producer, or the system (then `errno` has a value), refused access to the pool."""


class Closed(Error):
    """The consumer, producer or frame is closed."""


class EndOfStream(Error):
    """The producer's stream has ended."""


class ProducerLost(Error):
    """The producer has ended, or has disconnected this consumer."""


class OverBudget(Error):
    """This consumer holds as many frames as its budget allows."""


class PoolFull(Error):
    """All slots are in use, and the limits of the pool allow no more."""


class PoolInUse(Error):
    """The pool has another producer already."""


class ViewsExist(Error, BufferError):
    """The frame cannot be published, because arrays exist that can write to it."""


class Forked(Error):
    """The object was made before a fork, and cannot be used in the child."""


class CudaError(Error, RuntimeError):
    """An operation on a CUDA device failed. Frames in host memory are not affected."""


class NoCuda(CudaError):
    """This process has no CUDA driver or no such device, or the driver is too old."""


class PoolWarning(RuntimeWarning):
    """A pool works, but not as requested: a producer is missing, a budget is smaller, a consumer was disconnected, or two
    processes wait for each other."""


# Tracebacks show the public names.
for _name, _class in list(globals().items()):
    if isinstance(_class, type):
        _class.__module__ = "xmem"
