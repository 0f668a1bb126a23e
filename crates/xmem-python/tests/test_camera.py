# SPDX-License-Identifier: MPL-2.0

"""xmem.Camera, with the command `xmem share` of this build."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import HANG, eventually

import xmem
from xmem import _camera

SMALL = "videotestsrc is-live=true ! video/x-raw,width=64,height=48,framerate=30/1"


@pytest.fixture(autouse=True)
def runtime_dir(directory, gst_environment, monkeypatch):
    command = Path(os.environ.get("XMEM_PLUGIN_DIR", Path(__file__).parents[3] / "target/debug"), "xmem")
    if not command.exists():
        pytest.skip("there is no command xmem: run `cargo build -p xmem-cli`")
    # The command of this build, also if a wheel is installed.
    monkeypatch.setattr(_camera, "installed", lambda name: None)
    monkeypatch.setattr(_camera, "_IDLE", 2)
    for name in ("GST_PLUGIN_PATH_1_0", "GST_REGISTRY_1_0"):
        monkeypatch.setenv(name, gst_environment[name])
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    run = directory / "run"
    monkeypatch.setenv("XMEM_RUNTIME_DIR", str(run))
    yield run
    eventually(lambda: not shares(run), "a command is left")
    # One that was killed leaves its files.
    eventually(lambda: not any(it.live for it in xmem.pools()), "a producer is left")


def shares(run):
    """The processes of `xmem share` that use this directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[1:2] == [b"share"] and f"XMEM_RUNTIME_DIR={run}".encode() in environment:
            found.append(int(process.name))
    return found


def test_one_process(runtime_dir):
    pipe = os.pipe()
    os.set_inheritable(pipe[1], True)
    camera = xmem.Camera("test")
    for frame in camera:
        image = np.asarray(frame)
        break
    assert image.shape == (720, 1280, 3)
    assert frame.format == "RGB"
    # One command, with a session of its own and without descriptors of this process.
    (share,) = shares(runtime_dir)
    assert os.getsid(share) != os.getsid(0)
    assert {Path(it).name for it in runtime_dir.glob("*.log")} == {"camera-test.log"}
    opened = {os.readlink(it) for it in Path(f"/proc/{share}/fd").iterdir()}
    assert os.readlink(f"/proc/self/fd/{pipe[1]}") not in opened
    os.close(pipe[0]), os.close(pipe[1])
    camera.close()
    eventually(lambda: not shares(runtime_dir), "the command goes on without a consumer")
    assert not list(runtime_dir.glob("*.log"))


def test_processes_that_start_at_once_share_one_command(runtime_dir, child):
    children = [child("camera", SMALL) for _ in range(4)]
    assert {it.reply() for it in children} == {"a frame"}
    # The others end when they find the lock.
    eventually(lambda: len(shares(runtime_dir)) == 1, "several commands share the source")
    (share,) = shares(runtime_dir)
    # The starter may be any of them.
    for it in children[:3]:
        it.kill()
    children[3].send()
    assert children[3].reply() == "a frame"
    assert shares(runtime_dir) == [share]
    children[3].kill()


def polled(camera):
    try:
        return camera.recv(0.01)
    except xmem.Timeout:
        return None


def test_a_killed_command_is_started_again(runtime_dir):
    with xmem.Camera(SMALL) as camera, xmem.Camera(SMALL) as other:
        camera.recv(HANG), other.recv(HANG)
        (share,) = shares(runtime_dir)
        os.kill(share, signal.SIGKILL)
        eventually(lambda: polled(camera) and camera.stats["reconnects"] == 1, "no frame of the next command")
        eventually(lambda: other.recv(HANG) and other.stats["reconnects"] == 1, "no frame of the next command")
        assert shares(runtime_dir) not in ([], [share])


def test_the_starter_is_killed_at_once(runtime_dir, child):
    other = child("camera_that_dies", SMALL)
    assert other.wait() == -signal.SIGKILL
    # Its command is used, or ends.
    with xmem.Camera(SMALL) as camera:
        camera.recv(HANG)
        assert len(shares(runtime_dir)) == 1


