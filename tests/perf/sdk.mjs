// Does with E2B's unmodified SDK what a line of its input names, and answers
// each with a line: how many milliseconds it took, or what went wrong. What
// comes before and after in a round is not measured.
import { createInterface } from 'node:readline'
import { Sandbox } from '@e2b/code-interpreter'

const megabytes = new Uint8Array(10_000_000).map((_, i) => i * 7)
let kept // the sandbox of operations that need one

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
}

for await (const line of createInterface({ input: process.stdin })) {
  try {
    console.log(JSON.stringify({ ms: await operations[line]() }))
  } catch (err) {
    console.log(JSON.stringify({ error: String(err) }))
  }
}
