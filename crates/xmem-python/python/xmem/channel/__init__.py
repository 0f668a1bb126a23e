# SPDX-License-Identifier: MPL-2.0

"""Objects between processes, their arrays without a copy.

::

    # One process makes the channel, ...
    channel = xmem.Channel("jobs")
    channel.send({"image": array, "boxes": [1, 2, 3]})

    # ... others join it.
    channel = xmem.Channel.connect("jobs")
    job = channel.recv()          # job["image"] lies in shared memory, and is read-only
    channel.send(result)          # to the maker

**Unpickling runs code.** Whoever may send objects to a process may have it run anything. So an end takes messages of
its own user only, and asks the kernel who that is; ``allow_uids=[...]`` trusts others. Root can join any channel, as
it can do anything else, but takes no messages of other users either.

How a message travels
---------------------

A channel is a star. Its maker has a lossless pool of the channel's name; each process that joins has one of its own,
which the maker joins. What the maker sends goes to all that joined (or to one: ``to=``), what another sends goes to
the maker. Each sender's messages come in its order, each of them once. A process that joins gets what is sent from then
on; ``send`` waits while there is no receiver.

So a channel is no queue of jobs: of three workers, each gets every job. To give each job to one, send it with ``to=`` the
number of a worker that is done, as returned by ``recv_from``; ``wait_for_receiver(count=3)`` waits until all are there. The
example worker_pool.py does that.

Objects are pickled with protocol 5. What is larger than ``inline`` bytes in an array, tensor or buffer is not in the
pickle: it lies beside it, in the same slot, written there once. The receiver makes its arrays over that slot. They
are read-only, and hold the whole message: its slot is used again when the last of them is gone, in whatever process,
also when that was killed. To keep a little of much, copy it (``array.copy()``); ``recv(copy=True)`` has all of the
message copied, and writable. One slot for all of a message, and not one for each array: a message then takes one
lease, of which a receiver has a limited number, and is there as a whole or not at all.

What lies in shared memory already is not copied, whichever library made the array or tensor: those of
``channel.empty()`` and ``channel.room()``, which must not be written any more once they are sent, and those of
messages and frames that were received. These are passed on where they lie, from 64 KiB on, up to 8 in a message, as
soon as all receivers reach the pool that they come from (xmem introduces them to it at the first message); until
then, and where they cannot reach it, they are copied. Receivers hold what is passed on where it lies, so the process
in between may be killed.

Arrays on CUDA devices (torch's tensors, and what has the CUDA array interface and ``__dlpack_device__``) are copied there,
for each device into a frame of its own, which is published before the message and held by the processes that have one of them.
``send`` does not wait for the copies of torch's tensors, whose memory stays on its stream, nor for those of frames, and
waits for others. Frames that were received there are passed on as above, each as a frame of its own, up to 8 in a message;
memory that is shared by legacy handle is copied. A receiver without that device gets an error (``CudaError``, ``NoCuda``)
in place of the message, and the next one after it. All of this ran on a stand-in driver so far, without a GPU.

**Back-pressure.** ``send`` waits while the slowest receiver has 8 frames before it that it did not take; up to two
messages wait inside of the receiving end. A message is one frame, one more if it has references, and one for each of
those that it has on devices. A receiver that holds as many messages as it may (``budget``) gets the next ones as
private copies, so no process waits for its arrays, but the copying is counted (``stats()["copied_out"]``). The same holds
for what was passed on, which counts where it lies, with the budget that the pool there has left. Copies of arrays on
devices wait until these are written, up to 10 seconds for each frame. With
``max_bytes``, receivers that hold that much make ``send`` wait; a message that is larger than ``max_bytes`` is an
error at once. A receiver that takes nothing at all delays the others, as in any lossless pool; ``lossless_timeout``
disconnects it, and ``send(timeout=)`` gives up.

Two sides that only send wait for each other once neither takes any more: receive between sends, or in another thread. A
process that waits in ``send`` for 5 seconds while messages that came are not received here gets one warning (``PoolWarning``).

**The end.** ``close()`` waits up to ``linger`` seconds until all was taken. Then receivers get ``EndOfStream``,
after the last message. A process that is killed ends likewise; what it had sent before, and what its receivers had
begun to map, still comes.

**Event loops.** ``async for``, ``arecv``, ``asend``, ``aconnect`` and ``aclose`` are the same without blocking the loop;
``fileno()`` is for other loops. A message is not lost when ``arecv`` is called off.

References
----------

``xmem.ref(obj)`` keeps an object in its process and sends a reference. A receiver can hold it, send it on to others,
or send it back: in its own process it becomes the object again. Each process that has the reference holds the object,
by a lease of the frame that stands for it; when the last one is gone, or killed, the object is released. No timers.
``Ref.is_held``: whether this one still does.

To hold what others passed on, a receiver joins the pool of each process whose references or large arrays it gets, up to
8 that are there, and takes one of the places there (``max_receivers``) and slots for its budget. What comes from more
processes than that is copied, and references to their objects end with the process that passed them on.

What cannot be resolved raises ``RefLost`` with the reason: the object's process ended, closed the channel, or no process
held it any more.

Calls
-----

``channel.call(f, *args)`` has ``f`` called in a process that runs ``channel.serve()``. It is made of messages and references: a
result that does not pickle comes as a reference, and ``channel.call(operator.methodcaller("name", *args), reference)`` calls a
method of the object."""

from ._channel import Channel, Room
from ._refs import Ref, RefLost, ref

__all__ = ["Channel", "Ref", "RefLost", "Room", "ref"]
