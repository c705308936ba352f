// What a client of the generated code asks over any transport, and what it is told.

import { Code, ConnectError, createClient, type Transport } from "@connectrpc/connect";

import { RatingsService } from "./gen/examples/ratings/v1/ratings_pb.js";
import { ErrorInfoSchema } from "./gen/google/rpc/error_details_pb.js";

/** What one transport was told. */
export interface Told {
  movie: string;
  role: string | null;
  code: string;
  reason: string;
  table: string;
  rows: number;
  streamError: string;
}

/** Ask for one movie, for one that is not there, for all, and for all in a way that is refused. */
export async function ask(transport: Transport): Promise<Told> {
  const client = createClient(RatingsService, transport);
  let role: string | null = null;
  const got = await client.getRating(
    { movieId: 7n },
    { onTrailer: (trailer) => (role = trailer.get("tablegate-role")) },
  );
  const missing = await refused(() => client.getRating({ movieId: -3n }));
  const [info] = missing.findDetails(ErrorInfoSchema);
  let rows = 0;
  for await (const message of client.scanRatings({ minAverageRating: 1 })) {
    rows += message.ratings.length;
  }
  const stream = await refused(async () => {
    for await (const _ of client.scanRatings({ scanOptions: { resumeToken: "junk" } })) {
      throw new Error("a token that is none was taken");
    }
  });
  return {
    movie: String(got.rating?.movieId),
    role,
    code: Code[missing.code],
    reason: info?.reason ?? "",
    table: info?.metadata["table"] ?? "",
    rows,
    streamError: Code[stream.code],
  };
}

async function refused(call: () => Promise<unknown>): Promise<ConnectError> {
  try {
    await call();
  } catch (error) {
    if (error instanceof ConnectError) {
      return error;
    }
    throw error;
  }
  throw new Error("a call that is wrong was answered");
}
