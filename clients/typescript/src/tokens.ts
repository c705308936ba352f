/**
 * Keeps one token. A subscription loads it once, and saves each newer one when its consumer has all before it.
 *
 * So a consumer that ends anywhere gets each event at least once: what it makes of one must be done before it asks for
 * the next. For a copy that outlives the process that is not enough: keep it with the token of its last event, in one
 * transaction, and give that in the request.
 */
export interface TokenStore {
  /** Return the token that was saved last; "" where there is none. */
  load(): string | Promise<string>;
  /** Keep `token` instead of the one before. */
  save(token: string): void | Promise<void>;
}

/** Keeps it for as long as the program lives. */
export class TokenMemory implements TokenStore {
  #token = "";

  load(): string {
    return this.#token;
  }

  save(token: string): void {
    this.#token = token;
  }
}

/** Keeps it under a name in a `Storage` of the page: `new TokenStorage(localStorage, "ratings")`. */
export class TokenStorage implements TokenStore {
  constructor(
    private readonly storage: Pick<Storage, "getItem" | "setItem">,
    private readonly name: string,
  ) {}

  load(): string {
    return this.storage.getItem(this.name) ?? "";
  }

  save(token: string): void {
    this.storage.setItem(this.name, token);
  }
}
