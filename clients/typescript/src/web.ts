// For pages: the protocol of Connect, over `fetch`.
import type { Transport } from "@connectrpc/connect";
import { type ConnectTransportOptions, createConnectTransport } from "@connectrpc/connect-web";

import { type CallSettings, gatewayTransport } from "./transport.js";

/** How to reach a gateway; what `createConnectTransport` takes counts as well. */
export type WebSettings = CallSettings & Partial<Omit<ConnectTransportOptions, "baseUrl">>;

/** Return a transport to the gateway at `baseUrl`. Of another origin it must allow this one (`--cors-origin`). */
export function openTransport(baseUrl: string, settings: WebSettings = {}): Transport {
  const { deadlineMs, credential, ...options } = settings;
  return gatewayTransport(createConnectTransport({ useBinaryFormat: true, ...options, baseUrl }), {
    ...(deadlineMs === undefined ? {} : { deadlineMs }),
    ...(credential === undefined ? {} : { credential }),
  });
}
