// SPDX-License-Identifier: MPL-2.0

//! `libgstxmem.so`. It exports the functions by which GStreamer loads the plugin, which `gst-plugin-xmem` defines.

use elements as _;
