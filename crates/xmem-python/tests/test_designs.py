# SPDX-License-Identifier: MPL-2.0

"""The Python examples of the documents that xmem began with, as they stand there. Each test names its document and section, and
the words that differ."""

import numpy as np
import pytest
from channel_support import HANG, Place, Process
from cuda_support import machine  # noqa: F401

import xmem


def with_words(block, words):
    """A block with other words in the place of some, each of which it has once."""
    for word, other in words.items():
        assert block.count(word) == 1, word
        block = block.replace(word, other)
    return block


# "xmem 技术设计", section 8, "Python 使用".
USE = """
from xmem import BufferPool

pool = BufferPool("my_pool")

# 预分配
pool.preallocate_cuda(size=1920*1080*3, count=8, device_id=0)

# 生产者
buf = pool.acquire_cuda(1920*1080*3, device_id=0)
decode_to(buf.cuda_ptr_mut)
pool.set_ref_count(buf.meta_index, 2)
meta_index = buf.meta_index
buf.forget()

# 消费者
buf = pool.get(meta_index)
process(buf.cuda_ptr)

# CPU/CUDA 互操作
cpu_buf = pool.acquire_cpu(size)
cuda_buf = cpu_buf.copy_to_cuda(device_id=0)
"""


def processes_of_one_directory(machine, count):
    folder = machine.folder / "run"
    folder.mkdir(mode=0o700)
    started = [machine.start() for _ in range(count)]
    for process in started:
        process.do(f"os.environ['XMEM_RUNTIME_DIR'] = {str(folder)!r}; size = 1000; wrong = g.word()")
    return started


def test_use_in_python(machine):
    """"xmem 技术设计", section 8, "Python 使用": no word differs. `decode_to` works on, on the default stream."""
    producer, consumer = processes_of_one_directory(machine, 2)
    produce, consume = USE.split("# 消费者")
    opened = produce.split("# 预分配")[0]
    producer.do("decode_to = lambda ptr: g.fill(None, ptr, 1920 * 1080 * 3, 7)")
    consumer.do("process = lambda ptr: g.check(s, ptr, 1920 * 1080 * 3, 7, wrong)")
    producer.do(produce)
    index = producer.ask("meta_index")
    consumer.do(opened + f"meta_index = {index}\n" + consume)
    consumer.do("g.finish(s); buf.release()")
    assert consumer.ask("g.read_word(wrong), cuda_buf.device, cuda_buf.size") == [0, 0, 1000]
    # The second read of the count is the writer's own.
    producer.do("buf = pool.get(meta_index); buf.release(); pool.wait_until_read(HANG)")


def test_pytorch(pool):
    """"xmem 技术设计", section 9, "PyTorch", here on the CPU. `torch.from_blob` is `xmem.torch.from_blob`, which takes the
    buffer in the place of its address: the tensor holds it."""
    pytest.importorskip("torch", reason="no PyTorch")
    import torch

    import xmem.torch

    block = """
buf = pool.get(meta_index)
tensor = torch.from_blob(
    buf.cuda_ptr,
    shape=(1080, 1920, 3),
    dtype=torch.uint8,
    device='cuda:0'
)
"""
    block = with_words(block, {"torch.from_blob": "xmem.torch.from_blob", "buf.cuda_ptr": "buf", "cuda:0": "cpu"})
    pool = xmem.BufferPool(pool)
    with pool.acquire_cpu(1080 * 1920 * 3) as buf:
        np.asarray(buf)[:] = 7
        meta_index = buf.forget()
    names = {"pool": pool, "meta_index": meta_index, "torch": torch, "xmem": xmem}
    exec(block, names)
    tensor = names.pop("tensor")
    names.pop("buf").release()
    assert (tuple(tensor.shape), tensor.dtype) == ((1080, 1920, 3), torch.uint8)
    # The tensor holds the buffer.
    with pytest.raises(xmem.Error, match="holds it"):
        pool.get_mut(meta_index)
    assert (tensor == 7).all()
    del tensor
    pool.wait_until_read(HANG)


def test_from_blob_checks_its_arguments(pool):
    torch = pytest.importorskip("torch", reason="no PyTorch")
    from xmem.torch import from_blob

    pool = xmem.BufferPool(pool)
    buf = pool.acquire_cpu(24)
    assert from_blob(buf, (2, 3), torch.float32).shape == (2, 3)
    assert from_blob(buf, (4,)).shape == (4,)
    with pytest.raises(ValueError, match="28 bytes.*has 24"):
        from_blob(buf, (7,), torch.float32)
    with pytest.raises(ValueError, match="lies on cpu"):
        from_blob(buf, (6,), torch.float32, device="cuda:0")
    buf.discard()


def test_onnx_runtime(pool):
    """"xmem 技术设计", section 9, "ONNX Runtime": here on the CPU, hence 'cpu' and `cpu_ptr`."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    block = """