def test_a_stopped_command(runtime_dir, child):
    other = child("camera", SMALL)
    other.reply()
    (share,) = shares(runtime_dir)
    os.kill(share, signal.SIGSTOP)
    with xmem.Camera(SMALL) as camera:
        camera.recv(HANG)
        os.kill(xmem.query(camera.pool)["pid"], signal.SIGKILL)
        eventually(lambda: not is_live(camera.pool), "the producer is left")
    with pytest.raises(xmem.NoProducer, match="waiting for `xmem share` to make the pool .*camera-pipeline.*, for 0.5 s"):
        xmem.Camera(SMALL, timeout=0.5)
    os.kill(share, signal.SIGCONT)
    with xmem.Camera(SMALL) as camera:
        camera.recv(HANG)
    other.kill()


def is_live(pool):
    try:
        return bool(xmem.query(pool))
    except xmem.NoProducer:
        return False


@pytest.fixture
def film(directory, request):
    film = directory / "a film.mkv"
    frames = getattr(request, "param", 10)
    pipeline = f"videotestsrc num-buffers={frames} ! video/x-raw,width=64,height=48,framerate=30/1 ! jpegenc ! matroskamux ! filesink"
    made = subprocess.run(["gst-launch-1.0", "-q", *pipeline.split(), f"location={film}"], timeout=HANG, check=False)
    if made.returncode:
        pytest.skip("GStreamer has no matroskamux or jpegenc")
    yield film
    film.unlink(missing_ok=True)


def test_a_film_is_played_once(film):
    with xmem.Camera(film) as camera:
        assert camera.pool.startswith("camera-a-film.mkv-")
        assert [frame.number for frame in camera] == list(range(10))


@pytest.mark.parametrize("film", [900], indirect=True)
def test_a_source_that_is_gone_is_warned_of_until_the_timeout(runtime_dir, film):
    with xmem.Camera(film, timeout=3) as camera:
        camera.recv(HANG)
        film.unlink()
        (share,) = shares(runtime_dir)
        os.kill(share, signal.SIGKILL)
        with pytest.warns(xmem.PoolWarning, match="cannot read .*a film.mkv: No such file.*Trying again") as caught:
            with pytest.raises(xmem.NoProducer):
                for _ in camera:
                    pass
    said = [it for it in caught if "Trying again" in str(it.message)]
    assert [it.filename for it in said] == [__file__]


@pytest.mark.parametrize("page", ["README.md", "docs/python/camera.md"])
def test_the_pages(page, film):
    text = (Path(__file__).parents[3] / page).read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    there = {"xmem": xmem, "np": np}
    exec(code.replace("/dev/video0", str(film)), there)
    assert there["image"].shape == (48, 64, 3)
    assert there["frame"].number == 9


def test_a_pool_of_another_program_is_read(runtime_dir):
    with xmem.Producer("camera-test") as producer, xmem.Camera("test") as camera:
        with producer.acquire((2, 3)) as frame:
            np.asarray(frame)[...] = 7
            frame.publish()
        assert (np.asarray(camera.recv(HANG)) == 7).all()
        assert not shares(runtime_dir)


def test_in_an_event_loop():
    async def run():
        async with await xmem.Camera.connect(SMALL, max_rate=10) as camera:
            async for frame in camera:
                return frame

    assert asyncio.run(run()).shape == (48, 64, 3)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("/dev/video999", r"cannot read /dev/video999: No such file .* \(log: .*/camera-video999\.log\)"),
        ("rtsp://user:secret@127.0.0.1:1/a", r"rtsp://127.0.0.1:1/a: .*Check the address|no element"),
        ("videotestsrc ! nosuchelement", 'no element "nosuchelement"'),
        (__file__, "isn't a film or a picture"),
    ],
)
def test_errors_of_the_command(source, text):
    with pytest.raises(xmem.Error, match=text) as error:
        for _ in xmem.Camera(source):
            pass
    assert "secret" not in str(error.value)


