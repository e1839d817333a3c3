// Templates built by the SDK: what is made, what is told, and what fails.
import assert from 'node:assert/strict'
import { mkdirSync, writeFileSync } from 'node:fs'
import { Sandbox, Template } from 'e2b'

const name = 'js-built'
const logs = []
mkdirSync(import.meta.dirname + '/suite')
writeFileSync(import.meta.dirname + '/suite/a.txt', 'sent')
const template = Template()
  .fromNodeImage('lts')
  .setEnvs({ GREETING: 'hello' })
  .setUser('root')
  .setWorkdir('/srv/app')
  .runCmd('echo "$GREETING $(whoami) $(pwd)" > out.txt')
  .copy('suite', 'suite/')
const built = await Template.build(template, name, { onBuildLogs: (entry) => logs.push(entry.message) })
assert.equal(built.name, name)
assert.deepEqual(built.tags, ['default'])
assert.ok(logs.some((line) => line.includes('RUN echo')), logs.join('\n'))
assert.equal(await Template.exists(name), true)

const sandbox = await Sandbox.create(name)
const { stdout } = await sandbox.commands.run('whoami; pwd; cat out.txt; echo $GREETING; cat suite/a.txt')
assert.equal(stdout, 'root\n/srv/app\nhello root /srv/app\nhello\nsent')
await sandbox.kill()

// Nothing is made twice that the same steps have made.
const known = []
await Template.build(template, name + ':again', { onBuildLogs: (entry) => known.push(entry.message) })
assert.ok(known.some((line) => line.includes('CACHED')) && !known.some((line) => line.includes('packing')), known.join('\n'))
assert.deepEqual((await Template.getTags(name)).map((tag) => tag.tag).sort(), ['again', 'default'])

await assert.rejects(Template.build(Template().fromTemplate('base').runCmd('exit 7'), 'js-failing'), /exit code 7/)
console.log('ok')
