// tldraw sync with empty rooms in memory, for who is there.

import { once } from 'node:events';

import { createRecordType, StoreSchema } from '@tldraw/store';
import { InMemorySyncStorage, TLSocketRoom } from '@tldraw/sync-core';
import { T } from '@tldraw/validate';
import { WebSocketServer } from 'ws';

import { serving } from '../serving.mjs';

const validator = T.object({
  id: T.string,
  typeName: T.literal('presence'),
  cursor: T.object({ x: T.number, y: T.number }),
});
const schema = StoreSchema.create({
  presence: createRecordType('presence', { scope: 'presence', validator }),
});
const snapshot = { documentClock: 0, documents: [], schema: schema.serialize() };
const rooms = new Map();

function room(path) {
  if (!rooms.has(path)) {
    rooms.set(path, new TLSocketRoom({ storage: new InMemorySyncStorage({ snapshot }), schema }));
  }
  return rooms.get(path);
}

let sessions = 0;
const server = new WebSocketServer({ host: '127.0.0.1', port: 0 });
server.on('connection', (socket, { url }) => {
  sessions += 1;
  room(url).handleSocketConnect({ sessionId: `session-${sessions}`, socket });
});
await once(server, 'listening');
serving(server.address().port);
