// The client of clients/scenarios.txt: tests/kit/client_scenarios asks it. A command and its answer are JSON.
import { fromJson, type JsonValue } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, type Transport } from "@connectrpc/connect";
import {
  atLeastSource,
  type Credential,
  LiveTable,
  reasonOf,
  type SourceRecord,
  subscribe,
  SubscribeError,
  TokenMemory,
} from "tablegate-client";

import {
  GetRatingRequestSchema,
  type Rating,
  RatingsService,
  SubscribeRatingsRequestSchema,
} from "../example/gen/examples/ratings/v1/ratings_pb.js";

/** A transport to a gateway, and what ends it. */
export interface Opened {
  readonly transport: Transport;
  close(): void;
}

export type Command =
  | { do: "open"; address: string; request: JsonValue; credential: string | null }
  | { do: "show" }
  | { do: "close" }
  | { do: "row"; movie: string }
  | { do: "follow"; address: string; until: string; token: string; restart: boolean }
  | { do: "get"; address: string; movie: string; record: SourceRecord | null };

export class Driver {
  private table: LiveTable<Rating> | undefined;
  private opened: Opened | undefined;
  private heard = new Map<string, number>();
  private sizes = new Set<number>();

  constructor(private readonly transportTo: (baseUrl: string, credential?: Credential) => Opened) {}

  async ask(command: Command): Promise<JsonValue> {
    switch (command.do) {
      case "open":
        return this.open(command.address, command.request, command.credential);
      case "show":
        return this.show();
      case "close":
        return this.close();
      case "row":
        return Number(this.table?.get(Number(command.movie))?.ratingCount ?? NaN) || null;
      case "follow":
        return this.follow(command.address, command.until, command.token, command.restart);
      case "get":
        return this.get(command.address, command.movie, command.record);
    }
  }

  private async open(address: string, request: JsonValue, credential: string | null): Promise<null> {
    await this.close();
    const heard = (this.heard = new Map());
    const sizes = (this.sizes = new Set());
    this.opened = this.to(address, credential ?? undefined);
    const table = LiveTable.open(
      this.opened.transport,
      RatingsService.method.subscribeRatings,
      fromJson(SubscribeRatingsRequestSchema, request),
      {
        onChange: (key, row) => {
          sizes.add(table.size);
          if (row === undefined) {
            heard.delete(String(key));
          } else {
            heard.set(String(key), Number(row.ratingCount));
          }
        },
      },
    );
    this.table = table;
    return null;
  }

  private async close(): Promise<null> {
    await this.table?.close();
    this.opened?.close();
    return null;
  }

  private show(): JsonValue {
    const table = this.table;
    if (table === undefined) {
      throw new Error("no table was opened");
    }
    const error = table.error;
    if (error !== undefined && !(error instanceof SubscribeError)) {
      throw error;
    }
    return {
      state: table.state,
      trouble: table.trouble,
      code: error?.code ?? "",
      reason: error?.reason ?? "",
      rows: Object.fromEntries(Array.from(table, ([key, row]) => [String(key), Number(row.ratingCount)])),
      heard: Object.fromEntries(this.heard),
      sizes: [...this.sizes],
    };
  }

  private async follow(address: string, until: string, token: string, restart: boolean): Promise<JsonValue> {
    const tokenStore = new TokenMemory();
    tokenStore.save(token);
    const given = new Set<string>();
    let reset = false;
    let done = false;
    const { transport, close } = this.to(address);
    const request = { subscribeOptions: { progressInterval: { nanos: 100_000_000 } } };
    const settings = { tokenStore, restart };
    try {
      for await (const event of subscribe(transport, RatingsService.method.subscribeRatings, request, settings)) {
        // By asking for this event all before it was seen to.
        if (done) {
          break;
        }
        if (event.kind === "reset") {
          reset = true;
        } else if (event.kind === "upsert" || event.kind === "delete") {
          given.add(String(event.key));
        } else if (event.kind !== "disconnected") {
          done = given.has(until);
        }
      }
    } catch (error) {
      if (error instanceof SubscribeError) {
        return { code: error.code, reason: error.reason };
      }
      throw error;
    } finally {
      close();
    }
    return { reset, movies: [...given], token: tokenStore.load() };
  }

  private async get(address: string, movie: string, record: SourceRecord | null): Promise<JsonValue> {
    const { transport, close } = this.to(address);
    const records = record === null ? [] : [record];
    const request =
      record === null
        ? { movieId: BigInt(movie) }
        : atLeastSource(GetRatingRequestSchema, { movieId: BigInt(movie) }, ...records);
    try {
      const { rating } = await createClient(RatingsService, transport).getRating(request);
      return { count: Number(rating?.ratingCount) };
    } catch (error) {
      const code = Code[ConnectError.from(error).code];
      return { code: code.replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase(), reason: reasonOf(error) };
    } finally {
      close();
    }
  }

  private to(address: string, credential?: string): Opened {
    return this.transportTo(`http://${address}`, credential);
  }
}
