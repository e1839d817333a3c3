// R and Java in the code interpreter, by E2B's unmodified JavaScript SDK, in the
// Sandbox that SANDBOX_ID names.
import assert from 'node:assert/strict'
import { Sandbox } from '@e2b/code-interpreter'

const sb = await Sandbox.connect(process.env.SANDBOX_ID)
const requestTimeoutMs = 240_000 // to the first byte, which an interpreter that starts on a busy machine keeps waiting
const run = (code, options) => sb.runCode(code, { timeoutMs: requestTimeoutMs, requestTimeoutMs, ...options })

assert.deepEqual((await run('x <- 41\nprint("Hello, World!")', { language: 'r' })).logs.stdout, ['[1] "Hello, World!"\n'])
const r = await run('x + 1', { language: 'R' })
assert.equal(r.text, '[1] 42')
assert.equal(r.executionCount, 2)
assert.equal((await run('Sys.getenv("FOO")', { language: 'r', envs: { FOO: 'bar' } })).text, '[1] "bar"')
assert.equal((await run('Sys.getenv("FOO", unset = "default")', { language: 'r' })).text, '[1] "default"')
const plots = await run('plot(1:3); hist(c(1, 2, 2)); data.frame(a = 1)', { language: 'r' })
assert.deepEqual(plots.results.map((result) => Boolean(result.png)), [true, true, false])
assert.match(plots.results[2].html, /<table>/)
const failed = (await run('f <- function() stop("m")\nf()', { language: 'r' })).error
assert.equal(failed.value, 'm')
assert.match(failed.traceback, /1\. f\(\)/)

assert.deepEqual((await run('int x = 41;\nSystem.out.println("Hello, World!");', { language: 'java' })).logs.stdout, ['Hello, World!', '\n'])
assert.equal((await run('x + 1', { language: 'java' })).text, '42')
assert.equal((await run('System.getProperty("FOO")', { language: 'java', envs: { FOO: 'bar' } })).text, 'bar')
assert.equal((await run('System.getProperty("FOO", "default")', { language: 'java' })).text, 'default')
assert.equal((await run('throw new IllegalStateException("m");', { language: 'java' })).error.name, 'java.lang.IllegalStateException')
assert.equal((await run('int y = nothing;', { language: 'java' })).error.name, 'CompileError')

for (const [language, code, text] of [['r', 'exists("x")', '[1] FALSE'], ['java', 'System.getProperty("user.dir")', '/tmp']]) {
  const context = await sb.createCodeContext({ language, cwd: '/tmp' })
  assert.deepEqual([context.language, context.cwd], [language, '/tmp'])
  assert.equal((await run(code, { context })).text, text)
  await sb.removeCodeContext(context)
}
console.log('ok')
process.exit(0) // idle connections stay open for a while
