# SPDX-License-Identifier: MPL-2.0

"""The unchanged Python examples of the design documents. Each test names the document, the section and the differences."""

import os

import numpy as np
import pytest
from channel_support import HANG, Place, Process
from cuda_support import machine  # noqa: F401
from test_buffer_pool import Child
from test_cuda_channel import close, ends

import xmem
from xmem._xmem import _is_shared


def with_words(block, words):
    """Replaces words in a block of code. Each must occur exactly once."""
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
    """"xmem 技术设计", section 8, "Python 使用": no differences. `decode_to` continues on the default stream."""
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


def write(pipe, name, size, byte, meta):
    """The producer of a buffer for one reader, in another process."""
    pool = xmem.BufferPool(name)
    buf = pool.acquire_cpu(size)
    buf.set_meta(**meta)
    np.asarray(buf)[:] = byte
    pipe.send(buf.forget())
    pool.wait_until_read(HANG)
    pipe.send("read")


PYTORCH = """
buf = pool.get(meta_index)
tensor = torch.from_blob(
    buf.cuda_ptr,
    shape=(1080, 1920, 3),
    dtype=torch.uint8,
    device='cuda:0'
)
"""


def test_pytorch(pool):
    """"xmem 技术设计", section 9, "PyTorch", here on the CPU. `torch.from_blob` is `xmem.torch.from_blob`, which takes the
    buffer instead of its address, so that the tensor holds it."""
    pytest.importorskip("torch", reason="no PyTorch")
    import torch

    import xmem.torch

    block = with_words(PYTORCH, {"torch.from_blob": "xmem.torch.from_blob", "buf.cuda_ptr": "buf", "cuda:0": "cpu"})
    with Child(write, pool, 1080 * 1920 * 3, 7, {}) as producer:
        names = {"pool": xmem.BufferPool(pool), "meta_index": producer.reply(), "torch": torch, "xmem": xmem}
        exec(block, names)
        tensor = names.pop("tensor")
        names.pop("buf").release()
        assert (tuple(tensor.shape), tensor.dtype) == ((1080, 1920, 3), torch.uint8)
        # The tensor holds the buffer.
        assert not producer.pipe.poll(0)
        assert (tensor == 7).all()
        del tensor
        assert producer.reply() == "read"


def test_from_blob_checks_its_arguments(pool):
    torch = pytest.importorskip("torch", reason="no PyTorch")
    from xmem.torch import from_blob

    pool = xmem.BufferPool(pool)
    buf = pool.acquire_cpu(24)
    assert from_blob(buf, (2, 3), torch.float32).shape == (2, 3)
    assert from_blob(buf, (4,)).shape == (4,)
    with pytest.raises(ValueError, match="28 bytes.*has 24"):
        from_blob(buf, (7,), torch.float32)
    with pytest.raises(ValueError, match="is on cpu"):
        from_blob(buf, (6,), torch.float32, device="cuda:0")
    buf.discard()


