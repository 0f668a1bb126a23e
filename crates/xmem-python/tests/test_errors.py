# SPDX-License-Identifier: MPL-2.0

"""Each error names the remedy."""

import asyncio
import copy
import functools
import inspect
import os
import pickle
import time
import signal
from pathlib import Path

import numpy as np
import pytest
from support import HANG, assert_whole, eventually, publish

import xmem


def test_no_producer_in_time(pool):
    with pytest.raises(xmem.NoProducer, match=r"no producer of pool .*p\.sock.* in 0\.05 s: start one") as error:
        xmem.Consumer(pool, timeout=0.05)
    assert isinstance(error.value, TimeoutError)


def is_stopped(task):
    return task.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_producer_that_does_not_answer(pool, child):
    other = child("produce_one", pool)
    other.reply()
    other.process.send_signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{other.process.pid}/task")
    eventually(lambda: all(is_stopped(task) for task in tasks.iterdir()), "a thread of the producer's goes on")
    with pytest.raises(xmem.NoProducer, match=r"does not answer: it may be stopped"):
        xmem.Consumer(pool, timeout=0.05)
    other.process.send_signal(signal.SIGCONT)
    # The producer may have counted the previous consumer, and published before this one joined.
    xmem.Consumer(pool, timeout=HANG, start_from="oldest").recv(HANG)
    other.reply()
    other.send()
    assert other.wait() == 0


def test_a_second_producer(pool):
    with xmem.Producer(pool):
        with pytest.raises(xmem.PoolInUse, match="which is this very process: stop that one"):
            xmem.Producer(pool)


def test_a_second_producer_of_another_process(pool, child):
    other = child("produce", pool)
    other.reply()
    with pytest.raises(xmem.PoolInUse, match=f"process {other.process.pid}.*stop that one"):
        xmem.Producer(pool)
    other.send()
    other.reply()
    other.send()
    assert other.wait() == 0


def test_invalid_names(directory):
    for pool in ("", "a\nb", f"{directory}/", f"{directory}/{'x' * 200}", f"{directory}/none/p.sock"):
        with pytest.raises(ValueError, match=r"pool name|socket path|no directory"):
            xmem.Producer(pool)
    for pool in ("", "a\nb", f"{directory}/{'x' * 200}"):
        with pytest.raises(ValueError, match=r"pool name|socket path"):
            xmem.BufferPool(pool)


def test_lists_and_numbers_that_are_none(place):
    """Bytes are not taken for a list of users, nor text for a number."""
    for uids in (b"x", bytearray(b"x"), "1", 1):
        with pytest.raises(TypeError):
            xmem.Producer(place.path("p"), allow_uids=uids)
    with pytest.raises(TypeError):
        xmem.Channel(place.path("c"), inline="x")
    with pytest.raises(TypeError):
        xmem.Channel.connect(place.path("c"), inline=None, timeout=0)
    with pytest.raises(ValueError, match="max-consumers is 0"):
        xmem.Producer(place.path("p"), max_consumers=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "pass either the shape"),
        ({"shape": (1,), "format": "RGB"}, "pass either the shape"),
        ({"shape": (2, 3), "width": 640, "height": 480}, "width and height only with a format"),
        ({"shape": (2, 3), "height": 480}, "width and height only with a format"),
        ({"format": "RGB", "width": 4, "height": 4, "dtype": "float32"}, 'pass dtype only with a shape; format "RGB" implies it'),
        ({"format": "RGB"}, "width and height"),
        ({"format": "H264", "width": 1, "height": 1}, "use one of A420, ABGR"),
        ({"format": "RGB", "width": 2**31, "height": 2**31}, "a frame of 2147483648x2147483648 pixels is too large"),
        ({"shape": (2,) * 9}, "9 dimensions"),
        ({"shape": (2**62, 2**62)}, "a frame of shape .* is too large"),
        ({"shape": (2**63,)}, "a frame of shape .* is too large"),
        ({"shape": (1,), "dtype": "text"}, "use one of uint8"),
        ({"format": "RGB", "width": -4, "height": 4}, "-4 is not between 0 and 4294967295"),
        ({"shape": (-1, 3)}, "-1 is not between 0"),
        ({"shape": [3, 2**64]}, "18446744073709551616 is not between 0"),
        ({"shape": -3}, "-3 is not between 0"),
        ({"shape": (1,), "room": -1}, "-1 is not between 0"),
        ({"shape": (1,), "room": 2**64 - 1}, "the system cannot allocate 18446744073709551615 bytes"),
        ({"shape": (1,), "dtype": np.dtype(">i4")}, ">i4 isn't in this machine's byte order"),
        ({"shape": (1,), "dtype": np.zeros(1, ">f8").dtype}, ">f8 isn't in this machine's byte order"),
    ],
)
def test_frames_that_cannot_be(pool, arguments, message):
    with xmem.Producer(pool) as producer, pytest.raises(ValueError, match=message):
        producer.acquire(**arguments)


