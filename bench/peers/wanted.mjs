// What the bench asks for: the folder and the load it has written there.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export const folder = process.argv[2];

/** `writers` at once, `each` so many edits after `warmUp`, on a canvas of `nodes`. */
export const load = JSON.parse(readFileSync(join(folder, 'load.json'), 'utf8'));

/** What a writer makes of the prompt of its node with edit `number`. */
export function written(number) {
  return `${load.text}${number}`;
}

/** What every node must have for a prompt when all writers are done. */
export function prompts() {
  const last = written(load.each - 1);
  return Object.fromEntries(
    load.nodes.map(({ id, metadata }, place) => [id, place < load.writers ? last : metadata.prompt]),
  );
}