def test_without_the_plugin(monkeypatch, directory):
    monkeypatch.setenv("GST_PLUGIN_PATH_1_0", str(directory))
    monkeypatch.setenv("GST_PLUGIN_SYSTEM_PATH_1_0", "/usr/lib/none")
    monkeypatch.setenv("GST_REGISTRY_1_0", str(directory / "empty.bin"))
    with pytest.raises(xmem.Error, match='no element "'):
        next(xmem.Camera("test"))


def test_without_the_command(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/lib/none")
    with pytest.raises(xmem.Error, match="install the wheel of gst-xmem, or the package xmem"):
        xmem.Camera("test")


def test_a_command_that_does_not_start_leaves_nothing(monkeypatch, directory):
    def prints():
        # Not the number of all descriptors, of which other tests may have left some to the collector.
        names = (os.readlink(it) for it in Path("/proc/self/fd").glob("*") if it.is_symlink())
        return sum("xmem-share" in name for name in names)

    # A program without an interpreter, as if the command had been removed after it was found.
    command = directory / "xmem"
    command.write_text("#!/none\n")
    command.chmod(0o755)
    monkeypatch.setattr(_camera, "_command", lambda: str(command))
    share = _camera._Share("test")
    before = prints()
    for _ in range(3):
        share._next_look = 0.0
        with pytest.raises(xmem.Error, match="cannot start the command `xmem share`: .*Install it again"):
            share.ensure()
    assert prints() == before
    with pytest.raises(xmem.Error, match="cannot start"):
        xmem.Camera("test")


def test_another_user_is_refused(runtime_dir, directory):
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("this needs root and setpriv")
    with xmem.Camera(SMALL) as camera:
        camera.recv(HANG)
        runtime_dir.chmod(0o755), directory.chmod(0o755)
        code = f"import xmem; xmem.Camera({SMALL!r})"
        other = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups", sys.executable, "-c", code]
        ended = subprocess.run(other, capture_output=True, text=True, timeout=HANG, check=False)
        if "No module named 'xmem'" in ended.stderr or "Permission denied: " in ended.stderr:
            pytest.skip("another user cannot import the module")
        assert "xmem.Refused" in ended.stderr, ended.stderr


def test_a_planted_log_is_refused(runtime_dir, directory):
    runtime_dir.mkdir(mode=0o700)
    (runtime_dir / "camera-test.log").symlink_to(directory / "victim")
    with pytest.raises(xmem.Error, match="cannot write .*camera-test.log"):
        xmem.Camera("test")
    assert not (directory / "victim").exists()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("test", "camera-test"),
        ("/dev/video0", "camera-video0"),
        ("rtsp://user:pass@192.0.2.7:554/stream?a=b", "camera-192.0.2.7-554-stream-"),
        ("http://host/a@b", "camera-host-a-b-"),
        ("/none/my film.mp4", "camera-my-film.mp4-"),
        ("a ! b", "camera-pipeline-"),
    ],
)
def test_names(source, name):
    pool = _camera._pool_of(source)
    assert pool == name if name[-1] != "-" else pool[:-8] == name
    others = {"rtsp://user:pass@192.0.2.7:554/stream?a=c", "/none/other/my film.mp4", "a ! c", "http://host/b@b"}
    assert pool not in map(_camera._pool_of, others)


def test_the_password_is_not_in_the_name():
    same = {_camera._pool_of(f"rtsp://{user}host/a") for user in ("", "user:one@", "user:t/w@o@")}
    assert len(same) == 1


def test_nothing_that_python_warns_about_is_left(runtime_dir):
    program = f"""if True:
        import xmem

        def first():
            with xmem.Camera({SMALL!r}) as camera:
                return next(camera).nbytes

        assert first() > 0
        next(xmem.Camera({SMALL!r}))
    """
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program], timeout=HANG, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
