// Fields of a contract's messages, found by their types, as a contract may name them freely.
import type { DescField, DescMessage, Message } from "@bufbuild/protobuf";
import { BinaryReader, type WireType } from "@bufbuild/protobuf/wire";

import type { Key, KeyValue } from "./events.js";

export const SUBSCRIBE_OPTIONS = "tablegate.v1.SubscribeOptions";
const SUBSCRIBE_PROGRESS = "tablegate.v1.SubscribeProgress";
export const READ_OPTIONS = "tablegate.v1.ReadOptions";
const ANNOTATION = 50731; // (tablegate.v1.table) of messages
const TABLE_KEY = 2; // TableOptions.key
const LENGTH_DELIMITED: WireType = 2;

/** A message is not one of a contract's query; the text says what is missing. */
export class ContractMismatch extends TypeError {
  override readonly name = "ContractMismatch";
}

/** A message of generated code, by the names that its fields have there. */
export type Fields = Record<string, unknown>;

/** What a Subscribe's response has: readers of its progress and its changes. */
export interface ResponseFields {
  readonly row: DescMessage;
  progress(response: Message): Progress | undefined;
  changes(response: Message): readonly Fields[];
  /** Return the row or key message of a change, and which it is. */
  change(change: Fields): { readonly message: Message; readonly isRow: boolean } | undefined;
  keyOf(message: Message): Key;
}

/** A SubscribeProgress, as generated code has it. */
export interface Progress {
  readonly phase: number;
  readonly resumeToken: string;
  readonly readInfo?: {
    readonly consistencyToken: string;
    readonly asOfTime?: { readonly seconds: bigint; readonly nanos: number };
  };
}

/** A field whose value is a message. */
export type MessageField = DescField & { readonly message: DescMessage };

/** Return the one field of this type; throw `ContractMismatch`. */
export function fieldOfType(message: DescMessage, typeName: string): MessageField {
  for (const field of message.fields) {
    if (field.message?.typeName === typeName) {
      return field as MessageField;
    }
  }
  throw new ContractMismatch(
    `${message.typeName} has no field of type ${typeName}: it is no message of that query`,
  );
}

/** Return what there is in a Subscribe's response; throw `ContractMismatch`. */
export function responseFields(response: DescMessage): ResponseFields {
  const progress = fieldOfType(response, SUBSCRIBE_PROGRESS);
  for (const field of response.fields) {
    if (field.fieldKind === "list" && field.listKind === "message" && field.message.fields.length === 2) {
      return withChange(progress, field, field.message);
    }
  }
  throw new ContractMismatch(`${response.typeName} repeats no message with a row and a key: it is no Subscribe's`);
}

function withChange(progress: DescField, changes: DescField, change: DescMessage): ResponseFields {
  let [row, key] = change.fields as [DescField, DescField];
  if (keyColumns(key.message).length > 0 || columns(key) > columns(row)) {
    [row, key] = [key, row];
  }
  if (row.message === undefined || key.message === undefined || row.oneof === undefined) {
    throw new ContractMismatch(`${change.typeName} is no choice of a row and a key: it is no Subscribe's`);
  }
  let names = keyColumns(row.message);
  if (names.length === 0) {
    // Generated without the annotations: then the row is what has more columns.
    if (columns(row) <= columns(key)) {
      throw new ContractMismatch(
        `${change.typeName} does not tell its row from its key: ` +
          "generate code from the contract with its annotations",
      );
    }
    names = key.message.fields.map((field) => field.name);
  }
  const choice = row.oneof.localName;
  const rowName = row.localName;
  return {
    row: row.message,
    progress: (message) => fieldsOf(message)[progress.localName] as Progress | undefined,
    changes: (message) => fieldsOf(message)[changes.localName] as readonly Fields[],
    change: (message) => {
      const chosen = message[choice] as { case?: string; value?: Message };
      return chosen.value === undefined ? undefined : { message: chosen.value, isRow: chosen.case === rowName };
    },
    keyOf: keyReader(row.message, names),
  };
}

function columns(field: DescField): number {
  return field.message?.fields.length ?? 0;
}

/**
 * Return the key columns that the annotation of a row names; none where there is no annotation.
 *
 * It is read by its number: so this needs no generated code of the annotations.
 */
function keyColumns(message: DescMessage | undefined): string[] {
  const names: string[] = [];
  for (const option of message?.proto.options?.$unknown ?? []) {
    if (option.no !== ANNOTATION || option.wireType !== LENGTH_DELIMITED) {
      continue;
    }
    const table = new BinaryReader(new BinaryReader(option.data).bytes());
    while (table.pos < table.len) {
      const [number, wireType] = table.tag();
      if (number === TABLE_KEY && wireType === LENGTH_DELIMITED) {
        names.push(table.string());
      } else {
        table.skip(wireType, number);
      }
    }
  }
  return names;
}

function keyReader(row: DescMessage, names: readonly string[]): (message: Message) => Key {
  const locals = names.map((name) => {
    const field = row.fields.find((each) => each.name === name);
    if (field === undefined) {
      throw new ContractMismatch(`${row.typeName} has no field ${name}, which is in its key`);
    }
    return field.localName;
  });
  const [first = ""] = locals;
  if (locals.length === 1) {
    return (message) => fieldsOf(message)[first] as KeyValue;
  }
  return (message) => locals.map((name) => fieldsOf(message)[name] as KeyValue);
}

/** See a message by the names of its fields. */
export function fieldsOf(message: Message): Fields {
  return message as unknown as Fields;
}

/**
 * Return a text that keys have in common exactly if they are the same key.
 *
 * Whole numbers of both kinds are the same: `table.get(7)` finds what `7n` is.
 */
export function keyText(key: Key): string {
  return Array.isArray(key)
    ? (key as readonly KeyValue[]).map(valueText).join(",")
    : valueText(key as KeyValue);
}

function valueText(value: KeyValue): string {
  if (typeof value === "string") {
    return JSON.stringify(value);
  }
  if (value instanceof Uint8Array) {
    return `x${Array.from(value, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
  }
  return typeof value === "object" ? `t${value.seconds}.${value.nanos}` : String(value);
}
