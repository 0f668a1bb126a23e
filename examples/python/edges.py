# SPDX-License-Identifier: MPL-2.0

"""Takes frames out of one pool, finds edges in them with PyTorch on the CPU, and publishes those in another pool.

    gst-launch-1.0 videotestsrc is-live=true ! video/x-raw,format=RGB,width=640,height=480,framerate=30/1 ! \\
        xmemsink pool=cam0
    python edges.py cam0 edges
    gst-launch-1.0 xmemsrc pool=edges ! videoconvert ! autovideosink
"""

import argparse

import torch

import xmem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--frames", type=int, help="stop after so many")
    options = parser.parse_args()

    # Differences in both directions.
    sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
    kernel = torch.stack([sobel, sobel.T]).unsqueeze(1)
    count = 0
    with xmem.Consumer(options.source, max_held=2) as consumer, xmem.Producer(options.target, framerate=30) as producer:
        for count, frame in enumerate(consumer, 1):
            # The frame itself, which must not be written; each step after it is a tensor of its own.
            image = torch.from_dlpack(frame)
            gray = image.float().mean(dim=2)
            edges = torch.nn.functional.conv2d(gray[None, None], kernel, padding=1).square().sum(dim=1).sqrt()
            with producer.acquire(format="GRAY8", width=frame.width, height=frame.height) as target:
                # The last step writes where the consumers of the other pool read.
                torch.from_dlpack(target).copy_(edges[0].clamp(0, 255))
                target.publish(pts=frame.pts, duration=frame.duration, timestamp=frame.timestamp)
            if count == options.frames:
                break
    print(f"{count} frames")


if __name__ == "__main__":
    main()
