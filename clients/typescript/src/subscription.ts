import type { DescMessage, DescMethodServerStreaming, Message, MessageInitShape, MessageShape } from "@bufbuild/protobuf";
import type { Transport } from "@connectrpc/connect";

import type { TableEvent } from "./events.js";
import { broken, type Failure, failureOf } from "./failures.js";
import { sleep } from "./sleep.js";
import { Subscriber } from "./subscriber.js";
import { TokenMemory, type TokenStore } from "./tokens.js";

type Choice = { readonly case: string | undefined; readonly value?: unknown };
type Elements<O> = { [Name in keyof O]: O[Name] extends readonly (infer Element)[] ? Element : never }[keyof O];
type Choices<Change> = Change extends Message
  ? { [Name in keyof Change]: Change[Name] extends Choice ? Change[Name] : never }[keyof Change]
  : never;
type Messages<Chosen> = Chosen extends { readonly value: infer Value } ? (Value extends Message ? Value : never) : never;

/** The rows of a Subscribe: what its change calls `upsert`; where it has another name, the row or the key. */
export type RowOf<O extends DescMessage> =
  Messages<Extract<Choices<Elements<MessageShape<O>>>, { readonly case: "upsert" }>> extends infer Row
    ? [Row] extends [never]
      ? Messages<Choices<Elements<MessageShape<O>>>>
      : Row
    : never;

/** How a subscription begins and ends. */
export interface SubscribeSettings {
  /** Has the token to continue from, and saves each newer one once the consumer has all events before it. */
  readonly tokenStore?: TokenStore;
  /** A token that the gateway refuses begins with a Reset and a new snapshot, instead of `ResumeTokenRefused`. */
  readonly restart?: boolean;
  /** Ends it: then there are no more events. */
  readonly signal?: AbortSignal;
}

/**
 * Yield the events of a Subscribe, over as many streams as it takes.
 *
 * A stream that breaks (UNAVAILABLE, CANCELLED, a lost connection, three heartbeats that did not come) is opened again
 * where it was, after a pause that grows, or the one that the gateway asks for. Leaving the loop ends it. Throws
 * `SubscribeError` where the gateway refuses it, and what the token store throws.
 */
export async function* subscribe<I extends DescMessage, O extends DescMessage>(
  transport: Transport,
  method: DescMethodServerStreaming<I, O>,
  request: MessageInitShape<I>,
  settings: SubscribeSettings = {},
): AsyncGenerator<TableEvent<RowOf<O>>, void, undefined> {
  for await (const events of subscribeInBatches(transport, method, request, settings)) {
    yield* events;
  }
}

/** Yield the events of each message together. */
export async function* subscribeInBatches<I extends DescMessage, O extends DescMessage>(
  transport: Transport,
  method: DescMethodServerStreaming<I, O>,
  request: MessageInitShape<I>,
  settings: SubscribeSettings = {},
): AsyncGenerator<readonly TableEvent<RowOf<O>>[], void, undefined> {
  const { tokenStore = new TokenMemory(), restart = false, signal } = settings;
  const subscriber = new Subscriber<I, O, RowOf<O>>(method, request, await tokenStore.load(), restart);
  const isClosed = (): boolean => signal?.aborted === true;
  while (!isClosed()) {
    const stream = new Stream(transport, subscriber, signal);
    let received: Message | Failure;
    try {
      while (!isFailure((received = await stream.next()))) {
        yield subscriber.receive(received);
        // Here the consumer has asked for the next event, and so is done with all before.
        await tokenStore.save(subscriber.token);
      }
    } finally {
      stream.close();
    }
    if (isClosed()) {
      return;
    }
    const disconnected = subscriber.disconnected(received);
    yield [disconnected];
    await sleep(disconnected.retryAfterMs, signal);
  }
}

function isFailure(received: Message | Failure): received is Failure {
  return !("$typeName" in received);
}

/** One stream: its next message, or why there is none. */
class Stream<I extends DescMessage, O extends DescMessage, Row> {
  readonly #abort = new AbortController();
  readonly #onAbort = (): void => this.#abort.abort();
  #messages: AsyncIterator<Message> | undefined;
  #began = false;

  constructor(
    private readonly transport: Transport,
    private readonly subscriber: Subscriber<I, O, Row>,
    private readonly signal: AbortSignal | undefined,
  ) {
    signal?.addEventListener("abort", this.#onAbort);
  }

  async next(): Promise<Message | Failure> {
    const silenceMs = this.subscriber.silenceMs;
    let isSilent = false;
    const timer = setTimeout(() => {
      isSilent = true;
      this.#abort.abort();
    }, silenceMs);
    try {
      this.#messages ??= await this.#open();
      const result = await this.#messages.next();
      if (result.done === true) {
        return broken("the stream ended");
      }
      this.#began = true;
      return result.value;
    } catch (error) {
      return isSilent ? broken(`no message for ${silenceMs / 1_000} s`) : failureOf(error, this.#began);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Cancel the call. The transports' iterators have no `return` that would. */
  close(): void {
    this.signal?.removeEventListener("abort", this.#onAbort);
    this.#abort.abort();
  }

  async #open(): Promise<AsyncIterator<Message>> {
    const method = this.subscriber.method as DescMethodServerStreaming<I, O>;
    const { message } = await this.transport.stream(
      method,
      this.#abort.signal,
      0, // none: a stream has no deadline
      undefined,
      only(this.subscriber.request()),
    );
    return message[Symbol.asyncIterator]() as AsyncIterator<Message>;
  }
}

async function* only<T>(value: T): AsyncGenerator<T> {
  yield value;
}