def test_more_than_there_is(pool):
    with xmem.Producer(pool, max_bytes=1 << 20) as producer:
        with pytest.raises(xmem.PoolFull, match="raise max-bytes"):
            producer.acquire((2 << 20,))
    with xmem.Producer(pool) as producer:
        with pytest.raises(xmem.Error, match="no memory for a region"):
            producer.acquire((1 << 50,))
        publish(producer, 1)


def test_invalid_options(pool):
    with xmem.Producer(pool):
        for option in ("start_from", "on_eos", "on_producer_lost", "over_budget"):
            with pytest.raises(ValueError, match=f'{option} is "x": it must be one of "'):
                xmem.Consumer(pool, **{option: "x"})
        with pytest.raises(ValueError, match="NaN isn't a valid timeout"):
            xmem.Consumer(pool, timeout=float("nan"))
    with pytest.raises(ValueError, match="max-slots is 1"):
        xmem.Producer(pool, max_slots=1)
    for timeout in (0, -0.0, 1e-12):
        with pytest.raises(ValueError, match="lossless_timeout is 0, .* None to wait forever"):
            xmem.Producer(pool, lossless=True, lossless_timeout=timeout)
        with pytest.raises(ValueError, match="lossless_timeout is 0"):
            xmem.Channel(pool, lossless_timeout=timeout)
    with pytest.raises(ValueError, match="memfd"):
        xmem.Producer(pool, backing="x")
    for framerate in (-1, (1, 0), "30", -25.0, float("nan"), float("inf"), 1e9):
        with pytest.raises(ValueError, match=r"30000, 1001"):
            xmem.Producer(pool, framerate=framerate)


@pytest.mark.parametrize(
    ("make", "name", "options"),
    [
        (xmem.Producer, "allow_uids", {"allow_uids": [-1]}),
        (xmem.Channel, "allow_uids", {"allow_uids": [0, 2**32]}),
        (xmem.Channel, "budget", {"budget": -1}),
        (xmem.Channel, "max_bytes", {"max_bytes": 2**64}),
        (xmem.Channel.connect, "max_slots", {"max_slots": -1}),
    ],
)
def test_options_out_of_range(pool, make, name, options):
    with pytest.raises(ValueError, match="is not between 0 and") as raised:
        make(pool, **options)
    assert raised.value.__notes__[0] == f"while processing '{name}'"


def test_numbers_out_of_range(pool):
    with xmem.Channel(pool) as channel:
        for call in (
            lambda: channel.send(1, to=-1),
            lambda: channel.room(-1),
            lambda: channel.recv(sender=2**64),
            lambda: channel.poll(sender=-1),
            lambda: channel.wait_for_receiver(count=-1),
        ):
            with pytest.raises(ValueError, match="is not between 0 and"):
                call()


