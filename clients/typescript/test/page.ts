// `ask` is called by who drives the page.
import { openTransport } from "tablegate-client/web";

import { type Command, Driver } from "./driver.js";

const driver = new Driver((baseUrl, credential) => ({
  transport: openTransport(baseUrl, credential === undefined ? {} : { credential }),
  close: () => undefined,
}));
Object.assign(globalThis, { ask: (command: Command) => driver.ask(command) });
