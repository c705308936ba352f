// A table that stays live, and what is seen of it at one moment.
//
// Decision: docs/decisions/0157-the-typescript-client-takes-descriptors.md
import type { DescMessage, DescMethodServerStreaming, MessageInitShape } from "@bufbuild/protobuf";
import type { Transport } from "@connectrpc/connect";

import type { Key, TableEvent } from "./events.js";
import { keyText, responseFields } from "./fields.js";
import { type Entry, Rows } from "./rows.js";
import { type RowOf, subscribeInBatches } from "./subscription.js";

/**
 * - `loading`: no complete snapshot has come yet; there are no rows.
 * - `live`: the stream is up, and the rows were complete as of `asOf`.
 * - `stale`: the rows stay as they were as of `asOf`; the stream is away, or not caught up.
 * - `refused`: the gateway refuses it, and would again; or a listener threw. The rows stay, `error` says why.
 * - `closed`: the rows stay as they were.
 */
export type State = "loading" | "live" | "stale" | "refused" | "closed";

type Happening = "current" | "behind" | "refused" | "closed";

type Batches<Row> = AsyncIterable<readonly TableEvent<Row>[]>;

/** What is not here cannot happen: a table that was refused or closed has no stream. */
const TRANSITIONS: Readonly<Record<State, Partial<Record<Happening, State>>>> = {
  loading: { current: "live", behind: "loading", refused: "refused", closed: "closed" },
  live: { current: "live", behind: "stale", refused: "refused", closed: "closed" },
  stale: { current: "live", behind: "stale", refused: "refused", closed: "closed" },
  refused: { closed: "refused" },
  closed: { closed: "closed" },
};

const HAPPENINGS: Readonly<Record<TableEvent<unknown>["kind"], Happening | undefined>> = {
  reset: "behind",
  catchingUp: "behind",
  disconnected: "behind",
  current: "current",
  upsert: undefined,
  delete: undefined,
};

/** A table at one moment: it never changes. */
export class LiveView<Row> implements Iterable<Entry<Row>> {
  #list: readonly Row[] | undefined;

  /** `trouble`: why it is not live, in words; "" where it is. */
  constructor(
    readonly state: State,
    readonly asOf: Date | undefined,
    readonly trouble: string,
    readonly error: unknown,
    private readonly map: ReadonlyMap<string, Entry<Row>>,
  ) {}

  /** Return the row of a key: the value of its column, or a tuple in the order of the table's key. */
  get(key: Key): Row | undefined {
    return this.map.get(keyText(key))?.[1];
  }

  /** The rows, in no order that is promised. */
  get rows(): readonly Row[] {
    return (this.#list ??= Array.from(this.map.values(), ([, row]) => row));
  }

  get size(): number {
    return this.map.size;
  }

  [Symbol.iterator](): Iterator<Entry<Row>> {
    return this.map.values();
  }
}

/** The view of a table that is not there yet. */
export const LOADING: LiveView<never> = new LiveView<never>("loading", undefined, "", undefined, new Map());

/** Gets each change: the key, and its row; undefined where it has none any more. */
export type OnChange<Row> = (key: Key, row: Row | undefined) => void;

/** How a live table begins and ends. */
export interface LiveTableSettings<Row> {
  readonly onChange?: OnChange<Row>;
  /** Closes it. */
  readonly signal?: AbortSignal;
}

/**
 * A copy of a table that follows a Subscribe from now on, until it is closed.
 *
 * Nobody sees half of a snapshot: the first is shown when it is complete, and after a reset the old rows stay until the
 * new ones are. Throws `ContractMismatch` where `method` is not a Subscribe.
 */
export class LiveTable<Row> implements Iterable<Entry<Row>> {
  readonly #rows: Rows<Row>;
  readonly #stop = new AbortController();
  readonly #changeListeners = new Set<OnChange<Row>>();
  readonly #listeners = new Set<() => void>();
  readonly #ended: Promise<void>;
  #state: State = "loading";
  #asOf: Date | undefined;
  #trouble = "";
  #error: unknown;
  #view: LiveView<Row> | undefined;

  /** Use `LiveTable.open`, which knows the row's type. */
  private constructor(row: DescMessage, events: (signal: AbortSignal) => Batches<Row>) {
    this.#rows = new Rows<Row>(row);
    this.#ended = this.#follow(events(this.#stop.signal));
  }

