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


class Answer:
    def __init__(self, number, value=None, error=None, what=None):
        self.number = number
        self.value = value
        self.error = error
        # The error in words.
        self.what = what

    def __reduce__(self):
        # The caller gets the words first, because an exception may pickle and yet not unpickle.
        return _loaders.answer, (self.number, self.what), self.__dict__


def call(channel, function, args, kwargs, to, timeout):
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, Ref) and arg.is_alive is False:
            raise RefLost(f"the object of {arg!r} no longer exists: its process has ended")
    if to is None and channel.id == 0:
        channel.wait_for_receiver(timeout)
        to = _the_only(channel)
    patience = Patience(timeout)
    asked = Call(next(_numbers))
    asked.function, asked.args, asked.kwargs = function, args, kwargs
    channel.send(asked, to=to, timeout=patience.left())
    while True:
        answer = _receive(channel, to, patience.left())
        # Otherwise it is a late answer to an earlier call.
        if isinstance(answer, Answer) and answer.number == asked.number:
            break
    if answer.error is not None:
        if answer.what is not None:
            # Here, because the called process may raise its exception object again.
            answer.error.add_note(answer.what)
        raise answer.error
    return answer.value


def _receive(channel, sender, timeout):
    """The next object. An answer with an exception that cannot be unpickled has another one in its place."""
    incoming = channel._end.receive(sender, timeout)
    unpickler = _pickling.Unpickler(incoming)
    try:
        return unpickler.load()
    except Exception as error:
        answer = unpickler.loader.answered
        if answer is None or answer.what is None:
            raise
        answer.error = RuntimeError(f"the called process raised an exception that cannot be unpickled here: {error}")
        return answer


def _the_only(channel):
    senders = channel.senders
    if len(senders) != 1:
        raise ValueError(f"{len(senders)} processes joined the channel: choose one of them with to=, from {senders}")
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
    where = "in the called process, which needs the modules of the function and its arguments:\n"
    try:
        asked = unpickler.load()
        where = "in the called process:\n"
        if not isinstance(asked, Call):
            raise TypeError(f"serve() accepts only calls, and received a {type(asked).__name__}: use call(), not send()")
        return Answer(asked.number, asked.function(*asked.args, **asked.kwargs)), None
    except BaseException as error:
        # With its causes, which are not pickled.
        what = "".join([where, *traceback.format_exception(error)])
        interrupt = error if isinstance(error, KeyboardInterrupt) else None
        if interrupt is None:
            _forget_call(error)
        if not isinstance(error, Exception):
            # Raised again at the caller, SystemExit would end it.
            error = RuntimeError(f"the called process raised {error!r}")
        return Answer(unpickler.loader.call_number, error=error, what=what), interrupt


def _forget_call(error):
    """Removes the frames of this call from an exception that may be raised again. They would add up, and hold the arguments."""
    entry = error.__traceback__
    while entry is not None:
        frame, entry = entry.tb_frame, entry.tb_next
        # The frame of a generator that has ended has no caller.
        if entry is not None and entry.tb_frame.f_back not in (frame, None):
            break
    error.with_traceback(entry)


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
        answer.error = RuntimeError(f"{answer.error!r}, which cannot be pickled: {error}")
    elif isinstance(error, (pickle.PicklingError, TypeError, AttributeError)):
        answer.value = ref(answer.value)
    else:
        answer.value, answer.error = None, RuntimeError(f"the result cannot be sent: {error!r}")
