// Runs in a page: `askFromPage(door)` asks the door at that address over each transport that a browser has.

import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";

import { ask, type Told } from "./questions.js";

async function askFromPage(baseUrl: string): Promise<Record<string, Told>> {
  return {
    "connect, protobuf": await ask(createConnectTransport({ baseUrl, useBinaryFormat: true })),
    "connect, JSON": await ask(createConnectTransport({ baseUrl })),
    "connect, GET": await ask(createConnectTransport({ baseUrl, useHttpGet: true })),
    "grpc-web": await ask(createGrpcWebTransport({ baseUrl })),
  };
}

Object.assign(globalThis, { askFromPage });
