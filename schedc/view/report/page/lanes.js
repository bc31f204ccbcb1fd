// The rows of the timeline: ranks, links, collectives and memory, planned and measured one above the other.

const CLASSES = 14; // of colours: two shades of each kind, then activations and gradients on links, all-gathers, reduce-scatters
const ON_LINK = 10;
const HEIGHTS = { memory: 22, link: 15, collective: 15 }; // of rows in pixels; those of ranks share the room that is left
const COLLECTIVE_CLASS = { AG: ON_LINK + 2, RS: ON_LINK + 3 };

// What takes time in a lane, ascending by its start; `item` names it for people.
function spansOf(items, start, end, colour) {
  const order = Array.from(items).sort((one, other) => start[one] - start[other] || one - other);
  const spans = {
    item: Int32Array.from(order),
    start: Float64Array.from(order, (item) => start[item]),
    end: Float64Array.from(order, (item) => end[item]),
    colour: Uint8Array.from(order, colour),
  };
  return withLatest(spans);
}

// With the latest end so far of each place: on a trunk what began later may end earlier, and a search needs an ascending column.
function withLatest(spans) {
  spans.latest = Float64Array.from(spans.end);
  for (let at = 1; at < spans.latest.length; at += 1) spans.latest[at] = Math.max(spans.latest[at], spans.latest[at - 1]);
  return spans;
}

function rankSpans(chart, step, rank) {
  const first = step.begin[rank];
  const end = step.begin[rank + 1];
  const item = new Int32Array(end - first);
  const colour = new Uint8Array(end - first);
  for (let op = first; op < end; op += 1) {
    item[op - first] = op;
    colour[op - first] = step.kind[op] * 2 + (chart.stages[step.stage[op]].chunk % 2);
  }
  return withLatest({ item, start: step.start.subarray(first, end), end: step.end.subarray(first, end), colour });
}

const colourOnLink = (step) => (transfer) => ON_LINK + (step.kind[step.producer[transfer]] === 0 ? 0 : 1);

// All rows of a step that could be shown; they are made once.
function allLanes(chart, step) {
  const ranks = [];
  const memory = [];
  for (let rank = 0; rank < chart.ranks; rank += 1) {
    ranks.push({ type: "rank", step, rank, label: `rank ${rank}`, spans: rankSpans(chart, step, rank) });
    const first = step.memoryBegin[rank];
    const last = step.memoryBegin[rank + 1];
    const bytes = step.memoryBytes.subarray(first, last);
    const peak = bytes.reduce((most, held) => Math.max(most, held), 0);
    memory.push({
      type: "memory", step, rank, label: `memory ${rank}`, limit: chart.memoryLimits[rank], peak,
      time: step.memoryNs.subarray(first, last), bytes,
    });
  }
  const ofResource = chart.resources.map(() => []);
  for (let transfer = 0; transfer < step.sent; transfer += 1) ofResource[step.resource[transfer]].push(transfer);
  const links = [];
  chart.resources.forEach((label, number) => {
    if (!ofResource[number].length) return;
    const colour = colourOnLink(step);
    links.push({
      type: "link", step, label, resource: number,
      spans: spansOf(ofResource[number], step.sendStart, step.left, colour),
      flying: spansOf(ofResource[number], step.sendStart, step.arrival, colour),
    });
  });
  const collectives = new Map();
  step.collectives.forEach((span, at) => {
    const number = step.collectiveResource[at];
    if (!collectives.has(number)) collectives.set(number, []);
    collectives.get(number).push(at);
  });
  const gathered = [...collectives].map(([number, items]) => ({
    type: "collective", step, label: chart.resources[number].replace("collectives of ", "coll. "), resource: number,
    spans: spansOf(items, step.collectives.map((span) => span[4]), step.collectives.map((span) => span[5]),
      (at) => COLLECTIVE_CLASS[step.collectives[at][0]]),
  }));
  return { ranks, memory, links, collectives: gathered };
}

// The rows that are shown, from top to bottom, with their heights and tops.
function shownLanes(sets, shown, roomHeight) {
  const lanes = [];
  const many = sets.length > 1;
  const named = (lane, label) => lanes.push({ ...lane, label });
  sets[0].ranks.forEach((_, rank) => {
    sets.forEach((set, at) => named(set.ranks[rank], at ? "measured" : set.ranks[rank].label));
    if (shown.memory) sets.forEach((set, at) => named(set.memory[rank], at ? "measured" : "memory"));
  });
  if (shown.links) {
    sets[0].links.forEach((link) => {
      sets.forEach((set, at) => {
        const lane = set.links.find((other) => other.resource === link.resource);
        if (lane) named(lane, at ? "measured" : lane.label);
      });
    });
    sets[0].collectives.forEach((lane) => lanes.push(lane));
  }
  const ranks = lanes.filter((lane) => lane.type === "rank").length;
  const gapBefore = (lane, at) => {
    if (!at) return 0;
    if (lane.type === "rank") return lane.label !== "measured" && (many || shown.memory) ? 5 : 0;
    return lane.type !== "memory" && lane.type !== lanes[at - 1].type ? 8 : 0;
  };
  const others = lanes.reduce((sum, lane, at) => sum + gapBefore(lane, at) + (HEIGHTS[lane.type] || 0), 0);
  const rankHeight = Math.max(many ? 11 : 10, Math.min(28, Math.floor((roomHeight - others) / Math.max(1, ranks))));
  let top = 0;
  lanes.forEach((lane, at) => {
    top += gapBefore(lane, at);
    lane.top = top;
    lane.height = HEIGHTS[lane.type] || rankHeight;
    top += lane.height;
  });
  return { lanes, height: top };
}
