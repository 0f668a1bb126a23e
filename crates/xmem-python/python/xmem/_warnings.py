# SPDX-License-Identifier: MPL-2.0

"""Warnings that may be repeated."""

import os
import sys
import warnings

from ._errors import PoolWarning

# A warning must not point to a line of these modules.
_NOT_MEANT = (os.path.join(os.path.dirname(__file__), ""), os.path.join(os.path.dirname(os.__file__), "asyncio", ""))


def warn_each_time(message: str) -> None:
    """Warns with the innermost line outside of this module and of asyncio, whose callbacks have no line of a task.

    Each time: by default Python shows a text once for each line.
    """
    try:
        frame = sys._getframe(1)
    except ValueError:
        # The caller is not Python.
        warnings.warn_explicit(message, PoolWarning, __file__, 0, __name__)
        return
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_MEANT):
        frame = frame.f_back
    module = frame.f_globals.get("__name__")
    warnings.warn_explicit(message, PoolWarning, frame.f_code.co_filename, frame.f_lineno, module)
