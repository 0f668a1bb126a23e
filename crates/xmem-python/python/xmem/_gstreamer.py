# SPDX-License-Identifier: MPL-2.0

"""The plugin that the wheel brings along, for GStreamer in this process."""

from __future__ import annotations

from ._errors import Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def setup_gstreamer() -> None:
    """Makes xmemsink and xmemsrc available to GStreamer in this process.

    Needs PyGObject (`gi`), and initialises GStreamer. Does nothing if GStreamer finds the elements already, for example from
    a package of the system. For other programs, such as gst-launch-1.0, run `xmem plugin install`.
    """
    import gi

    gi.require_version("Gst", "1.0")
    from gi.repository import Gst

    Gst.init(None)
    if Gst.ElementFactory.find("xmemsink") is None:
        plugin = _plugin()
        Gst.Registry.get().scan_path(str(plugin.parent))
        if Gst.ElementFactory.find("xmemsink") is None:
            raise Error(f"GStreamer {Gst.version_string()} cannot load {plugin}: it needs GStreamer 1.22 or newer")


def installed(name: str) -> Path | None:
    """A file that the wheel has brought along."""
    # These take longer to load than the rest of this package.
    from importlib import metadata
    from pathlib import Path

    try:
        files = metadata.files("gst-xmem") or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(file.locate()).resolve() for file in files if file.name == name), None)


def _plugin() -> Path:
    if plugin := installed("libgstxmem.so"):
        return plugin
    raise Error(
        "this installation of gst-xmem has no plugin, because it was built from the sources: "
        "install the wheel, or the package gstreamer1.0-xmem"
    )
