# SPDX-License-Identifier: MPL-2.0

"""Objects between processes, their arrays without a copy.

::

    # One process makes the channel.
    channel = xmem.Channel("jobs")
    channel.send({"image": array, "boxes": [1, 2, 3]})

    # Other processes join it.
    channel = xmem.Channel.connect("jobs")
    job = channel.recv()          # job["image"] is in shared memory and read-only
    channel.send(result)          # to the maker

**Unpickling runs code.** A process that sends an object can run any code in the receiver. So an end accepts messages only
from processes of its own user, which the kernel identifies; `allow_uids=[...]` adds other users. Root can join any
channel, but receives no messages of other users.

Messages
--------

A channel has the shape of a star. The maker sends to all processes that joined, or to one of them (`to=`). The others send
to the maker. The messages of a sender arrive in order, each exactly once. A process that joins receives the messages sent
after that. `send` waits while there is no receiver.

A channel is not a queue of jobs: of three workers, each receives every job. To give each job to one worker, send it with
`to=` and the number of an idle worker, as returned by `recv_from`. `wait_for_receiver(count=3)` waits until all have
joined. The example worker_pool.py shows this.

Objects are pickled with protocol 5. An array, tensor or buffer of at least `inline` bytes is not part of the pickle: it is
written once into shared memory, beside the pickle in the same slot. The receiver's arrays are in that slot. They are
read-only, and each holds the whole message: the slot is free when the last array of the message is deleted, or its process
ends. To keep a small part of a large message, copy it (`array.copy()`). `recv(copy=True)` copies the whole message into
private, writable memory.

Arrays that are in shared memory already are not copied: those of `channel.empty()` and `channel.room()`, which must not be
written after they were sent, and those of received messages and frames. Arrays of received messages and frames are passed on
in place if they have at least 64 KiB, up to 8 in a message, once all receivers have joined the pool that they come from.
This happens automatically after the first such message. Until then, or if a receiver cannot join, they are copied. The
receivers hold these arrays themselves, so the process in between can end.

Arrays on CUDA devices (torch tensors, and objects with the CUDA array interface and `__dlpack_device__`) are copied on their
device, into one frame for each device. `send` does not wait for the copies of torch tensors, whose memory stays on its
stream, and of frames; for others it waits. Received frames on devices are passed on as above. Memory that is shared by legacy
handle is copied. A receiver without the device gets an error (`CudaError`, `NoCuda`) in place of the message, and can
receive the next one.

**Back-pressure.** `send` waits while the slowest receiver has 8 frames left to take. The receiving end takes up to two messages
in advance. A message is one frame, plus one if it has references, plus one for each device. A receiver that holds
`budget` messages gets further messages as private copies, which `stats()["copied_out"]` counts. So no process waits until
another deletes its arrays. The same applies to arrays that were passed on, within the receiver's budget in their pool. Copies of
arrays on devices wait until the arrays are written, up to 10 seconds for each frame. With `max_bytes`, `send` waits while
receivers hold that much memory; a message larger than `max_bytes` is an error. A receiver that takes nothing delays the
others; `lossless_timeout` disconnects it, and `send(timeout=)` limits the wait.

Two sides that only send end up waiting for each other: receive between sends, or in another thread. If `send` has waited for
5 seconds while received messages wait at this end, a `PoolWarning` reports it once.

**End.** `close()` waits up to `linger` seconds until all messages are taken, and warns if they are not. Receivers get
`EndOfStream` after the last message, which ends a loop. If the sender ended without `close()`, they get `ProducerLost` instead,
because messages are lost whose memory the receiver had not begun to map.

**Event loops.** `async for`, `arecv`, `asend`, `aconnect` and `aclose` do not block the loop. `fileno()` is for other
loops. If `arecv` is cancelled, no message is lost.

References
----------

`xmem.ref(obj)` keeps an object in its process and sends a reference. A receiver can keep the reference, send it on, or send it
back: in the object's process it becomes the object again. The object is kept as long as a process holds a reference. When
the last reference is deleted, or its process ends, the object is released. There are no timers. `Ref.is_held` is false when
the reference does not hold the object any more.

To hold a reference or a large array that was passed on, a receiver joins the pool of the process that it comes from. It uses one
of that process's `max_receivers`, and slots for its budget. It joins up to 8 such pools. Arrays from further processes are
copied, and references to their objects end with the process that passed them on.

A reference that cannot be resolved raises `RefLost` with the reason: the object's process has ended, it has closed the channel,
or no process held the object.

Calls
-----

`channel.call(f, *args)` calls `f` in a process that runs `channel.serve()`. If the result cannot be pickled, `call` returns a
reference to it, and `channel.call(operator.methodcaller("name", *args), reference)` calls a method of the object.
"""

from ._channel import Channel, Room
from ._refs import Ref, RefLost, ref

__all__ = ["Channel", "Ref", "RefLost", "Room", "ref"]
