// Every method of E2B's JavaScript Template builder. What has to reach a registry
// elsewhere is done with packages that the template brings itself: pip takes a
// wheel, npm a folder, git a repository and apt what is installed already.
//
// Left out, for want of what they need: bunInstall (there is no bun in base, and no
// template stands for the image of fromBunImage) and the beta methods of dev
// containers (they need E2B's template "devcontainer").
import assert from 'node:assert/strict'
import { mkdirSync, writeFileSync } from 'node:fs'
import { Sandbox, Template, waitForFile, waitForPort, waitForProcess, waitForTimeout, waitForURL } from 'e2b'

const context = import.meta.dirname + '/methods'
mkdirSync(context + '/folder/deep', { recursive: true })
for (const [name, text] of Object.entries({ one: '1', two: '2', 'folder/three': '3', 'folder/deep/four': '4' })) writeFileSync(`${context}/${name}`, text)
const begin = () => Template({ fileContextPath: context })

// What a build may begin with: each gets as far as its step.
for (const [name, from] of Object.entries({
  debian: begin().fromDebianImage('bookworm'), ubuntu: begin().fromUbuntuImage('22.04'), python: begin().fromPythonImage('3.12'), node: begin().fromNodeImage('22'),
  base: begin().fromBaseImage(), image: begin().fromImage('docker.io/library/python:3.11-slim'), template: begin().fromTemplate('base'),
  dockerfile: begin().fromDockerfile('FROM debian:bookworm\nENV A=from-docker\nUSER root\nWORKDIR /srv\nRUN [ "$A$(pwd)$(id -un)" = from-docker/srvroot ]\n'),
})) {
  await assert.rejects(Template.build(from.runCmd('exit 9'), 'js-begins'), /exit code 9/, name)
}
const account = { type: 'service_account', project_id: 'p' }
for (const [name, [from, why]] of Object.entries({
  bun: [begin().fromBunImage(), /no template of this server stands for the image "oven\/bun:latest"/], fedora: [begin().fromFedoraImage(), /no template/],
  alpine: [begin().fromAlpineImage(), /no template/], arch: [begin().fromArchImage(), /no template/], image: [begin().fromImage('nobody/knows:1'), /CLOUD_SANDBOX_E2B_TEMPLATES/],
  private: [begin().fromImage('debian:bookworm', { username: 'a', password: 'b' }), /fromImageRegistry/],
  aws: [begin().fromAWSRegistry('1.dkr.ecr.us-east-1.amazonaws.com/a:1', { accessKeyId: 'a', secretAccessKey: 'b', region: 'us-east-1' }), /fromImageRegistry/],
  gcp: [begin().fromGCPRegistry('gcr.io/a/b:1', { serviceAccountJSON: account }), /fromImageRegistry/],
  absent: [begin().fromTemplate('no-such-template'), /no-such-template/],
})) {
  await assert.rejects(Template.build(from.runCmd('true'), 'js-begins'), why, name)
}
assert.equal(await Template.exists('js-begins'), false)

const wheel = `python3 -c "
import zipfile
with zipfile.ZipFile('/opt/brought-1.0-py3-none-any.whl', 'w') as z:
    z.writestr('brought.py', 'value = 42')
    z.writestr('brought-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: brought\\nVersion: 1.0\\n')
    z.writestr('brought-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    z.writestr('brought-1.0.dist-info/RECORD', '')
"`
const template = begin().fromBaseImage()
  .setEnvs({ FIRST: 'one', SECOND: '$FIRST-two' })
  .runCmd(['mkdir -p made', 'echo "$SECOND" > made/env'])
  .runCmd('id -un > /opt/who', { user: 'root' })
  .copy('one', 'one.txt')
  .copy(['one', 'two'], '/srv/both/', { user: 'root', mode: 0o600 })
  .copyItems([{ src: 'folder', dest: '/srv/folder' }, { src: 'two', dest: '/srv/two', mode: 0o755, user: 'user', forceUpload: true }])
  .makeDir('/home/user/dir/below', { mode: 0o750 }).makeDir(['a b', 'c'])
  .makeSymlink('/srv/two', 'link').makeSymlink('/srv/folder', 'link', { force: true })
  .rename('one.txt', 'renamed.txt').rename('renamed.txt', 'c/renamed again.txt', { force: true })
  .remove('/srv/both/two', { user: 'root' }).remove(['a b', 'nothing'], { recursive: true, force: true })
  .runCmd(wheel, { user: 'root' })
  .pipInstall('/opt/brought-1.0-py3-none-any.whl').pipInstall(['--force-reinstall', '/opt/brought-1.0-py3-none-any.whl'], { g: false })
  .runCmd('mkdir -p /opt/tool && cd /opt/tool && echo \'{"name":"tool","version":"1.0.0","bin":"tool.js"}\' > package.json && printf \'#!/usr/bin/env node\\nconsole.log("a tool")\' > tool.js && chmod 755 tool.js', { user: 'root' })
  .npmInstall('/opt/tool', { g: true })
  .setWorkdir('project').runCmd('npm init -y > /dev/null && cp -r /opt/tool ..').npmInstall(['../tool'], { dev: true })
  .runCmd('git init -q -b main /tmp/repo && cd /tmp/repo && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && echo r > r && git add r && git -c user.name=a -c user.email=a@b commit -q -m y && git branch other')
  .gitClone('file:///tmp/repo', 'cloned', { branch: 'other', depth: 1 })
  .runCmd('rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*', { user: 'root' })
  .aptInstall('bash').aptInstall(['bash', 'coreutils'], { noInstallRecommends: true, fixMissing: true })
  .setUser('worker').setWorkdir('/work')
  .runCmd('id -un > mine; echo $FIRST >> mine')
  .setStartCmd('cd /srv/folder && exec python3 -m http.server 8099', waitForURL('http://localhost:8099/three'))
