// How the bench and a server find one another, and how the server ends.

/** Tells the bench the port, and ends with the bench, however that ends. */
export function serving(port) {
  process.stdin.on('end', () => process.exit()).resume();
  process.stdout.write(`${port}\n`);
}
