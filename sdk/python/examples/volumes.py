"""Two sandboxes share a volume, and a third finds there what they left."""

from cloud_sandbox import Client, Sandbox

with Client(user_id="examples") as client:
    volume = client.volumes.create("shared", size_mb=64)
    try:
        mounts = {"/shared": volume}
        with (
            Sandbox.create(client=client, volumes=mounts) as writer,
            Sandbox.create(client=client, volumes=mounts) as reader,
        ):
            writer.run_code("open('/shared/words.txt', 'w').write('pause resume fork')")
            print("the other one reads:", reader.run_command("cat /shared/words.txt").stdout)

        # Both are gone, the file is not.
        with Sandbox.create(client=client, volumes=mounts) as later:
            print("later:", later.run_code("len(open('/shared/words.txt').read().split())").result)
        print("it holds", client.volumes.get(volume).files, "file")
    finally:
        client.volumes.delete(volume)
