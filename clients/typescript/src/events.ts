import type { Timestamp } from "@bufbuild/protobuf/wkt";

/** A value of a key column, as generated code has it: of `int64` a `bigint`, of `int32` a `number`. */
export type KeyValue = bigint | number | boolean | string | Uint8Array | Timestamp;

/** A row's key: the value of its one column, or a tuple in the order of the table's key. */
export type Key = KeyValue | readonly KeyValue[];

/** Drop every row: a new snapshot begins. */
export interface Reset {
  readonly kind: "reset";
  readonly token: string;
}

/** The row of `key` is now `row`, the contract's message. */
export interface Upsert<Row> {
  readonly kind: "upsert";
  readonly key: Key;
  readonly row: Row;
}

/** The row of `key` is gone, or no longer matches the request. */
export interface Delete {
  readonly kind: "delete";
  readonly key: Key;
}

/** The rows so far are not the complete table. */
export interface CatchingUp {
  readonly kind: "catchingUp";
  readonly token: string;
}

/**
 * The rows are the table as of `asOf`: nothing is missing that was in the changelog before. Comes also as heartbeat.
 *
 * `consistencyToken` makes another read at least as fresh (`atLeast`).
 */
export interface Current {
  readonly kind: "current";
  readonly asOf: Date;
  readonly consistencyToken: string;
  readonly token: string;
}

/** The stream broke, for the reason that `text` gives; it goes on where it was after `retryAfterMs`. */
export interface Disconnected {
  readonly kind: "disconnected";
  readonly code: string;
  readonly reason: string;
  readonly text: string;
  readonly retryAfterMs: number;
}

/**
 * An event of a subscription.
 *
 * A message of the gateway becomes its changes and then one of Reset, CatchingUp and Current, whose `token` says exactly
 * where a copy is that has all events up to there.
 */
export type TableEvent<Row> = Reset | Upsert<Row> | Delete | CatchingUp | Current | Disconnected;
