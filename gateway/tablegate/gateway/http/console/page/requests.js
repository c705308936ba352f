// Requests of queries, made of what somebody has typed; and the same as commands, to ask elsewhere.

import { hasCredential } from "./api.js";

const WIDE = /64$/; // proto3's JSON has them as text: JavaScript's numbers are too narrow
const UNSEEN = /[\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

export const OPERATORS = {
  EQ: "=",
  GT: ">",
  GTE: "≥",
  LT: "<",
  LTE: "≤",
  PREFIX: "begins with",
  CONTAINS: "contains",
  IN: "is one of",
};

// Returns the request of a query, of texts by the names of its params; those that are empty are left out.
export function requestOf(query, texts) {
  const request = {};
  for (const param of query.params) {
    const text = texts[param.name];
    if (text === undefined || text === "") continue;
    request[param.name] = param.repeated
      ? text.split(",").map((each) => valueOf(param, each.trim()))
      : valueOf(param, text);
  }
  return request;
}

export function valueOf({ type, values }, text) {
  if (type === "bool") return text === "true";
  if (type === "string" || type === "bytes" || values || WIDE.test(type) || type.endsWith("Timestamp")) return text;
  if (/^(u?int|s?fixed|sint|sfixed)32$|^(float|double)$/.test(type))
    return Number.isNaN(Number(text)) ? text : Number(text);
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

// Returns the texts of the params of a query that ask for one key: the row's, or of what deletes it.
export function keyTexts(query, row) {
  const texts = {};
  for (const param of query.params) texts[param.name] = String(row[param.column] ?? emptyOf(param));
  return texts;
}

export function emptyOf({ type }) {
  return type === "string" || type === "bytes" || type.includes(".") ? "" : type === "bool" ? "false" : "0";
}

export function commandsOf(query, request, dataPort) {
  const host = `${location.hostname}:${dataPort}`;
  const isTls = location.protocol === "https:";
  const data = shell(json(request));
  const [bearer, pythonBearer] = hasCredential()
    ? [` \\\n  -H "authorization: Bearer $TOKEN"`, `, metadata=[("authorization", f"Bearer {token}")]`]
    : ["", ""];
  return {
    grpcurl: `grpcurl ${isTls ? "" : "-plaintext "}-d ${data}${bearer} \\\n  ${host} ${query.path}`,
    curl: `curl ${location.protocol}//${host}/${query.path} \\\n  -H 'content-type: application/json'${bearer} \\\n  -d ${data}`,
    Python: python(query, request, host, isTls, pythonBearer),
  };
}

// As somebody sees it who copies it: what turns a line around, or what a terminal obeys, is escaped.
function json(value) {
  return JSON.stringify(value).replace(UNSEEN, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function shell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function python(query, request, host, isTls, bearer) {
  const [service, method] = query.path.split("/");
  const stub = `${service.split(".").at(-1)}Stub`;
  const requests = moduleOf(query.requestFile, "_pb2");
  const stubs = moduleOf(query.serviceFile, "_pb2_grpc");
  const channel = isTls
    ? `grpc.secure_channel("${host}", grpc.ssl_channel_credentials())`
    : `grpc.insecure_channel("${host}")`;
  return [
    "import grpc",
    "from google.protobuf.json_format import ParseDict",
    `from ${requests.package} import ${requests.name}`,
    `from ${stubs.package} import ${stubs.name}`,
    "",
    `request = ParseDict(${literal(request)}, ${requests.name}.${query.request}())`,
    `with ${channel} as channel:`,
    `    print(${stubs.name}.${stub}(channel).${method}(request${bearer}))`,
  ].join("\n");
}

function moduleOf(file, suffix) {
  const parts = file
    .replace(/\.proto$/, "")
    .replaceAll("-", "_")
    .split("/");
  const name = parts.pop() + suffix;
  return { package: parts.join(".") || ".", name };
}

// JSON as Python has it.
function literal(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, each]) => `${json(name)}: ${literal(each)}`)
      .join(", ")}}`;
  return json(value);
}
