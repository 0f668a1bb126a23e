# SPDX-License-Identifier: MPL-2.0
"""webcam.py Y [JPEG...]: plugs in a USB webcam, and unplugs it at SIGTERM.

The kernel's own driver, uvcvideo, finds it by USB/IP (the module vhci-hcd). Its frames are YUY2 of 320x240, all bytes of
brightness Y, and the JPEG files of 640x480, if there are any, at 30 per second. It is of version 1.0 of the USB video class,
with a bulk endpoint.
"""

import select
import signal
import socket
import struct
import sys
import time

BRIGHTNESS = int(sys.argv[1])
JPEGS = [open(name, "rb").read() for name in sys.argv[2:]]
INTERVAL = 333333  # of 100 ns
CHUNK = 16384
SIZES = {1: (320, 240), 2: (640, 480)}
VHCI = "/sys/devices/platform/vhci_hcd.0/"


def numbers(code, *values):
    return struct.pack(f"<{len(values)}{code}", *values)


def described(kind, *parts):
    """A descriptor of this type."""
    content = b"".join(part if isinstance(part, bytes) else numbers("B", part) for part in parts)
    return numbers("B", len(content) + 2, kind) + content


def frame(kind, index):
    width, height = SIZES[index]
    rate = width * height * 16 * 30
    rest = numbers("I", rate, rate, width * height * 2, INTERVAL)
    return described(0x24, kind, 1, 0, numbers("H", width, height), rest, 1, numbers("I", INTERVAL))


def configuration():
    colour = described(0x24, 13, 1, 1, 4)
    yuy2 = b"YUY2" + bytes.fromhex("000010008000 00aa00389b71")
    formats = described(0x24, 4, 1, 1, yuy2, 16, 1, 0, 0, 0, 0) + frame(5, 1) + colour
    if JPEGS:
        formats += described(0x24, 6, 2, 1, 1, 1, 0, 0, 0, 0) + frame(7, 2) + colour
    count = 2 if JPEGS else 1
    length = numbers("H", 13 + count + len(formats))
    streaming = described(0x24, 1, count, length, 0x81, 0, 2, 0, 0, 0, 1, bytes(count)) + formats
    units = described(0x24, 2, 1, numbers("H", 0x201), bytes(8), 3, bytes(3))
    units += described(0x24, 3, 2, numbers("H", 0x101), 0, 1, 0)
    control = described(0x24, 1, numbers("H", 0x100, 13 + len(units)), numbers("I", 48000000), 1, 1) + units
    body = described(11, 0, 2, 14, 3, 0, 2)
    body += described(4, 0, 0, 0, 14, 1, 0, 0) + control
    body += described(4, 1, 0, 1, 14, 2, 0, 0) + streaming + described(5, 0x81, 2, numbers("H", 512), 0)
    return described(2, numbers("H", 9 + len(body)), 2, 1, 0, 0x80, 250) + body


DEVICE = described(1, numbers("H", 0x200), 0xEF, 2, 1, 64, numbers("H", 0x1D6B, 0x102, 0x100), 1, 2, 3, 1)
TEXTS = {1: "xmem", 2: f"camera {BRIGHTNESS}", 3: str(BRIGHTNESS)}


def text(index):
    return described(3, numbers("H", 0x409) if index == 0 else TEXTS.get(index, "").encode("utf-16-le"))


def plug():
    """A socket to the driver, and the number of the port."""
    ours, theirs = socket.socketpair()
    for port in range(8):
        try:
            with open(VHCI + "attach", "w") as file:
                file.write(f"{port} {theirs.fileno()} 65538 3")
            return ours, port
        except OSError as error:
            last = error
    sys.exit(f"no free port: {last}")


class Webcam:
    def __init__(self):
        self.socket, self.port = plug()
        self.format = 1
        self.waiting = []  # the numbers of the driver's requests for a part of a frame
        self.parts = []
        self.count = 0
        self.due = 0.0

    def unplug(self, *_):
        with open(VHCI + "detach", "w") as file:
            file.write(str(self.port))
        sys.exit(0)

    def read(self, size):
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                sys.exit(0)
            data += more
        return data

    def answer(self, number, status, data=b"", length=None):
        length = len(data) if length is None else length
        head = struct.pack(">5Ii4I8x", 3, number, 0, 0, 0, status, length, 0, 0xFFFFFFFF, 0)
        self.socket.sendall(head + data)

    def limits(self):
        width, height = SIZES[self.format]
        chunk = numbers("I", width * height * 2, CHUNK)
        return numbers("H", 1) + numbers("B", self.format, 1) + numbers("I", INTERVAL) + bytes(10) + chunk

    def next_frame(self):
        width, height = SIZES[self.format]
        grey = bytes([BRIGHTNESS, 128]) * (width * height)
        data = grey if self.format == 1 else JPEGS[self.count % len(JPEGS)]
        self.count += 1
        now = int(time.monotonic() * 48e6) & 0xFFFFFFFF
        for at in range(0, len(data), CHUNK - 12):
            part = data[at : at + CHUNK - 12]
            is_last = at + len(part) == len(data)
            flags = 0x8C | self.count & 1 | (2 if is_last else 0)
            self.parts.append(numbers("B", 12, flags) + numbers("I", now, now) + numbers("H", 0) + part)

    def control(self, number, setup, out):
        kind, request, value, index, length = struct.unpack("<BBHHH", setup)
        if kind & 0x60 == 0x20:
            if index & 255 != 1 or value >> 8 not in (1, 2):
                return self.answer(number, -32)
            if request == 1:
                self.format = out[2] if out[2] in SIZES else 1
                return self.answer(number, 0, length=len(out))
            data = {0x85: numbers("H", 26), 0x86: numbers("B", 3)}.get(request, self.limits())
        elif request == 6:
            known = {1: DEVICE, 2: configuration(), 3: text(value & 255)}
            data = known.get(value >> 8)
            if data is None:
                return self.answer(number, -32)
        else:
            data = {0: bytes(2), 10: bytes(1)}.get(request, b"")
        self.answer(number, 0, data[:length])

    def take(self):
        """Reads one request of the driver."""
        command, number, _, is_in, endpoint = struct.unpack(">5I", self.read(20))
        rest = self.read(28)
        first, length = struct.unpack(">II", rest[:8])
        if command == 1:
            out = self.read(length) if not is_in and length else b""
            if endpoint == 0:
                self.control(number, rest[20:], out)
            else:
                self.waiting.append(number)
        elif command == 2:  # the driver withdraws a request
            was_there = first in self.waiting
            if was_there:
                self.waiting.remove(first)
            if not self.waiting:
                self.parts.clear()
            self.socket.sendall(struct.pack(">5Ii24x", 4, number, 0, 0, 0, -104 if was_there else 0))

    def run(self):
        while True:
            now = time.monotonic()
            if self.waiting and not self.parts and now >= self.due:
                self.next_frame()
                self.due = max(self.due + INTERVAL / 1e7, now - 1)
            while self.waiting and self.parts:
                self.answer(self.waiting.pop(0), 0, self.parts.pop(0))
            time_left = max(0, self.due - now) if self.waiting else None
            if select.select([self.socket], [], [], time_left)[0]:
                self.take()


webcam = Webcam()
signal.signal(signal.SIGTERM, webcam.unplug)
webcam.run()
