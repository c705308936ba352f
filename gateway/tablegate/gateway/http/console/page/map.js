// Which gateway has which partition, as it is now: WatchTable says it anew whenever that changes.

import { useEffect, useRef, useState } from "preact/hooks";
import { stream } from "./api.js";
import { clock, count } from "./format.js";
import { GATEWAY } from "./status.js";
import { Empty, html, Loading, Problem, Stale, useStream } from "./ui.js";

const MOVES_MAX = 200;
const LISTED_MAX = 12;

const KINDS = { owner: "answers first", standby: "answers if those before it do not", filling: "is being filled" };

export function PartitionMap({ status, table, tables, now, go }) {
  const [metadata, setMetadata] = useState(null);
  const [atMs, setAtMs] = useState(0);
  const [moves, setMoves] = useState([]);
  const [partition, setPartition] = useState(0);
  const before = useRef(null);
  useEffect(() => {
    before.current = null;
    setMetadata(null);
    setMoves([]);
  }, [table]);
  const followed = useStream(
    (signal, onMessage) =>
      stream(
        `${GATEWAY}/WatchTable`,
        { table },
        (message) => {
          onMessage();
          const next = message.table ?? {};
          const seen = movesOf(before.current, next);
          before.current = next;
          setMetadata(next);
          setAtMs(Date.now());
          if (seen.length) setMoves((all) => [...seen.reverse(), ...all].slice(0, MOVES_MAX));
        },
        signal,
      ),
    [table],
  );
  const choice = html`<label class="choice">Table <select value=${table} onChange=${(event) => go(`/map/${encodeURIComponent(event.target.value)}`)}>${tables.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`;
  const head = html`<div class="head"><h1>Partitions of ${table}</h1>${choice}</div>`;
  if (!metadata) {
    return html`${head}${followed.error ? html`<${Problem} error=${followed.error} again=${followed.again} />` : html`<${Loading} what="the partitions" />`}`;
  }
  const gateways = gatewaysOf(status, metadata);
  const partitions = metadata.partitions ?? [];
  const total = metadata.partitionCount ?? partitions.length;
  const shown = Math.min(partition, Math.max(total - 1, 0));
  return html`${head}
    <${Stale} error=${followed.error} atMs=${atMs} now=${now} again=${followed.again} />
    <div class="legend"><span><i class="cell owner"></i> owner</span><span><i class="cell standby"></i> standby</span><span><i class="cell filling"></i> being filled</span><span><i class="cell"></i> not here</span><span class="dim">generation ${metadata.generation ?? 0}, ${count(total)} partitions</span></div>
    ${!gateways.length && html`<${Empty} title="No gateway has a partition">The table is restored, or its job has published no manifest yet.<//>`}
    <div class="gateways">${gateways.map((gateway) => html`<${Gateway} key=${gateway.id} gateway=${gateway} total=${total} chosen=${shown} choose=${setPartition} />`)}</div>
    <section class="pair">
      <div class="panel">
        <h2>One partition</h2>
        <label class="choice">Partition <input type="number" min="0" max=${Math.max(total - 1, 0)} value=${shown} onInput=${(event) => setPartition(Math.max(0, Number(event.target.value) || 0))} /></label>
        <ul class="plain" aria-live="polite">${whoHas(gateways, shown).map(({ id, kind, offset }) => html`<li key=${id}><i class=${`cell ${kind}`}></i> <strong>${id}</strong> ${KINDS[kind]}, next offset ${count(offset)}</li>`)}</ul>
        ${!whoHas(gateways, shown).length && html`<p class="old">No gateway has it: what is asked of it waits, then fails.</p>`}
      </div>
      <div class="panel">
        <h2>Moves</h2>
        ${moves.length ? html`<ol class="plain log" aria-live="polite">${moves.slice(0, LISTED_MAX).map((move) => html`<li key=${move.id}><time>${clock(move.atMs)}</time> ${move.text}</li>`)}</ol>` : html`<p class="dim">None since this screen was opened. Stop a gateway, and its partitions go to the others here.</p>`}
      </div>
    </section>`;
}

function Gateway({ gateway, total, chosen, choose }) {
  const counts = { owner: 0, standby: 0, filling: 0 };
  for (const kind of gateway.kinds.values()) counts[kind.kind] += 1;
  const about = `${count(counts.owner)} owned, ${count(counts.standby)} standby${counts.filling ? `, ${count(counts.filling)} being filled` : ""}`;
  const size = total <= 16 ? "large" : total <= 128 ? "middle" : "small";
  const cells = Array.from({ length: total }, (_, number) => {
    const kind = gateway.kinds.get(number)?.kind ?? "";
    return html`<i key=${number} data-partition=${number} class=${`cell ${kind} ${number === chosen ? "chosen" : ""}`}>${size === "large" ? number : ""}</i>`;
  });
  const onClick = (event) => event.target.dataset.partition && choose(Number(event.target.dataset.partition));
  return html`<section class=${`gateway panel ${gateway.alive ? "" : "gone"}`} data-gateway=${gateway.id}>
    <h2>${gateway.id}${gateway.isOwn && html` <span class="dim">the one you ask</span>`}</h2>
    <p class="dim">${gateway.endpoint}${gateway.zone && ` · zone ${gateway.zone}`}${gateway.draining ? " · drains" : ""}</p>
    <p class="counts">${gateway.alive ? about : html`<span class="old">does not answer</span>`}</p>
    <div class=${`cells ${size}`} role="img" aria-label=${`${gateway.id}: ${about}`} onClick=${onClick}>${cells}</div>
  </section>`;
}

// All gateways that are known or have a partition, with what they have of each.
function gatewaysOf(status, metadata) {
  const found = new Map();
  const named = (id) => id || "this gateway";
  for (const { record = {}, alive = false } of status?.gateways ?? []) {
    const { gatewayId, endpoint = "", zone = "", draining = false } = record;
    found.set(named(gatewayId), {
      id: named(gatewayId),
      endpoint,
      zone,
      draining,
      alive,
      isOwn: gatewayId === status.gatewayId,
      kinds: new Map(),
    });
  }
  for (const { partition = 0, replicas = [] } of metadata.partitions ?? []) {
    for (const replica of replicas) {
      const id = named(replica.gatewayId);
      if (!found.has(id))
        found.set(id, {
          id,
          endpoint: replica.endpoint ?? "",
          zone: replica.zone ?? "",
          alive: true,
          isOwn: false,
          kinds: new Map(),
        });
      found.get(id).kinds.set(partition, { kind: kindOf(replica), offset: Number(replica.nextOffset ?? 0) });
    }
  }
  return [...found.values()].sort((one, other) => (one.id < other.id ? -1 : 1));
}

function kindOf(replica) {
  if (replica.role === "REPLICA_ROLE_OWNER") return "owner";
  if (replica.role === "REPLICA_ROLE_STANDBY" && replica.phase === "REPLICA_PHASE_LIVE") return "standby";
  return "filling";
}

function whoHas(gateways, partition) {
  return gateways
    .filter((each) => each.kinds.has(partition))
    .map((each) => ({ id: each.id, ...each.kinds.get(partition) }));
}

let moveId = 0;

// What happened to owners between two pictures, in words.
function movesOf(before, next) {
  if (!before) return [];
  const owner = ({ replicas = [] }) => replicas.find((each) => each.role === "REPLICA_ROLE_OWNER")?.gatewayId ?? null;
  const was = new Map((before.partitions ?? []).map((each) => [each.partition ?? 0, owner(each)]));
  const groups = new Map();
  for (const each of next.partitions ?? []) {
    const number = each.partition ?? 0;
    const from = was.get(number) ?? null;
    const to = owner(each);
    if (from === to) continue;
    const way = `${from ?? "nobody"} → ${to ?? "nobody"}`;
    groups.set(way, [...(groups.get(way) ?? []), number]);
  }
  return [...groups].map(([way, numbers]) => ({ id: ++moveId, atMs: Date.now(), text: `${way}: ${listed(numbers)}` }));
}

function listed(numbers) {
  const some = numbers.slice(0, LISTED_MAX).join(", ");
  const more = numbers.length - LISTED_MAX;
  return `${numbers.length === 1 ? "partition" : "partitions"} ${some}${more > 0 ? ` and ${more} more` : ""}`;
}
