# SPDX-License-Identifier: MPL-2.0

"""Warnings about uses that work but are probably not intended. Each is printed once."""

import asyncio
import threading
import warnings

import pytest
from channel_support import HANG, Process, forkserver, wait_until
from support import eventually, publish

import xmem


@pytest.fixture
def names(directory, monkeypatch):
    """A separate runtime directory with a pool."""
    monkeypatch.setenv("XMEM_RUNTIME_DIR", str(directory))
    with xmem.Producer("cam0"):
        yield directory


@pytest.mark.parametrize("what", ["Consumer", "Consumer.connect", "Channel.connect", "Channel.aconnect"])
def test_a_wait_for_a_missing_pool_warns_once(names, what):
    wait = {
        "Consumer": lambda: xmem.Consumer("typo", timeout=HANG),
        "Consumer.connect": lambda: asyncio.run(xmem.Consumer.connect("typo", timeout=HANG)),
        "Channel.connect": lambda: xmem.Channel.connect("typo", timeout=HANG),
        "Channel.aconnect": lambda: asyncio.run(xmem.Channel.aconnect("typo", timeout=HANG)),
    }[what]
    made = []
    # It still waits: the pool is created after the warning.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=lambda: made.append(wait()))
        thread.start()
        eventually(lambda: caught, "no warning")
        with xmem.Channel("typo") if "Channel" in what else xmem.Producer("typo"):
            thread.join(HANG)
            made.pop().close()
    (warning,) = caught
    assert warning.category is xmem.PoolWarning
    text = str(warning.message)
    assert text.startswith("waiting for the maker of channel" if "Channel" in what else "waiting for a producer of pool")
    assert f'"typo" at {names}/typo.sock; pools in {names}: cam0' in text
    if what in ("Consumer", "Channel.connect"):
        assert warning.filename == __file__


@pytest.mark.parametrize("connect", [False, True])
def test_a_budget_that_is_cut(pool, connect):
    def make(**options):
        return asyncio.run(xmem.Consumer.connect(pool, **options)) if connect else xmem.Consumer(pool, **options)

    with xmem.Producer(pool, max_held=8):
        with pytest.warns(xmem.PoolWarning, match="max_held=11, but the producer allows 8: raise max_held of the Prod") as caught:
            with make(max_held=11) as consumer:
                assert consumer.stats["budget"] == 8
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make(max_held=8).close()
    with xmem.Producer(pool, max_held=4), warnings.catch_warnings():
        warnings.simplefilter("error")
        with make() as consumer:
            assert consumer.stats["budget"] == 4


@pytest.mark.parametrize(
    "limit, options", [("max_slots", {"max_slots": 8}), ("max_held", {"max_held": 2}), ("max_bytes", {"max_bytes": 4 << 18})]
)
def test_a_small_budget_that_is_used_up(pool, limit, options):
    with xmem.Producer(pool, history=1, **options) as producer, xmem.Consumer(pool) as consumer:
        kept = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            while consumer.stats["copied"] < 3:
                with producer.acquire((1 << 18,), room=0, timeout=HANG) as frame:
                    frame.publish()
                kept.append(consumer.recv(HANG))
        (warning,) = caught
        assert warning.category is xmem.PoolWarning and warning.filename == __file__
        assert f"raise {limit} of the Producer" in str(warning.message)
        assert consumer.stats["budget_limit"] == limit


def test_a_program_that_holds_its_whole_budget(pool):
    with xmem.Producer(pool) as producer, xmem.Consumer(pool, max_held=1, over_budget="drop") as consumer:
        publish(producer, 1)
        held = consumer.recv(HANG)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")

            def is_reported():
                publish(producer, 2)
                with pytest.raises(xmem.Timeout):
                    consumer.recv(0.01)
                return caught

            eventually(is_reported, "no warning")
        (warning,) = caught
        assert warning.category is xmem.PoolWarning
        assert "you hold your whole budget of 1" in str(warning.message)
        del held


def flood(path, ready, count):
    """Sends all its messages before it receives anything."""
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        ready.set()
        for number in range(count):
            channel.send(number)
        assert list(channel) == list(range(count))


def test_two_that_only_send(tmp_path):
    path = str(tmp_path / "c.sock")
    ready = forkserver.Event()
    with Process(flood, path, ready, 30) as child, xmem.Channel(path) as channel:
        assert ready.wait(HANG)
        channel.wait_for_receiver(HANG)
        came = []

        def take():
            came.extend(channel.recv(timeout=HANG) for _ in range(30))

        thread = threading.Thread(target=take)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")

            def start_when_warned():
                wait_until(lambda: caught, "no warning")
                thread.start()

            helper = threading.Thread(target=start_when_warned)
            helper.start()
            for number in range(30):
                channel.send(number, timeout=HANG)
            helper.join()
        thread.join()
        assert came == list(range(30))
        (warning,) = caught
        assert warning.category is xmem.PoolWarning and warning.filename == __file__
        assert f"(process {child.pid}) to receive earlier messages" in str(warning.message)
        channel.close()
        child.join()


def test_a_receiver_that_is_only_slow(tmp_path):
    """A sender that waits is warned only if it has messages to receive itself."""
    path = str(tmp_path / "c.sock")
    with xmem.Channel(path) as channel, xmem.Channel.connect(path, timeout=HANG) as other:
        channel.wait_for_receiver(HANG)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # Two messages wait inside of the receiver, and 8 before it.
            for number in range(10):
                channel.send(number, timeout=HANG)
            with pytest.raises(xmem.Timeout):
                channel.send("one too many", timeout=0.1)
            assert channel._end.stuck() is None
            other.send("here", timeout=HANG)
            assert channel.poll(HANG)
            assert "to receive earlier messages" in channel._end.stuck()
            assert [other.recv(timeout=HANG) for _ in range(10)] == list(range(10))
            assert channel.recv(timeout=HANG) == "here"
            assert channel._end.stuck() is None
