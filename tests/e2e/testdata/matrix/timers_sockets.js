// Timers, and a server and a client that stay connected.
const net = require("node:net");
const readline = require("node:readline");

let ticks = 0;
setInterval(() => ticks++, 10);
const memory = Buffer.alloc(10 << 20, "x");

const pause = (ms) => new Promise((go) => setTimeout(go, ms));

async function check(peer, n) {
  const before = ticks;
  for (let waited = 0; ticks < before + 3; waited += 10) {
    if (waited > 30000) return `timers stand still at ${ticks}`;
    await pause(10);
  }
  const echo = await new Promise((go) => {
    peer.once("data", (data) => go(String(data)));
    peer.write(`hello ${n}`);
  });
  if (echo !== `hello ${n}`) return `the server says ${echo}`;
  if (memory.some((byte) => byte !== 120)) return "the buffer is another one";
  return "";
}

const server = net.createServer((socket) => socket.pipe(socket));
server.listen(0, "127.0.0.1", () => {
  const peer = net.connect(server.address().port, "127.0.0.1", () => console.log("ready"));
  let n = 0;
  readline.createInterface({ input: process.stdin }).on("line", async () => {
    const bad = await check(peer, ++n);
    console.log(bad ? `bad ${n}: ${bad}` : `ok ${n}`);
  });
});
