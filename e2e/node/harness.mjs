// Starts the binary's two servers for the tests of the Node SDKs, and looks at them: the twin of ../python/harness.py.
//
// HOMING_BIN names the binary, HOMING_NODE the folder that has package.json's packages in its node_modules: they
// lie outside the checkout, where a plain import would not find them.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const need = createRequire(path.join(process.env.HOMING_NODE ?? ".", "package.json"));
export const OpenAI = need("openai").default;
export const Anthropic = need("@anthropic-ai/sdk").default;

export const MODEL = "test-model";
// For what is no matter of time in itself: the machine may be busy.
const PATIENCE_MS = 30_000;
const running = new Set();
process.on("exit", () => running.forEach((child) => child.kill("SIGKILL")));

/** Waits until check() gives something true, and gives that. */
export async function eventually(check, what) {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const got = await check();
    if (got) return got;
    if (Date.now() > deadline) throw new Error(`${what}: not within ${PATIENCE_MS} ms`);
    await sleep(20);
  }
}

/** A command of the binary; `said(words)` is the URL in the line of stdout that begins so. */
function start(...args) {
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("HOMING_")));
  const child = spawn(process.env.HOMING_BIN, args, { env, stdio: ["ignore", "pipe", "pipe"] });
  running.add(child);
  const ended = new Promise((end) => child.on("exit", end));
  const lines = [];
  let log = "";
  createInterface({ input: child.stdout }).on("line", (line) => lines.push(line));
  child.stderr.on("data", (bytes) => (log = (log + bytes).slice(-4000)));
  return {
    said: (words) =>
      eventually(() => {
        if (child.exitCode !== null) throw new Error(`homing ${args[0]} ended with ${child.exitCode}:\n${log}`);
        return lines.find((line) => line.startsWith(words))?.slice(words.length).trim();
      }, `a line "${words}"`),
    async stop() {
      child.kill("SIGTERM");
      const killer = setTimeout(() => child.kill("SIGKILL"), 10_000);
      await ended;
      clearTimeout(killer);
      running.delete(child);
    },
  };
}

/** The sum of a metric over its label sets that contain `labels` (as text), in the page at a URL. */
async function metric(url, name, labels) {
  const page = await (await fetch(url)).text();
  const values = page
    .split("\n")
    .filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `))
    .filter((line) => labels.every((label) => line.includes(label)))
    .map((line) => Number(line.slice(line.lastIndexOf(" ") + 1)));
  return values.reduce((sum, value) => sum + value, 0);
}

/**
 * Runs test(fleet) over `mocks` engines (and workers at other `urls`) behind a router.
 *
 * `extra` goes into the configuration file as it is.
 */
export async function fleet(test, { mocks = 2, flags = [], urls = [], extra = "" } = {}) {
  const folder = mkdtempSync(path.join(tmpdir(), "homing-node-"));
  const servers = [];
  try {
    const engines = [];
    for (let i = 0; i < mocks; i++) {
      const mock = start("mock", "--listen", "127.0.0.1:0", "--model", MODEL, ...flags);
      servers.unshift(mock);
      engines.push(await mock.said("listening on"));
    }
    const file = path.join(folder, "homing.toml");
    const workers = [...engines, ...urls].map((url, i) => `[[workers]]\nid = "w${i}"\nurl = "${url}"\n`);
    writeFileSync(
      file,
      `[gateway]\nlisten = "127.0.0.1:0"\nshutdown_delay = "0s"\n[admin]\nlisten = "127.0.0.1:0"\n${extra}\n` +
        workers.join(""),
    );
    const router = start("serve", "--config", file);
    servers.unshift(router);
    const url = await router.said("gateway on");
    const admin = await router.said("admin on");
    const told = async () => (await fetch(`${admin}/admin/workers`)).json();
    await eventually(async () => (await told()).every((w) => w.state === "ready"), "every worker ready");
    await test({
      url,
      workers: told,
      metric: (name, ...labels) => metric(`${admin}/metrics`, name, labels),
      /** Requests that engines run or let wait, by their own word. */
      async engineRequests() {
        let sum = 0;
        for (const engine of engines)
          for (const name of ["vllm:num_requests_running", "vllm:num_requests_waiting"])
            sum += await metric(`${engine}/metrics`, name, []);
        return sum;
      },
      /** Waits until nothing runs: neither at an engine, nor by the router's books. */
      async quiet() {
        await eventually(async () => (await this.engineRequests()) === 0, "the engines are idle");
        await eventually(
          async () => (await told()).every((w) => w.active_requests === 0),
          "the router knows that they are idle",
        );
      },
    });
  } finally {
    for (const server of servers) await server.stop();
    rmSync(folder, { recursive: true, force: true });
  }
}

/**
 * Runs test(worker) over an engine that is well by all probes and breaks each request off before it answers;
 * `worker.seen` counts those.
 */
export async function breaking(test) {
  const worker = { seen: 0 };
  const server = net.createServer((socket) => {
    let head = "";
    socket.on("error", () => {});
    socket.on("data", (bytes) => {
      head += bytes.toString("latin1");
      if (!head.includes("\r\n\r\n")) return;
      const [method, target] = head.split(" ");
      head = "";
      if (method === "POST") {
        worker.seen++;
        return socket.resetAndDestroy();
      }
      const models = JSON.stringify({ object: "list", data: [{ id: MODEL, object: "model" }] });
      const [status, body] = { "/health": [200, ""], "/v1/models": [200, models] }[target] ?? [404, "{}"];
      socket.write(
        `HTTP/1.1 ${status} Said\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
      );
    });
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  worker.url = `http://127.0.0.1:${server.address().port}`;
  try {
    await test(worker);
  } finally {
    server.close();
  }
}
