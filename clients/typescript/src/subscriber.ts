// The subscriber: what it asks, what a response means, and what a broken stream leads to. No I/O, no clock.
//
// The rules are those of the Python client, and the same scenarios (clients/scenarios.txt) hold both to them.
//
// Decision: docs/decisions/0020-client-rules-without-io.md
import { clone, create, type DescMessage, type Message, type MessageInitShape } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";

import type { Disconnected, TableEvent } from "./events.js";
import { codeName, type Failure, ResumeTokenRefused, SubscribeError } from "./failures.js";
import { fieldOfType, type Fields, fieldsOf, type ResponseFields, responseFields, SUBSCRIBE_OPTIONS } from "./fields.js";

const PROGRESS_MS = 5_000; // how often a gateway sends progress, unless the request sets it
const PROGRESS_MIN_MS = 100; // the bounds that a gateway has for it
const PROGRESS_MAX_MS = 60_000;
const MISSED_MAX = 3; // heartbeats
const SILENCE_MIN_MS = 2_000; // a busy machine may pause that long
const BACKOFF_MIN_MS = 100;
const BACKOFF_MAX_MS = 5_000; // a gateway with too many streams asks for more

enum Phase {
  Reset = 1,
  CatchingUp = 2,
  Current = 3,
}

/** SubscribeOptions, as generated code has them. */
interface Options {
  resumeToken: string;
  start: number;
  progressInterval?: { readonly seconds: bigint; readonly nanos: number };
}

/**
 * One subscription, over all its streams.
 *
 * `token`: where the consumer's copy is, "" for nowhere. `restarts`: a refused token begins anew instead of throwing.
 * `randomMs` gives a number from 0 to the one it is given.
 */
export class Subscriber<I extends DescMessage, O extends DescMessage, Row> {
  token: string;
  readonly fields: ResponseFields;
  readonly #request: Message;
  readonly #options: Options;
  #failures = 0;
  #isAdmitted = false; // whether the stream has brought anything

  constructor(
    readonly method: { readonly input: I; readonly output: O },
    request: MessageInitShape<I>,
    token: string,
    private readonly restarts: boolean,
    private readonly randomMs: (mostMs: number) => number = (mostMs) => Math.random() * mostMs,
  ) {
    const field = fieldOfType(method.input, SUBSCRIBE_OPTIONS);
    this.fields = responseFields(method.output);
    this.#request = clone(method.input as DescMessage, create(method.input as DescMessage, request as Fields));
    const fields = fieldsOf(this.#request);
    fields[field.localName] ??= create(field.message);
    this.#options = fields[field.localName] as Options;
    this.token = token || this.#options.resumeToken;
  }

  /** Milliseconds without a message after which a stream is dead. */
  get silenceMs(): number {
    const interval = this.#options.progressInterval;
    const intervalMs =
      interval === undefined ? PROGRESS_MS : Number(interval.seconds) * 1_000 + interval.nanos / 1_000_000;
    return Math.max(SILENCE_MIN_MS, MISSED_MAX * Math.min(Math.max(intervalMs, PROGRESS_MIN_MS), PROGRESS_MAX_MS));
  }

  /** Return the request of the next stream. */
  request(): MessageInitShape<I> {
    this.#options.resumeToken = this.token;
    this.#isAdmitted = false;
    return clone(this.method.input as DescMessage, this.#request) as MessageInitShape<I>;
  }

  /** Return the events of a response; `token` is then that of a consumer which has all of them. */
  receive(response: Message): TableEvent<Row>[] {
    this.#isAdmitted = true;
    const progress = this.fields.progress(response);
    const token = progress?.resumeToken || this.token;
    this.token = token;
    const events: TableEvent<Row>[] = progress?.phase === Phase.Reset ? [{ kind: "reset", token }] : [];
    for (const each of this.fields.changes(response)) {
      const change = this.fields.change(each);
      if (change !== undefined) {
        const key = this.fields.keyOf(change.message);
        events.push(change.isRow ? { kind: "upsert", key, row: change.message as Row } : { kind: "delete", key });
      }
    }
    if (progress?.phase === Phase.CatchingUp) {
      events.push({ kind: "catchingUp", token });
    } else if (progress?.phase === Phase.Current) {
      const asOf = progress.readInfo?.asOfTime;
      events.push({
        kind: "current",
        asOf: new Date(asOf === undefined ? 0 : Number(asOf.seconds) * 1_000 + Math.floor(asOf.nanos / 1_000_000)),
        consistencyToken: progress.readInfo?.consistencyToken ?? "",
        token,
      });
    }
    if (progress?.phase !== Phase.Reset) {
      this.#failures = 0; // the stream brought the copy forward
    }
    return events;
  }

  /** Return the event of a stream that ended, with the wait before the next; throw `SubscribeError`. */
  disconnected(failure: Failure): Disconnected {
    if (failure.reason === "INVALID_RESUME_TOKEN") {
      if (!this.restarts || this.token === "") {
        throw new ResumeTokenRefused(failure);
      }
      this.token = "";
      this.#options.start = 0; // what was missed comes with a snapshot only
    } else if (!failure.passes && !(failure.code === Code.Unauthenticated && this.#isAdmitted)) {
      // A stream ends with the credential that it was begun with. The next one shows that which is good by then.
      throw new SubscribeError(failure);
    }
    const mostMs = Math.min(BACKOFF_MAX_MS, BACKOFF_MIN_MS * 2 ** Math.min(this.#failures, 16));
    this.#failures += 1;
    return {
      kind: "disconnected",
      code: codeName(failure.code),
      reason: failure.reason,
      text: failure.text,
      retryAfterMs: failure.retryAfterMs + this.randomMs(mostMs),
    };
  }
}
