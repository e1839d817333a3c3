// Real calls of an unmodified E2B SDK for JavaScript. Prints each case as it passes.
import assert from 'node:assert/strict'
import http from 'node:http'
import * as e2b from 'e2b'
import { Sandbox, CommandExitError, NotFoundError, TimeoutError, FileType, FilesystemEventType } from 'e2b'

const until = async (f) => {
  for (const end = Date.now() + 120_000; Date.now() < end; await new Promise((r) => setTimeout(r, 50))) {
    const got = await f()
    if (got) return got
  }
  throw new Error('it did not come')
}
const names = (entries) => entries.map((e) => e.name)

const cases = {
  async life() {
    const sb = await Sandbox.create({ timeoutMs: 190_000, metadata: { suite: 'js', 'odd &=%': 'välue +/' }, envs: { FOO: 'bar' } })
    assert.equal(await sb.isRunning(), true)
    const info = await sb.getInfo()
    assert.equal(info.sandboxId, sb.sandboxId)
    assert.equal(info.metadata['odd &=%'], 'välue +/')
    assert.equal(info.state, 'running')
    const listed = await Sandbox.list({ query: { metadata: { 'odd &=%': 'välue +/' } } }).nextItems()
    assert.ok(listed.some((i) => i.sandboxId === sb.sandboxId))
    await sb.setTimeout(3_000_000)
    assert.ok((await sb.getInfo()).endAt - info.endAt > 2_000_000)
    const again = await Sandbox.connect(sb.sandboxId, { timeoutMs: 30_000 })
    assert.equal((await again.commands.run('echo $FOO')).stdout, 'bar\n')
    assert.ok((await sb.getInfo()).endAt - info.endAt > 2_000_000, 'connect made it shorter')
    const [metric] = await until(async () => { const m = await sb.getMetrics(); return m.length && m })
    assert.ok(metric.memTotal > 0 && metric.cpuCount >= 1 && metric.diskTotal > 0)
    assert.equal(await Sandbox.kill(sb.sandboxId), true)
    assert.equal(await sb.isRunning(), false)
    assert.equal(await Sandbox.kill(sb.sandboxId), false)
    await assert.rejects(Sandbox.connect(sb.sandboxId), NotFoundError)
    await assert.rejects(Sandbox.getInfo(sb.sandboxId), NotFoundError)
    await assert.rejects(Sandbox.setTimeout(sb.sandboxId, 1000), NotFoundError)
    await assert.rejects(sb.commands.run('true'), e2b.SandboxError)
  },

  async pages() {
    const made = []
    for (let i = 0; i < 3; i++) made.push(await Sandbox.create({ timeoutMs: 600_000, metadata: { suite: 'js-pages' } }))
    const seen = []
    const page = Sandbox.list({ query: { metadata: { suite: 'js-pages' }, state: ['running'] }, limit: 1 })
    while (page.hasNext) seen.push(...(await page.nextItems()).map((i) => i.sandboxId))
    assert.deepEqual(seen, made.map((s) => s.sandboxId).reverse())
    for (const s of made) assert.equal(await Sandbox.kill(s.sandboxId), true)
  },

  async pausing() {
    const sb = await Sandbox.create({ timeoutMs: 600_000, metadata: { suite: 'js-pausing' } })
    await sb.files.write('kept', 'on disk')
    const sleeper = await sb.commands.run('exec sleep 300', { background: true })
    await sleeper.disconnect()
    await (sb.pause ? sb.pause() : sb.betaPause())
    assert.equal(await sb.isRunning(), false)
    const page = Sandbox.list({ query: { metadata: { suite: 'js-pausing' }, state: ['paused'] } })
    assert.deepEqual((await page.nextItems()).map((i) => i.sandboxId), [sb.sandboxId])
    const again = await Sandbox.connect(sb.sandboxId, { timeoutMs: 1_200_000 })
    assert.equal(await again.files.read('kept'), 'on disk')
    assert.ok((await again.commands.list()).some((p) => p.pid === sleeper.pid), 'memory was lost')
    assert.equal(await Sandbox.kill(sb.sandboxId), true)
  },

  async byID() {
    const sb = await Sandbox.create({ timeoutMs: 600_000 })
    const asked = Date.now()
    await Sandbox.setTimeout(sb.sandboxId, 1_200_000)
    assert.ok((await Sandbox.getInfo(sb.sandboxId)).endAt - asked > 1_199_000)
    if (Sandbox.pause) {
      assert.equal(await Sandbox.pause(sb.sandboxId), true)
      assert.equal(await Sandbox.pause(sb.sandboxId), false)
      await assert.rejects(Sandbox.pause('i00000000000000000000'), NotFoundError)
    }
    assert.equal(await Sandbox.kill(sb.sandboxId), true)
  },

  async copies(sb) {
    if (!sb.fork) return
    await sb.files.write('shared', 'once')
    for (const copy of await sb.fork({ timeoutMs: 600_000, count: 2 })) {
      assert.equal(await copy.files.read('shared'), 'once')
      await copy.files.write('shared', 'mine')
      await copy.kill()
    }
    assert.equal(await sb.files.read('shared'), 'once')
    const first = await sb.createSnapshot()
    const named = await sb.createSnapshot({ name: 'js-turns' })
    await sb.files.write('shared', 'twice')
    const second = await Sandbox.createSnapshot(sb.sandboxId, { name: 'js-turns' })
    assert.equal(named.snapshotId, second.snapshotId) // which is the name, of the newest
    assert.match(second.snapshotId, /\/js-turns:default$/)
    const listed = (await sb.listSnapshots().nextItems()).map((s) => s.snapshotId)
    assert.ok(listed.includes(first.snapshotId) && listed.includes(second.snapshotId))
    for (const [of, said] of [['js-turns', 'twice'], [second.snapshotId, 'twice'], [first.snapshotId, 'once']]) {
      const born = await Sandbox.create(of, { timeoutMs: 600_000 })
      assert.equal(await born.files.read('shared'), said)
      await born.kill()
    }
    for (const s of [first, second]) {
      assert.equal(await Sandbox.deleteSnapshot(s.snapshotId), true)
      assert.equal(await Sandbox.deleteSnapshot(s.snapshotId), false)
    }
  },

  async network() {
    const sb = await Sandbox.create({ timeoutMs: 600_000, allowInternetAccess: false })
    const refused = () => assert.rejects(sb.commands.run('timeout 5 bash -c "echo > /dev/tcp/1.1.1.1/443"'), CommandExitError)
    await refused()
    if (sb.updateNetwork) {
      await sb.updateNetwork({ allowOut: ['example.com'], denyOut: [e2b.ALL_TRAFFIC] })
      const shown = (await sb.getInfo()).network
      assert.deepEqual([shown.allowOut, shown.denyOut], [['example.com'], ['0.0.0.0/0']])
      await refused()
      await assert.rejects(sb.updateNetwork({ denyOut: ['example.com'] }), e2b.SandboxError)
    }
    await sb.kill()
  },

  async templates() {
    if (!e2b.Template?.exists) return
    assert.equal(await e2b.Template.exists('base'), true)
    assert.equal(await e2b.Template.exists('there-is-no-such-template'), false)
  },

  async badCreates() {
    await assert.rejects(Sandbox.create('there-is-no-such-template'), e2b.SandboxError)
    await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), e2b.AuthenticationError)
    await assert.rejects(Sandbox.create({ timeoutMs: 1e10 }), /400/)
  },

  async commands(sb) {
    const done = await sb.commands.run('echo out; echo err >&2; pwd; id -un; echo $HOME')
    assert.deepEqual([done.exitCode, done.stdout, done.stderr], [0, 'out\n/home/user\nuser\n/home/user\n', 'err\n'])
    assert.equal((await sb.commands.run('echo $A', { envs: { A: 'x' } })).stdout, 'x\n')
    assert.equal((await sb.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
    assert.equal((await sb.commands.run('id -un', { user: 'root' })).stdout, 'root\n')
    await assert.rejects(sb.commands.run('echo o; exit 7'), (e) => {
      assert.ok(e instanceof CommandExitError)
      assert.deepEqual([e.exitCode, e.stdout, e.error], [7, 'o\n', 'exit status 7'])
      return true
    })
    await assert.rejects(sb.commands.run('true', { cwd: '/no/such/dir' }), e2b.InvalidArgumentError)
    await assert.rejects(sb.commands.run('true', { user: 'nobody-here' }), e2b.AuthenticationError)
    await assert.rejects(sb.commands.run('sleep 60', { timeoutMs: 1000 }), TimeoutError)
    let said = ''
    await sb.commands.run('for i in 1 2 3; do echo $i; done', { onStdout: (s) => { said += s } })
    assert.equal(said, '1\n2\n3\n')
    const big = await sb.commands.run('seq 200000')
    assert.ok(big.stdout.endsWith('199999\n200000\n') && big.stdout.length > 1_200_000)
  },

  async background(sb) {
    const c = await sb.commands.run('while read x; do echo got $x; [ $x = end ] && break; done; exit 3', { background: true, stdin: true })
    assert.ok((await sb.commands.list()).some((p) => p.pid === c.pid))
    await sb.commands.sendStdin(c.pid, 'one\n')
    await sb.commands.sendStdin(c.pid, 'end\n')
    await assert.rejects(c.wait(), (e) => e.stdout === 'got one\ngot end\n' && e.exitCode === 3)
    const s = await sb.commands.run('exec sleep 300', { background: true })
    const other = await sb.commands.connect(s.pid)
    assert.equal(await sb.commands.kill(s.pid), true)
    await assert.rejects(other.wait(), (e) => e.exitCode === -1)
    await assert.rejects(s.wait(), CommandExitError)
    assert.equal(await sb.commands.kill(s.pid), false)
    if (sb.commands.closeStdin) {
      const cat = await sb.commands.run('cat; echo over', { background: true, stdin: true })
      await sb.commands.sendStdin(cat.pid, 'x\n')
      await sb.commands.closeStdin(cat.pid)
      assert.equal((await cat.wait()).stdout, 'x\nover\n')
    }
  },

  async terminal(sb) {
    let text = ''
    const pty = await sb.pty.create({ cols: 80, rows: 24, envs: { ABC: '123' }, onData: (b) => { text += Buffer.from(b) } })
    const type = (s) => sb.pty.sendInput(pty.pid, new TextEncoder().encode(s))
    await type('echo $ABC-$TERM; stty size\n')
    await sb.pty.resize(pty.pid, { cols: 100, rows: 30 })
    await type('echo now $(stty size); exit\n')
    await pty.wait()
    assert.match(text, /123-xterm-256color/)
    assert.match(text, /now 30 100/)
    const gone = await sb.pty.create({ cols: 80, rows: 24, onData() {} })
    const ended = gone.wait().catch((e) => e)
    assert.equal(await sb.pty.kill(gone.pid), true)
    assert.ok((await ended) instanceof CommandExitError)
  },

  async files(sb) {
    const written = await sb.files.write('dir/deep/a.txt', 'hellö')
    assert.deepEqual([written.path, written.name], ['/home/user/dir/deep/a.txt', 'a.txt'])
    assert.equal(await sb.files.read('dir/deep/a.txt'), 'hellö')
    assert.deepEqual(Buffer.from(await sb.files.read('/home/user/dir/deep/a.txt', { format: 'bytes' })), Buffer.from('hellö'))
    assert.equal(await (await sb.files.read('dir/deep/a.txt', { format: 'blob' })).text(), 'hellö')
    assert.equal(await new Response(await sb.files.read('dir/deep/a.txt', { format: 'stream' })).text(), 'hellö')
    await sb.files.write('empty', '')
    assert.equal(await sb.files.read('empty'), '')
    const binary = Buffer.alloc(5_000_000, Buffer.from(Array.from({ length: 256 }, (_, i) => i)))
    await sb.files.write('/tmp/binary', new Blob([binary]))
    assert.ok(binary.equals(Buffer.from(await sb.files.read('/tmp/binary', { format: 'bytes' }))))
    await sb.files.write('streamed', new Blob(['of a stream']).stream())
    assert.equal(await sb.files.read('streamed'), 'of a stream')
    await sb.files.write([{ path: 'many/1', data: '1' }, { path: 'many/2', data: '2' }])
    assert.deepEqual(names(await sb.files.list('many')), ['1', '2'])
    const info = await sb.files.getInfo('dir/deep/a.txt')
    assert.deepEqual([info.type, info.size, info.owner, info.mode], [FileType.FILE, 6, 'user', 0o644])
    assert.equal(await sb.files.exists('dir'), true)
    assert.equal(await sb.files.exists('nothing'), false)
    assert.equal((await sb.files.rename('dir/deep/a.txt', 'elsewhere/b.txt')).path, '/home/user/elsewhere/b.txt')
    await sb.files.remove('elsewhere')
    assert.equal(await sb.files.exists('elsewhere'), false)
    assert.deepEqual([await sb.files.makeDir('new/dir'), await sb.files.makeDir('new/dir')], [true, false])
    await assert.rejects(sb.files.read('nothing'), NotFoundError)
    await assert.rejects(sb.files.list('nothing'), NotFoundError)
    await assert.rejects(sb.files.read('new/dir'), e2b.InvalidArgumentError)
  },

  async urls(sb) {
    // Where the routing is by headers, a plain client of the URL sends them too.
    const headers = { 'E2b-Sandbox-Id': sb.sandboxId, 'E2b-Sandbox-Port': '49983' }
    const form = new FormData()
    form.append('file', new Blob(['by url']), 'x')
    const up = await fetch(await sb.uploadUrl('by-url', { useSignatureExpiration: 60_000 }), { method: 'POST', body: form, headers })
    assert.equal(up.status, 200)
    const url = await sb.downloadUrl('by-url', { useSignatureExpiration: 60_000 })
    assert.equal(await (await fetch(url, { headers })).text(), 'by url')
    assert.equal((await fetch(url.replace(/signature=/, 'signature=x'), { headers })).status, 401)
  },

  async watch(sb) {
    await sb.files.makeDir('watched/sub')
    const seen = new Set()
    const w = await sb.files.watchDir('watched', (e) => seen.add(`${e.type} ${e.name}`), { recursive: true })
    await sb.files.write('watched/sub/new', 'x')
    await sb.files.rename('watched/sub/new', 'watched/sub/old')
    await sb.files.remove('watched/sub/old')
    const all = [
      `${FilesystemEventType.CREATE} sub/new`, `${FilesystemEventType.WRITE} sub/new`, `${FilesystemEventType.RENAME} sub/new`,
      `${FilesystemEventType.CREATE} sub/old`, `${FilesystemEventType.REMOVE} sub/old`,
    ]
    await until(() => all.every((e) => seen.has(e)))
    await w.stop()
    await assert.rejects(sb.files.watchDir('nothing', () => {}), NotFoundError)
  },

  async ports(sb) {
    await sb.files.write('www/page', 'served')
    await sb.commands.run('python3 -m http.server 8000 -d www', { background: true })
    const host = sb.getHost(8000)
    assert.ok(host.startsWith(`8000-${sb.sandboxId}.`))
    const at = new URL(process.env.E2B_API_URL)
    const page = () => new Promise((resolve, reject) => {
      http.get({ host: at.hostname, port: at.port, path: '/page', headers: { Host: host } }, async (res) => {
        let body = ''
        for await (const piece of res) body += piece
        resolve(res.statusCode === 200 && body === 'served')
      }).on('error', reject)
    })
    await until(page)
  },

  async privatePorts() {
    const network = { allowPublicTraffic: false, maskRequestHost: 'inside.test:${PORT}' }
    const sb = await Sandbox.create({ timeoutMs: 600_000, network })
    if (!('trafficAccessToken' in sb)) return
    assert.ok(sb.trafficAccessToken)
    assert.equal((await Sandbox.connect(sb.sandboxId)).trafficAccessToken, sb.trafficAccessToken)
    await sb.files.write('www/page', 'private')
    await sb.commands.run('python3 -m http.server 8000 -d www', { background: true })
    const at = new URL(process.env.E2B_API_URL)
    const page = (headers) => new Promise((resolve, reject) => {
      http.get({ host: at.hostname, port: at.port, path: '/page', headers: { Host: sb.getHost(8000), ...headers } }, async (res) => {
        let body = ''
        for await (const piece of res) body += piece
        resolve(res.statusCode === 200 ? body : res.statusCode)
      }).on('error', reject)
    })
    await until(async () => (await page({ 'E2B-Traffic-Access-Token': sb.trafficAccessToken })) === 'private')
    assert.equal(await page({}), 403)
    await sb.kill()
  },

  async secrets() {
    if (!e2b.Secret) return
    const { Secret, SecretNotFoundError } = e2b
    const made = await Secret.create('JS_Key', 'v1', { metadata: { by: 'js' } })
    assert.equal(made.name, 'js_key')
    assert.equal(made.version, 1)
    assert.equal((await Secret.update('js_key', 'v2')).version, 2)
    const info = await Secret.getInfo(made.secretId)
    assert.deepEqual(info.metadata, { by: 'js' })
    assert.ok(info.updatedAt >= info.createdAt)
    const names = []
    for (const page = Secret.list({ limit: 1 }); page.hasNext; ) names.push(...(await page.nextItems()).map((s) => s.name))
    assert.ok(names.includes('js_key'))
    assert.equal(await Secret.exists('js_key'), true)
    assert.equal(await Secret.destroy('js_key'), true)
    assert.equal(await Secret.destroy('js_key'), false)
    assert.equal(await Secret.exists(made.secretId), false)
    await assert.rejects(Secret.getInfo('js_key'), SecretNotFoundError)
  },

  async git(sb) {
    if (!sb.git) return
    await sb.git.init('repo', { initialBranch: 'main' })
    await sb.git.configureUser('A', 'a@example.com', { path: 'repo', scope: 'local' })
    await sb.files.write('repo/f', '1')
    await sb.git.add('repo')
    await sb.git.commit('repo', 'first')
    assert.equal((await sb.git.status('repo')).isClean, true)
    await sb.git.createBranch('repo', 'side')
    assert.equal((await sb.git.branches('repo')).currentBranch, 'side')
    const { git } = sb
    await git.init('origin.git', { bare: true, initialBranch: 'main' })
    await git.checkoutBranch('repo', 'main')
    await git.deleteBranch('repo', 'side')
    assert.deepEqual((await git.branches('repo')).branches, ['main'])
    await git.remoteAdd('repo', 'origin', '/home/user/origin.git')
    assert.equal(await git.remoteGet('repo', 'origin'), '/home/user/origin.git')
    await git.push('repo', { remote: 'origin', branch: 'main' })
    await git.clone('/home/user/origin.git', { path: 'clone', branch: 'main' })
    await sb.files.write('clone/f', '2')
    await git.restore('clone', { paths: ['f'] })
    assert.equal(await sb.files.read('clone/f'), '1')
    await git.setConfig('pull.rebase', 'false', { scope: 'local', path: 'clone' })
    assert.equal(await git.getConfig('pull.rebase', { scope: 'local', path: 'clone' }), 'false')
    await sb.files.write('clone/f', '3')
    await git.add('clone')
    await git.reset('clone', { mode: 'hard' })
    assert.equal((await git.status('clone')).isClean, true)
    await git.pull('clone', { remote: 'origin', branch: 'main' })
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
