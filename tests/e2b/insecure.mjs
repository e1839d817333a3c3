// What a user of an SDK does who wants a sandbox that asks for no token.
import assert from 'node:assert/strict'
import { Sandbox } from 'e2b'

const sb = await Sandbox.create('base', { timeoutMs: 600_000, secure: false })
await sb.files.write('/tmp/a', 'b')
assert.equal((await sb.commands.run('cat /tmp/a')).stdout, 'b')
assert.equal(await (await Sandbox.connect(sb.sandboxId)).files.read('/tmp/a'), 'b')
await sb.kill()
