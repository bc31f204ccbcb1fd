// What is said about an op, a transfer or a collective: a title and rows of a name and a value.

const percent = (share) => `${(share * 100).toFixed(1)} %`;

function linkOf(chart, step, transfer) { return chart.resources[step.resource[transfer]]; }

// An event for people: an op, the message of an op, a collective.
function eventName(step, event) {
  if (event.op !== undefined) return tokenOf(step, event.op);
  if (event.transfer !== undefined) return `the message of ${transferName(step, event.transfer)}`;
  return `${step.collectives[event.collective][0]}${step.collectives[event.collective][1]}`;
}

function describeOp(chart, step, op) {
  const stage = step.stage[op];
  const { chunk, layers } = chart.stages[stage];
  const several = chart.stages.filter((each) => each.rank === step.rankOf[op]).length > 1;
  const rows = [
    ["what", `${KIND_WORDS[step.kind[op]]}, microbatch ${unitOf(step, op).replace(":", ", slice ")}${step.part[op] < 0 ? "" : `, part ${step.part[op]}`}`],
    ["where", `rank ${step.rankOf[op]}, stage ${stage}${several ? ` (chunk ${chunk + 1})` : ""}`
      + (layers ? `, ${layers[0] === layers[1] ? `layer ${layers[0]}` : `layers ${layers[0]} to ${layers[1]}`}` : "")],
    ["time", `${duration(step.start[op])} to ${duration(step.end[op])}, takes ${duration(step.end[op] - step.start[op])}`],
    ["waited for", waitedFor(chart, step, op)],
  ];
  for (let sent = step.sends[op]; sent >= 0 && step.producer[sent] === op; sent += 1) rows.push(["sends", `${size(step.bytes[sent])} over ${linkOf(chart, step, sent)}, there at ${duration(step.arrival[sent])}`]);
  return { title: tokenOf(step, op), step: step.name, rows };
}

function waitedFor(chart, step, op) {
  const idle = step.idleBeforeNs[op];
  const last = before(step, { op });
  if (!last) return "nothing: it is the first of its rank";
  if (last.collective !== undefined) return `the all-gather of its stage's weights, ${duration(idle)}`;
  if (last.op !== undefined) {
    const after = idle > 0 ? `${duration(idle)} passed between the two` : "the rank was not idle";
    return `${tokenOf(step, last.op)}, the op before it on its rank; ${after}`;
  }
  const { transfer } = last;
  const free = step.start[op] - idle;
  const parts = [
    ["until it was sent", Math.max(free, step.ready[transfer]) - free],
    ["queue", Math.max(free, step.sendStart[transfer]) - Math.max(free, step.ready[transfer])],
    ["transmission", Math.max(free, step.left[transfer]) - Math.max(free, step.sendStart[transfer])],
    ["latency", Math.max(free, step.arrival[transfer]) - Math.max(free, step.left[transfer])],
  ].filter(([, ns]) => ns > 0);
  const made = transferName(step, transfer);
  const divided = parts.length === 1 ? `, ${parts[0][0]}` : `: ${parts.map(([what, ns]) => `${what} ${duration(ns)}`).join(", ")}`;
  return `the transfer of ${made} over ${linkOf(chart, step, transfer)}, ${duration(idle)}${parts.length ? divided : ""}`;
}

function describeTransfer(chart, step, transfer) {
  const [from, to] = [step.producer[transfer], step.consumer[transfer]];
  const queued = before(step, { transfer });
  const taken = step.start[to];
  const early = taken - step.arrival[transfer];
  const others = Array.from(step.taker).filter((op, need) => step.taken[need] === transfer && op !== to);
  const also = others.length ? `; then by ${others.map((op) => tokenOf(step, op)).join(", ")}` : "";
  const rows = [
    ["what", `${step.kind[from] === 0 ? "activation" : "gradient"} of ${tokenOf(step, from)}, ${size(step.bytes[transfer])}`],
    ["where", `rank ${step.rankOf[from]} to rank ${step.rankOf[to]}, over ${linkOf(chart, step, transfer)}`],
    ["time", `${duration(step.ready[transfer])} to ${duration(step.arrival[transfer])}: queue ${duration(step.queueNs[transfer])},`
      + ` transmission ${duration(step.occupancyNs[transfer])}, latency ${duration(step.latencyNs[transfer])}`],
    ["waited for", queued.op !== undefined ? `${tokenOf(step, from)}, which made it` : `${eventName(step, queued)}, which left the link before it`],
    ["taken by", `${tokenOf(step, to)}, ${early > 0 ? `${duration(early)} after it came` : "as soon as it came"}${also}`],
  ];
  return { title: `${transferName(step, transfer)} → rank ${step.rankOf[to]}`, step: step.name, rows };
}

function describeCollective(chart, step, at) {
  const [kind, stage, rank, ready, start, end] = step.collectives[at];
  const word = kind === "AG" ? "all-gather" : chart.zeroStage === 0 ? "all-reduce" : "reduce-scatter";
  return {
    title: `${kind}${stage}`,
    step: step.name,
    rows: [
      ["what", `${word} of stage ${stage}`],
      ["where", `rank ${rank}`],
      ["time", `${duration(start)} to ${duration(end)}, takes ${duration(end - start)}`],
      ["waited", start > ready ? `${duration(start - ready)} for its turn` : "not at all"],
    ],
  };
}

function describeMemory(lane, time) {
  const held = lane.bytes[Math.max(0, firstAbove(lane.time, time) - 1)];
  const limit = lane.limit ? `, ${percent(held / lane.limit)} of the limit of ${size(lane.limit)}` : ", without a limit";
  return {
    title: `memory of rank ${lane.rank}`,
    step: lane.step.name,
    rows: [["activations", `${size(held)} at ${duration(Math.max(0, time))}${limit}`], ["at most", size(lane.peak)]],
  };
}

function describe(chart, mark) {
  const { lane, span } = mark;
  if (lane.type === "memory") return describeMemory(lane, mark.time);
  const item = lane.spans.item[span];
  if (lane.type === "rank") return describeOp(chart, lane.step, item);
  return lane.type === "link" ? describeTransfer(chart, lane.step, item) : describeCollective(chart, lane.step, item);
}

// The description as elements; texts never become markup.
function descriptionNodes({ title, step, rows }, several) {
  const head = document.createElement("strong");
  head.textContent = several ? `${title}, ${step}` : title;
  const list = document.createElement("dl");
  for (const [name, value] of rows) {
    const term = document.createElement("dt");
    const data = document.createElement("dd");
    term.textContent = name;
    data.textContent = value;
    list.append(term, data);
  }
  return [head, list];
}
