// Hocuspocus with one document, in memory: no extension stores it.

import { Server } from '@hocuspocus/server';
import * as Y from 'yjs';

import { serving } from '../serving.mjs';
import { load } from '../wanted.mjs';

const server = new Server({
  address: '127.0.0.1',
  port: 0,
  quiet: true,
  onLoadDocument: async ({ document }) => {
    const nodes = document.getMap('nodes');
    for (const { id, metadata, ...node } of load.nodes) {
      const fields = { ...node, id, metadata: new Y.Map(Object.entries(metadata)) };
      nodes.set(id, new Y.Map(Object.entries(fields)));
    }
  },
});
await server.listen();
serving(server.address.port);
