# SPDX-License-Identifier: MPL-2.0

"""torch tensors in a channel: sharing, layout, and the data that is sent."""

import collections
import os
import signal
import warnings

import numpy as np
import pytest
from channel_support import HANG, Place, Process, wait_until

import xmem

torch = pytest.importorskip("torch", reason="no PyTorch")


def torch_echo(path):
    import torch  # noqa: F401  (as the other process of a real program has it)

    with xmem.Channel.connect(path, timeout=HANG) as channel:
        for obj in channel:
            channel.send(obj)
            del obj


@pytest.fixture(scope="module")
def trip(tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("torch"))
    with Process(torch_echo, place.path()), xmem.Channel(place.path()) as channel:

        def there_and_back(obj, **options):
            channel.send(obj, timeout=HANG)
            return channel.recv(timeout=HANG, **options)

        there_and_back.channel = channel
        yield there_and_back
    place.assert_clean()


BIG = torch.arange(120_000, dtype=torch.float32)


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(BIG, 0.1, 3, torch.qint32)


TENSORS = {
    "plain": BIG,
    "small": torch.arange(5),
    "one": torch.tensor(3.5),
    "none": torch.empty(0, 3),
    "transposed": BIG.reshape(300, 400).T,
    "permuted": BIG.reshape(10, 300, 40).permute(2, 0, 1),
    "every third": BIG[::3],
    "from the middle": BIG[50_000:],
    "small from the middle": torch.arange(100)[50:90:2],
    "expanded": torch.arange(3000.0).expand(100, 3000),
    "channels last": BIG.reshape(2, 3, 100, 200).to(memory_format=torch.channels_last),
    "bfloat16": BIG.to(torch.bfloat16),
    "half": BIG.to(torch.float16),
    "complex": BIG.to(torch.complex64) * 2j,
    "conjugate": (BIG.to(torch.complex64) * 2j).conj(),
    "bool": BIG > 100,
    "uint8": BIG.to(torch.uint8),
    "float8": BIG[:100_000].to(torch.float8_e4m3fn),
    "wants a gradient": BIG.clone().requires_grad_(),
    "not a leaf": BIG.clone().requires_grad_() * 2,
    "parameter": torch.nn.Parameter(torch.ones(2000)),
    "frozen parameter": torch.nn.Parameter(torch.ones(5), requires_grad=False),
    "quantized": quantized(),
    "meta": torch.empty(1000, device="meta"),
}


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("name", TENSORS)
def test_tensors(trip, name):
    t = TENSORS[name]
    back = trip([t])[0]
    assert type(back) is type(t)
    assert (back.dtype, back.shape, back.device) == (t.dtype, t.shape, t.device)
    assert back.requires_grad == t.requires_grad
    if name == "meta":
        return
    assert torch.equal(back.detach(), t.detach())
    assert not back.is_conj()
    if name not in ("conjugate", "not a leaf"):
        assert back.stride() == t.stride()


