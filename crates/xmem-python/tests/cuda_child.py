# SPDX-License-Identifier: MPL-2.0

"""A process that executes commands with a device: reads a line of JSON with Python code, and writes a line with the result.

The process loads the driver. The process of the tests must not, because it would keep the driver for all tests.
"""

import ctypes
import json
import os
import signal
import sys

import gpu
import numpy as np
from support import HANG, content, eventually

import xmem

# The child is killed if its test is killed.
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

names = {
    "np": np,
    "os": os,
    "xmem": xmem,
    "gpu": gpu,
    "Gpu": gpu.Gpu,
    "Array": gpu.Array,
    "InterfaceArray": gpu.InterfaceArray,
    "HANG": HANG,
    "content": content,
    "eventually": eventually,
    "pool": sys.argv[1],
}


def do(order):
    if "value" in order:
        return eval(order["value"], names)
    exec(order["code"], names)
    return None


waits = False


def waiting():
    """Enables Ctrl-C, once. Before, the exception would be raised where it is not caught."""
    global waits
    waits = True


def interrupt(*_):
    global waits
    if waits:
        waits = False
        raise KeyboardInterrupt


names["waiting"] = waiting


signal.signal(signal.SIGINT, interrupt)

for line in sys.stdin:
    answer = {}
    try:
        answer["result"] = do(json.loads(line))
        waits = False
    except BaseException as error:
        waits = False
        answer["error"] = [type(error).__name__, str(error)]
        if not isinstance(error, xmem.Error | ValueError | TypeError | BufferError | AttributeError | KeyboardInterrupt):
            import traceback

            traceback.print_exc()
        del error
    print(json.dumps(answer), flush=True)
