// What the other suite leaves out of E2B's JavaScript SDK. Prints each case as it passes.
import assert from 'node:assert/strict'
import * as e2b from 'e2b'
import { Sandbox, CommandExitError, FileType, InvalidArgumentError, NotFoundError, SandboxError, TimeoutError } from 'e2b'

const until = async (f) => {
  for (const end = Date.now() + 120_000; Date.now() < end; await new Promise((r) => setTimeout(r, 50))) {
    const got = await f()
    if (got) return got
  }
  throw new Error('it did not come')
}
const metadata = { suite: 'surface-js' }
const allOf = async (page) => {
  const found = []
  while (page.hasNext) found.push(...(await page.nextItems()))
  return found
}
const output = async (sb, cmd, opts) => (await sb.commands.run(cmd, opts)).stdout

const cases = {
  async creating() {
    const asked = Date.now()
    const sb = await Sandbox.create('base:default', { timeoutMs: 599_001, metadata, secure: true, allowInternetAccess: true, requestTimeoutMs: 120_000 })
    const took = Date.now() - asked
    const other = await Sandbox.create('base', { metadata, lifecycle: { onTimeout: { action: 'pause', keepMemory: true }, autoResume: true } })
    const both = [sb.sandboxId, other.sandboxId]
    for (const limit of [1, 100]) {
      assert.deepEqual((await allOf(Sandbox.list({ query: { metadata }, limit }))).map((i) => i.sandboxId), [...both].reverse())
    }
    const page = Sandbox.list({ query: { metadata }, limit: 1 })
    await page.nextItems()
    assert.deepEqual((await allOf(Sandbox.list({ query: { metadata }, limit: 1, nextToken: page.nextToken }))).map((i) => i.sandboxId), both.slice(0, 1))
    const info = await other.getInfo()
    assert.deepEqual(info.lifecycle, { onTimeout: 'pause', autoResume: true })
    assert.ok(info.endAt - info.startedAt > 295_000, 'its time is not the default')
    assert.ok(info.templateId && info.name === 'base' && info.cpuCount >= 1 && info.memoryMB >= 128 && info.envdVersion)
    const first = await sb.getInfo()
    assert.equal(first.allowInternetAccess, true)
    await sb.updateNetwork({ denyOut: ['1.1.1.1'], allowInternetAccess: true })
    const ruled = await sb.getInfo()
    assert.ok(ruled.allowInternetAccess === true && ruled.network.denyOut[0] === '1.1.1.1', JSON.stringify(ruled))
    const lives = first.endAt - first.startedAt // its time begins when it runs
    assert.ok(lives > 599_500 && lives < 600_500 + took, `${lives} ms, made in ${took} ms`)
    const connected = await Sandbox.connect(sb.sandboxId, { timeoutMs: 700_000 })
    const asked2 = Date.now()
    assert.ok((await (await connected.connect({ timeoutMs: 900_000 })).getInfo()).endAt - asked2 > 899_000)
    assert.equal(await other.pause(), true)
    assert.equal(await output(other, 'echo woken'), 'woken\n')
    for (const gone of [sb, other]) assert.equal(await gone.kill({ requestTimeoutMs: 120_000 }), true)
  },

  async refused() {
    for (const [options, word] of [
      [{ lifecycle: { onTimeout: { action: 'pause', keepMemory: false }, autoResume: true } }, /autoResume/],
      [{ network: { allowOut: ['example.com'] } }, /ALL_TRAFFIC/],
      [{ network: { denyOut: ['example.com'] } }, /example.com/],
      [{ network: { maskRequestHost: 'a b' } }, /maskRequestHost/],
      [{ network: { httpsPorts: [49983] } }, /49983/],
      [{ network: { egressProxy: { address: '127.0.0.1:1080' } } }, /egressProxy/],
      [{ iam: { tokens: { aws: { audience: 'x', tokenType: 'JWT-SVID' } } } }, /iam/],
      [{ timeoutMs: -1000 }, /timeout/],
    ]) {
      await assert.rejects(Sandbox.create(options), (e) => word.test(e.message) || assert.fail(`${JSON.stringify(options)}: ${e}`))
    }
    for (const bad of ['UPPER CASE', 'a'.repeat(300), 'no/such', 'base:nothing']) await assert.rejects(Sandbox.create(bad), SandboxError)
    await assert.rejects(allOf(Sandbox.list({ nextToken: 'what' })), SandboxError)
    await assert.rejects(Sandbox.list({ apiKey: 'e2b_' + '0'.repeat(40) }).nextItems(), e2b.AuthenticationError)
  },

  async commands(sb) {
    const seen = { out: '', err: '' }
    const options = {
      envs: { A: 'b' }, user: 'root', cwd: '/tmp', timeoutMs: 0, requestTimeoutMs: 120_000,
      onStdout: (s) => { seen.out += s }, onStderr: (s) => { seen.err += s },
    }
    const done = await sb.commands.run('echo $A; echo e >&2; id -un; pwd', options)
    assert.deepEqual([seen.out, seen.err, done.stdout], ['b\nroot\n/tmp\n', 'e\n', seen.out])
    const h = await sb.commands.run('cat; echo over', { background: true, stdin: true })
    const info = (await sb.commands.list()).find((p) => p.pid === h.pid)
    assert.deepEqual([info.cmd, info.args], ['/bin/bash', ['-l', '-c', 'cat; echo over']])
    await (h.sendStdin ? h.sendStdin('one\n') : sb.commands.sendStdin(h.pid, 'one\n'))
    await (h.closeStdin ? h.closeStdin() : sb.commands.closeStdin(h.pid))
    assert.equal((await h.wait()).stdout, 'one\nover\n')
    assert.deepEqual([h.stdout, h.stderr, h.exitCode, h.error], ['one\nover\n', '', 0, undefined])
    const s = await sb.commands.run('exec sleep 300', { background: true })
    await assert.rejects(async () => (await sb.commands.connect(s.pid, { timeoutMs: 1000 })).wait(), TimeoutError)
    await s.disconnect()
    assert.ok((await sb.commands.list()).some((p) => p.pid === s.pid), 'it ended with a reader')
    assert.deepEqual([await s.kill(), await s.kill()], [true, false])
    await assert.rejects(sb.commands.sendStdin(s.pid, 'x'), NotFoundError)
    const brief = await sb.commands.run('exit 5', { background: true })
    await assert.rejects(brief.wait(), (e) => e.exitCode === 5)
    await assert.rejects((await sb.commands.connect(brief.pid)).wait(), (e) => e.exitCode === 5)
    const aborted = new AbortController()
    const running = sb.commands.run('sleep 77', { signal: aborted.signal })
    setTimeout(() => aborted.abort(), 200)
    await assert.rejects(running)
    await assert.rejects(sb.commands.run('kill -KILL $$'), (e) => e.exitCode === -1 && /killed/.test(e.error))
    await Promise.all(Array.from({ length: 20 }, async (_, i) => assert.equal(await output(sb, `echo ${i}`), `${i}\n`)))
  },

  async terminals(sb) {
    let text = ''
    const size = { cols: 80, rows: 24 }
    const pty = await sb.pty.create({ ...size, user: 'root', cwd: '/tmp', envs: { TERM: 'dumb' }, timeoutMs: 0, onData() {} })
    const joined = await sb.pty.connect(pty.pid, { onData: (b) => { text += Buffer.from(b) } })
    await sb.pty.resize(pty.pid, { cols: 22, rows: 11 })
    await sb.pty.sendInput(pty.pid, Buffer.from('echo [$(id -un) $TERM $LANG $PWD $(stty size)]; exit 3\n'))
    await assert.rejects(joined.wait(), (e) => e instanceof CommandExitError && e.exitCode === 3)
    assert.match(text, /\[root dumb C.UTF-8 \/tmp 11 22\]/)
    await assert.rejects(sb.pty.resize(pty.pid, size), NotFoundError)
    assert.equal(await sb.pty.kill(pty.pid), false)
  },

  async files(sb) {
    const { files } = sb
    await files.write('f/bytes', new Uint8Array([0, 255]).buffer)
    assert.deepEqual([...(await files.read('f/bytes', { format: 'bytes' }))], [0, 255])
    const made = await files.writeFiles([{ path: 'f/1', data: '1' }, { path: 'f/2', data: new Blob(['2']) }], { user: 'root' })
    assert.deepEqual(made.map((m) => [m.path, m.type]), [['/home/user/f/1', FileType.FILE], ['/home/user/f/2', FileType.FILE]].map(([p, t]) => [p.replace('/home/user', '/root'), t]))
    assert.deepEqual(await files.writeFiles([]), [])
    await files.write('f/z', 'z'.repeat(9000), { gzip: true, metadata: { Kind: 'k' } })
    assert.equal(await files.read('f/z', { gzip: true }), 'z'.repeat(9000))
    assert.deepEqual((await files.getInfo('f/z')).metadata, { kind: 'k' })
    await files.write('f/o', 'octets', { useOctetStream: true, requestTimeoutMs: 120_000 })
    assert.equal(await files.read('f/o', { requestTimeoutMs: 120_000 }), 'octets')
    await sb.commands.run('mkdir -p t/a/b; touch t/a/b/3; ln -s a t/link; chmod 600 t/a/b/3')
    assert.deepEqual((await files.list('t', { depth: 3 })).map((e) => e.path.slice('/home/user/t/'.length)), ['a', 'a/b', 'a/b/3', 'link'])
    for (const depth of [0, -1]) await assert.rejects(files.list('t', { depth }), InvalidArgumentError)
    const link = await files.getInfo('t/link')
    assert.deepEqual([link.type, link.symlinkTarget], [FileType.DIR, '/home/user/t/a'])
    const deep = await files.getInfo('t/a/b/3')
    assert.ok(deep.modifiedTime instanceof Date && Math.abs(Date.now() - deep.modifiedTime) < 600_000)
    assert.deepEqual([deep.permissions, deep.mode, deep.owner, deep.group, deep.size], ['-rw-------', 0o600, 'user', 'user', 0])
    assert.equal(await files.exists('/root/f/1', { user: 'root' }), true)
    await files.remove('t')
    await files.remove('t')
    await assert.rejects(files.makeDir('f/z'), InvalidArgumentError)
    await assert.rejects(files.write('f', 'over a folder'), SandboxError)
    await assert.rejects(files.read('none', { format: 'stream' }), NotFoundError)
    const big = Buffer.alloc(12 << 20, 'abcdefg')
    await files.write('big', new Blob([big]).stream())
    assert.ok(big.equals(Buffer.from(await files.read('big', { format: 'bytes' }))))
  },

  async urls(sb) {
    const headers = { 'E2b-Sandbox-Id': sb.sandboxId, 'E2b-Sandbox-Port': '49983' }
    const form = new FormData()
    form.append('file', new Blob(['of root']), 'x')
    assert.equal((await fetch(await sb.uploadUrl('/root/signed', { user: 'root' }), { method: 'POST', body: form, headers })).status, 200)
    const url = await sb.downloadUrl('/root/signed', { user: 'root' })
    assert.equal(await (await fetch(url, { headers })).text(), 'of root')
    assert.equal((await fetch(url.replace('username=root', 'username=user'), { headers })).status, 401)
    assert.equal((await fetch(await sb.downloadUrl('none'), { headers })).status, 404)
    const many = new FormData()
    for (const path of ['several/a', 'several/b']) many.append('file', new Blob([path]), path)
    const answer = await fetch(await sb.uploadUrl(), { method: 'POST', body: many, headers })
    assert.deepEqual((await answer.json()).map((f) => f.path), ['/home/user/several/a', '/home/user/several/b'])
  },

  async watching(sb) {
    await sb.files.makeDir('w')
    const seen = []
    let ended
    const options = { recursive: true, includeEntry: true, user: 'user', timeoutMs: 0, onExit: () => { ended = true } }
    const w = await sb.files.watchDir('w', (e) => { seen.push(e) }, options)
    await sb.files.write('w/f', '123')
    const wrote = await until(() => seen.find((e) => e.type === 'write' && e.name === 'f' && e.entry))
    assert.equal(wrote.entry.path, '/home/user/w/f')
    await sb.commands.run('mkdir w/later; touch w/later/x; chmod 700 w/f')
    await until(() => seen.some((e) => e.name === 'later/x') && seen.some((e) => e.type === 'chmod'))
    await w.stop()
    await until(() => ended)
    await assert.rejects(sb.files.watchDir('w/f', () => {}), InvalidArgumentError)
  },

  async metrics(sb) {
    const got = await until(async () => { const m = await sb.getMetrics({ start: new Date(Date.now() - 60_000), end: new Date() }); return m.length && m })
    assert.ok(got[0].timestamp instanceof Date && got[0].memUsed > 0 && got[0].diskUsed < got[0].diskTotal)
    assert.deepEqual(await Sandbox.getMetrics(sb.sandboxId, { start: new Date(Date.now() - 2e8), end: new Date(Date.now() - 1e8) }), [])
    await assert.rejects(Sandbox.getMetrics('i00000000000000000000'), NotFoundError)
  },

  async git({ git, commands, files }) {
    await git.init('r', { initialBranch: 'main' })
    await git.dangerouslyAuthenticate({ username: 'me', password: 'secret-token' })
    assert.match((await commands.run('cat ~/.git-credentials')).stdout, /secret-token/)
    await git.configureUser('A', 'a@example.com')
    assert.equal(await git.getConfig('user.email'), 'a@example.com')
    await git.commit('r', 'empty', { allowEmpty: true })
    await files.write('r/f', '1')
    await git.add('r', { files: ['f'] })
    assert.equal((await git.status('r')).stagedCount, 1)
    await git.restore('r', { paths: ['f'], staged: true })
    assert.equal((await git.status('r')).untrackedCount, 1)
    await git.add('r', { all: true })
    await git.commit('r', 'second', { authorName: 'B', authorEmail: 'b@example.com' })
    await git.reset('r', { mode: 'soft', target: 'HEAD~1' })
    assert.equal((await git.status('r')).hasStaged, true)
    await git.remoteAdd('r', 'origin', 'https://a.test/x.git')
    await git.remoteAdd('r', 'origin', 'https://b.test/x.git', { overwrite: true })
    assert.equal(await git.remoteGet('r', 'origin'), 'https://b.test/x.git')
    assert.equal(await git.remoteGet('r', 'none'), undefined)
    await assert.rejects(git.pull('r'))
    await assert.rejects(git.clone('https://127.0.0.1:1/none.git', { path: 'c', depth: 1, username: 'u', password: 'p' }))
    await git.createBranch('r', 'topic')
    await git.checkoutBranch('r', 'main')
    await git.deleteBranch('r', 'topic', { force: true })
  },

  async hosts(sb) {
    assert.equal(sb.getMcpUrl(), `https://${sb.getHost(50005)}/mcp`)
    await sb.commands.run('mkdir -p /etc/mcp-gateway && echo -n tok > /etc/mcp-gateway/.token', { user: 'root' })
    assert.equal(await sb.getMcpToken(), 'tok')
    const client = new e2b.E2B({ apiKey: process.env.E2B_API_KEY, apiUrl: process.env.E2B_API_URL })
    assert.equal((await client.Sandbox.getInfo(sb.sandboxId)).sandboxId, sb.sandboxId)
  },

  async rebooting() {
    const sb = await Sandbox.create({ timeoutMs: 600_000 })
    const boot = await output(sb, 'cat /proc/sys/kernel/random/boot_id')
    await sb.files.write('kept', '1')
    await sb.commands.run('exec sleep 301', { background: true })
    assert.equal(await sb.pause({ keepMemory: true }), true)
    const again = await Sandbox.connect(sb.sandboxId, { onResume: 'reboot' })
    assert.equal(await again.files.read('kept'), '1')
    assert.notEqual(await output(again, 'cat /proc/sys/kernel/random/boot_id'), boot)
    assert.ok(!(await again.commands.list()).some((p) => p.args.join().includes('301')), 'memory came back')
    assert.equal(await again.kill(), true)
  },

  async notThere(sb) {
    const none = 'i00000000000000000000'
    for (const call of ['fork', 'createSnapshot', 'updateNetwork', 'connect', 'getInfo', 'getMetrics']) {
      await assert.rejects(Sandbox[call](none, {}), NotFoundError, call)
    }
    assert.equal(await Sandbox.kill(none), false)
    await assert.rejects(sb.fork({ count: 101 }), SandboxError)
    const one = await sb.createSnapshot()
    assert.deepEqual((await allOf(Sandbox.listSnapshots({ sandboxId: sb.sandboxId, limit: 1 }))).map((s) => s.snapshotId), [one.snapshotId])
    assert.equal(await Sandbox.deleteSnapshot(one.snapshotId), true)
  },
}

const sb = await Sandbox.create({ timeoutMs: 3_600_000 })
try {
  for (const [name, run] of Object.entries(cases)) {
    if (process.argv.length > 2 && !process.argv.slice(2).includes(name)) continue
    const began = Date.now()
    await run(sb)
    console.log(`ok ${name} ${(Date.now() - began) / 1000}s`)
  }
} finally {
  await sb.kill()
}
process.exit(0) // idle connections stay open for a while
