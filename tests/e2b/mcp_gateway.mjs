// The MCP gateway, as E2B's JavaScript SDK starts it, and servers of a template.
import assert from 'node:assert/strict'
import { Sandbox, Template } from 'e2b'

// A server of one tool, as small as one can be.
const server = `
import json, os, sys
for line in sys.stdin:
    m = json.loads(line)
    if m.get("id") is None:
        continue
    if m["method"] == "initialize":
        r = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "greeter", "version": "1"}}
    elif m["method"] == "tools/list":
        r = {"tools": [{"name": "greet", "description": "greets", "inputSchema": {"type": "object", "properties": {"whom": {"type": "string"}}}}]}
    else:
        r = {"content": [{"type": "text", "text": os.environ["GREETING"] + " " + m["params"]["arguments"]["whom"]}]}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
`
const definition = (name) => JSON.stringify({ command: ['python3', `/opt/${name}.py`], env: { GREETING: '${greeting}' }, install: `cp /opt/server /opt/${name}.py` })
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`
const template = Template().fromTemplate('mcp-gateway').setUser('root')
  .runCmd(`mkdir -p /etc/mcp-gateway/servers && printf %s ${quoted(definition('greeter'))} > /etc/mcp-gateway/servers/greeter.json`)
  .runCmd(`printf %s ${quoted(server)} > /opt/server`)
await Template.build(template.addMcpServer('greeter').setUser('user'), 'js-mcp')
await assert.rejects(Template.build(Template().fromTemplate('mcp-gateway').addMcpServer('slack'), 'js-no-mcp'), /does not have it/)

const sandbox = await Sandbox.create('js-mcp', { mcp: { greeter: { greeting: 'hello' } } })
assert.match(sandbox.getMcpUrl(), new RegExp(`^https://50005-${sandbox.sandboxId}\\..*/mcp$`))
const token = await sandbox.getMcpToken()
const send = async (message, bearer = token) => {
  const response = await fetch(process.env.E2B_SANDBOX_URL + '/mcp', {
    method: 'POST',
    headers: {
      'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '50005', Authorization: `Bearer ${bearer}`,
      'Content-Type': 'application/json', Accept: 'application/json, text/event-stream',
    },
    body: JSON.stringify({ jsonrpc: '2.0', ...message }),
  })
  return { status: response.status, body: response.headers.get('content-type') === 'application/json' ? await response.json() : await response.text() }
}
assert.equal((await send({ id: 1, method: 'ping' }, 'wrong')).status, 401)
const initialized = await send({ id: 1, method: 'initialize', params: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'x', version: '1' } } })
assert.equal(initialized.body.result.protocolVersion, '2025-06-18')
assert.equal((await send({ method: 'notifications/initialized' })).status, 202)
assert.deepEqual((await send({ id: 'l', method: 'tools/list' })).body.result.tools.map((tool) => tool.name), ['greet'])
const greet = async () => (await send({ id: 2, method: 'tools/call', params: { name: 'greet', arguments: { whom: 'world' } } })).body.result.content[0].text
assert.equal(await greet(), 'hello world')

// Who connects finds the token, and the gateway goes on after a pause.
await sandbox.pause()
const again = await Sandbox.connect(sandbox.sandboxId)
assert.equal(await again.getMcpToken(), token)
assert.equal(await greet(), 'hello world')
await again.kill()

// What cannot start is told, and no sandbox is left.
for (const mcp of [{ slack: {} }, { greeter: {} }, { greeter: { greeting: 'a', more: 'b' } }]) {
  await assert.rejects(Sandbox.create('js-mcp', { mcp, metadata: { refused: 'yes' } }))
}
const left = await Sandbox.list({ query: { metadata: { refused: 'yes' } } }).nextItems()
assert.deepEqual(left, [])
console.log('ok')
