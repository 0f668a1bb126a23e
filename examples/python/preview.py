# SPDX-License-Identifier: MPL-2.0

"""Writes the newest frame of a pool to a picture, with OpenCV, and prints its number on it.

    gst-launch-1.0 videotestsrc is-live=true ! video/x-raw,format=NV12,width=640,height=480 ! xmemsink pool=cam0
    python preview.py cam0 now.png
"""

import argparse

import cv2
import numpy as np

import xmem

# The conversions of packed frames into OpenCV's BGR.
TO_BGR = {
    "RGB": cv2.COLOR_RGB2BGR,
    "RGBA": cv2.COLOR_RGBA2BGR,
    "RGBx": cv2.COLOR_RGBA2BGR,
    "BGRA": cv2.COLOR_BGRA2BGR,
    "BGRx": cv2.COLOR_BGRA2BGR,
    "GRAY8": cv2.COLOR_GRAY2BGR,
    "YUY2": cv2.COLOR_YUV2BGR_YUY2,
    "UYVY": cv2.COLOR_YUV2BGR_UYVY,
}


def to_bgr(frame: xmem.Frame) -> np.ndarray:
    """An image of this process's own."""
    if frame.format == "BGR":
        return np.array(frame)
    if frame.format in TO_BGR:
        return cv2.cvtColor(np.asarray(frame), TO_BGR[frame.format])
    if frame.format in ("NV12", "NV21"):
        # OpenCV uses the two planes in place.
        luma, chroma = (np.asarray(plane) for plane in frame.planes)
        code = cv2.COLOR_YUV2BGR_NV12 if frame.format == "NV12" else cv2.COLOR_YUV2BGR_NV21
        return cv2.cvtColorTwoPlane(luma, chroma, code)
    if frame.format in ("I420", "YV12"):
        # It wants the three planes of these without gaps, so they are copied together.
        planes = [np.asarray(plane).reshape(-1) for plane in frame.copy().planes]
        code = cv2.COLOR_YUV2BGR_I420 if frame.format == "I420" else cv2.COLOR_YUV2BGR_YV12
        return cv2.cvtColor(np.concatenate(planes).reshape(-1, frame.width), code)
    raise SystemExit(
        f"cannot show {frame.format or frame.content_type}: put `videoconvert ! video/x-raw,format=NV12` before xmemsink, "
        "and a decoder before that if the frames are encoded"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pool")
    parser.add_argument("picture")
    options = parser.parse_args()

    with xmem.Consumer(options.pool, start_from="newest") as consumer:
        frame = consumer.recv()
        image = to_bgr(frame)
        text = f"{options.pool} {frame.sequence} {frame.format}"
        # White on black, to be seen on anything.
        cv2.rectangle(image, (0, 0), (frame.width, 48), (0, 0, 0), cv2.FILLED)
        cv2.putText(image, text, (12, 36), cv2.FONT_HERSHEY_SIMPLEX, 1, (255, 255, 255), 2)
        if not cv2.imwrite(options.picture, image):
            raise SystemExit(f"cannot write {options.picture}")
        print(f"frame {frame.sequence}, {frame.format} {frame.width}x{frame.height}, to {options.picture}")


if __name__ == "__main__":
    main()
