# SPDX-License-Identifier: MPL-2.0

"""Calls of functions in the process at the other end of a channel."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import traceback
from typing import Any

from .._errors import Closed, EndOfStream, ProducerLost
from .._waiting import Patience
from . import _loaders, _pickling
from ._refs import Ref, RefLost, ref

_numbers = itertools.count(1)


class Call:
    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        # The receiver gets the number first, so that it can answer a call of which the rest cannot be unpickled.
        return _loaders.call, (self.number,), self.__dict__


class _Answer:
    def __init__(self, number, value=None, error=None):
        self.number = number
        self.value = value
        self.error = error


def call(channel, function, args, kwargs, to, timeout):
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, Ref) and arg.is_alive is False:
            raise RefLost(f"{arg!r} leads to no object: that process has ended")
    if to is None and channel.id == 0:
        channel.wait_for_receiver(timeout)
        to = _the_only(channel)
    patience = Patience(timeout)
    asked = Call(next(_numbers))
    asked.function, asked.args, asked.kwargs = function, args, kwargs
    channel.send(asked, to=to, timeout=patience.left())
    while True:
        answer = channel.recv(timeout=patience.left(), sender=to)
        # A late answer to an earlier call.
        if isinstance(answer, _Answer) and answer.number == asked.number:
            break
    if answer.error is not None:
        raise answer.error
    return answer.value


def _the_only(channel):
    senders = channel.senders
    if len(senders) != 1:
        raise ValueError(f"{len(senders)} processes joined the channel: name one of them, to={senders}")
    return senders[0]


def serve(channel):
    while True:
        try:
            incoming = channel._end.receive(None, None)
        except (EndOfStream, Closed):
            return
        answer, interrupt = _answer(incoming)
        _reply(channel, answer, incoming.sender if channel.id == 0 else None)
        if interrupt is not None:
            raise interrupt
        # Release its arrays before the wait for the next call.
        del incoming, answer


def _answer(incoming: Any):
    """The answer to a message, and the KeyboardInterrupt that was raised meanwhile, or None."""
    unpickler = _pickling.Unpickler(incoming)
    where = "in the process that was called, which needs the modules of the function and its arguments:\n"
    try:
        asked = unpickler.load()
        where = "in the process that was called:\n"
        if not isinstance(asked, Call):
            raise TypeError(f"a channel that serves calls takes no {type(asked).__name__}: use call()")
        return _Answer(asked.number, asked.function(*asked.args, **asked.kwargs)), None
    except BaseException as error:
        note = "".join([where, *traceback.format_tb(error.__traceback__)])
        interrupt = error if isinstance(error, KeyboardInterrupt) else None
        if not isinstance(error, Exception):
            # Raised again at the caller, SystemExit would end it.
            error = RuntimeError(f"the process that was called raised {error!r}")
        error.add_note(note)
        return _Answer(unpickler.loader.call_number, error=error), interrupt


def _reply(channel, answer, to):
    # The caller may have left, or another thread may have closed the channel.
    with contextlib.suppress(ProducerLost, Closed):
        try:
            channel.send(answer, to=to)
        except (ProducerLost, Closed):
            raise
        except Exception as error:
            # Nothing was sent.
            _replace(answer, error)
            channel.send(answer, to=to)


def _replace(answer, error):
    """Replaces the content of an answer that cannot be sent."""
    if answer.error is not None:
        answer.error = RuntimeError(f"{answer.error!r}, which does not pickle: {error}")
    elif isinstance(error, (pickle.PicklingError, TypeError, AttributeError)):
        answer.value = ref(answer.value)
    else:
        answer.value, answer.error = None, RuntimeError(f"the result cannot be sent: {error!r}")
