# SPDX-License-Identifier: MPL-2.0

"""Gives jobs to workers, each job to one of them: the one that is done gets the next.

    python worker_pool.py --workers 3 --jobs 20 --start spawn
"""

import argparse
import multiprocessing
import os

import numpy as np

import xmem


def work(channel: str) -> None:
    """A worker."""
    with xmem.Channel.connect(channel, timeout=60) as channel:
        channel.send(None)  # it has no job yet
        for image in channel:  # until the channel is closed
            channel.send((os.getpid(), float(image.mean())))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--channel", default="jobs", help="the channel's name, or the path of its socket")
    arguments.add_argument("--workers", type=int, default=3)
    arguments.add_argument("--jobs", type=int, default=20)
    arguments.add_argument("--start", default="spawn", choices=["spawn", "fork", "forkserver"])
    options = arguments.parse_args()

    processes = multiprocessing.get_context(options.start)
    with xmem.Channel(options.channel) as channel:
        workers = [processes.Process(target=work, args=(channel.socket,)) for _ in range(options.workers)]
        for worker in workers:
            worker.start()
        channel.wait_for_receiver(60, count=options.workers)
        started, results = 0, []
        while len(results) < options.jobs:
            result, worker = channel.recv_from(timeout=60)
            if result is not None:
                results.append(result)
            if started < options.jobs:
                # Without `to` all of them would get it.
                channel.send(np.full((480, 640), started, np.uint8), to=worker)
                started += 1
    for worker in workers:
        worker.join()
    by = {pid for pid, _ in results}
    print(f"{len(results)} jobs, {sum(mean for _, mean in results):.0f} in all, by {len(by)} workers")


if __name__ == "__main__":
    main()
