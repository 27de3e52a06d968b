// Hocuspocus with empty documents, for who is there.

import { Server } from '@hocuspocus/server';

import { serving } from '../serving.mjs';

const server = new Server({ address: '127.0.0.1', port: 0, quiet: true });
await server.listen();
serving(server.address.port);
