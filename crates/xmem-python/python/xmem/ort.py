# SPDX-License-Identifier: MPL-2.0

"""ONNX Runtime on frames, without a copy.

A binding of ONNX Runtime contains an address, and does not hold the memory. `Runner` holds the frames until the run is complete
and the outputs are copied.

>>> runner = xmem.ort.Runner(onnxruntime.InferenceSession("model.onnx"))  # doctest: +SKIP
>>> for frame in xmem.Consumer("cam0"):  # doctest: +SKIP
...     boxes, scores = runner.run({"image": frame})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime  # noqa: F401  # a clear error at once if it is missing

__all__ = ["Runner"]


class Runner:
    """Runs a session with frames, planes or arrays as its inputs.

    Contiguous arrays are read without a copy. Other arrays, and arrays of the other byte order, are copied once, because
    ONNX Runtime has neither strides nor byte orders. `copied` counts these copies.
    """

    def __init__(self, session: onnxruntime.InferenceSession, outputs: Sequence[str] | None = None) -> None:
        self._session = session
        self._outputs = list(outputs) if outputs is not None else [it.name for it in session.get_outputs()]
        self._inputs = {it.name for it in session.get_inputs()}
        self.copied = 0

    def run(self, feeds: Mapping[str, Any], run_options: onnxruntime.RunOptions | None = None) -> list[np.ndarray]:
        """Runs the session. Returns the outputs in private memory."""
        unknown = sorted(feeds.keys() - self._inputs)
        if unknown:
            raise ValueError(f"the model has no input {unknown[0]!r}: its inputs are {', '.join(sorted(self._inputs))}")
        binding = self._session.io_binding()
        # Keeps the frames until the end of this function, even if other code releases them.
        held = []
        for name, feed in feeds.items():
            array = np.asarray(feed)
            if not (array.flags.c_contiguous and array.dtype.isnative):
                array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
                self.copied += 1
            held.append((feed, array))
            binding.bind_input(
                name=name,
                device_type="cpu",
                device_id=0,
                element_type=array.dtype.type,
                shape=array.shape,
                buffer_ptr=array.ctypes.data,
            )
        for name in self._outputs:
            binding.bind_output(name)
        try:
            self._session.run_with_iobinding(binding, run_options)
            binding.synchronize_outputs()
            return binding.copy_outputs_to_cpu()
        finally:
            binding.clear_binding_inputs()
            held.clear()