assert.match(Template.toDockerfile(template), /^FROM e2bdev\/base\nENV FIRST=one/)
assert.equal(JSON.parse(await Template.toJSON(template)).steps[0].type, 'ENV')

const started = await Template.buildInBackground(template, 'js-methods:v1', { tags: ['stable'], cpuCount: 2, memoryMB: 1024, minFreeDiskMb: 100 })
assert.deepEqual(started.tags, ['v1', 'stable'])
let status, offset = 0
const lines = []
do {
  status = await Template.getBuildStatus(started, { logsOffset: offset })
  offset += status.logEntries.length
  lines.push(...status.logEntries.map((entry) => entry.message))
  await new Promise((resolve) => setTimeout(resolve, 200))
} while (status.status === 'waiting' || status.status === 'building')
assert.equal(status.status, 'ready', lines.join('\n'))
assert.ok(lines.some((line) => /builder 1\/\d+\] ENV FIRST one/.test(line)), lines.join('\n'))

const sandbox = await Sandbox.create('js-methods:stable')
const said = async (command) => (await sandbox.commands.run(command, { user: 'root' })).stdout.trim()
const wanted = {
  'cat /home/user/made/env': 'one-two', 'cat /opt/who': 'root', 'cat "/home/user/c/renamed again.txt"': '1',
  'stat -c "%U %a" /srv/both/one /srv/two': 'root 600\nuser 755', 'ls /srv/both': 'one', 'cat /srv/folder/three /srv/folder/deep/four': '34',
  'stat -c "%U %a" /home/user/dir/below': 'user 750', 'cat /home/user/link/three': '3', 'ls -d "/home/user/a b" 2>/dev/null || echo gone': 'gone',
  'cd / && python3 -c "import brought; print(brought.value)"': '42', 'ls -d /home/user/.local/lib/python3*/site-packages/brought.py | wc -l': '1',
  'tool': 'a tool', 'cd /home/user/project && ls node_modules && cat cloned/r': 'tool\nr', 'cat /work/mine': 'worker\none', 'curl -s localhost:8099/three': '3',
}
for (const [command, output] of Object.entries(wanted)) assert.equal(await said(command), output, command)
assert.equal((await sandbox.commands.run('id -un; pwd')).stdout, 'worker\n/work\n')
const info = await sandbox.getInfo()
assert.deepEqual([info.cpuCount, info.memoryMB], [2, 1024])

// What is waited for: each says no before it is there, and yes then.
const ready = async (ready) => {
  try {
    return (await sandbox.commands.run(ready.getCmd(), { user: 'root' })).exitCode === 0
  } catch (e) {
    return e.exitCode === 0
  }
}
for (const [no, yes] of [
  [waitForPort(8098), waitForPort(8099)], [waitForURL('http://localhost:8099/three', 404), waitForURL('http://localhost:8099/none', 404)],
  [waitForProcess('no-such-thing'), waitForProcess('python3')], [waitForFile('/srv/three'), waitForFile('/srv/folder/three')],
]) {
  assert.equal(await ready(no), false, no.getCmd())
  assert.equal(await ready(yes), true, yes.getCmd())
}
assert.equal(waitForTimeout(2500).getCmd(), 'sleep 2')
await sandbox.kill()

assert.equal(await Template.exists('js-methods'), true)
assert.deepEqual((await Template.assignTags('js-methods:v1', ['production'])).tags, ['production'])
await Template.removeTags('js-methods', 'stable')
assert.deepEqual((await Template.getTags('js-methods')).map((tag) => tag.tag).sort(), ['production', 'v1'])
console.log('ok')
