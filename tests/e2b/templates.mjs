// Templates built by the SDK: what is made, what is told, and what fails.
import assert from 'node:assert/strict'
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { Sandbox, Template } from 'e2b'

const name = 'js-built'
const logs = []
mkdirSync(import.meta.dirname + '/suite')
mkdirSync(import.meta.dirname + '/links')
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

// A link whose target is wanted is a file there, and the PATH of a template is that of
// its commands.
symlinkSync('../suite/a.txt', import.meta.dirname + '/links/link')
const resolved = Template().fromBaseImage().copy('links', '/srv/links', { resolveSymlinks: true }).setEnvs({ PATH: '/opt/own:/usr/bin:/bin' })
await Template.build(resolved, 'js-links')
const linked = await Sandbox.create('js-links')
assert.equal((await linked.commands.run('test -L /srv/links/link || echo a file; cat /srv/links/link; echo " $PATH"')).stdout, 'a file\nsent /opt/own:/usr/bin:/bin\n')
await linked.kill()

// Nothing is made twice that the same steps have made.
const known = []
await Template.build(template, name + ':again', { onBuildLogs: (entry) => known.push(entry.message) })
assert.ok(known.some((line) => line.includes('CACHED')) && !known.some((line) => line.includes('packing')), known.join('\n'))
assert.deepEqual((await Template.getTags(name)).map((tag) => tag.tag).sort(), ['again', 'default'])

// Nor under another name, for another size, or where nothing is done; unless forced.
const none = () => Template().fromTemplate(name)
for (const [steps, path, options, made] of [
  [template, 'js-other', { cpuCount: 2, memoryMB: 1024 }, false],
  [none(), 'js-none', {}, false],
  [none().setReadyCmd('test -f out.txt'), 'js-none:ready', {}, false],
  [none(), 'js-none:forced', { skipCache: true }, true],
]) {
  const lines = []
  const told = await Template.build(steps, path, { ...options, onBuildLogs: (entry) => lines.push(entry.message) })
  assert.equal(lines.some((line) => line.includes('packing')), made, lines.join('\n'))
  const sandbox = await Sandbox.create(path)
  const { stdout } = await sandbox.commands.run('whoami; pwd; cat out.txt; echo $GREETING; cat suite/a.txt')
  assert.equal(stdout, 'root\n/srv/app\nhello root /srv/app\nhello\nsent')
  const { cpuCount, memoryMB } = await sandbox.getInfo()
  if (options.cpuCount) assert.deepEqual([cpuCount, memoryMB], [2, 1024])
  await sandbox.kill()
  const tags = await Template.getTags(path.split(':')[0])
  assert.ok(tags.some((tag) => tag.buildId === told.buildId), JSON.stringify(tags))
}

// Of a build that changes, the steps before the change are not carried out again:
// also those of one that failed, and those of one that starts something.
const steps = (end) => Template().fromTemplate('base').setUser('root').setWorkdir('/srv')
  .runCmd('date +%s%N > one').setEnvs({ TWICE: 'yes' }).runCmd('date +%s%N > two').runCmd(end)
const stamps = async (template, tag, options = {}) => {
  const lines = []
  await Template.build(template, `js-layers:${tag}`, { ...options, onBuildLogs: (entry) => lines.push(entry.message) })
  const sandbox = await Sandbox.create(`js-layers:${tag}`)
  const { stdout } = await sandbox.commands.run('cat one two; whoami; pwd; echo $TWICE')
  await sandbox.kill()
  return { stamps: stdout.split('\n'), cached: lines.filter((line) => line.includes('CACHED')) }
}
await assert.rejects(Template.build(steps('exit 9'), 'js-layers:none'), /exit code 9/)
const first = await stamps(steps('echo a > end'), 'a')
assert.deepEqual(first.cached.map((line) => line.match(/builder (\d+\/\d+)/)[1]), ['1/6', '2/6', '3/6', '4/6', '5/6'])
assert.deepEqual(first.stamps.slice(2, 5), ['root', '/srv', 'yes'])
const second = await stamps(steps('echo b > end').setStartCmd('sleep 1000', 'true'), 'b')
const third = await stamps(steps('echo b > end').setStartCmd('sleep 2000', 'true'), 'c')
assert.equal(third.cached.length, 6)
const skipping = Template().fromTemplate('base').setUser('root').setWorkdir('/srv').runCmd('date +%s%N > one').setEnvs({ TWICE: 'yes' })
  .skipCache().runCmd('date +%s%N > two').runCmd('echo b > end')
const half = await stamps(skipping, 'd')
const whole = await stamps(steps('echo b > end'), 'e', { skipCache: true })
for (const other of [second, third]) assert.deepEqual(other.stamps, first.stamps)
assert.equal(half.stamps[0], first.stamps[0])
assert.notEqual(half.stamps[1], first.stamps[1])
assert.notEqual(whole.stamps[0], first.stamps[0])
assert.equal(whole.cached.length, 0)

await assert.rejects(Template.build(Template().fromTemplate('base').runCmd('exit 7'), 'js-failing'), /exit code 7/)
console.log('ok')
