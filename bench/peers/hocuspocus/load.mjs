// Writers in a document of Hocuspocus: an update, and the wait for its sync status.

import * as decoding from 'lib0/decoding';
import * as encoding from 'lib0/encoding';
import { readSyncMessage, writeSyncStep1, writeUpdate } from 'y-protocols/sync';
import * as Y from 'yjs';

import { written } from '../wanted.mjs';
import { opened, run } from '../writers.mjs';

const DOCUMENT = 'bench';
// Kinds of messages, and the two kinds of sync messages that matter here.
const SYNC = 0;
const AUTH = 2;
const STATUS = 8;
const TOKEN = 0;
const STEP_2 = 1;

await run('Hocuspocus', joined, read);

async function joined(id) {
  const { socket, document } = await connected();
  const metadata = document.getMap('nodes').get(id).get('metadata');
  let acknowledged;
  listen(socket, STATUS, (decoder) => acknowledged(decoding.readVarUint(decoder)));
  document.on('update', (update) => {
    send(socket, SYNC, (encoder) => writeUpdate(encoder, update));
  });
  return async (number) => {
    const status = new Promise((resolve) => (acknowledged = resolve));
    metadata.set('prompt', written(number));
    if ((await status) !== 1) {
      throw new Error(`update ${number} was not applied`);
    }
  };
}

/** The prompts of all nodes, as the server tells somebody who comes anew. */
async function read() {
  const { document } = await connected();
  const nodes = Object.entries(document.getMap('nodes').toJSON());
  return Object.fromEntries(nodes.map(([id, { metadata }]) => [id, metadata.prompt]));
}

/** A socket, and a document with what the server had; it takes nothing from others after that. */
async function connected() {
  const socket = await opened();
  const document = new Y.Doc();
  const synced = new Promise((resolve) => {
    const stop = listen(socket, SYNC, (decoder) => {
      // Our answer to the server's own first step is left out: there is nothing to tell.
      if (readSyncMessage(decoder, encoding.createEncoder(), document, null) === STEP_2) {
        stop();
        resolve();
      }
    });
  });
  send(socket, AUTH, (encoder) => {
    encoding.writeVarUint(encoder, TOKEN);
    encoding.writeVarString(encoder, '');
  });
  send(socket, SYNC, (encoder) => writeSyncStep1(encoder, document));
  await synced;
  return { socket, document };
}

function listen(socket, kind, take) {
  const listener = (data) => {
    const decoder = decoding.createDecoder(data);
    decoding.readVarString(decoder);
    if (decoding.readVarUint(decoder) === kind) {
      take(decoder);
    }
  };
  socket.on('message', listener);
  return () => socket.off('message', listener);
}

function send(socket, kind, write) {
  const encoder = encoding.createEncoder();
  encoding.writeVarString(encoder, DOCUMENT);
  encoding.writeVarUint(encoder, kind);
  write(encoder);
  socket.send(encoding.toUint8Array(encoder));
}