  /** Open a table: `LiveTable.open(transport, RatingsService.method.subscribeRatings, {})`. */
  static open<I extends DescMessage, O extends DescMessage>(
    transport: Transport,
    method: DescMethodServerStreaming<I, O>,
    request: MessageInitShape<I>,
    { onChange, signal }: LiveTableSettings<RowOf<O>> = {},
  ): LiveTable<RowOf<O>> {
    // Its rows are here alone, so a token that is refused costs a snapshot, and never what nobody could tell.
    const table = new LiveTable<RowOf<O>>(responseFields(method.output).row, (stop) =>
      subscribeInBatches(transport, method, request, { restart: true, signal: stop }),
    );
    if (onChange !== undefined) {
      table.onChange(onChange);
    }
    if (signal?.aborted === true) {
      void table.close();
    }
    signal?.addEventListener("abort", () => void table.close(), { signal: table.#stop.signal });
    return table;
  }

  get state(): State {
    return this.#state;
  }

  /** Nothing is missing that was in the changelog before this; undefined before the first complete snapshot. */
  get asOf(): Date | undefined {
    return this.#asOf;
  }

  /** Why it is not live, in words; "" where it is. */
  get trouble(): string {
    return this.#trouble;
  }

  /** What ended it, where something did: a `SubscribeError`, or what a listener threw. */
  get error(): unknown {
    return this.#error;
  }

  /** The table at this moment: the same object until something changes. */
  get view(): LiveView<Row> {
    return (this.#view ??= new LiveView(this.#state, this.#asOf, this.#trouble, this.#error, this.#rows.share()));
  }

  get size(): number {
    return this.#rows.map.size;
  }

  /** Return the row of a key: the value of its column, or a tuple in the order of the table's key. */
  get(key: Key): Row | undefined {
    return this.#rows.map.get(keyText(key))?.[1];
  }

  has(key: Key): boolean {
    return this.#rows.map.has(keyText(key));
  }

  /** Go through keys and rows of this moment. */
  [Symbol.iterator](): Iterator<Entry<Row>> {
    return this.view[Symbol.iterator]();
  }

  /** Call `listener` with each change, once the table has it; what it throws ends the table. Return how to stop. */
  onChange(listener: OnChange<Row>): () => void {
    this.#changeListeners.add(listener);
    return () => this.#changeListeners.delete(listener);
  }

  /** Call `listener` when `view` is another one: once for each message. Return how to stop. */
  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Wait until it is live. Throw what ended it, or an Error after `timeoutMs`, or where it is closed. */
  waitLive(timeoutMs?: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const settle = (): void => {
        if (this.#state === "live") {
          end(resolve);
        } else if (this.#state === "refused") {
          end(() => reject(this.#error));
        } else if (this.#state === "closed") {
          end(() => reject(new Error("the live table is closed")));
        }
      };
      const end = (how: () => void): void => {
        clearTimeout(timer);
        stop();
        how();
      };
      const stop = this.subscribe(settle);
      const timer =
        timeoutMs === undefined
          ? undefined
          : setTimeout(() => {
              const why = this.#trouble === "" ? "" : `: ${this.#trouble}`;
              end(() => reject(new Error(`the table is not live after ${timeoutMs / 1_000} s${why}`)));
            }, timeoutMs);
      settle();
    });
  }

  /** End it; the rows stay as they were. */
  close(): Promise<void> {
    this.#stop.abort();
    this.#move("closed");
    this.#tell();
    return this.#ended;
  }

  async #follow(batches: Batches<Row>): Promise<void> {
    try {
      for await (const events of batches) {
        if (this.#stop.signal.aborted) {
          return;
        }
        for (const event of events) {
          this.#apply(event);
        }
        this.#tell();
      }
    } catch (error) {
      if (!this.#stop.signal.aborted) {
        this.#error = error;
        this.#trouble = error instanceof Error ? error.message : String(error);
        this.#move("refused");
        this.#tell();
      }
    }
  }

  #apply(event: TableEvent<Row>): void {
    const changes = this.#rows.apply(event);
    const happening = HAPPENINGS[event.kind];
    if (event.kind === "current") {
      this.#asOf = event.asOf;
      this.#trouble = "";
    } else if (event.kind === "disconnected") {
      this.#trouble = `${event.code}: ${event.text}`;
    }
    if (happening !== undefined) {
      this.#move(happening);
    }
    this.#view = undefined;
    for (const [key, row] of changes) {
      for (const listener of this.#changeListeners) {
        listener(key, row);
      }
    }
  }

  #move(happening: Happening): void {
    const next = TRANSITIONS[this.#state][happening];
    if (next === undefined) {
      throw new Error(`a table that is ${this.#state} cannot be ${happening}`);
    }
    this.#state = next;
    this.#view = undefined;
  }

  #tell(): void {
    for (const listener of this.#listeners) {
      listener();
    }
  }
}
