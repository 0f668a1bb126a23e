# SPDX-License-Identifier: MPL-2.0

"""Calls of functions in the process at the other end of a channel."""

from __future__ import annotations

import itertools
import pickle
import traceback
from typing import Any

from .._errors import Closed, EndOfStream
from .._waiting import Patience
from ._refs import ref

_numbers = itertools.count(1)


class _Call:
    def __init__(self, function, args, kwargs):
        self.number = next(_numbers)
        self.function = function
        self.args = args
        self.kwargs = kwargs


class _Answer:
    def __init__(self, number, value=None, error=None):
        self.number = number
        self.value = value
        self.error = error


def call(channel, function, args, kwargs, to, timeout):
    if to is None and channel.id == 0:
        channel.wait_for_receiver(timeout)
        to = _the_only(channel)
    patience = Patience(timeout)
    asked = _Call(function, args, kwargs)
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
            asked, sender = channel.recv_from()
        except (EndOfStream, Closed):
            return
        _reply(channel, _answer(asked), sender if channel.id == 0 else None)
        # Release its arrays before the wait for the next call.
        del asked


def _answer(asked: Any):
    if not isinstance(asked, _Call):
        return _Answer(None, error=TypeError(f"a channel that serves calls takes no {type(asked).__name__}: use call()"))
    try:
        return _Answer(asked.number, asked.function(*asked.args, **asked.kwargs))
    except Exception as error:
        error.add_note("".join(["in the process that was called:\n", *traceback.format_tb(error.__traceback__)]))
        return _Answer(asked.number, error=error)


def _reply(channel, answer, to):
    try:
        channel.send(answer, to=to)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        # It cannot be pickled, so it is not sent.
        if answer.error is None:
            answer.value = ref(answer.value)
        else:
            answer.error = RuntimeError(f"{answer.error!r}, which does not pickle: {error}")
        channel.send(answer, to=to)
