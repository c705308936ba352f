// The job of one table: how far it has come, as its progress markers say. What they do not say is said, too.

import { unary } from "./api.js";
import { age, count, NONE, rate, secondsSince } from "./format.js";
import { Plot } from "./plot.js";
import { GATEWAY, markerAge, Rates } from "./status.js";
import { Empty, html, List, Loading, Problem, Stale, TableChoice, usePolled } from "./ui.js";

const EVERY_MS = 2_000;
const LISTED_MAX = 64; // partitions of a source

const MODES = {
  JOB_MODE_REALTIME: "Real-time Mode",
  JOB_MODE_MICROBATCH: "micro-batches",
  JOB_MODE_BATCH: "runs that end, such as each night",
};

const read = new Rates(); // by table and topic

async function ask(signal) {
  const { jobs = [] } = await unary(`${GATEWAY}/GetStatus`, { withJobs: true }, signal);
  const sums = new Map();
  for (const { table, reached = [] } of jobs)
    for (const { topic, nextOffsets } of reached)
      sums.set(`${table} ${topic}`, Object.values(nextOffsets).reduce((sum, offset) => sum + Number(offset), 0));
  read.add(sums, Date.now());
  return jobs;
}

export function Job({ status, table: name, tables, serverNow, now, go }) {
  const { value, error, atMs, again } = usePolled(ask, EVERY_MS, []);
  const table = status?.tables?.find((each) => each.table === name);
  const waiting = error
    ? html`<${Problem} error=${error} again=${again} />`
    : html`<${Loading} what="the progress of the job" />`;
  const job = value?.find((each) => each.table === name);
  return html`<div class="head">
      <h1>Job of ${name}</h1>
      <${TableChoice} screen="job" table=${name} ...${{ tables, go }} />
    </div>
    ${
      value && status
        ? html`<${Stale} ...${{ error, atMs, now, again }} /><${Known} ...${{ table, job, serverNow }} />`
        : waiting
    }`;
}

function Known({ table, job, serverNow }) {
  if (!table)
    return html`<${Empty} title="There is no such table">
      This gateway has no table of that name. <a href="#/">To the tables</a>
    <//>`;
  if (table.manifest?.foreign)
    return html`<${Empty} title="No job keeps this table">
      It is served from the topic ${table.manifest.changelogTopic}, which others write.${" "}
      <a href="#/">The tables</a> have its age and lag.
    <//>`;
  if (!job)
    return html`<${Empty} title="No job has published this table">
      ${table.problem || "There is no manifest of it."} Start its job: <code>tablegate job run</code>.
    <//>`;
  return html`<${Figures} ...${{ table, job, serverNow }} />
    <${Sources} job=${job} />
    <${Elsewhere} table=${table} />`;
}

function Figures({ table, job, serverNow }) {
  const { manifest } = table;
  const seconds = markerAge(table, serverNow);
  const published = secondsSince(manifest.publishTime, serverNow);
  const figures = [
    ["Newest marker", seconds == null ? "not seen yet" : `${age(seconds)} ago`],
    ["Mode", MODES[manifest.mode] ?? NONE],
    ["Run", job.run ? count(job.run) : NONE],
    ["Generation", count(manifest.generation)],
    ["Manifest written", published == null ? NONE : `${age(published)} ago`],
  ];
  return html`<dl class="figures words">
      ${figures.map(([name, figure]) => html`<div key=${name}><dt>${name}</dt><dd>${figure}</dd></div>`)}
    </dl>
    <p class="hint">
      A job writes a marker after each batch, into every partition: what the batch has changed is before it. The figure is
      of the partition that has waited the longest. Where it grows, the job stands still, or has a long batch: its log and${" "}
      <code>tablegate job list</code> say which.
    </p>`;
}

function Sources({ job }) {
  const { table, reached = [] } = job;
  if (!reached.length)
    return html`<h2 class="next">Sources</h2>
      <${Empty} title="No marker names sources">
        None that this gateway has read does. Of a DataFrame that an application publishes none will: nobody knows what
        it is made of.
      <//>`;
  return html`<h2 class="next">Sources</h2>
    <${List} label="Sources" heads=${[["Topic"], ["Read per second"], ["Read up to, by partition"]]}>
      ${reached.map((each) => html`<${Source} key=${each.topic} table=${table} ...${each} />`)}
    <//>
    <p class="hint">
      Next offsets: all that was made of the records before them is in every partition of this gateway, and clients may
      ask for it by <code>at_least_source</code>.
    </p>`;
}

function Source({ table, topic, nextOffsets }) {
  const rates = read.of(`${table} ${topic}`);
  const partitions = Object.entries(nextOffsets).sort(([one], [other]) => one - other);
  const left = partitions.length - LISTED_MAX;
  return html`<tr>
    <th scope="row">${topic}</th>
    <td data-label="Read per second" class="wide">
      <span class="figure">${rate(rates.at(-1))}</span>
      <${Plot} values=${rates} label=${`records of ${topic} read per second, of late`} />
    </td>
    <td data-label="Read up to, by partition" class="offsets">
      ${partitions.slice(0, LISTED_MAX).map(
        ([partition, offset]) =>
          html`<span key=${partition}><span class="dim">${partition}</span> ${count(Number(offset))}</span>`,
      )}
      ${left > 0 && html`<span class="dim">and ${count(left)} more</span>`}
    </td>
  </tr>`;
}

// What gateways cannot know: they have no rights on sources and dead letters, and do not know where jobs run.
function Elsewhere({ table }) {
  const letters = table.manifest.changelogTopic.replace(/-g\d+-changelog$/, "-dead-letters");
  return html`<div class="panel after">
    <h2>What the job alone knows</h2>
    <p>
      A gateway may read neither the sources nor the dead letters. Ask the job where it serves its metrics, by the address of${" "}
      <code>--metrics</code>:
    </p>
    <ul class="plain">
      <li>What is unread: <code>tablegate_job_source_lag_records</code>, <code>tablegate_job_source_lag_seconds</code></li>
      <li>
        Records that no row can be made of: <code>tablegate_job_dead_letters</code>. They are in the topic${" "}
        <code>${letters}</code>, each with its reason.
      </li>
    </ul>
  </div>`;
}
