# SPDX-License-Identifier: MPL-2.0

"""A live detector with ONNX Runtime: frames are the model's input where they lie.

    gst-launch-1.0 videotestsrc pattern=ball is-live=true ! video/x-raw,format=RGB,width=640,height=480 ! xmemsink pool=cam0
    python detect.py cam0 --frames 100

The model is made here: it finds bright things, in boxes as YOLO has them. Replace it by your own with --model; it takes
an image of uint8 (height, width, 3) and gives boxes (n, 4) of x0, y0, x1, y1 and scores (n).
"""

import argparse

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import xmem
import xmem.ort

CELL = 32


def bright_things() -> bytes:
    """A model that scores cells of 32x32 pixels by how bright they are, with their boxes."""
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["height", "width", 3])
    boxes = helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["n", 4])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n"])

    def constant(name: str, value: object, dtype: type) -> onnx.TensorProto:
        return numpy_helper.from_array(np.asarray(value, dtype), name)

    nodes = [
        # (height, width, 3) of bytes to (1, 3, height, width) of numbers from 0 to 1.
        helper.make_node("Transpose", ["image"], ["planes"], perm=[2, 0, 1]),
        helper.make_node("Cast", ["planes"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["numbers", "full"], ["scaled"]),
        helper.make_node("Unsqueeze", ["scaled", "first"], ["batch"]),
        # How bright each cell is.
        helper.make_node("ReduceMean", ["batch"], ["gray"], axes=[1], keepdims=1),
        helper.make_node("AveragePool", ["gray"], ["cells"], kernel_shape=[CELL, CELL], strides=[CELL, CELL]),
        helper.make_node("Greater", ["cells", "threshold"], ["is_bright"]),
        helper.make_node("NonZero", ["is_bright"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"], perm=[1, 0]),
        helper.make_node("GatherND", ["cells", "rows"], ["scores"]),
        # (1, 1, y, x) of a cell to x0, y0, x1, y1 in pixels.
        helper.make_node("Gather", ["rows", "x_and_y"], ["corner"], axis=1),
        helper.make_node("Cast", ["corner"], ["corner_float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["corner_float", "cell"], ["low"]),
        helper.make_node("Add", ["low", "cell"], ["high"]),
        helper.make_node("Concat", ["low", "high"], ["boxes"], axis=1),
    ]
    constants = [
        constant("full", 255, np.float32),
        constant("first", [0], np.int64),
        constant("threshold", 0.2, np.float32),
        constant("x_and_y", [3, 2], np.int64),
        constant("cell", CELL, np.float32),
    ]
    graph = helper.make_graph(nodes, "bright", [image], [boxes, scores], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pool")
    parser.add_argument("--model", help="an ONNX file")
    parser.add_argument("--frames", type=int, help="stop after so many")
    options = parser.parse_args()

    model = options.model or bright_things()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    runner = xmem.ort.Runner(session, ["boxes", "scores"])
    with xmem.Consumer(options.pool, max_held=2, newest_only=True) as consumer:
        for count, frame in enumerate(consumer, 1):
            boxes, scores = runner.run({"image": frame})
            best = "nothing"
            if len(scores):
                x0, y0, x1, y1 = boxes[scores.argmax()]
                best = f"{len(scores)} things, the best at {x0:.0f},{y0:.0f} to {x1:.0f},{y1:.0f} ({scores.max():.2f})"
            print(f"frame {frame.sequence}: {best}")
            if count == options.frames:
                break
        stats = consumer.stats
        print(f"{stats['received']} frames, {stats['missed']} missed, {runner.copied} copied")


if __name__ == "__main__":
    main()
