// Volumes by E2B's SDK for JavaScript. Prints each case as it passes.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { Sandbox, Volume, VolumeError, VolumeNotFoundError, VolumePathNotFoundError } from 'e2b'

const name = `js-${randomUUID()}`
const none = 'v00000000000000000000'
const perm = (stat) => stat.mode & 0o7777

const cases = {
  async life(vol) {
    assert.ok(vol.name === name && vol.volumeId && vol.token)
    await assert.rejects(Volume.create(name), VolumeError)
    await assert.rejects(Volume.create('no name'), VolumeError)
    assert.ok((await Volume.list()).some((v) => v.volumeId === vol.volumeId && v.name === name))
    const info = await Volume.getInfo(vol.volumeId)
    assert.ok(info.volumeId === vol.volumeId && info.name === name && info.token)
    assert.deepEqual(await (await Volume.connect(vol.volumeId)).list('/'), [])
    await assert.rejects(Volume.getInfo(none), VolumeNotFoundError)
    assert.equal(await Volume.destroy(none), false)
    const other = await Volume.create(`${name}-b`)
    assert.equal(await Volume.destroy(other.volumeId), true)
    assert.equal(await Volume.destroy(other.volumeId), false)
    await assert.rejects(other.list('/'), VolumePathNotFoundError)
  },

  async files(vol) {
    const stat = await vol.writeFile('/a.txt', 'héllo', { uid: 1000, gid: 100, mode: 0o640 })
    assert.deepEqual([stat.name, stat.type, stat.path, stat.size, stat.uid, stat.gid, perm(stat)], ['a.txt', 'file', '/a.txt', 6, 1000, 100, 0o640])
    assert.ok(Math.abs(stat.mtime - Date.now()) < 300_000)
    assert.equal(await vol.readFile('/a.txt'), 'héllo')
    assert.deepEqual(Buffer.from(await vol.readFile('/a.txt', { format: 'bytes' })).toString(), 'héllo')
    assert.equal(await (await vol.readFile('/a.txt', { format: 'blob' })).text(), 'héllo')
    const read = []
    for await (const piece of await vol.readFile('/a.txt', { format: 'stream' })) read.push(Buffer.from(piece))
    assert.equal(Buffer.concat(read).toString(), 'héllo')
    await assert.rejects(vol.writeFile('/a.txt', 'again'), VolumeError)
    assert.equal((await vol.writeFile('/a.txt', 'again', { force: true })).size, 5)
    assert.equal(await vol.readFile('/a.txt'), 'again')
    await vol.writeFile('/empty', '')
    assert.equal(await vol.readFile('/empty'), '')
    const big = Buffer.alloc(10_000_000, 'abcdefg')
    const stream = new ReadableStream({
      start(c) {
        for (let i = 0; i < big.length; i += 1_000_000) c.enqueue(big.subarray(i, i + 1_000_000))
        c.close()
      },
    })
    assert.equal((await vol.writeFile('/big', stream)).size, big.length)
    assert.ok(Buffer.from(await vol.readFile('/big', { format: 'bytes' })).equals(big))
    await assert.rejects(vol.readFile('/none'), VolumePathNotFoundError)
    await assert.rejects(vol.readFile('/none', { format: 'stream' }), VolumePathNotFoundError)
    await assert.rejects(vol.writeFile('/none/a', 'x'), VolumePathNotFoundError)
  },

  async folders(vol) {
    const stat = await vol.makeDir('/d', { mode: 0o750, uid: 1000 })
    assert.deepEqual([stat.type, perm(stat), stat.uid, stat.gid], ['directory', 0o750, 1000, 0])
    await assert.rejects(vol.makeDir('/d'), VolumeError)
    await assert.rejects(vol.makeDir('/d/e/f'), VolumePathNotFoundError)
    await vol.makeDir('/d/e/f', { force: true })
    await vol.writeFile('/d/e/g', '1')
    assert.deepEqual((await vol.list('/d')).map((e) => e.path), ['/d/e'])
    assert.deepEqual((await vol.list('/d', { depth: 2 })).map((e) => e.path), ['/d/e', '/d/e/f', '/d/e/g'])
    await assert.rejects(vol.list('/none'), VolumePathNotFoundError)
    assert.equal(await vol.exists('/d/e/g'), true)
    const changed = await vol.updateMetadata('/d/e/g', { uid: 5, mode: 0o600 })
    assert.deepEqual([changed.uid, changed.gid, perm(changed)], [5, 0, 0o600])
    assert.equal((await vol.getInfo('/d/e/g')).uid, 5)
    await assert.rejects(vol.updateMetadata('/none', { uid: 5 }), VolumePathNotFoundError)
    await vol.remove('/d')
    assert.equal(await vol.exists('/d/e/g'), false)
    await assert.rejects(vol.remove('/d'), VolumePathNotFoundError)
  },

  async mounted(vol) {
    await assert.rejects(Sandbox.create({ volumeMounts: { '/data': 'no-such-volume' } }))
    const sb = await Sandbox.create({ timeoutMs: 3_600_000, volumeMounts: { '/data': vol, '/mnt/too': await Volume.create(`${name}-too`) } })
    try {
      const info = await sb.getInfo()
      assert.deepEqual(info.volumeMounts, [{ name, path: '/data' }, { name: `${name}-too`, path: '/mnt/too' }])
      await sb.commands.run('echo inside > /data/inside; cp /data/inside /mnt/too/')
      assert.equal(await vol.readFile('/inside'), 'inside\n')
      await vol.writeFile('/outside', 'outside', { uid: 1000 })
      assert.equal((await sb.commands.run('cat /data/outside')).stdout, 'outside')
      await assert.rejects(Volume.destroy(vol.volumeId), VolumeError)
      await sb.pause()
      await Sandbox.connect(sb.sandboxId)
      assert.equal((await sb.commands.run('cat /data/outside /mnt/too/inside')).stdout, 'outsideinside\n')
    } finally {
      await sb.kill()
    }
    for (const v of await Volume.list()) if (v.name === `${name}-too`) assert.equal(await Volume.destroy(v.volumeId), true)
  },
}

const vol = await Volume.create(name)
try {
  for (const [what, run] of Object.entries(cases)) {
    const began = Date.now()
    await run(vol)
    console.log(`ok ${what} ${(Date.now() - began) / 1000}s`)
  }
} finally {
  assert.equal(await Volume.destroy(vol.volumeId), true)
}
process.exit(0) // idle connections stay open for a while
