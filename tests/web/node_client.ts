// Asks a door from Node: `node node_client.js http://127.0.0.1:PORT` writes what each transport was told, as JSON.

import { createConnectTransport, createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";

import { ask } from "./questions.js";

const [, , baseUrl = ""] = process.argv;
const transports = {
  "grpc": createGrpcTransport({ baseUrl }),
  "connect, protobuf, HTTP/2": createConnectTransport({ baseUrl, httpVersion: "2" }),
  "connect, JSON, HTTP/1.1": createConnectTransport({ baseUrl, httpVersion: "1.1", useBinaryFormat: false }),
  "connect, GET, HTTP/1.1": createConnectTransport({ baseUrl, httpVersion: "1.1", useHttpGet: true }),
  "grpc-web, HTTP/1.1": createGrpcWebTransport({ baseUrl, httpVersion: "1.1" }),
  "grpc-web, HTTP/2": createGrpcWebTransport({ baseUrl, httpVersion: "2" }),
};
const told: Record<string, unknown> = {};
for (const [name, transport] of Object.entries(transports)) {
  told[name] = await ask(transport);
}
console.log(JSON.stringify(told));
process.exit(0); // sessions of HTTP/2 would stay open for minutes