@pytest.mark.parametrize(("mode", "meant"), [(660, "0o660"), (666, "0o666"), (0o1777, "0o660"), (999, "0o660")])
def test_a_mode_that_was_not_meant(pool, mode, meant):
    with pytest.raises(ValueError, match=f"socket_mode is {mode}, which is {mode:#o}.*: write {meant}"):
        xmem.Producer(pool, socket_mode=mode)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"pts": -1}, ValueError, "-1 is not between 0"),
        ({"dts": 2**64}, ValueError, "is not between 0"),
        ({"duration": -5}, ValueError, "-5 is not between 0"),
        ({"timestamp": 2**63}, ValueError, "is not between -9223372036854775808 and"),
        ({"timestamp": time.time_ns()}, ValueError, r"use time.monotonic_ns\(\)"),
        ({"timestamp": time.time_ns() // 1000}, ValueError, r"use time.monotonic_ns\(\)"),
        ({"timestamp": int(time.time())}, ValueError, r"use time.monotonic_ns\(\)"),
        ({"timestamp": int(time.monotonic())}, ValueError, r"use time.monotonic_ns\(\)"),
        ({"timestamp": 0}, ValueError, r"use time.monotonic_ns\(\)"),
        ({"timestamp": time.monotonic()}, TypeError, "float"),
        ({"flags": 2**32}, ValueError, "is not between 0"),
        ({"pts": 1.5}, TypeError, "float"),
        ({"attachments": {"boxes": "text"}}, TypeError, r'attachments\["boxes"\] cannot be of type str'),
        ({"attachments": {1: b""}}, TypeError, "a name in attachments cannot be of type int"),
        ({"attachments": b"x"}, TypeError, "attachments cannot be of type bytes"),
        ({"content_type": "x" * 33}, ValueError, "content_type .* at most 32 bytes"),
        ({"content_type": "a\0b"}, ValueError, r'content_type is "a\\0b": .* no null byte'),
    ],
)
def test_arguments_that_publish_refuses(pool, arguments, error, message):
    with xmem.Producer(pool) as producer, producer.acquire((1,)) as frame:
        with pytest.raises(error, match=message) as raised:
            frame.publish(**arguments)
        (name,) = arguments
        # PyO3 adds it below the message.
        assert name in str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
        if name in ("pts", "duration", "timestamp"):
            with pytest.raises(error, match=message) as raised:
                producer.publish_event("x", **arguments)
            assert raised.value.__notes__ == [f"while processing '{name}'"]
        assert frame.publish(attachments=None) == 0


def test_options_are_in_signatures():
    for one, other in ((xmem.Consumer, xmem.Consumer.connect), (xmem.Channel.connect, xmem.Channel.aconnect)):
        parameters = inspect.signature(one).parameters
        assert list(parameters.values())[1:] == list(inspect.signature(other).parameters.values())[1:]
        assert not [it for it in parameters.values() if it.kind in (it.VAR_KEYWORD, it.VAR_POSITIONAL) or it.name[0] == "_"]
    # They have the same defaults as the class that they wrap.
    known = inspect.signature(xmem.Consumer.__mro__[2]).parameters
    named = inspect.signature(xmem.Consumer).parameters
    assert {name: it.default for name, it in named.items()} == {n: it.default for n, it in known.items() if n != "_look"}


def test_closed_objects(pool):
    with xmem.Producer(pool) as producer:
        consumer = xmem.Consumer(pool)
        consumer.close()
        consumer.close()
        for use in (consumer.recv, consumer.try_recv, lambda: next(consumer)):
            with pytest.raises(xmem.Closed, match="this consumer is closed"):
                use()
        with pytest.raises(xmem.Closed, match="this consumer is closed"):
            consumer.request("x")
        assert consumer.fileno() == -1
        producer.close()
        producer.close()
        with pytest.raises(xmem.Closed, match="this producer is closed"):
            producer.end_stream()


def test_bfloat16_needs_a_library_that_has_it(pool):
    torch = pytest.importorskip("torch", reason="no PyTorch")

    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        with producer.acquire((3,), "bfloat16") as frame:
            torch.from_dlpack(frame)[...] = torch.tensor([1, 2, 3])
            frame.publish()
        frame = consumer.recv(HANG)
        assert torch.from_dlpack(frame).tolist() == [1, 2, 3]
        with pytest.raises(BufferError, match=r"torch\.from_dlpack"):
            memoryview(frame)
        with pytest.raises(TypeError, match=r"torch\.from_dlpack"):
            np.asarray(frame)


def test_a_producer_that_is_lost(pool):
    producer = xmem.Producer(pool)
    consumers = [xmem.Consumer(pool, on_producer_lost=it, timeout=0.2) for it in ("raise", "end", "wait")]
    producer.close()
    with pytest.raises(xmem.ProducerLost, match="the producer is gone"):
        consumers[0].recv(HANG)
    assert list(consumers[1]) == []
    with pytest.raises(xmem.NoProducer):
        consumers[2].recv(HANG)


