// For Node: gRPC, and a token in a file.
import { readFile, rename, writeFile } from "node:fs/promises";

import type { Transport } from "@connectrpc/connect";
import { createGrpcTransport, type GrpcTransportOptions, Http2SessionManager } from "@connectrpc/connect-node";

import type { TokenStore } from "./tokens.js";
import { type CallSettings, gatewayTransport } from "./transport.js";

const KEEPALIVE_MS = 30_000; // a gateway allows one ping every 20 s
const KEEPALIVE_TIMEOUT_MS = 10_000;
const RESPONSE_BYTES_MAX = 64 * 1024 * 1024; // a page has up to 1,000 rows

/** How to reach a gateway; what `createGrpcTransport` takes counts as well. */
export type NodeSettings = CallSettings & Partial<Omit<GrpcTransportOptions, "baseUrl" | "sessionManager">>;

/** A transport, and what ends its connection: open streams break then. */
export interface ClosableTransport extends Transport {
  close(): void;
}

/** Return a transport to the gateway at `baseUrl`, as `http://127.0.0.1:50051`, that speaks gRPC. */
export function openTransport(baseUrl: string, settings: NodeSettings = {}): ClosableTransport {
  const { deadlineMs, credential, nodeOptions, ...options } = settings;
  const sessionManager = new Http2SessionManager(
    baseUrl,
    { pingIntervalMs: KEEPALIVE_MS, pingTimeoutMs: KEEPALIVE_TIMEOUT_MS },
    nodeOptions,
  );
  const transport = createGrpcTransport({ readMaxBytes: RESPONSE_BYTES_MAX, ...options, baseUrl, sessionManager });
  return {
    ...gatewayTransport(transport, {
      ...(deadlineMs === undefined ? {} : { deadlineMs }),
      ...(credential === undefined ? {} : { credential }),
    }),
    close: () => sessionManager.abort(),
  };
}

/**
 * Keeps it in a file, which has one complete token at any moment.
 *
 * It is not forced to disk: after a lost power an older token, or none, leads to changes that come once more.
 */
export class TokenFile implements TokenStore {
  constructor(private readonly path: string) {}

  async load(): Promise<string> {
    try {
      return (await readFile(this.path, "ascii")).trim();
    } catch (error) {
      if (error instanceof Error && "code" in error && error.code === "ENOENT") {
        return "";
      }
      throw error;
    }
  }

  async save(token: string): Promise<void> {
    await writeFile(`${this.path}.next`, `${token}\n`, "ascii");
    await rename(`${this.path}.next`, this.path);
  }
}
