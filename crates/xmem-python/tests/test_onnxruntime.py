# SPDX-License-Identifier: MPL-2.0

"""ONNX Runtime on frames."""

import threading

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support import HANG, content, publish

import xmem
import xmem.ort


@pytest.fixture(scope="module")
def session():
    """The sum over an image, and its unchanged pixels."""
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["h", "w", 3])
    total = helper.make_tensor_value_info("total", TensorProto.FLOAT, [])
    same = helper.make_tensor_value_info("same", TensorProto.UINT8, ["h", "w", 3])
    nodes = [
        helper.make_node("Cast", ["image"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["float"], ["total"], keepdims=0),
        helper.make_node("Identity", ["image"], ["same"]),
    ]
    graph = helper.make_graph(nodes, "sum", [image], [total, same])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_frames_are_inputs_in_place(pool, session):
    runner = xmem.ort.Runner(session)
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        publish(producer, 1)
        frame = consumer.recv(HANG)
        total, same = runner.run({"image": frame})
        assert total == content(1).sum()
        assert np.array_equal(same, content(1))
        assert runner.copied == 0
        # The output is not the frame, which is free again.
        del frame
        assert consumer.stats["held"] == 0
        assert np.array_equal(same, content(1))


def test_rows_with_padding_are_copied_once(pool, session):
    runner = xmem.ort.Runner(session, ["total"])
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:
        with producer.acquire(format="RGB", width=5, height=4) as frame:
            np.asarray(frame)[...] = content(2, (4, 5, 3))
            frame.publish()
        (total,) = runner.run({"image": consumer.recv(HANG)})
        assert total == content(2, (4, 5, 3)).sum()
        assert runner.copied == 1


def test_the_frame_is_held_until_the_run_is_done(pool, session):
    """Another thread releases all objects that it can, and the producer uses all free slots."""
    runner = xmem.ort.Runner(session, ["total"])
    with xmem.Producer(pool, max_slots=16) as producer, xmem.Consumer(pool) as consumer:
        stop = threading.Event()

        def feed():
            seed = 0
            while not stop.is_set():
                publish(producer, seed, (480, 640, 3))
                seed += 1

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            for _ in range(20):
                frame = consumer.recv(HANG)
                feeds, seed = {"image": frame}, frame.pts
                del frame
                (total,) = runner.run(feeds)
                expected = content(seed, (480, 640, 3)).sum(dtype=np.float64)
                assert total == pytest.approx(expected, rel=1e-5)
        finally:
            stop.set()
            thread.join()


def test_arrays_of_the_other_byte_order():
    node = helper.make_node("Identity", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in "xy")
    graph = helper.make_graph([node], "same", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    runner = xmem.ort.Runner(onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]))
    for array in (np.arange(3, dtype=">f4"), np.arange(6, dtype=">f4")[::2], np.arange(3, dtype="<f4")):
        (back,) = runner.run({"x": array})
        assert back.tolist() == array.tolist()
    assert runner.copied == 2


def test_wrong_inputs(session):
    runner = xmem.ort.Runner(session)
    with pytest.raises(ValueError, match="no input 'picture': its inputs are image"):
        runner.run({"picture": np.zeros((1, 1, 3), np.uint8)})


def test_a_buffer_is_bound_by_address_as_in_section_9_of_the_design(pool, session):
    """In host memory: only the device differs."""
    writer = xmem.BufferPool(pool)
    buf = writer.acquire_cpu(4 * 5 * 3)
    buf.set_meta(shape=(4, 5, 3))
    np.asarray(buf)[:] = content(3, (4, 5, 3))
    with writer.get(buf.forget()) as buf:
        io_binding = session.io_binding()
        io_binding.bind_input(
            name="image", device_type="cpu", device_id=0, element_type=np.uint8, shape=buf.shape, buffer_ptr=buf.cpu_ptr
        )
        io_binding.bind_output("total")
        session.run_with_iobinding(io_binding)
    assert io_binding.copy_outputs_to_cpu()[0] == content(3, (4, 5, 3)).sum()
