// tldraw sync with one room, kept in a SQLite file as its documentation shows.

import { deepStrictEqual } from 'node:assert';
import { once } from 'node:events';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';

import { NodeSqliteWrapper, SQLiteSyncStorage, TLSocketRoom } from '@tldraw/sync-core';
import { WebSocketServer } from 'ws';

import { serving } from '../serving.mjs';
import { folder, load } from '../wanted.mjs';
import { record, schema } from './canvas.mjs';

const database = new DatabaseSync(join(folder, 'tldraw.sqlite'));
database.exec('PRAGMA journal_mode = WAL');
// Full: a commit returns when the log is on the disk, as with PostgreSQL.
deepStrictEqual({ ...database.prepare('PRAGMA synchronous').get() }, { synchronous: 2 });

const storage = new SQLiteSyncStorage({
  sql: new NodeSqliteWrapper(database),
  snapshot: {
    documentClock: 0,
    documents: load.nodes.map((node) => ({ state: record(node), lastChangedClock: 0 })),
    schema: schema.serialize(),
  },
});
const room = new TLSocketRoom({ storage, schema });

let sessions = 0;
const server = new WebSocketServer({ host: '127.0.0.1', port: 0 });
server.on('connection', (socket) => {
  sessions += 1;
  room.handleSocketConnect({ sessionId: `session-${sessions}`, socket });
});
await once(server, 'listening');
serving(server.address().port);
