// Writers in a closed loop, on raw sockets, so that the client is not what is measured.

import { deepStrictEqual } from 'node:assert';
import { once } from 'node:events';
import WebSocket from 'ws';

import { load, prompts } from './wanted.mjs';

/** An open WebSocket to the server; when the server closes it, the run is over. */
export async function opened() {
  const socket = new WebSocket(`ws://127.0.0.1:${process.argv[3]}/`, {
    perMessageDeflate: false,
    skipUTF8Validation: true,
  });
  await once(socket, 'open');
  socket.on('close', (code, reason) => {
    throw new Error(`the server closed a connection: ${code} ${reason}`);
  });
  return socket;
}

/**
 * Lets all writers edit at once, each waiting for the acknowledgement before its next edit.
 *
 * What the server has then must be what was acknowledged. Prints one line of JSON: edits per
 * second, and milliseconds from sending an edit to its acknowledgement.
 */
export async function run(peer, join, read) {
  const writers = await Promise.all(load.nodes.slice(0, load.writers).map(({ id }) => join(id)));
  await Promise.all(writers.map((writer) => repeated(writer, -load.warmUp, 0)));
  const began = performance.now();
  const lasted = await Promise.all(writers.map((writer) => repeated(writer, 0, load.each)));
  const seconds = (performance.now() - began) / 1000;
  deepStrictEqual(await read(), prompts());
  const ordered = Float64Array.from(lasted.flat()).sort();
  const at = (share) => ordered[Math.floor(ordered.length * share)];
  const figures = { peer, per_second: ordered.length / seconds, p50: at(0.5), p99: at(0.99) };
  process.stdout.write(`${JSON.stringify(figures)}\n`, () => process.exit());
}

async function repeated(writer, from, to) {
  const lasted = [];
  for (let number = from; number < to; number += 1) {
    const began = performance.now();
    await writer(number);
    lasted.push(performance.now() - began);
  }
  return lasted;
}
