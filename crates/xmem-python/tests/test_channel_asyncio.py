# SPDX-License-Identifier: MPL-2.0

"""Channels in event loops."""

import asyncio
import os
import select
import selectors
import threading

import numpy as np
import pytest
from channel_support import HANG, Process, echo, wait_until

import xmem


@pytest.fixture
def pair(place):
    """Both ends in this process."""
    with xmem.Channel(place.path(), linger=HANG) as here:
        with xmem.Channel.connect(place.path(), timeout=HANG) as there:
            here.wait_for_receiver(HANG)
            yield here, there


async def turns():
    """Runs the loop often enough that a wait that blocks would have timed out."""
    for _ in range(1000):
        await asyncio.sleep(0)


def readable(channel, timeout=0):
    return bool(select.select([channel], [], [], timeout)[0])


def test_a_round_trip(place):
    async def main():
        async with xmem.Channel(place.path()) as channel:
            with Process(echo, place.path()) as child:
                sent = [{"number": number, "array": np.full(10_000, number)} for number in range(100)]

                async def send():
                    for obj in sent:
                        await channel.asend(obj, timeout=HANG)

                sending = asyncio.create_task(send())
                number = 0
                async for obj in channel:
                    assert obj["number"] == number
                    assert (obj["array"] == number).all()
                    assert not obj["array"].flags.writeable
                    number += 1
                    if number == len(sent):
                        break
                del obj
                await sending
                await channel.aclose()
                child.join()

    asyncio.run(main())


def test_the_loop_goes_on(pair):
    async def main():
        here, there = pair
        for sender in (None, 0):
            with pytest.raises(xmem.Timeout, match="no message arrived in time"):
                await there.arecv(timeout=0.05, sender=sender)
            waiting = asyncio.create_task(there.arecv(timeout=HANG, sender=sender))
            await turns()
            assert not waiting.done()
            waiting.cancel()
        # Two messages wait inside of the receiver, and 8 before it. None is taken: this send waits, and continues when one is.
        for number in range(10):
            await here.asend(number, timeout=HANG)
        sending = asyncio.create_task(here.asend(10, timeout=HANG))
        await turns()
        assert not sending.done()
        with pytest.raises(xmem.Timeout):
            await here.asend("never", timeout=0.3)
        assert [await there.arecv(timeout=HANG) for _ in range(11)] == list(range(11))
        await sending
        assert not there.poll()

    asyncio.run(main())


def test_a_cancelled_wait_takes_nothing(pair):
    async def main():
        here, there = pair
        for sender in (None, 0):
            waiting = asyncio.create_task(there.arecv(sender=sender))
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        both = [asyncio.create_task(there.arecv(timeout=HANG)) for _ in range(2)]
        await asyncio.sleep(0)
        await here.asend(1)
        await here.asend(2)
        assert sorted(await asyncio.gather(*both)) == [1, 2]

    asyncio.run(main())


def test_messages_of_one_sender(place):
    async def main():
        async with xmem.Channel(place.path()) as channel:
            senders = [await xmem.Channel.aconnect(place.path(), timeout=HANG) for _ in range(2)]
            wait_until(lambda: len(channel.senders) == 2)
            await senders[0].asend("first")
            assert channel.poll(HANG, sender=senders[0].id)
            waiting = asyncio.create_task(channel.arecv(sender=senders[1].id, timeout=HANG))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert channel.poll() and not channel.poll(sender=senders[1].id)
            await senders[1].asend("second")
            assert await waiting == "second"
            assert await channel.arecv_from(timeout=HANG) == ("first", senders[0].id)
            for sender in senders:
                await sender.aclose()
            with pytest.raises(xmem.EndOfStream):
                await channel.arecv(sender=senders[0].id, timeout=HANG)

    asyncio.run(main())


def test_joining_waits_for_the_maker(place):
    async def main():
        with pytest.raises(xmem.NoProducer):
            await xmem.Channel.aconnect(place.path(), timeout=0.3)
        joining = asyncio.create_task(xmem.Channel.aconnect(place.path()))
        await asyncio.sleep(0.3)
        with xmem.Channel(place.path()) as channel:
            async with await joining as joined:
                await joined.asend("here")
                assert await channel.arecv(timeout=HANG) == "here"

    asyncio.run(main())


def test_the_end(place):
    async def main():
        channel = xmem.Channel(place.path())
        joined = await xmem.Channel.aconnect(place.path(), timeout=HANG)
        taking = asyncio.create_task(collect(joined))
        await channel.asend(1)
        await channel.aclose()
        assert await asyncio.wait_for(taking, HANG) == [1]
        with pytest.raises(xmem.EndOfStream):
            await joined.arecv()
        # A wait ends when this end is closed.
        other = xmem.Channel(place.path("other"))
        waiting = asyncio.create_task(other.arecv())
        await asyncio.sleep(0)
        other.close()
        with pytest.raises(xmem.Closed):
            await asyncio.wait_for(waiting, HANG)
        joined.close()

    async def collect(channel):
        return [obj async for obj in channel]

    asyncio.run(main())


def test_two_loops_wait_for_one_channel(pair):
    here, there = pair
    got = []

    def take():
        got.append(asyncio.run(there.arecv(timeout=HANG)))

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    here.send(1)
    here.send(2)
    for thread in threads:
        thread.join()
    assert sorted(got) == [1, 2]


def test_the_descriptor(pair):
    here, there = pair
    fd = there.fileno()
    assert there.fileno() == fd
    assert not readable(there)
    here.send(1)
    here.send(2)
    assert readable(there, HANG)
    assert there.recv(timeout=HANG) == 1
    wait_until(lambda: there.poll())
    assert readable(there)
    assert there.recv(timeout=HANG) == 2
    # Not after the last message.
    assert not readable(there)
    # An end that is created later knows the available messages.
    here.send(3)
    assert readable(there, HANG)
    there.send(4)
    wait_until(lambda: here.poll())
    assert readable(here)
    here.close(linger=0)
    assert there.recv() == 3
    assert readable(there, HANG)
    with pytest.raises(xmem.EndOfStream):
        there.recv()
    assert readable(there)
    there.close()
    assert there.fileno() == -1


def test_a_selector_drops_closed_channels(pool, pair):
    with xmem.Producer(pool), selectors.DefaultSelector() as selector:
        for it in (xmem.Consumer(pool), pair[1]):
            selector.register(it, selectors.EVENT_READ)
            it.close()
            assert selector.unregister(it).fileobj is it
        with pytest.raises(ValueError):
            selector.register(it, selectors.EVENT_READ)


def test_a_waiting_loop_costs_nothing(pair):
    async def main():
        there = pair[1]
        turns = 0
        original = there._wake

        def count(waiting):
            nonlocal turns
            turns += 1
            original(waiting)

        there._wake = count
        with pytest.raises(xmem.Timeout):
            await there.arecv(timeout=0.5)
        assert turns < 5

    asyncio.run(main())


def test_a_blocked_receiver_gets_an_error(place):
    """The limit of held frames of other processes is reached: an error is raised at once."""
    with xmem.Channel(place.path()) as here, xmem.Channel.connect(place.path(), timeout=HANG, budget=1) as there:
        here.wait_for_receiver(HANG)
        here.send(np.zeros(100_000))
        kept = there.recv(timeout=HANG)
        here.send(np.ones(100_000))
        # Past the budget, the message is copied.
        assert readable(there, HANG)
        copy = there.recv(timeout=HANG)
        assert there.stats()["copied_out"] == 1
        assert (copy == 1).all() and (kept == 0).all()
    del kept, copy
    assert os.listdir(place.dir) == []
