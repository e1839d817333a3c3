"""Volumes by E2B's Python SDK: volumes.py sync|async. Prints each case as it passes."""

import asyncio
import inspect
import io
import sys
import time
import uuid
from datetime import datetime, timedelta, timezone

import e2b
from e2b import NotFoundException, VolumeException

SYNC = sys.argv[1] == "sync"
Sandbox = e2b.Sandbox if SYNC else e2b.AsyncSandbox
Volume = e2b.Volume if SYNC else e2b.AsyncVolume
NAME = f"py-{uuid.uuid4()}"


async def a(result):
    """The result of a call, of either SDK."""
    return await result if inspect.isawaitable(result) else result


async def raises(kind, f, *args, **kwargs):
    try:
        await a(f(*args, **kwargs))
    except kind as e:
        return e
    raise AssertionError(f"{kind.__name__} was not raised")


async def pieces(stream):
    return [p async for p in stream] if hasattr(stream, "__aiter__") else list(stream)


cases = []


def case(f):
    cases.append(f)
    return f


@case
async def life(vol):
    assert vol.name == NAME and vol.volume_id and vol.token
    await raises(VolumeException, Volume.create, NAME)
    await raises(VolumeException, Volume.create, "no name")
    assert (vol.volume_id, NAME) in [(v.volume_id, v.name) for v in await a(Volume.list())]
    info = await a(Volume.get_info(vol.volume_id))
    assert (info.volume_id, info.name) == (vol.volume_id, NAME) and info.token
    again = await a(Volume.connect(vol.volume_id))
    assert again.name == NAME
    assert await a(again.list("/")) == []
    await raises(NotFoundException, Volume.get_info, "v00000000000000000000")
    await raises(NotFoundException, Volume.connect, "v00000000000000000000")
    assert await a(Volume.destroy("v00000000000000000000")) is False
    other = await a(Volume.create(NAME + "-b"))
    assert await a(Volume.destroy(other.volume_id)) is True
    assert await a(Volume.destroy(other.volume_id)) is False
    await raises(NotFoundException, other.list, "/")


@case
async def files(vol):
    before = datetime.now(timezone.utc) - timedelta(minutes=5)
    stat = await a(vol.write_file("/a.txt", "héllo", uid=1000, gid=100, mode=0o640))
    assert (stat.name, stat.path, stat.size, stat.uid, stat.gid, stat.mode & 0o7777) == ("a.txt", "/a.txt", 6, 1000, 100, 0o640), stat
    assert str(stat.type) == "file" and before < stat.mtime < before + timedelta(minutes=10)
    assert await a(vol.read_file("/a.txt")) == "héllo"
    assert await a(vol.read_file("/a.txt", format="bytes")) == "héllo".encode()
    assert b"".join(await pieces(await a(vol.read_file("/a.txt", format="stream")))) == "héllo".encode()
    await raises(VolumeException, vol.write_file, "/a.txt", "again")
    assert (await a(vol.write_file("/a.txt", b"\0again", force=True))).size == 6
    assert await a(vol.read_file("/a.txt", format="bytes")) == b"\0again"
    await a(vol.write_file("/empty", ""))
    assert await a(vol.read_file("/empty")) == ""
    big = bytes(range(256)) * 40_000
    assert (await a(vol.write_file("/big", io.BytesIO(big)))).size == len(big)
    assert await a(vol.read_file("/big", format="bytes")) == big
    await raises(NotFoundException, vol.read_file, "/none")
    await raises(NotFoundException, vol.write_file, "/none/a", "x")
    await a(vol.write_file("/deep/er/a", "x", force=True))
    assert await a(vol.read_file("/deep/er/a")) == "x"


