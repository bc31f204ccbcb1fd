// The plan in memory: each step (planned, measured) as typed arrays, the names of ops, and the chains of what waited for what.

const KINDS = ["F", "B", "W", "BW", "U"];
const KIND_WORDS = ["forward", "backward of the input", "backward of the weights", "backward, both in one", "update"];
const BY_OP = 1; // as in schedc/analysis/attribution/waits.py
const BY_MESSAGE = 2;
const BY_ALL_GATHER = 3;

// A step: ops are numbered flat, rank after rank; transfers by their place in the columns.
function readStep(data, slices) {
  const column = Object.fromEntries(
    Object.entries(data).filter(([, value]) => typeof value === "string").filter(([key]) => key !== "name")
      .map(([key, value]) => [key, readColumn(value)]),
  );
  const begin = column.begin;
  const count = column.kind.length;
  const start = new Float64Array(count);
  const end = new Float64Array(count);
  const rankOf = new Uint16Array(count);
  for (let rank = 0; rank + 1 < begin.length; rank += 1) {
    for (let op = begin[rank], free = 0; op < begin[rank + 1]; op += 1) {
      start[op] = free + column.idleBeforeNs[op];
      free = end[op] = start[op] + column.durationNs[op];
      rankOf[op] = rank;
    }
  }
  const sends = new Int32Array(count).fill(-1);
  const takes = new Int32Array(count).fill(-1);
  const sent = column.producer.length;
  const ready = new Float64Array(sent);
  const sendStart = new Float64Array(sent);
  const left = new Float64Array(sent);
  const arrival = new Float64Array(sent);
  for (let transfer = 0; transfer < sent; transfer += 1) {
    if (sends[column.producer[transfer]] < 0) sends[column.producer[transfer]] = transfer; // of several the first
    ready[transfer] = end[column.producer[transfer]];
    sendStart[transfer] = ready[transfer] + column.queueNs[transfer];
    left[transfer] = sendStart[transfer] + column.occupancyNs[transfer];
    arrival[transfer] = left[transfer] + column.latencyNs[transfer];
  }
  for (let need = 0; need < column.taker.length; need += 1) { // of several, the one that arrives last
    const [op, transfer] = [column.taker[need], column.taken[need]];
    if (takes[op] < 0 || arrival[transfer] > arrival[takes[op]]) takes[op] = transfer;
  }
  return {
    ...column, name: data.name, slices, endNs: data.endNs, count, sent, start, end, rankOf, sends, takes,
    ready, sendStart, left, arrival, collectives: data.collectives,
  };
}

// The microbatch of an op; of microbatches in slices with the slice: 4:0.
function unitOf(step, op) {
  const { slices, microbatch } = step;
  return slices ? `${Math.floor(microbatch[op] / slices)}:${microbatch[op] % slices}` : String(microbatch[op]);
}

// The name of an op: F3.12, W3.12/0, F3.4:0.
function tokenOf(step, op, part = step.part[op] < 0 ? "" : `/${step.part[op]}`) {
  return `${KINDS[step.kind[op]]}${step.stage[op]}.${unitOf(step, op)}${part}`;
}

// The name of a transfer: that of its op; where stages are a graph, with the stage that it goes to: F3.12>5.
function transferName(step, transfer) {
  const op = step.producer[transfer];
  return step.toStage[transfer] < 0 ? tokenOf(step, op) : tokenOf(step, op, `>${step.toStage[transfer]}`);
}

// The op of a name, or -1.
function findOp(step, text) {
  const match = /^(F|BW|B|W|U)(\d+)\.(\d+)(?::(\d+))?(?:\/(\d+))?$/i.exec(text.trim());
  if (!match || (match[4] !== undefined) !== (step.slices > 0)) return -1;
  const kind = KINDS.indexOf(match[1].toUpperCase());
  const microbatch = step.slices ? Number(match[3]) * step.slices + Number(match[4]) : Number(match[3]);
  if (step.slices && Number(match[4]) >= step.slices) return -1;
  for (let op = 0; op < step.count; op += 1) {
    if (step.kind[op] === kind && step.stage[op] === Number(match[2]) && step.microbatch[op] === microbatch
      && (match[5] === undefined || step.part[op] === Number(match[5]))) return op;
  }
  return -1;
}

// What happens before what, as events: { op }, { transfer } or { collective }. The one that the event waited for last, or null.
function before(step, event) {
  if (event.op !== undefined) {
    const { op } = event;
    if (step.cause[op] === BY_OP) return { op: op - 1 };
    if (step.cause[op] === BY_MESSAGE) return { transfer: step.takes[op] };
    return step.cause[op] === BY_ALL_GATHER ? { collective: step.awaited[op] } : null;
  }
  const queued = event.transfer !== undefined ? step.behind[event.transfer] : step.collectiveBehind[event.collective];
  if (queued >= step.sent) return { collective: queued - step.sent };
  if (queued >= 0) return { transfer: queued };
  if (event.transfer !== undefined) return { op: step.producer[event.transfer] };
  return step.collectiveAfter[event.collective] >= 0 ? { op: step.collectiveAfter[event.collective] } : null;
}

// The ops, transfers and collectives that led to the event, itself included, from the last to the first.
function chainOf(step, event) {
  const chain = { step, ops: [], transfers: [], collectives: [] };
  const most = step.count + step.sent + step.collectives.length; // measured clocks that are a little apart could make a cycle
  for (let at = event, length = 0; at && length < most; at = before(step, at), length += 1) {
    if (at.op !== undefined) chain.ops.push(at.op);
    else if (at.transfer !== undefined) chain.transfers.push(at.transfer);
    else chain.collectives.push(at.collective);
  }
  return chain;
}

// What ended last: where the critical path ends.
function lastEvent(step) {
  let op = 0;
  for (let each = 1; each < step.count; each += 1) if (step.end[each] > step.end[op]) op = each;
  const collective = step.collectives.findIndex((span) => span[5] > step.end[op] && span[5] >= step.endNs);
  return collective >= 0 ? { collective } : { op };
}
