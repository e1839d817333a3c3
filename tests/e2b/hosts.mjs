// What getHost() gives leads to the server, and never to E2B's own cloud.
import assert from 'node:assert/strict'
import { Sandbox } from 'e2b'

const [domain, scheme] = process.argv.slice(2)
const sb = await Sandbox.create({ timeoutMs: 120_000 })
const host = sb.getHost(8000)
assert.equal(host, `8000-${sb.sandboxId}.${domain}`)
if (scheme) {
  await sb.commands.run('cd /tmp && echo served >index.html && exec python3 -m http.server 8000', { background: true })
  const end = Date.now() + 60_000
  let answer
  while ((answer = await fetch(`${scheme}://${host}/`)).status === 502) { // nobody listens yet
    assert.ok(Date.now() < end)
    await new Promise((r) => setTimeout(r, 50))
  }
  assert.equal(await answer.text(), 'served\n')
  assert.equal((await Sandbox.connect(sb.sandboxId)).getHost(8000), host)
}
await Sandbox.kill(sb.sandboxId)
process.exit(0)
