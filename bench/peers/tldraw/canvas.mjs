// Our canvas in terms of tldraw: a record for each node, its metadata where patches may reach in.

import { createRecordType, StoreSchema } from '@tldraw/store';
import { T } from '@tldraw/validate';

const validator = T.object({
  id: T.string,
  typeName: T.literal('node'),
  type: T.string,
  title: T.string,
  position: T.object({ x: T.number, y: T.number }),
  meta: T.object({ prompt: T.string, status: T.string, notes: T.string }),
});

export const schema = StoreSchema.create({
  node: createRecordType('node', { scope: 'document', validator }),
});

// Of the keys of a record, sync-core sends changes inside `props` and `meta` only as patches.
export function record({ id, metadata, ...node }) {
  return { ...node, id: `node:${id}`, typeName: 'node', meta: metadata };
}