ONNX_RUNTIME = """
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


def test_onnx_runtime(pool):
    """"xmem 技术设计", section 9, "ONNX Runtime": here on the CPU, hence 'cpu' and `cpu_ptr`."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    block = with_words(ONNX_RUNTIME, {"'cuda'": "'cpu'", "buf.cuda_ptr": "buf.cpu_ptr"})
    shape = (1, 3, 224, 224)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("input", "output")]
    graph = helper.make_graph([helper.make_node("Neg", ["input"], ["output"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with Child(write, pool, 4 * 3 * 224 * 224, 3, {"shape": shape, "dtype": "float32"}) as producer:
        buf = xmem.BufferPool(pool).get(producer.reply())
        names = {"session": session, "np": np, "buf": buf}
        exec(block, names)
        names["io_binding"].bind_output("output")
        session.run_with_iobinding(names["io_binding"])
        (output,) = names["io_binding"].copy_outputs_to_cpu()
        assert (output == -3).all()
        buf.release()
        assert producer.reply() == "read"


# Both libraries get the address of a buffer. Neither has CUDA here, so stand-ins take the address and let the device read it.
LIBRARIES = """
    from types import SimpleNamespace

    def from_blob(ptr, shape, dtype, device):
        g.check(s, ptr, int(np.prod(shape)), 7, wrong)
        return shape, dtype, device

    def bind_input(name, device_type, device_id, element_type, shape, buffer_ptr):
        g.check(s, buffer_ptr, int(np.prod(shape)) * np.dtype(element_type).itemsize, 7, wrong)
        bound.append((name, device_type, device_id, shape))

    bound = []
    torch = SimpleNamespace(from_blob=from_blob, uint8="uint8")
    session = SimpleNamespace(io_binding=lambda: SimpleNamespace(bind_input=bind_input))
"""


def test_addresses_for_pytorch_and_onnx_runtime(machine):
    """"xmem 技术设计", section 9, both blocks on a device. No differences; the libraries are also stand-ins."""
    producer, consumer = processes_of_one_directory(machine, 2)
    consumer.do(LIBRARIES)
    consumer.do("pool = xmem.BufferPool('my_pool')")
    producer.do("""
        pool = xmem.BufferPool("my_pool")
        buf = pool.acquire_cuda(1080 * 1920 * 3)
        g.fill(None, buf.cuda_ptr_mut, 1080 * 1920 * 3, 7)
        meta_index = buf.forget()
    """)
    consumer.do(f"meta_index = {producer.ask('meta_index')}\n" + PYTORCH + ONNX_RUNTIME + "g.finish(s); buf.release()")
    assert consumer.ask("g.read_word(wrong), tensor, bound") == [
        0,
        [[1080, 1920, 3], "uint8", "cuda:0"],
        [["input", "cuda", 0, [1, 3, 224, 224]]],
    ]
    producer.do("pool.wait_until_read(HANG)")


def test_bindings(machine):
    """"xmem 技术设计", section 8, the binding's classes: their methods, with the names of their arguments. The error message of a
    guard after `forget` differs."""
    producer, consumer = processes_of_one_directory(machine, 2)
    producer.do("""
        pool = xmem.BufferPool(name="my_pool")
        on_host = pool.preallocate_cpu(size=1000, count=2)
        on_device = pool.preallocate_cuda(size=1000, count=2, device_id=0)
        cpu = pool.acquire_cpu(size=1000)
        np.asarray(cpu)[:] = 7
        cuda = pool.acquire_cuda(size=1000, device_id=0)
        g.fill(None, cuda.cuda_ptr_mut, 1000, 8)
        indices = [cpu.meta_index, cuda.meta_index]
        pool.set_ref_count(meta_index=cuda.meta_index, count=2)
        assert cpu.cpu_ptr and cuda.cuda_ptr == cuda.cuda_ptr_mut
        cpu.forget()
        cuda.forget()
    """)
    assert producer.ask("len(on_host), len(on_device)") == [2, 2]
    for use in ("cpu.meta_index", "cpu.cpu_ptr", "cuda.cuda_ptr", "cuda.cuda_ptr_mut", "cpu.copy_to_cuda(device_id=0)"):
        producer.fails(use, "Closed")
    cpu, cuda = producer.ask("indices")
    consumer.do(f"""
        pool = xmem.BufferPool("my_pool")
        cpu, cuda = pool.get(meta_index={cpu}), pool.get(meta_index={cuda})
        assert cpu.cpu_ptr
        g.check(s, cuda.cuda_ptr, 1000, 8, wrong)
        up, down = cpu.copy_to_cuda(device_id=0), cuda.copy_to_cpu()
        g.check(s, up.cuda_ptr, 1000, 7, wrong)
        assert (np.asarray(down) == 8).all()
        edit = pool.get_mut(meta_index={cuda})
        g.check(s, edit.cuda_ptr_mut, 1000, 8, wrong)
        g.finish(s)
        assert edit.meta_index != cuda.meta_index
        cpu.release(), cuda.release(), edit.release()
    """)
    assert consumer.ask("g.read_word(wrong)") == 0
    consumer.fails("cuda.cuda_ptr_mut", "Closed")
    producer.do("pool.wait_until_read(HANG)")


def test_metadata(pool):
    """"xmem 技术设计", section 3: the fields, as another process reads them. `id` is `meta_index` and `seq` is `sequence`,
    `storage_type` and `device_id` are `device`, `ndim` and `strides` are those of the array. Readers have no `ref_count`, and there
    is no `reserved`."""
    meta = {"shape": (2, 3, 4), "dtype": "float32", "content_type": "tensor/float32", "producer": "decoder", "timestamp": 12}
    with Child(write, pool, 96, 3, meta) as producer:
        index = producer.reply()
        with xmem.BufferPool(pool).get(index) as buf:
            assert (buf.meta_index, buf.device, buf.size, buf.sequence) == (index, None, 96, 0)
            assert {name: getattr(buf, name) for name in meta} == meta
            array = np.asarray(buf)
            assert (array.ndim, array.strides, array.sum()) == (3, (48, 16, 4), 72)
            del array
        assert producer.reply() == "read"


# "CUDA IPC Refcounting implementation explained", both of its examples. `clone` is `copy`, because the array is not PyTorch's.
PRODUCER = """
queue.put(tensor)
event.wait()
"""
CONSUMER = """
tensor = queue.get()
safe_to_use_tensor = tensor.copy()
event.set()
"""

# A queue and an event between two processes that are not parent and child. They use the pickles of `multiprocessing`.
QUEUE = """
    from multiprocessing.connection import Client, Listener
    from types import SimpleNamespace

    import xmem.multiprocessing
    xmem.multiprocessing.install()

    def over(there):
        return (
            SimpleNamespace(put=there.send, get=there.recv),
            SimpleNamespace(wait=there.recv, set=lambda: there.send("set")),
        )
"""


def test_refcounting_on_a_device(machine):
    """"CUDA IPC Refcounting implementation explained", on a device: with an event; and without, where the
    producer's tensor is deleted at once and its memory stays until the consumer's tensor is deleted."""
    producer, consumer = processes_of_one_directory(machine, 2)
    address = str(machine.folder / "queue")
    for process in producer, consumer:
        process.do(QUEUE)
    producer.do(f"""
        source = xmem.Producer(pool, max_slots=8)
        local = xmem.Consumer(pool, timeout=HANG)
        def make(byte):
            with source.acquire((100_000,), device="cuda:0") as frame:
                array = Array(frame, s)
                g.fill(s, array.ptr, 100_000, byte)
                g.finish(s)
                del array
                frame.publish()
            return local.recv(HANG)
        listener = Listener({address!r})
    """)
    producer.begin("queue, event = over(listener.accept())")
    consumer.do(f"queue, event = over(Client({address!r}))")
    producer.end()
    check = "array = Array({}, s); g.check(s, array.ptr, 100_000, {}, wrong); g.finish(s); del array"

    producer.do("tensor = make(7)")
    producer.begin(PRODUCER)
    consumer.do(CONSUMER)
    producer.end()
    producer.do("del tensor")
    consumer.do("del tensor\n" + check.format("safe_to_use_tensor", 7))
    assert consumer.ask("g.read_word(wrong)") == 0

    # It leaves the producer's scope, and all other slots are reused repeatedly.
    producer.do("tensor = make(9)")
    producer.begin("queue.put(tensor); del tensor")
    consumer.do("tensor = queue.get()")
    producer.end()
    producer.do("for byte in range(40): make(byte)")
    consumer.do(check.format("tensor", 9))
    assert consumer.ask("g.read_word(wrong)") == 0
    consumer.do("del tensor, safe_to_use_tensor")
    producer.eventually("local.stats['held'] == 0")


# "String UDF memory management", section 5.2.
FREE = """
def free_managed_udf_string_array(ary, size):
    gid = cuda.grid(1)
    if gid < size:
        NRT_decref(ary[gid])
"""


def hold(pipe, name, indices):
    """Has references without guards, and frees one for each thread number that it gets."""
    from types import SimpleNamespace

    pool = xmem.BufferPool(name)
    for index in indices:
        pool.get(index).forget()
    thread = None
    names = {"cuda": SimpleNamespace(grid=lambda _: thread), "NRT_decref": pool.release}
    exec(FREE, names)
    pipe.send("held")
    for thread in iter(pipe.recv, ("end",)):
        names["free_managed_udf_string_array"](indices, len(indices))
        pipe.send("freed")


def test_string_udf_destruction(pool):
    """"String UDF memory management", section 5.2: the memory of a string is freed when the last reference ends in
    another process. `NRT_decref` is `release`. The rest of the section is specific to cuDF."""
    owner = xmem.BufferPool(pool, max_buffers=3)

    def string():
        buf = owner.acquire_cpu(100)
        np.asarray(buf)[:] = 7
        return buf.forget()

    indices = [string() for _ in range(3)]
    with Child(hold, pool, indices) as holder:
        assert holder.reply() == "held"
        with pytest.raises(xmem.PoolFull):
            string()
        # One thread more than there are strings.
        for thread in 3, 0, 1, 2:
            holder.pipe.send(thread)
            assert holder.reply() == "freed"
        owner.wait_until_read(HANG)
        assert len({string() for _ in range(3)}) == 3


class Mesh:
    """An object that behaves as a trimesh for a transport: it can be pickled."""

    def __init__(self, vertices):
        self.vertices = vertices


def worker(path):
    """Creates an object that stays here, compares a reference with it, and sends everything else back."""
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
    """"Worker Serialization", "Serialization Strategies", rows 2 to 7. Row 1, tensors on a device, is in
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
    # "Zero-copy": they are in shared memory.
    assert not got["NumPy array"].flags.writeable


# "CUDA IPC (GPU tensors, Linux)".
CUDA_METADATA = {
    "__type__": "CudaIPC",
    "tensor_size": [1, 3, 512, 512],
    "tensor_stride": [786432, 262144, 512, 1],
    "dtype": "torch.float32",
    "device_idx": 0,
    "handle": "<base64 IPC handle>",
    "storage_size": 786432,
    "event_handle": "<base64>",  # synchronization
}


def test_worker_serialization_cuda_metadata(machine):
    """"Worker Serialization", "CUDA IPC (GPU tensors, Linux)": the fields of the metadata arrive. There are no handles as
    text: they are sent with the memory. The sender waits for the stream that writes the tensor, so there is no event."""
    made, joined = ends(machine)
    size = 4 * CUDA_METADATA["storage_size"]
    made.do(f"""
        class Tensor(Device):
            __cuda_array_interface__ = property(lambda self: {{
                "version": 3, "shape": {tuple(CUDA_METADATA["tensor_size"])}, "typestr": "<f4", "data": (self.ptr, False),
                "strides": None, "stream": self.stream,
            }})
        tensor = Tensor(0, {size}, s)
        channel.send(tensor)
    """)
    joined.do("tensor = channel.recv(timeout=HANG); array = Array(tensor, s)")
    assert joined.ask("array.shape, array.strides, str(tensor.dtype), tensor.device, tensor.nbytes") == [
        CUDA_METADATA["tensor_size"],
        CUDA_METADATA["tensor_stride"],
        CUDA_METADATA["dtype"].removeprefix("torch."),
        f"cuda:{CUDA_METADATA['device_idx']}",
        size,
    ]
    joined.do("del tensor, array")
    # The sender waits for the device.
    with machine.held(made):
        made.do(f"g.fill(s, tensor.ptr, {size}, 9)")
        made.begin("channel.send(tensor)")
    made.end()
    joined.do("tensor = channel.recv(timeout=HANG); check(tensor, 9); g.finish(s); del tensor")
    assert joined.ask("g.read_word(wrong)") == 0
    made.do("del tensor")
    close(made, joined)


# "PyTorch Shared Memory (CPU tensors)".
CPU_METADATA = {
    "__type__": "TensorRef",
    "strategy": "file_system",
    "manager_path": "/dev/shm/...",
    "storage_key": "...",
    "storage_size": 786432,
    "dtype": "torch.float32",
    "tensor_size": [1, 3, 512, 512],
    "tensor_stride": [786432, 262144, 512, 1],
    "tensor_offset": 0,
}


def describe(path):
    """The properties of a tensor in the receiving process."""
    import torch  # noqa: F401

    with xmem.Channel.connect(path, timeout=HANG) as channel:
        for tensor in channel:
            storage = tensor.untyped_storage()
            channel.send(
                {
                    "storage_size": storage.nbytes() // tensor.element_size(),
                    "dtype": str(tensor.dtype),
                    "tensor_size": list(tensor.size()),
                    "tensor_stride": list(tensor.stride()),
                    "tensor_offset": tensor.storage_offset(),
                    "is_shared": _is_shared(storage.data_ptr(), storage.nbytes()),
                    "sum": float(tensor.sum()),
                }
            )
            del tensor, storage


def test_worker_serialization_tensor_metadata(tmp_path):
    """"Worker Serialization", "PyTorch Shared Memory (CPU tensors)": the fields of the metadata arrive, and the tensor is in
    shared memory. The memory has no name, so there is no path, key or file."""
    torch = pytest.importorskip("torch", reason="no PyTorch")
    place = Place(tmp_path)
    files = set(os.listdir("/dev/shm"))
    with Process(describe, place.path()), xmem.Channel(place.path()) as channel:
        channel.wait_for_receiver(HANG)
        channel.send(torch.ones(CPU_METADATA["tensor_size"]), timeout=HANG)
        got = channel.recv(timeout=HANG)
        assert (got.pop("is_shared"), got.pop("sum")) == (True, 786432.0)
        assert len(got) == 5 and got.items() <= CPU_METADATA.items()
        assert not [name for name in set(os.listdir("/dev/shm")) - files if name.startswith(f"xmem-{os.getuid()}-ch")]
    place.assert_clean()


class Traced(Mesh):
    """A mesh with a part that cannot be pickled."""

    def __init__(self, vertices):
        super().__init__(vertices)
        self.ray = (vertex for vertex in vertices)

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "ray"}


# "Trimesh / Pickle Fallback".
PICKLE_METADATA = {
    "__shm_trimesh__": True,  # or "__shm_pickle__": True
    "name": "shm_block_name",
    "size": 12345,
}


def test_worker_serialization_pickles(channel):
    """"Worker Serialization", "Trimesh / Pickle Fallback": an object of this size arrives, without the part that cannot be
    pickled. The memory has no name."""
    sent = Traced(bytes(range(256)) * 49)
    sent.vertices = sent.vertices[: PICKLE_METADATA["size"]]
    channel.send(sent, timeout=HANG)
    got = channel.recv(timeout=HANG)
    assert type(got) is Traced and not hasattr(got, "ray")
    assert len(got.vertices) == PICKLE_METADATA["size"] and got.vertices == sent.vertices


def test_worker_serialization_object_references(channel):
    """"Worker Serialization", "Object References": the object stays in the worker, and the reference resolves to it."""
    channel.send("make", timeout=HANG)
    reference = channel.recv(timeout=HANG)
    assert (reference.type_name, reference.is_here) == ("builtins.object", False)
    channel.send(("same", reference), timeout=HANG)
    assert channel.recv(timeout=HANG) is True


def test_worker_serialization_recursive_traversal(channel):
    """"Worker Serialization", "Recursive Traversal": nested and cyclic objects."""
    array = np.arange(5000)
    sent = {"list": [array, (array, {"again": array})]}
    sent["itself"] = sent
    channel.send(sent, timeout=HANG)
    got = channel.recv(timeout=HANG)
    assert got["itself"] is got
    first, (second, third) = got["list"]
    # An object is sent once.
    assert first is second is third["again"] and np.array_equal(first, array)


def test_worker_serialization_tensor_lifecycle(channel):
    """"Worker Serialization", "Tensor Lifecycle (GC Prevention)" and "Shared Memory Cleanup": no keeper thread
    and no delay. The sender's array may be deleted at once, and the memory is freed when the receiver's array is deleted."""
    for number in range(50):
        channel.send(np.full(100_000, number), timeout=HANG)
        assert (channel.recv(timeout=HANG) == number).all()
    assert channel.stats()["slots"] < 20, "slots are used again"
