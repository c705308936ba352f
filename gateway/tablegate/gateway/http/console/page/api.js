// Calls of the port that the page came from, by the Connect protocol in JSON. https://connectrpc.com/docs/protocol
//
// A stream is POSTed in an envelope: a byte of flags, the length in four bytes, and the message. So are its answers;
// the one with the flag 2 is the last, and says how it ended.

const BASE = new URL(".", location.href);
const CREDENTIAL_KEY = "tablegate-credential"; // in the session's storage: it ends with the tab
const SENDABLE = /^[\x21-\x7e]+$/; // the browser sends no other in a header
const HEADER_BYTES = 5;
const LAST = 2;

// What went wrong. `kind`: "refused" (show a credential), "absent" (not served here), "wrong" (the request is), "away"
// (nobody can answer it now), "lost" (nobody answers), "failed".
export class CallError extends Error {
  constructor(kind, code, message) {
    super(message);
    this.kind = kind;
    this.code = code;
  }
}

const KINDS = {
  unauthenticated: "refused",
  permission_denied: "refused",
  unimplemented: "absent",
  invalid_argument: "wrong",
  out_of_range: "wrong",
  unavailable: "away",
  deadline_exceeded: "away",
};

export function hasCredential() {
  return Boolean(sessionStorage.getItem(CREDENTIAL_KEY));
}

export function setCredential(text) {
  if (text) sessionStorage.setItem(CREDENTIAL_KEY, text);
  else sessionStorage.removeItem(CREDENTIAL_KEY);
}

function headers(contentType) {
  const credential = sessionStorage.getItem(CREDENTIAL_KEY);
  if (credential && !SENDABLE.test(credential))
    throw new CallError("refused", "", "the credential has characters that none has, such as quotes of a text");
  return {
    ...(contentType && { "content-type": contentType }),
    ...(credential && { authorization: `Bearer ${credential}` }),
  };
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(new URL(path, BASE), { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("lost", "", `nobody answers at ${BASE.host}`);
  }
  if (answer.ok) return answer;
  throw await errorOf(answer);
}

async function errorOf(answer) {
  const text = await answer.text().catch(() => "");
  try {
    const { code, message } = JSON.parse(text);
    if (code) return new CallError(KINDS[code] ?? "failed", code, message ?? "");
  } catch {
    // It is no error of a call, but one of HTTP.
  }
  const byStatus = {
    401: "refused",
    403: "refused",
    404: "absent",
    400: "wrong",
    502: "lost",
    503: "away",
    504: "lost",
  };
  return new CallError(byStatus[answer.status] ?? "failed", String(answer.status), text.trim() || answer.statusText);
}

export async function getText(path, signal) {
  return (await ask(path, { headers: headers(), signal })).text();
}

export async function getJson(path, signal) {
  return (await ask(path, { headers: headers(), signal })).json();
}

// Returns the answer of a unary method, named "package.Service/Method".
export async function unary(method, message, signal) {
  const body = JSON.stringify(message);
  return (await ask(method, { method: "POST", headers: headers("application/json"), body, signal })).json();
}

// Calls `onMessage` with each message of a stream; returns when it has ended, throws why it broke off.
export async function stream(method, message, onMessage, signal) {
  const answer = await ask(method, {
    method: "POST",
    headers: headers("application/connect+json"),
    body: envelope(message),
    signal,
  });
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let held = new Uint8Array(0);
  for (;;) {
    const { done, value } = await read(reader);
    if (done) throw new CallError("lost", "", "the stream was cut off");
    held = joined(held, value);
    let at = 0;
    while (held.length - at >= HEADER_BYTES) {
      const end = at + HEADER_BYTES + lengthAt(held, at + 1);
      if (held.length < end) break;
      const text = decoder.decode(held.subarray(at + HEADER_BYTES, end));
      const parsed = JSON.parse(text);
      if (held[at] & LAST) {
        if (!parsed.error) return;
        const { code, message: why } = parsed.error;
        throw new CallError(KINDS[code] ?? "failed", code, why ?? "");
      }
      onMessage(parsed);
      at = end;
    }
    held = held.slice(at);
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("lost", "", "the connection was lost");
  }
}

function envelope(message) {
  const data = new TextEncoder().encode(JSON.stringify(message));
  const body = new Uint8Array(HEADER_BYTES + data.length);
  new DataView(body.buffer).setUint32(1, data.length);
  body.set(data, HEADER_BYTES);
  return body;
}

function lengthAt(bytes, at) {
  return new DataView(bytes.buffer, bytes.byteOffset).getUint32(at);
}

function joined(first, second) {
  if (!first.length) return second;
  const both = new Uint8Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}
