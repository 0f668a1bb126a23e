# SPDX-License-Identifier: MPL-2.0

"""Another package has the same name as this module."""

import warnings
from pathlib import Path


def check() -> None:
    """Warns if the package `xmem` of PyPI is in the same folder: its files and these would replace each other."""
    folder = Path(__file__).parents[1]
    if any(folder.glob("xmem-*.dist-info")):
        warnings.warn(
            f"{folder} also has the package xmem of PyPI, which is another project with the same files: "
            "run `pip uninstall xmem`, then `pip install --force-reinstall gst-xmem`",
            RuntimeWarning,
            stacklevel=3,
        )
