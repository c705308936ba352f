// What needs no gateway: `node units.js PARCELS DIRECTORY`, where PARCELS is a file with the descriptors of
// tests/kit/table/parcels.proto, whose annotations say that its key is number and depot.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { create, createFileRegistry, type DescMessage, fromBinary, type Message } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema, timestampFromMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient, createRouterTransport } from "@connectrpc/connect";

import { RatingSchema, RatingsService, SubscribeRatingsResponseSchema } from "../example/gen/examples/ratings/v1/ratings_pb.js";
import { broken, failureOf, ResumeTokenRefused, SubscribeError } from "../src/failures.js";
import { ContractMismatch, keyText, responseFields } from "../src/fields.js";
import { TokenFile } from "../src/node.js";
import { Rows } from "../src/rows.js";
import { Subscriber } from "../src/subscriber.js";
import { gatewayTransport } from "../src/transport.js";

const [, , parcels = "", directory = ""] = process.argv;
const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(parcels)));

function message(name: string): DescMessage {
  const found = [...registry].find((each) => each.kind === "message" && each.name === name);
  assert(found?.kind === "message", name);
  return found;
}

test("keys are the same by their values", () => {
  assert.equal(keyText(7), keyText(7n));
  assert.equal(keyText(new Uint8Array([1, 255])), keyText(new Uint8Array([1, 255])));
  assert.equal(keyText(timestampFromMs(1_500)), keyText(timestampFromMs(1_500)));
  const others = [7n, "7", -7, true, "true", ["a", "b"], ["a,b"], ['a","b'], ["ab"], new Uint8Array([7]), timestampFromMs(7)];
  assert.equal(new Set(others.map((key) => keyText(key as never))).size, others.length);
});

test("a key of two columns is a tuple, in the order of the annotation", () => {
  const fields = responseFields(message("SubscribeParcelsResponse"));
  assert.equal(fields.row.name, "Parcel");
  for (const name of ["Parcel", "ParcelKey"]) {
    assert.deepEqual(fields.keyOf(create(message(name), { depot: "north", number: 3n })), [3n, "north"]);
  }
});

test("a message that is no Subscribe's is refused", () => {
  assert.throws(() => responseFields(RatingSchema), ContractMismatch);
});

test("who has rows of a moment keeps them", () => {
  const rows = new Rows<Message>(RatingSchema);
  const row = (movieId: bigint, ratingCount: bigint): Message => create(RatingSchema, { movieId, ratingCount });
  rows.apply({ kind: "upsert", key: 1n, row: row(1n, 1n) });
  const before = rows.share();
  rows.apply({ kind: "delete", key: 1n });
  rows.apply({ kind: "upsert", key: 2n, row: row(2n, 1n) });
  assert.deepEqual([...before.keys()], ["1"]);
  assert.deepEqual([...rows.map.keys()], ["2"]);
});

test("a new snapshot is shown whole, and rows that are equal stay the same object", () => {
  const rows = new Rows<Message>(RatingSchema);
  const row = (movieId: bigint, ratingCount: bigint): Message => create(RatingSchema, { movieId, ratingCount });
  const current = { kind: "current", asOf: new Date(), consistencyToken: "", token: "" } as const;
  for (const key of [1n, 2n, 3n]) {
    rows.apply({ kind: "upsert", key, row: row(key, 1n) });
  }
  const first = rows.map.get("1");
  assert.deepEqual(rows.apply({ kind: "reset", token: "" }), []);
  assert.deepEqual(rows.apply({ kind: "upsert", key: 1n, row: row(1n, 1n) }), []);
  assert.deepEqual(rows.apply({ kind: "upsert", key: 2n, row: row(2n, 2n) }), []);
  assert.equal(rows.map.size, 3);
  assert.deepEqual(
    rows.apply(current).map(([key, changed]) => [key, (changed as { ratingCount?: bigint } | undefined)?.ratingCount]),
    [[3n, undefined], [2n, 2n]],
  );
  assert.equal(rows.map.get("1"), first);
});

function subscriber(token = "", restarts = false) {
  return new Subscriber(RatingsService.method.subscribeRatings, {}, token, restarts, (mostMs) => mostMs);
}

