import { Code, ConnectError, type Transport } from "@connectrpc/connect";

import { failureOf } from "./failures.js";
import { sleep } from "./sleep.js";

const DEADLINE_MS = 5_000; // the gateway waits for freshness up to half of it
const ATTEMPTS_MAX = 4; // the retry policy that the Python client has: UNAVAILABLE alone
const BACKOFF_MIN_MS = 100;
const BACKOFF_MAX_MS = 2_000;

/** A JWT or an API key; or what returns the one that is good now, asked for each call. */
export type Credential = string | (() => string | Promise<string>);

/** How calls are made. */
export interface CallSettings {
  /** Of a unary call that is given none; all its attempts together have it. 5 s; 0: none. */
  readonly deadlineMs?: number;
  /** Shown with each call that has no authorization of its own: over TLS, or others read it. */
  readonly credential?: Credential;
}

/**
 * Return a transport that calls as gateways expect it: with a deadline and a credential, and again where that helps.
 *
 * A unary call that UNAVAILABLE ends is tried again, up to four times in all, when the gateway says so. Streams have no
 * deadline, and are left as they are: `subscribe` and `LiveTable` open theirs again.
 */
export function gatewayTransport(transport: Transport, settings: CallSettings = {}): Transport {
  const { deadlineMs = DEADLINE_MS, credential } = settings;
  return {
    async unary(method, signal, timeoutMs, header, input, contextValues) {
      const wholeMs = timeoutMs ?? deadlineMs;
      const endMs = wholeMs > 0 ? performance.now() + wholeMs : Infinity; // Connect: 0 is no deadline
      for (let attempt = 1; ; attempt++) {
        try {
          // On the wire it is a whole number.
          const leftMs = endMs === Infinity ? 0 : Math.max(1, Math.ceil(endMs - performance.now()));
          const shown = await withCredential(header, credential);
          return await transport.unary(method, signal, leftMs, shown, input, contextValues);
        } catch (thrown) {
          const error = ConnectError.from(thrown);
          const { code, retryAfterMs } = failureOf(error);
          const most = Math.min(BACKOFF_MAX_MS, BACKOFF_MIN_MS * 2 ** (attempt - 1));
          const pauseMs = retryAfterMs || Math.random() * most;
          if (code !== Code.Unavailable || attempt === ATTEMPTS_MAX || signal?.aborted || performance.now() + pauseMs >= endMs) {
            throw error;
          }
          await sleep(pauseMs, signal);
        }
      }
    },
    async stream(method, signal, timeoutMs, header, input, contextValues) {
      return transport.stream(method, signal, timeoutMs, await withCredential(header, credential), input, contextValues);
    },
  };
}

async function withCredential(
  header: HeadersInit | undefined,
  credential: Credential | undefined,
): Promise<HeadersInit | undefined> {
  if (credential === undefined) {
    return header;
  }
  const headers = new Headers(header);
  if (!headers.has("authorization")) {
    const text = typeof credential === "string" ? credential : await credential();
    headers.set("authorization", `Bearer ${text}`);
  }
  return headers;
}
