export type {
  CatchingUp,
  Current,
  Delete,
  Disconnected,
  Key,
  KeyValue,
  Reset,
  TableEvent,
  Upsert,
} from "./events.js";
export { reasonOf, ResumeTokenRefused, SubscribeError } from "./failures.js";
export { ContractMismatch } from "./fields.js";
export { atLeast, atLeastSource, type SourceRecord } from "./reads.js";
export type { Change, Entry } from "./rows.js";
export { type RowOf, subscribe, type SubscribeSettings } from "./subscription.js";
export { LiveTable, type LiveTableSettings, LiveView, type OnChange, type State } from "./table.js";
export { TokenMemory, TokenStorage, type TokenStore } from "./tokens.js";
export { type CallSettings, type Credential, gatewayTransport } from "./transport.js";
