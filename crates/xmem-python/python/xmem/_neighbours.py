# SPDX-License-Identifier: MPL-2.0

"""Another package has the same name as this module."""

import os
import warnings


def check() -> None:
    """Warns if the package `xmem` of PyPI is in the same folder: its files and these would replace each other."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    names = os.listdir(folder)
    if any(name.startswith("xmem-") and name.endswith(".dist-info") for name in names):
        warnings.warn(
            f"{folder} also has the package xmem of PyPI, which is another project with the same files: "
            "run `pip uninstall xmem`, then `pip install --force-reinstall gst-xmem`",
            RuntimeWarning,
            stacklevel=3,
        )
