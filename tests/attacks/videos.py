"""Videos of unknown origin: spoiled containers, lists that lead elsewhere, pipes, small files of huge content, frames."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from attacks.world import Case, World, check, run_command
from PIL import Image

import mmprobe as mp

CONTAINERS = {"mp4": "mpeg4", "mkv": "mpeg4", "avi": "mpeg4", "gif": "gif", "ts": "mpeg2video"}
SIDE, FRAMES, RATE = 64, 6, 2
MOST_GROWTH = 1_500_000  # kB that a case may take beyond what its process had
MANY = 300  # frames of one file


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: each kind of harm in turn."""
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        seed = rng.random()
        yield Case(f"{kind} {seed}", lambda w, f, k=kind, s=seed: _attack(random.Random(s), w, f, k))


def _attack(rng: random.Random, world: World, folder: Path, kind: str) -> None:
    with suppress(OSError):  # of the kernel that lacks it
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of this case
    before = _read_memory("VmRSS")
    KINDS[kind](rng, world, folder)
    grown = _read_memory("VmHWM") - before
    assert grown < MOST_GROWTH, f"took {grown // 1000} MB"


def _read_memory(name: str) -> int:
    return int(re.findall(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def _draw(file: Path, codec: str, frames: int = FRAMES, side: int = SIDE) -> Path:
    """Write a video of coloured squares."""
    rng = np.random.default_rng(frames)
    with av.open(str(file), "w") as container:
        stream = container.add_stream(codec, rate=Fraction(24 if codec == "mpeg2video" else RATE))
        stream.width = stream.height = side
        stream.pix_fmt = "rgb8" if codec == "gif" else "yuv420p"
        for _ in range(frames):
            squares = rng.integers(0, 256, (side // 8, side // 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(squares)))
        container.mux(stream.encode())
    return file


def _call(
    rng: random.Random, world: World, folder: Path, video: object, codes: tuple[int, ...] = (0, 1, 2)
) -> None:
    """Trace a video, or ask about it; what is traced is whole."""
    data, out = folder / "data.jsonl", folder / "out"
    data.write_text(json.dumps({"id": "a", "videos": [video], "question": "What moves?"}) + "\n")
    command = rng.choice([["trace"], ["trace"], ["bench", "vqa"]])
    call = [*command, "--model", "tiny-spd", "--data", data, "--max-new-tokens", 1, "--out", out]
    done = check(run_command(*call), *codes)
    if command == ["trace"] and done.code == 0:
        assert mp.verify(out) == []


def _spoil_container(rng: random.Random, world: World, folder: Path) -> None:
    """Bytes of a container that are flipped, missing, zero or twice there."""
    ending = rng.choice(list(CONTAINERS))
    file = _draw(folder / f"a.{ending}", CONTAINERS[ending])
    content = bytearray(file.read_bytes())
    for _ in range(rng.choice([1, 3, 30])):
        at = rng.randrange(min(len(content), rng.choice([200, 10**9])))
        kind = rng.random()
        if kind < 0.5:
            content[at] = rng.choice([0, 255, 127, content[at] ^ 1 << rng.randrange(8)])
        elif kind < 0.6:
            content[at : at + 4] = b"\xff\xff\xff\xff"
        elif kind < 0.7:
            content[at : at + 64] = bytes(64)
        elif kind < 0.8:
            content[at:at] = content[at : at + rng.randrange(500)]
        elif kind < 0.85 and at > 8:
            del content[at:]
    file.write_bytes(content)
    _call(rng, world, folder, rng.choice([str(file), {"file": str(file), "fps": rng.choice([0.1, 1, 50])}]))


def _lead_elsewhere(rng: random.Random, world: World, folder: Path) -> None:
    """Lists and names by which FFmpeg would open another file or an address."""
    other = _draw(folder / "other.mp4", "mpeg4")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/a.mp4"
        target = rng.choice([str(other), f"file://{other}", address, f"concat:{other}"])
        lists = [
            f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{target}\n#EXT-X-ENDLIST\n",
            f"ffconcat version 1.0\nfile '{target}'\n",
            f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=a\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {server.getsockname()[1]} RTP/AVP 96\n",
            f'<?xml version="1.0"?><MPD><Period><AdaptationSet><BaseURL>{target}</BaseURL></AdaptationSet></Period></MPD>',
        ]
        names = [
            address,
            f"concat:{other}|{other}",
            "pipe:0",
            f"subfile,,start,0,end,9,,:{other}",
            "fd:",
            "a%d.png",
        ]
        if rng.random() < 0.7:
            file = folder / f"list.{rng.choice(['mp4', 'm3u8', 'txt', 'mpd', 'sdp'])}"
            file.write_text(rng.choice(lists))
            _call(rng, world, folder, str(file), (2,))
        else:
            _call(rng, world, folder, rng.choice(names), (2,))
        try:
            server.accept()
        except BlockingIOError:
            return
        raise AssertionError("an address in a list was opened")


def _put_pipes(rng: random.Random, world: World, folder: Path) -> None:
    """No file at all in the place of a video."""
    file = folder / "a.mp4"
    kind = rng.choice(["pipe", "/dev/zero", "/dev/tty", "folder", "nowhere", "loop", "empty"])
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "empty":
        file.touch()
    elif kind != "nowhere":
        file.symlink_to(file if kind == "loop" else kind)
    _call(rng, world, folder, rng.choice([str(file), {"file": str(file), "fps": 1}, [str(file)]]), (2,))


def _gif(width: int, height: int, frames: int) -> bytes:
    """Return a GIF of some bytes a frame: each frame is one pixel on a canvas of any size."""
    screen = (
        b"GIF89a"
        + width.to_bytes(2, "little")
        + height.to_bytes(2, "little")
        + b"\x80\0\0"
        + bytes(3)
        + b"\xff" * 3
    )
    frame = b"\x21\xf9\x04\0\x0a\0\0\0" + b"\x2c\0\0\0\0\x01\0\x01\0\0" + b"\x02\x02\x44\x01\0"
    return screen + frame * frames + b"\x3b"


def _make_bombs(rng: random.Random, world: World, folder: Path) -> None:
    """A small file whose frames are huge or many, or whose header says so."""
    file = folder / "a.gif"
    kind = rng.choice(["canvas", "canvases", "frames", "counts", "rates"])
    if kind == "canvas":
        file.write_bytes(_gif(rng.choice([65535, 20_000]), 65535, 2))
        return _call(rng, world, folder, str(file), (1, 2))
    if kind == "canvases":
        file.write_bytes(_gif(9900, 9900, 60))
        return _call(rng, world, folder, {"file": str(file), "fps": 10}, (1, 2))
    if kind == "frames":
        file.write_bytes(_gif(8, 8, 100_000))
        return _call(rng, world, folder, rng.choice([str(file), {"file": str(file), "fps": 1}]))
    file = _draw(folder / "a.mp4", "mpeg4")
    content = bytearray(file.read_bytes())
    boxes = (
        [b"stts", b"mvhd", b"mdhd", b"tkhd", b"stsz", b"stsc"]
        if kind == "counts"
        else [b"mvhd", b"mdhd", b"elst"]
    )
    for box in rng.sample(boxes, 2):
        at = content.find(box) + rng.choice([8, 12, 16, 20])
        content[at : at + 4] = rng.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", bytes(4), b"\0\0\0\x01"])
    file.write_bytes(content)
    fps = rng.choice([1e308, 5e-324, 1e-9, 1e9, 1.0])
    return _call(rng, world, folder, rng.choice([str(file), {"file": str(file), "fps": fps}]))


def _list_frames(rng: random.Random, world: World, folder: Path) -> None:
    """Frames that are not images, differ in size, or are too many."""
    files = [folder / f"{number}.png" for number in range(4)]
    for number, file in enumerate(files):
        Image.new("RGB", (64, 64), (40 * number,) * 3).save(file)
    last = files[-1]
    kind = rng.choice(["text", "cut", "size", "pipe", "many", "grey", "gone"])
    if kind == "text":
        last.write_text("#EXTM3U")
    elif kind == "cut":
        last.write_bytes(last.read_bytes()[:50])
    elif kind == "size":
        Image.new("RGB", (63, 64)).save(last)
    elif kind == "grey":
        Image.new("I;16", (64, 64)).save(last)
    elif kind in ("pipe", "gone"):
        last.unlink()
        if kind == "pipe":
            os.mkfifo(last)
    frames = [str(file) for file in files] * (MANY if kind == "many" else 1)
    video = rng.choice([frames, {"frames": frames, "fps": rng.choice([1, 1e308, 5e-324])}])
    _call(rng, world, folder, video, (0, 1, 2) if kind == "many" else (1, 2))


def _spoil_later(rng: random.Random, world: World, folder: Path) -> None:
    """A video that changes after it was traced: verify says so, and a report is made without it."""
    file = _draw(folder / "a.mp4", "mpeg4")
    data, out = folder / "data.jsonl", folder / "out"
    data.write_text(json.dumps({"id": "a", "videos": [str(file)], "question": "What moves?"}) + "\n")
    call = ["trace", "--model", "tiny-spd", "--data", data, "--max-new-tokens", 1, "--out", out]
    check(run_command(*call), 0)
    file.unlink()
    kind = rng.choice(["pipe", "device", "bomb", "text", "gone"])
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "bomb":
        file.write_bytes(_gif(65535, 65535, 2))
    elif kind == "text":
        file.write_text("#EXTM3U\n")
    check(run_command("verify", out), *((1,) if kind in ("bomb", "text") else (0, 1)))
    check(run_command("report", out, "--out", folder / "a.html"), 0)
    check(run_command(*call, "--resume"), 1, 2)
    shutil.rmtree(out)


KINDS: dict[str, Callable[[random.Random, World, Path], None]] = {
    "containers": _spoil_container,
    "lists": _lead_elsewhere,
    "pipes": _put_pipes,
    "bombs": _make_bombs,
    "frames": _list_frames,
    "later": _spoil_later,
}
