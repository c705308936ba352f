// Asks a gateway for one movie and then follows all of them. Each line it writes is a JSON object.
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

import { create, toJsonString } from "@bufbuild/protobuf";
import { type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";

import {
  GetRatingResponseSchema,
  RatingChangeSchema,
  RatingsService,
  type SubscribeRatingsResponse,
} from "./gen/examples/ratings/v1/ratings_pb.js";
import { SubscribePhase } from "./gen/tablegate/v1/query_pb.js";

const GET_TIMEOUT_MS = 5_000;
const RETRY_AFTER_MS = 1_000; // where the gateway was not there to say when
const PING_EVERY_MS = 30_000; // finds a gateway that went away without a word

// UNAVAILABLE, as gateways say it; and what Node makes of a connection that breaks under a stream.
const MAY_COME_BACK = [Code.Unavailable, Code.Aborted, Code.Canceled];

type RatingsClient = Client<typeof RatingsService>;

async function get(client: RatingsClient, movieId: bigint): Promise<void> {
  const { rating } = await client.getRating({ movieId }, { timeoutMs: GET_TIMEOUT_MS });
  console.log(toJsonString(GetRatingResponseSchema, create(GetRatingResponseSchema, { rating })));
}

class Subscriber {
  private token: string;
  private phase = SubscribePhase.UNSPECIFIED;

  // left: changes to write before it ends.
  constructor(
    private readonly client: RatingsClient,
    private readonly tokenFile: string,
    private left: number,
  ) {
    this.token = existsSync(tokenFile) ? readFileSync(tokenFile, "utf8") : "";
  }

  // Opens streams, each where the one before ended, until nothing is left to write.
  async follow(): Promise<void> {
    while (this.left > 0) {
      try {
        await this.stream();
      } catch (reason) {
        const error = ConnectError.from(reason);
        if (!MAY_COME_BACK.includes(error.code)) {
          throw error;
        }
        const pauseMs = Number(error.metadata.get("grpc-retry-pushback-ms") ?? RETRY_AFTER_MS);
        console.error(`ratings: ${error.rawMessage}; again in ${pauseMs} ms`);
        await sleep(pauseMs);
      }
    }
  }

  private async stream(): Promise<void> {
    const responses = this.client.subscribeRatings({ subscribeOptions: { resumeToken: this.token } });
    for await (const response of responses) {
      this.take(response);
      if (this.left <= 0) {
        return;
      }
    }
    throw new ConnectError("the stream ended", Code.Unavailable);
  }

  // Writes a message. Its token is kept once its changes are written: after a crash some may come again, none is lost.
  private take({ changes, progress }: SubscribeRatingsResponse): void {
    for (const change of changes) {
      console.log(toJsonString(RatingChangeSchema, change));
    }
    this.left -= changes.length;
    if (progress === undefined) {
      return;
    }
    if (progress.phase !== this.phase) {
      this.phase = progress.phase;
      console.log(JSON.stringify({ phase: SubscribePhase[this.phase] }));
    }
    this.token = progress.resumeToken;
    writeFileSync(`${this.tokenFile}.new`, this.token);
    renameSync(`${this.tokenFile}.new`, this.tokenFile);
  }
}

const { values: flags } = parseArgs({
  options: {
    address: { type: "string", default: "127.0.0.1:50051" },
    movie: { type: "string", default: "362" },
    "token-file": { type: "string", default: "ratings.token" },
    count: { type: "string", default: "Infinity" },
  },
});
const baseUrl = `http://${flags.address}`;
const sessionManager = new Http2SessionManager(baseUrl, { pingIntervalMs: PING_EVERY_MS });
const client = createClient(RatingsService, createGrpcTransport({ baseUrl, sessionManager }));
try {
  await get(client, BigInt(flags.movie));
  await new Subscriber(client, flags["token-file"], Number(flags.count)).follow();
} catch (reason) {
  console.error(`ratings: ${reason instanceof ConnectError ? reason.rawMessage : reason}`);
  process.exitCode = 1;
} finally {
  sessionManager.abort();
}
