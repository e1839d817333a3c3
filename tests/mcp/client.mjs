// Uses the tools of Cloud Sandbox by the official TypeScript client, as an agent does:
//   client.mjs stdio PROGRAM ARGUMENT...    client.mjs http URL TOKEN
import assert from 'node:assert/strict'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'

const [way, ...where] = process.argv.slice(2)

function transport() {
  if (way === 'stdio') return new StdioClientTransport({ command: where[0], args: where.slice(1), env: process.env })
  return new StreamableHTTPClientTransport(new URL(where[0]), { requestInit: { headers: { Authorization: `Bearer ${where[1]}` } } })
}

async function connected(work) {
  const client = new Client({ name: 'test', version: '1' })
  const line = transport()
  await client.connect(line)
  try {
    await work(client)
  } finally {
    if (way === 'http') await line.terminateSession()
    await client.close()
  }
}

async function call(client, name, args, options) {
  const result = await client.callTool({ name, arguments: args }, undefined, options)
  return { ...result, text: result.content.filter((c) => c.type === 'text').map((c) => c.text).join('') }
}

await connected(async (client) => {
  const { tools } = await client.listTools()
  const names = tools.map((t) => t.name)
  for (const name of ['run_code', 'run_command', 'read_file', 'edit_file', 'grep', 'rollback']) assert(names.includes(name), name)
  assert.equal(tools.find((t) => t.name === 'grep').annotations.readOnlyHint, true)
  assert.equal(tools.find((t) => t.name === 'kill_sandbox').annotations.destructiveHint, true)

  assert.equal((await call(client, 'run_code', { code: 'x = 41\nx + 1' })).text, '42')
  const told = []
  const ran = await call(client, 'run_command', { command: 'echo one; sleep 5; echo two; exit 3' }, { onprogress: (p) => told.push(p.message) })
  assert.equal(ran.text, 'one\ntwo\n[exit code 3]')
  assert.equal(ran.isError, true)
  assert(told.some((m) => m.endsWith(': one')), told)

  await call(client, 'write_file', { path: 'bug.py', content: 'print(6 * 8)\n' })
  await call(client, 'edit_file', { path: 'bug.py', old_string: '6 * 8', new_string: '6 * 7' })
  assert.equal((await call(client, 'read_file', { path: 'bug.py' })).text, '     1\tprint(6 * 7)')
  assert.equal((await call(client, 'run_command', { command: 'python3 bug.py' })).text, '42\n')
  assert.equal((await call(client, 'grep', { pattern: 'print', glob: '*.py' })).text, '/workspace/bug.py:1:print(6 * 7)')

  const image = await call(client, 'run_code', { code: "from PIL import Image\nImage.new('RGB', (3, 3), 'red')" })
  assert.equal(image.content[0].type, 'image')
  assert.equal(image.content[0].mimeType, 'image/png')

  const wrong = await call(client, 'run_command', { cmd: 'ls' })
  assert.equal(wrong.isError, true)
  assert.match(wrong.text, /command \(string, required\)/)

  await assert.rejects(call(client, 'run_command', { command: 'sleep 4321' }, { signal: AbortSignal.timeout(1500) }))
  for (let left = 100; (await call(client, 'run_command', { command: 'pgrep -f "sleep 432[1]" || echo none' })).text !== 'none\n'; left--) {
    assert(left > 0, 'the cancelled command still runs')
  }
})
await connected(async (client) => {
  assert.equal((await call(client, 'run_code', { code: 'x' })).text, '41')
})
console.log('ok')
