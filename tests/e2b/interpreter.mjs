// The code interpreter by E2B's unmodified JavaScript SDK.
import assert from 'node:assert/strict'
import { Sandbox } from '@e2b/code-interpreter'

const cases = {
  async state(sb) {
    await sb.runCode('x = 1')
    const execution = await sb.runCode('x+=1; x')
    assert.equal(execution.text, '2')
    assert.equal(execution.executionCount, 2)
  },

  async output(sb) {
    const seen = []
    const execution = await sb.runCode("import sys\nprint('one')\nprint('two', file=sys.stderr)", {
      onStdout: (m) => seen.push(m.line),
      onStderr: (m) => seen.push(m.line),
    })
    assert.deepEqual(execution.logs, { stdout: ['one\n'], stderr: ['two\n'] })
    assert.deepEqual(seen.sort(), ['one\n', 'two\n'])
  },

  async errors(sb) {
    const { error } = await sb.runCode('1/0')
    assert.equal(error.name, 'ZeroDivisionError')
    assert.match(error.traceback, /line 1/)
  },

  async results(sb) {
    const execution = await sb.runCode("class A:\n    def _repr_latex_(self): return '$x$'\ndisplay(A())\n'main'")
    assert.equal(execution.results[0].latex, '$x$')
    assert.equal(execution.text, 'main')
  },

  async languages(sb) {
    assert.equal((await sb.runCode('const a = 1; a + 1', { language: 'js' })).text, '2')
    assert.equal((await sb.runCode('const b: string = "t"; b', { language: 'ts' })).text, 't')
    assert.deepEqual((await sb.runCode('echo $((6*7))', { language: 'bash' })).logs.stdout, ['42\n'])
  },

  async contexts(sb) {
    const context = await sb.createCodeContext({ cwd: '/tmp', language: 'python' })
    assert.equal((await sb.listCodeContexts()).at(-1).id, context.id)
    assert.equal((await sb.runCode('import os; os.getcwd()', { context })).text, '/tmp')
    await sb.restartCodeContext(context)
    await sb.removeCodeContext(context)
    await assert.rejects(sb.runCode('1', { context }), { name: 'NotFoundError' })
  },

  async timeout(sb) {
    await sb.runCode('kept = 7')
    await assert.rejects(sb.runCode('import time\nwhile True: time.sleep(0.1)', { timeoutMs: 2000 }), { name: 'TimeoutError' })
    assert.equal((await sb.runCode('kept')).text, '7')
  },
}

const sb = await Sandbox.create({ timeoutMs: 3_600_000 })
try {
  for (const [name, run] of Object.entries(cases)) {
    await run(sb)
    console.log(`ok ${name}`)
  }
} finally {
  await sb.kill()
}
process.exit(0) // idle connections stay open for a while
