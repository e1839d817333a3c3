// Does with E2B's unmodified SDK, or with our own, the operation that a line of its
// input names, and answers each with a line: how many milliseconds it took, or the
// error. Set-up and clean-up of a round are not measured.
import { createInterface } from 'node:readline'
import { Sandbox } from '@e2b/code-interpreter'
import { Client, Sandbox as OurSandbox } from 'cloud-sandbox'

const megabytes = new Uint8Array(10_000_000).map((_, i) => i * 7)
const client = new Client()
let kept // the sandbox of operations that need one
let ours // the same for our own SDK

async function timed(run, after = async () => {}) {
  const began = performance.now()
  const got = await run()
  const ms = performance.now() - began
  await after(got)
  return ms
}

const kill = (sandbox) => sandbox.kill()

const operations = {
  create: () => timed(() => Sandbox.create(), kill),
  createAndRun: () =>
    timed(async () => {
      const sandbox = await Sandbox.create()
      await sandbox.commands.run('true')
      return sandbox
    }, kill),
  async open() {
    kept = await Sandbox.create()
    await kept.runCode('x = 1')
    return 0
  },
  runCode: () => timed(() => kept.runCode('x+=1; x')),
  write: () => timed(() => kept.files.write('/tmp/large', megabytes.buffer)),
  async read() {
    let got
    const ms = await timed(async () => (got = await kept.files.read('/tmp/large', { format: 'bytes' })))
    if (got.length !== megabytes.length) throw new Error(`${got.length} bytes`)
    return ms
  },
  pause: () => timed(() => kept.pause()),
  connect: () => timed(async () => (kept = await Sandbox.connect(kept.sandboxId))),
  async close() {
    await kept.kill()
    return 0
  },
  ourCreate: () => timed(() => OurSandbox.create({ client }), kill),
  async ourOpen() {
    ours = await OurSandbox.create({ client })
    await ours.runCode('x = 1')
    return 0
  },
  ourRunCode: () => timed(() => ours.runCode('x+=1; x')),
  async ourClose() {
    await ours.kill()
    return 0
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  try {
    console.log(JSON.stringify({ ms: await operations[line]() }))
  } catch (err) {
    console.log(JSON.stringify({ error: String(err) }))
  }
}