io_binding = session.io_binding()
io_binding.bind_input(
    name='input',
    device_type='cuda',
    device_id=0,
    element_type=np.float32,
    shape=(1, 3, 224, 224),
    buffer_ptr=buf.cuda_ptr
)
"""
    block = with_words(block, {"'cuda'": "'cpu'", "buf.cuda_ptr": "buf.cpu_ptr"})
    shape = (1, 3, 224, 224)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("input", "output")]
    graph = helper.make_graph([helper.make_node("Neg", ["input"], ["output"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    pool = xmem.BufferPool(pool)
    with pool.acquire_cpu(4 * 3 * 224 * 224) as buf:
        buf.set_meta(shape=shape, dtype="float32")
        np.asarray(buf)[:] = 3
        meta_index = buf.forget()
    buf = pool.get(meta_index)
    names = {"session": session, "np": np, "buf": buf}
    exec(block, names)
    names["io_binding"].bind_output("output")
    session.run_with_iobinding(names["io_binding"])
    (output,) = names["io_binding"].copy_outputs_to_cpu()
    assert (output == -3).all()
    buf.release()


class Mesh:
    """What has a trimesh's nature for a transport: an object that pickles."""

    def __init__(self, vertices):
        self.vertices = vertices


def worker(path):
    """Makes an object that stays here, compares a reference with it, and sends all else back."""
    import torch  # noqa: F401

    kept = {}
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        for job in channel:
            if isinstance(job, str):
                kept["complex"] = object()
                channel.send(xmem.ref(kept["complex"]))
            elif isinstance(job, tuple) and job[0] == "same":
                channel.send(job[1] is kept["complex"])
            else:
                channel.send(job)
            del job


@pytest.fixture(scope="module")
def channel(tmp_path_factory):
    pytest.importorskip("torch", reason="no PyTorch")
    place = Place(tmp_path_factory.mktemp("worker"))
    with Process(worker, place.path()), xmem.Channel(place.path()) as channel:
        channel.wait_for_receiver(HANG)
        yield channel
    place.assert_clean()


def test_worker_serialization_strategies(channel):
    """"Worker Serialization", "Serialization Strategies", rows 2 to 7. Row 1, tensors on a device, is that of
    test_cuda_channel.py."""
    import torch

    sent = {
        "CPU tensor": torch.arange(10_000),
        "NumPy array": np.arange(10_000.0),
        "Trimesh mesh": Mesh(np.ones((2000, 3))),
        "SparseTensor": torch.eye(200).to_sparse(),
        "Any pickleable": {1, frozenset([2])},
        "Primitives": [1, 2.5, "text", None, True],
    }
    channel.send(sent, timeout=HANG)
    got = channel.recv(timeout=HANG)
    assert torch.equal(got["CPU tensor"], sent["CPU tensor"])
    assert type(got["NumPy array"]) is np.ndarray and np.array_equal(got["NumPy array"], sent["NumPy array"])
    assert np.array_equal(got["Trimesh mesh"].vertices, sent["Trimesh mesh"].vertices)
    assert torch.equal(got["SparseTensor"].to_dense(), torch.eye(200))
    assert [got[name] for name in ("Any pickleable", "Primitives")] == [sent["Any pickleable"], sent["Primitives"]]
    # "Zero-copy": they lie in shared memory.
    assert not got["NumPy array"].flags.writeable


def test_worker_serialization_object_references(channel):
    """"Worker Serialization", "Object References": the object stays in the worker, and the reference leads back to it."""
    channel.send("make", timeout=HANG)
    reference = channel.recv(timeout=HANG)
    assert (reference.type_name, reference.is_here) == ("builtins.object", False)
    channel.send(("same", reference), timeout=HANG)
    assert channel.recv(timeout=HANG) is True


def test_worker_serialization_recursive_traversal(channel):
    """"Worker Serialization", "Recursive Traversal": nested, and in a circle."""
    array = np.arange(5000)
    sent = {"list": [array, (array, {"again": array})]}
    sent["itself"] = sent
    channel.send(sent, timeout=HANG)
    got = channel.recv(timeout=HANG)
    assert got["itself"] is got
    first, (second, third) = got["list"]
    # One object is sent once.
    assert first is second is third["again"] and np.array_equal(first, array)


def test_worker_serialization_tensor_lifecycle(channel):
    """"Worker Serialization", "Tensor Lifecycle (GC Prevention)" and "Shared Memory Cleanup": no keeper, no seconds. The sender's
    array may go at once, and the memory is free when the receiver's goes."""
    for number in range(50):
        channel.send(np.full(100_000, number), timeout=HANG)
        assert (channel.recv(timeout=HANG) == number).all()
    assert channel.stats()["slots"] < 20, "slots are used again"
