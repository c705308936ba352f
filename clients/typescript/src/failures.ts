import { BinaryReader } from "@bufbuild/protobuf/wire";
import { Code, ConnectError } from "@connectrpc/connect";

const DOMAIN = "tablegate";
const PUSHBACK = "grpc-retry-pushback-ms";

const PASSING_CODES: ReadonlySet<Code> = new Set([Code.Unavailable, Code.Canceled]);
const PASSING_REASONS: ReadonlySet<string> = new Set(["LIMIT_EXCEEDED", "OVERLOADED", "SLOW_SUBSCRIBER"]);

/** Why a call ended. `reason` is the gateway's, "" where it gave none. */
export interface Failure {
  readonly code: Code;
  readonly text: string;
  readonly reason: string;
  readonly retryAfterMs: number;
  /** Whether the same call may do better later. */
  readonly passes: boolean;
}

/** The gateway refuses the subscription, and would again: the message says why. */
export class SubscribeError extends Error {
  override readonly name: string = "SubscribeError";
  /** The name of the gRPC status, as `INVALID_ARGUMENT`. */
  readonly code: string;
  /** The gateway's ErrorReason without its prefix, or "". */
  readonly reason: string;

  constructor(failure: Failure, advice = "") {
    const code = codeName(failure.code);
    super(`${failure.reason === "" ? code : `${code} (${failure.reason})`}: ${failure.text}${advice}`);
    this.code = code;
    this.reason = failure.reason;
  }
}

/** The resume token is damaged, or of another request: drop the copy that it belongs to, and start without it. */
export class ResumeTokenRefused extends SubscribeError {
  override readonly name = "ResumeTokenRefused";

  constructor(failure: Failure) {
    super(failure, "; drop your copy and the stored token, or subscribe with restart: true");
  }
}

/** Return the name that gRPC has for a status: `INVALID_ARGUMENT`. */
export function codeName(code: Code): string {
  return code === Code.Canceled ? "CANCELLED" : Code[code].replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase();
}

/** Return a failure that is nobody's word: the stream ended, or was silent. */
export function broken(text: string): Failure {
  return { code: Code.Unavailable, text, reason: "", retryAfterMs: 0, passes: true };
}

/**
 * Return why a call threw.
 *
 * Every refusal of a gateway has a reason. An error without one is of something between, or of the transport, which has
 * codes of its own where a connection breaks: they are UNAVAILABLE here. `began`: a message had come, so the request was
 * accepted.
 */
export function failureOf(thrown: unknown, began = false): Failure {
  const error = ConnectError.from(thrown);
  let reason = "";
  let retryAfterMs = Math.max(0, Number(error.metadata.get(PUSHBACK) ?? 0)) || 0;
  for (const detail of error.details) {
    if (!("type" in detail)) {
      continue;
    }
    try {
      if (detail.type === "google.rpc.ErrorInfo") {
        const info = textFields(detail.value);
        reason = info.get(2) === DOMAIN ? (info.get(1) ?? "") : "";
      } else if (detail.type === "google.rpc.RetryInfo") {
        retryAfterMs = retryDelayMs(detail.value);
      }
    } catch {
      continue; // it is of something between the gateway and here
    }
  }
  // A transport that failed itself names the cause; a page's `fetch` gives it no code.
  const isOfTransport = error.cause !== undefined || error.code === Code.Aborted;
  if (reason === "" && (isOfTransport || (began && error.code === Code.InvalidArgument))) {
    return { ...broken(error.rawMessage), retryAfterMs };
  }
  const passes = PASSING_CODES.has(error.code) || PASSING_REASONS.has(reason);
  return { code: error.code, text: error.rawMessage || "no details", reason, retryAfterMs, passes };
}

/** Return the text fields of a message by number. */
function textFields(data: Uint8Array): Map<number, string> {
  const fields = new Map<number, string>();
  const reader = new BinaryReader(data);
  while (reader.pos < reader.len) {
    const [number, wireType] = reader.tag();
    if (wireType === 2 && number <= 2) {
      fields.set(number, reader.string());
    } else {
      reader.skip(wireType, number);
    }
  }
  return fields;
}

/** Return the delay of a google.rpc.RetryInfo: its one field is a Duration of seconds and nanoseconds. */
function retryDelayMs(data: Uint8Array): number {
  const reader = new BinaryReader(data);
  let delayMs = 0;
  while (reader.pos < reader.len) {
    const [number, wireType] = reader.tag();
    if (number !== 1 || wireType !== 2) {
      reader.skip(wireType, number);
      continue;
    }
    const duration = new BinaryReader(reader.bytes());
    while (duration.pos < duration.len) {
      const [part, partType] = duration.tag();
      if (part === 1 && partType === 0) {
        delayMs += Number(duration.int64()) * 1_000;
      } else if (part === 2 && partType === 0) {
        delayMs += duration.int32() / 1_000_000;
      } else {
        duration.skip(partType, part);
      }
    }
  }
  return Math.max(0, delayMs);
}

/** Return the gateway's reason of what a call threw, as `ROW_NOT_FOUND`; "" where it is nothing that a gateway said. */
export function reasonOf(thrown: unknown): string {
  return failureOf(thrown).reason;
}