@case
async def folders(vol):
    stat = await a(vol.make_dir("/d", mode=0o750, uid=1000))
    assert str(stat.type) == "directory" and (stat.mode & 0o7777, stat.uid, stat.gid) == (0o750, 1000, 0), stat
    await raises(VolumeException, vol.make_dir, "/d")
    await a(vol.make_dir("/d", force=True))
    await raises(NotFoundException, vol.make_dir, "/d/e/f")
    await a(vol.make_dir("/d/e/f", force=True))
    await a(vol.write_file("/d/e/g", "1"))
    assert [e.path for e in await a(vol.list("/d"))] == ["/d/e"]
    assert [e.path for e in await a(vol.list("/d", depth=2))] == ["/d/e", "/d/e/f", "/d/e/g"]
    await raises(NotFoundException, vol.list, "/none")
    await raises(VolumeException, vol.list, "/d/e/g")
    assert await a(vol.exists("/d/e/g")) is True
    await a(vol.remove("/d/e/g"))
    assert await a(vol.exists("/d/e/g")) is False
    await raises(NotFoundException, vol.remove, "/d/e/g")
    await a(vol.remove("/d"))
    await raises(NotFoundException, vol.get_info, "/d")


@case
async def metadata(vol):
    await a(vol.write_file("/m", "x"))
    stat = await a(vol.update_metadata("/m", uid=1, gid=2, mode=0o600))
    assert (stat.uid, stat.gid, stat.mode & 0o7777) == (1, 2, 0o600)
    stat = await a(vol.update_metadata("/m", mode=0o644))
    assert (stat.uid, stat.gid, stat.mode & 0o7777) == (1, 2, 0o644)
    stat = await a(vol.get_info("/m"))
    assert (stat.uid, stat.gid, stat.mode & 0o7777) == (1, 2, 0o644)
    await raises(NotFoundException, vol.update_metadata, "/none", mode=0o644)


@case
async def mounted(vol):
    await raises(Exception, Sandbox.create, volume_mounts={"/data": "no-such-volume"})
    await raises(Exception, Sandbox.create, volume_mounts={"/usr": vol})
    one = await a(Sandbox.create(timeout=3600, volume_mounts={"/data": vol}))
    two = await a(Sandbox.create(timeout=3600, volume_mounts={"/mnt/shared": NAME}))
    try:
        info = await a(one.get_info())
        assert [(m["name"], m["path"]) for m in info.volume_mounts] == [(NAME, "/data")], info.volume_mounts
        await a(vol.write_file("/from-outside", "1", uid=1000, gid=1000))
        assert (await a(one.commands.run("cat /data/from-outside; stat -c %u /data/from-outside"))).stdout == "11000\n"
        await a(one.commands.run("mkdir /data/in && echo inside > /data/in/f && ln -s f /data/in/link"))
        assert (await a(two.commands.run("cat /mnt/shared/in/link"))).stdout == "inside\n"
        assert await a(vol.read_file("/in/f")) == "inside\n"
        link = await a(vol.get_info("/in/link"))
        assert str(link.type) == "symlink" and link.target == "f", link
        await a(one.files.write("/data/by-files", "x" * 100_000))
        assert await a(two.files.read("/mnt/shared/by-files")) == "x" * 100_000
        assert "in" in [e.name for e in await a(two.files.list("/mnt/shared"))]
        await raises(VolumeException, Volume.destroy, vol.volume_id)

        await a(one.pause())
        await a(two.commands.run("echo meanwhile > /mnt/shared/in/f"))
        one = await a(Sandbox.connect(one.sandbox_id))
        assert (await a(one.commands.run("cat /data/in/f"))).stdout == "meanwhile\n"
        await a(vol.remove("/in"))
        assert (await a(one.commands.run("ls /data/in || echo gone"))).stdout == "gone\n"
    finally:
        await a(one.kill())
        await a(two.kill())


async def main():
    vol = await a(Volume.create(NAME))
    try:
        for f in cases:
            began = time.monotonic()
            await f(vol)
            print(f"ok {f.__name__} {time.monotonic() - began:.2f}s", flush=True)
    finally:
        assert await a(Volume.destroy(vol.volume_id)) is True


asyncio.run(main())
