// A copy of a table, made of a subscription's events. No I/O.
import { type DescMessage, equals } from "@bufbuild/protobuf";

import type { Key, TableEvent } from "./events.js";
import { keyText } from "./fields.js";

/** A row with its key. */
export type Entry<Row> = readonly [key: Key, row: Row];

/** A key, and its row now; undefined where it has none any more. */
export type Change<Row> = readonly [key: Key, row: Row | undefined];

/**
 * Rows by key. A message of the contract is replaced, never altered.
 *
 * Nobody sees half of a snapshot: the first is shown when it is complete, and a later one replaces the rows at once.
 */
export class Rows<Row> {
  #rows = new Map<string, Entry<Row>>();
  #snapshot: Map<string, Entry<Row>> | undefined;
  #isShared = false;

  constructor(private readonly row: DescMessage) {}

  /** Return the rows of this moment: what comes later goes into a copy. */
  share(): ReadonlyMap<string, Entry<Row>> {
    this.#isShared = true;
    return this.#rows;
  }

  /** The rows of now. */
  get map(): ReadonlyMap<string, Entry<Row>> {
    return this.#rows;
  }

  /** Apply an event; return the changes that readers see by it. */
  apply(event: TableEvent<Row>): readonly Change<Row>[] {
    switch (event.kind) {
      case "reset":
        this.#snapshot = new Map();
        return [];
      case "upsert":
        return this.#change(event.key, event.row);
      case "delete":
        return this.#change(event.key, undefined);
      case "current":
        return this.#publishSnapshot();
      case "catchingUp":
      case "disconnected":
        return [];
    }
  }

  #change(key: Key, row: Row | undefined): readonly Change<Row>[] {
    const rows = this.#snapshot ?? this.#owned();
    if (row !== undefined) {
      rows.set(keyText(key), [key, row]);
    } else {
      rows.delete(keyText(key));
    }
    return this.#snapshot === undefined ? [[key, row]] : [];
  }

  #owned(): Map<string, Entry<Row>> {
    if (this.#isShared) {
      this.#rows = new Map(this.#rows);
      this.#isShared = false;
    }
    return this.#rows;
  }

  #publishSnapshot(): readonly Change<Row>[] {
    const snapshot = this.#snapshot;
    if (snapshot === undefined) {
      return [];
    }
    const before = this.#rows;
    const changes: Change<Row>[] = [];
    for (const [text, [key]] of before) {
      if (!snapshot.has(text)) {
        changes.push([key, undefined]);
      }
    }
    for (const [text, entry] of snapshot) {
      const old = before.get(text);
      if (old !== undefined && equals(this.row, old[1] as never, entry[1] as never)) {
        snapshot.set(text, old); // who compares rows by identity sees no change
      } else {
        changes.push(entry);
      }
    }
    this.#rows = snapshot;
    this.#isShared = false;
    this.#snapshot = undefined;
    return changes;
  }
}