test("pauses grow to a bound", () => {
  const one = subscriber();
  const pauses = Array.from({ length: 2_000 }, () => one.disconnected(broken("gone")).retryAfterMs);
  assert.deepEqual(pauses.slice(0, 4), [100, 200, 400, 800]);
  assert.equal(pauses.at(-1), 5_000);
});

const REFUSED = { code: Code.InvalidArgument, text: "it is damaged", reason: "INVALID_RESUME_TOKEN", retryAfterMs: 0 };

test("a refused token is told, or left behind once", () => {
  assert.throws(() => subscriber("junk").disconnected({ ...REFUSED, passes: false }), ResumeTokenRefused);
  const one = subscriber("junk", true);
  one.disconnected({ ...REFUSED, passes: false });
  assert.equal(one.request().subscribeOptions?.resumeToken, "");
  assert.throws(() => one.disconnected({ ...REFUSED, passes: false }), SubscribeError);
});

test("a stream whose credential has ended is opened again, one that was refused is not", () => {
  const ended = { code: Code.Unauthenticated, text: "the token has ended", reason: "", retryAfterMs: 0, passes: false };
  const one = subscriber();
  one.request();
  assert.throws(() => one.disconnected(ended), SubscribeError);
  one.request();
  one.receive(create(SubscribeRatingsResponseSchema));
  assert.equal(one.disconnected(ended).kind, "disconnected");
  one.request();
  assert.throws(() => one.disconnected(ended), SubscribeError);
});

test("only what passes is tried again", () => {
  const passes = (code: Code, cause?: unknown, began = false): boolean =>
    failureOf(new ConnectError("so it is", code, undefined, undefined, cause), began).passes;
  assert(passes(Code.Unavailable));
  assert(passes(Code.Canceled));
  assert(passes(Code.Aborted));
  assert(passes(Code.Unknown, new TypeError("Failed to fetch")));
  assert(passes(Code.InvalidArgument, undefined, true), "a stream that ends within a message");
  for (const code of [Code.InvalidArgument, Code.Internal, Code.Unauthenticated, Code.ResourceExhausted]) {
    assert(!passes(code), Code[code]);
  }
});

test("details that are damaged, or of others, say nothing", () => {
  const error = new ConnectError("no", Code.InvalidArgument);
  const text = new TextEncoder();
  const info = (reason: string, domain: string): Uint8Array =>
    new Uint8Array([10, reason.length, ...text.encode(reason), 18, domain.length, ...text.encode(domain)]);
  const reasonOf = (value: Uint8Array): string => {
    error.details = [{ type: "google.rpc.ErrorInfo", value }];
    return failureOf(error).reason;
  };
  assert.equal(reasonOf(info("INVALID_FIELD", "tablegate")), "INVALID_FIELD");
  assert.equal(reasonOf(info("INVALID_FIELD", "proxy.example")), "");
  assert.equal(reasonOf(new Uint8Array([255, 255])), "");
});

/** Return the milliseconds that a call had left when it came, by a transport without a network. */
async function leftMs(timeoutMs: number | undefined): Promise<number | undefined> {
  let left: number | undefined;
  const inner = createRouterTransport(({ service }) => {
    service(RatingsService, {
      getRating: (_request, context) => {
        left = context.timeoutMs();
        return {};
      },
    });
  });
  const client = createClient(RatingsService, gatewayTransport(inner));
  await client.getRating({}, timeoutMs === undefined ? {} : { timeoutMs });
  return left;
}

test("a unary call has a deadline, its own where it has one", async () => {
  const left = (await leftMs(undefined)) ?? 0;
  assert(left > 1_000 && left <= 5_000, String(left));
  assert(((await leftMs(60_000)) ?? 0) > 5_000);
  assert.equal(await leftMs(0), undefined, "it asks for none");
});

test("a token file holds one whole token", async () => {
  const tokens = new TokenFile(join(directory, "token"));
  assert.equal(await tokens.load(), "");
  await tokens.save("1.first");
  await tokens.save("1.second");
  assert.equal(await new TokenFile(join(directory, "token")).load(), "1.second");
  assert.deepEqual(readdirSync(directory), ["token"]);
});
