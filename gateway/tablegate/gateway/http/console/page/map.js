// Which gateway has which partition, as it is now: WatchTable says it anew whenever that changes.

import { useEffect, useRef, useState } from "preact/hooks";
import { stream } from "./api.js";
import { clock, count } from "./format.js";
import { GATEWAY } from "./status.js";
import { Empty, html, Loading, Problem, Stale, TableChoice, useStream } from "./ui.js";

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
  const head = html`<div class="head">
    <h1>Partitions of ${table}</h1>
    <${TableChoice} screen="map" ...${{ table, tables, go }} />
  </div>`;
  const { error, again } = followed;
  if (!metadata) {
    const shown = error
      ? html`<${Problem} error=${error} again=${again} />`
      : html`<${Loading} what="the partitions" />`;
    return html`${head} ${shown}`;
  }
  const gateways = gatewaysOf(status, metadata);
  const total = metadata.partitionCount ?? metadata.partitions?.length ?? 0;
  const chosen = Math.min(partition, Math.max(total - 1, 0));
  const choose = setPartition;
  return html`${head}
    <${Stale} ...${{ error, atMs, now, again }} />
    <${Legend} generation=${metadata.generation ?? 0} total=${total} />
    ${!gateways.length && html`<${NoGateways} />`}
    <div class="gateways">
      ${gateways.map((gateway) => html`<${Gateway} key=${gateway.id} ...${{ gateway, total, chosen, choose }} />`)}
    </div>
    <section class="pair">
      <${OnePartition} ...${{ gateways, total, chosen, choose }} />
      <${Moves} moves=${moves} />
    </section>`;
}

function Legend({ generation, total }) {
  return html`<div class="legend">
    <span><i class="cell owner"></i> owner</span>
    <span><i class="cell standby"></i> standby</span>
    <span><i class="cell filling"></i> being filled</span>
    <span><i class="cell"></i> not here</span>
    <span class="dim">generation ${generation}, ${count(total)} partitions</span>
  </div>`;
}

function NoGateways() {
  return html`<${Empty} title="No gateway has a partition">
    The table is restored, or its job has published no manifest yet.
  <//>`;
}

function OnePartition({ gateways, total, chosen, choose }) {
  const onInput = (event) => choose(Math.max(0, Number(event.target.value) || 0));
  const those = gateways.filter((each) => each.kinds.has(chosen));
  const line = ({ id, kinds }) => {
    const { kind, offset } = kinds.get(chosen);
    const text = ` ${KINDS[kind]}, next offset ${count(offset)}`;
    return html`<li key=${id}><i class=${`cell ${kind}`}></i> <strong>${id}</strong>${text}</li>`;
  };
  return html`<div class="panel">
    <h2>One partition</h2>
    <label class="choice">
      Partition
      <input type="number" min="0" max=${Math.max(total - 1, 0)} value=${chosen} onInput=${onInput} />
    </label>
    <ul class="plain" aria-live="polite">
      ${those.map(line)}
    </ul>
    ${!those.length && html`<p class="old">No gateway has it: what is asked of it waits, then fails.</p>`}
  </div>`;
}

function Moves({ moves }) {
  const line = ({ id, atMs, text }) => html`<li key=${id}><time>${clock(atMs)}</time> ${text}</li>`;
  const shown = moves.length
    ? html`<ol class="plain log" aria-live="polite">
        ${moves.slice(0, LISTED_MAX).map(line)}
      </ol>`
    : html`<p class="dim">
        None since this screen was opened. Stop a gateway, and its partitions go to the others here.
      </p>`;
  return html`<div class="panel">
    <h2>Moves</h2>
    ${shown}
  </div>`;
}

function Gateway({ gateway, total, chosen, choose }) {
  const { id, kinds, alive, isOwn, endpoint, zone, draining } = gateway;
  const about = holdings(kinds);
  const size = total <= 16 ? "large" : total <= 128 ? "middle" : "small";
  const cells = Array.from({ length: total }, (_, number) => {
    const look = `cell ${kinds.get(number)?.kind ?? ""} ${number === chosen ? "chosen" : ""}`;
    return html`<i key=${number} data-partition=${number} class=${look}>${size === "large" ? number : ""}</i>`;
  });
  const onClick = ({ target }) => target.dataset.partition && choose(Number(target.dataset.partition));
  const place = [endpoint, zone && `zone ${zone}`, draining && "drains"].filter(Boolean).join(" · ");
  return html`<section class=${`gateway panel ${alive ? "" : "gone"}`} data-gateway=${id}>
    <h2>${id}${isOwn && html` <span class="dim">the one you ask</span>`}</h2>
    <p class="dim">${place}</p>
    <p class="counts">${alive ? about : html`<span class="old">does not answer</span>`}</p>
    <div class=${`cells ${size}`} role="img" aria-label=${`${id}: ${about}`} onClick=${onClick}>${cells}</div>
  </section>`;
}

function holdings(kinds) {
  const counts = { owner: 0, standby: 0, filling: 0 };
  for (const { kind } of kinds.values()) counts[kind] += 1;
  const filling = counts.filling ? `, ${count(counts.filling)} being filled` : "";
  return `${count(counts.owner)} owned, ${count(counts.standby)} standby${filling}`;
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