def test_invalid_times(pool):
    message = "-1 isn't a valid timeout in seconds: use 0 to return at once, or None to wait forever"
    with pytest.raises(ValueError, match=message):
        xmem.Consumer(pool, timeout=-1)
    with xmem.Producer(pool, lossless=True) as producer, xmem.Consumer(pool) as consumer:
        for use in (consumer.recv, producer.wait_for_consumer):
            with pytest.raises(ValueError, match=message):
                use(timeout=-1)
        publish(producer, 1)
        for use in (lambda: consumer.arecv(-1), lambda: xmem.Consumer.connect(pool, timeout=-1)):
            with pytest.raises(ValueError, match=message):
                asyncio.run(use())
        assert consumer.recv(timeout=HANG).pts == 1
        with pytest.raises(xmem.Timeout):
            consumer.recv(timeout=-0.0)
    with pytest.raises(ValueError, match=message):
        xmem.Channel(pool, linger=-1)
    with xmem.Channel(pool) as channel:
        send = functools.partial(channel.send, 1)
        for use in (channel.recv, channel.poll, channel.drain, channel.wait_for_receiver, send):
            with pytest.raises(ValueError, match=message):
                use(timeout=-1)
        for use in (channel.arecv, functools.partial(channel.asend, 1)):
            with pytest.raises(ValueError, match=message):
                asyncio.run(use(timeout=-1))
        with pytest.raises(ValueError, match=message):
            channel.close(linger=-1)


def test_objects_of_a_process_do_not_pickle(pool, directory):
    class Own(xmem.Consumer):
        """A class of a user."""

    buffers = str(directory / "b.sock")
    with xmem.Producer(pool) as producer, Own(pool, events=True) as consumer, xmem.BufferPool(buffers) as buffer_pool:
        producer.publish_event("scene-change", b"data")
        event = consumer.recv(HANG)
        guard = buffer_pool.acquire_cpu(10)
        for it, advice in (
            (guard, "BufferGuard cannot be pickled.*forget.*get"),
            (producer, "Producer cannot be pickled.*send the name of the pool"),
            (consumer, "Own cannot be pickled.*send the name of the pool"),
            (buffer_pool, "BufferPool cannot be pickled.*send the name of the pool"),
            (event, "Event cannot be pickled.*event.name"),
        ):
            with pytest.raises(TypeError, match=advice):
                pickle.dumps(it)


def test_entries_of_the_runtime_directory_pickle(pool):
    entry = xmem.PoolEntry("cam0", pool, True)
    for copied in (pickle.loads(pickle.dumps(entry)), copy.copy(entry), copy.deepcopy(entry)):
        assert (copied.name, copied.path, copied.live) == ("cam0", Path(pool), True)


def test_frames_do_not_pickle(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        publish(producer, 1)
        frame = consumer.recv(HANG)
        for it in (frame, frame.planes[0]):
            with pytest.raises(TypeError, match=r"xmem\.(Frame|Plane) cannot be pickled.*xmem\.Channel.*install.*numpy\.array"):
                pickle.dumps(it)
            # As of a string, which does not change either.
            assert copy.copy(it) is it
            other = copy.deepcopy(it)
            assert not other.readonly and np.array_equal(np.asarray(other), np.asarray(it))
        assert_whole(pickle.loads(pickle.dumps(np.array(frame))), 1)


def test_permissions(pool):
    with xmem.Producer(pool, socket_mode=0o600, allow_uids=[os.getuid()]):
        xmem.Consumer(pool).close()
    with pytest.raises(ValueError, match="posix-shm serves one user only"):
        xmem.Producer(pool, backing="posix-shm", socket_mode=0o666)


def test_errors_have_the_names_that_users_know():
    public = [getattr(xmem, name) for name in xmem.__all__]
    errors = [it for it in public if isinstance(it, type) and issubclass(it, xmem.Error)]
    assert len(errors) > 10
    for error in errors:
        assert f"{error.__module__}.{error.__qualname__}" == f"xmem.{error.__name__}"
        again = pickle.loads(pickle.dumps(error("why")))
        assert type(again) is error and str(again) == "why"