SPARSE = {
    "coo": lambda t: t.to_sparse(),
    "not coalesced": lambda t: torch.sparse_coo_tensor([[0, 0, 5], [1, 1, 2]], [1.0, 2.0, 3.0], (10, 10)),
    "hybrid": lambda t: t.reshape(100, 10, 40).to_sparse(2),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((10, 20)),
    "bsc": lambda t: t.to_sparse_bsc((10, 20)),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_tensors(trip, name):
    t = SPARSE[name]((torch.arange(40_000.0).reshape(100, 400) % 3 == 0).float())
    back = trip({"it": t})["it"]
    assert (back.layout, back.dtype, back.shape) == (t.layout, t.dtype, t.shape)
    if name in ("coo", "not coalesced", "hybrid"):
        assert back.is_coalesced() == t.is_coalesced()
    assert torch.equal(back.to_dense(), t.to_dense())


def test_storages_are_shared(trip):
    base = torch.arange(1_000_000, dtype=torch.float32)
    sent = {"base": base, "head": base[:1000], "grid": base.reshape(1000, 1000).T, "bytes": base.view(torch.uint8)[64:]}
    before = trip.channel.stats()["copied_bytes"]
    back = trip(sent)
    for name, t in sent.items():
        assert torch.equal(back[name], t)
        assert back[name].untyped_storage().data_ptr() == back["base"].untyped_storage().data_ptr()
    assert trip.channel.stats()["copied_bytes"] - before < base.nbytes * 1.01
    # The same for small tensors, which the receiver may write.
    small = torch.arange(10)
    one, two = trip([small, small[3:]])
    one[5] = 77
    assert two[2] == 77
    private = trip([base, base[10:]], copy=True)
    private[0][15] = -1
    assert private[1][5] == -1


def test_only_the_used_part_of_a_storage(trip):
    huge = torch.zeros(5_000_000)
    huge[2_000_000:2_010_000] = 7
    before = trip.channel.stats()["copied_bytes"]
    one, two = trip([huge[2_000_001:2_005_000], huge[2_004_000:2_010_000:2]])
    assert (one == 7).all() and (two == 7).all() and (len(one), len(two)) == (4999, 3000)
    assert trip.channel.stats()["copied_bytes"] - before < 100_000
    assert one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()


def test_arrays_and_tensors_together(trip):
    a = np.arange(100_000)
    t = torch.from_numpy(a)
    before = trip.channel.stats()["copied_bytes"]
    back = trip({"a": a, "t": t})
    assert np.shares_memory(back["a"], back["t"].numpy()) and torch.equal(back["t"], t)
    assert trip.channel.stats()["copied_bytes"] - before < a.nbytes * 1.01


def test_models(trip):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(200, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
    model[0].weight.note = {"kept": [1, 2]}
    back = trip(model)
    x = torch.randn(5, 200)
    assert torch.equal(back(x), model(x))
    assert [type(p) for p in back.parameters()] == [torch.nn.Parameter] * 4
    assert back[0].weight.note == {"kept": [1, 2]}
    state = trip(model.state_dict())
    assert isinstance(state, collections.OrderedDict)
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    tied = torch.nn.Linear(200, 200)
    pair = trip([tied.weight, {"again": tied.weight}])
    assert pair[0] is pair[1]["again"]


def test_storage_objects(trip):
    storage = torch.arange(10_000).untyped_storage()
    back = trip([storage, torch.arange(5).untyped_storage()])
    assert bytes(back[0]) == bytes(storage) and len(back[1]) == 40


def test_other_things_of_torch(trip):
    things = [torch.float32, torch.Size([1, 2]), torch.device("cpu"), torch.contiguous_format]
    assert trip(things) == things


def test_room_for_tensors(trip):
    room = torch.from_numpy(trip.channel.empty((1000, 1000), "f4"))
    room.fill_(2.5)
    before = trip.channel.stats()
    back = trip({"t": room, "row": room[3]})
    after = trip.channel.stats()
    assert torch.equal(back["t"], room) and torch.equal(back["row"], room[3])
    assert after["copied_bytes"] - before["copied_bytes"] < 2000
    assert after["shared_bytes"] - before["shared_bytes"] == room.nbytes


def test_received_tensors_are_sent_on(trip):
    t = torch.arange(1_000_000)
    back = trip(t)

    def shared():
        before = trip.channel.stats()
        again = trip({"t": back, "half": back[::2]})
        after = trip.channel.stats()
        assert torch.equal(again["t"], t) and torch.equal(again["half"], t[::2])
        return after["copied_bytes"] - before["copied_bytes"] < 2000

    wait_until(shared, "it is passed on where it lies")


def test_frames_as_tensors(trip, tmp_path):
    """torch.from_dlpack of an xmem.Consumer's frame."""
    pool = str(tmp_path / "cam.sock")
    with xmem.Producer(pool) as producer, xmem.Consumer(pool) as consumer:

        def shared():
            with producer.acquire((480, 640, 3), "uint8") as frame:
                torch.from_dlpack(frame.planes[0]).fill_(7)
                frame.publish()
            tensor = torch.from_dlpack(consumer.recv(timeout=HANG))
            before = trip.channel.stats()["shared_bytes"]
            back = trip({"frame": tensor, "crop": tensor[100:200, 50:100]})
            assert (back["frame"] == 7).all() and back["crop"].shape == (100, 50, 3)
            return trip.channel.stats()["shared_bytes"] - before == tensor.nbytes

        wait_until(shared)


def writer(path):
    with xmem.Channel.connect(path, timeout=HANG) as channel:
        t = channel.recv(timeout=HANG)
        copy = t.clone()
        copy[0] = 5
        channel.send(bool(copy[0] == 5))
        # A killed process cannot pass on messages that were not taken.
        assert channel.drain(HANG)
        t[0] = 5


def test_writing_into_a_received_tensor(tmp_path):
    """torch does not support read-only memory, so the system kills the writer. Other processes are not affected."""
    place = Place(tmp_path)
    with Process(writer, place.path()) as child, xmem.Channel(place.path()) as channel:
        room = channel.empty(100_000)
        room[:] = 1
        channel.send(torch.from_numpy(room))
        assert channel.recv(timeout=HANG)
        child.process.join(HANG)
        assert child.process.exitcode == -signal.SIGSEGV
        assert (room == 1).all()
        wait_until(lambda: channel.senders == [])
    place.assert_clean()


def test_without_torch_at_the_receiver(tmp_path):
    """torch is imported when the first tensor arrives."""
    from channel_support import echo

    place = Place(tmp_path)
    with Process(echo, place.path()), xmem.Channel(place.path()) as channel:
        channel.send(BIG)
        assert torch.equal(channel.recv(timeout=HANG), BIG)
    assert os.listdir(tmp_path) == []
