# SPDX-License-Identifier: MPL-2.0

"""Channels that are joined in forked children."""

import multiprocessing
import os
import signal

from channel_support import HANG, Process, wait_until

import xmem

COUNT = 4


def join(path):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        channel.send(os.getpid(), timeout=HANG)
        assert channel.recv(timeout=HANG) == "end"


def receive_all(channel, pids):
    """Each child has joined, with its own number."""
    heard = dict(channel.recv_from(timeout=HANG) for _ in range(COUNT))
    assert sorted(heard) == sorted(pids)
    assert len(set(heard.values())) == COUNT
    channel.send("end", timeout=HANG)


def test_os_fork(place):
    with xmem.Channel(place.path()) as channel:
        pids = []
        try:
            for _ in range(COUNT):
                pid = os.fork()
                if pid == 0:
                    status = 1
                    try:
                        join(place.path())
                        status = 0
                    finally:
                        os._exit(status)
                pids.append(pid)
            receive_all(channel, pids)
            assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * COUNT
            pids = []
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        wait_until(lambda: channel.senders == [], "all of them left")


def test_multiprocessing_fork(place):
    # The threads' state is inherited, so all children begin with the same.
    fork = multiprocessing.get_context("fork")
    with xmem.Channel(place.path()) as channel:
        children = [Process(join, place.path(), context=fork) for _ in range(COUNT)]
        try:
            receive_all(channel, [child.pid for child in children])
            for child in children:
                child.join()
        finally:
            for child in children:
                if child.process.is_alive():
                    child.kill()
