// y-websocket's server, in memory.

import { once } from 'node:events';

import { setupWSConnection } from '@y/websocket-server/utils';
import { WebSocketServer } from 'ws';

import { serving } from '../serving.mjs';

const server = new WebSocketServer({ host: '127.0.0.1', port: 0 });
server.on('connection', (socket, request) => setupWSConnection(socket, request));
await once(server, 'listening');
serving(server.address().port);
