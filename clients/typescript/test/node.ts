// Commands and answers are lines of standard input and output.
import { createInterface } from "node:readline";

import { openTransport } from "tablegate-client/node";

import { type Command, Driver } from "./driver.js";

const driver = new Driver((baseUrl, credential) => {
  const transport = openTransport(baseUrl, credential === undefined ? {} : { credential });
  return { transport, close: () => transport.close() };
});
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await driver.ask(JSON.parse(line) as Command)));
}
process.exit(0);
