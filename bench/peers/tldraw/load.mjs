// Writers in a room of tldraw sync: a push, and the wait for its `push_result`.

import { once } from 'node:events';

import { diffRecord, getTlsyncProtocolVersion } from '@tldraw/sync-core';

import { load, written } from '../wanted.mjs';
import { opened, run } from '../writers.mjs';
import { record, schema } from './canvas.mjs';

const RESULT = '"type":"push_result"';

await run('tldraw sync', joined, read);

async function joined(id) {
  const { socket } = await connected();
  let stored = record(load.nodes.find((node) => node.id === id));
  let clock = 0;
  let acknowledged;
  socket.on('message', (data) => {
    // Most of it is what the others wrote; only our own result is read.
    for (let at = data.indexOf(RESULT); at >= 0; at = data.indexOf(RESULT, at + 1)) {
      acknowledged(data.toString('latin1', at - 1, data.indexOf('}', at) + 1));
    }
  });
  return async (number) => {
    const next = { ...stored, meta: { ...stored.meta, prompt: written(number) } };
    const diff = { [next.id]: ['patch', diffRecord(stored, next)] };
    clock += 1;
    const result = new Promise((resolve) => (acknowledged = resolve));
    socket.send(JSON.stringify({ type: 'push', clientClock: clock, diff }));
    const { clientClock, action } = JSON.parse(await result);
    if (clientClock !== clock || action !== 'commit') {
      throw new Error(`push ${clock} was not committed`);
    }
    stored = next;
  };
}

/** The prompts of all nodes, as the server tells somebody who comes anew. */
async function read() {
  const { hello } = await connected();
  return Object.fromEntries(
    Object.values(hello.diff).map(([, { id, meta }]) => [id.slice('node:'.length), meta.prompt]),
  );
}

async function connected() {
  const socket = await opened();
  socket.send(
    JSON.stringify({
      type: 'connect',
      connectRequestId: 'bench',
      lastServerClock: -1,
      protocolVersion: getTlsyncProtocolVersion(),
      schema: schema.serialize(),
    }),
  );
  const [data] = await once(socket, 'message');
  return { socket, hello: JSON.parse(data) };
}
