import { clone, create, type DescMessage, type Message, type MessageInitShape, type MessageShape } from "@bufbuild/protobuf";

import { fieldOfType, type Fields, fieldsOf, READ_OPTIONS } from "./fields.js";

/** Where a record of a source topic is: what a producer's acknowledgement says. */
export interface SourceRecord {
  readonly topic: string;
  readonly partition: number;
  readonly offset: bigint | number;
}

/**
 * Return a request that asks for an answer with these records of the table's source topics in it: read your writes.
 *
 * The gateway waits for them as long as `maxWait` says, or half of the deadline; then it answers UNAVAILABLE,
 * NOT_CAUGHT_UP. Throws `ContractMismatch` where the request has no ReadOptions.
 */
export function atLeastSource<I extends DescMessage>(
  request: I,
  fields: MessageInitShape<I>,
  ...acknowledged: readonly SourceRecord[]
): MessageShape<I> {
  const topics = new Map<string, Record<number, bigint>>();
  for (const { topic, partition, offset } of acknowledged) {
    if (topic === "" || !(partition >= 0) || !(offset >= 0)) {
      throw new RangeError(
        `the record at ${topic || '""'}/${partition}/${offset} is not acknowledged: ` +
          "give what the producer got, with acks=1 or acks=all",
      );
    }
    const offsets = topics.get(topic) ?? {};
    offsets[partition] = later(BigInt(offset), offsets[partition]);
    topics.set(topic, offsets);
  }
  const value = { topics: Array.from(topics, ([topic, offsets]) => ({ topic, offsets })) };
  return withConsistency(request, fields, { case: "atLeastSource", value });
}

/**
 * Return a request that asks for an answer at least as fresh as the one that gave this consistency token.
 *
 * Of a live table it is `Current.consistencyToken`. Throws `ContractMismatch` where the request has no ReadOptions.
 */
export function atLeast<I extends DescMessage>(
  request: I,
  fields: MessageInitShape<I>,
  consistencyToken: string,
): MessageShape<I> {
  return withConsistency(request, fields, { case: "atLeast", value: consistencyToken });
}

function withConsistency<I extends DescMessage>(
  request: I,
  fields: MessageInitShape<I>,
  consistency: { readonly case: string; readonly value: unknown },
): MessageShape<I> {
  const message: Message = clone(request as DescMessage, create(request as DescMessage, fields as Fields));
  const field = fieldOfType(request, READ_OPTIONS);
  const named = fieldsOf(message);
  const { maxWait } = (named[field.localName] ?? {}) as { maxWait?: Message };
  named[field.localName] = create(field.message, { consistency, ...(maxWait === undefined ? {} : { maxWait }) });
  return message as MessageShape<I>;
}

function later(offset: bigint, other: bigint | undefined): bigint {
  return other === undefined || offset > other ? offset : other;
}
