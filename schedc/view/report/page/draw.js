// One frame of the timeline: the axis, the rows that can be seen, the chain that is looked at, and what is selected.

const AXIS_HEIGHT = 24;
const LABEL_ROOM = { wide: 92, narrow: 62 };

// The distance of the axis' marks, 1, 2 or 5 times a power of ten nanoseconds.
function axisStep(length, width) {
  const least = (length / width) * 90;
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least);
}

// Where things are on the canvas, in device pixels.
function layoutOf(canvas, ratio) {
  const labels = (canvas.clientWidth < 560 ? LABEL_ROOM.narrow : LABEL_ROOM.wide) * ratio;
  const width = Math.max(1, canvas.width - labels); // a window may be narrower than the names of the rows
  return { left: labels, top: AXIS_HEIGHT * ratio, width, height: canvas.height - AXIS_HEIGHT * ratio, ratio };
}

class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.labels = new Labels();
    this.pixels = document.createElement("canvas");
  }

  // Fit the canvas to its place on the page.
  //   letters: of the names of ops, in pixels of the page
  resize(cssHeight, letters) {
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    this.canvas.style.height = `${cssHeight}px`;
    const width = Math.round(this.canvas.clientWidth * ratio);
    const height = Math.round(cssHeight * ratio);
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    this.font = getComputedStyle(document.body).fontFamily;
    if (ratio !== this.labels.ratio || this.font !== this.labels.font || letters !== this.labels.size) {
      this.labels.reset(ratio, this.font, letters);
    }
    this.box = layoutOf(this.canvas, ratio);
  }

  x(time, view) { return this.box.left + ((time - view.from) / view.length) * this.box.width; }

  y(lane, view) { return this.box.top + (lane.top - view.top) * this.box.ratio; }

  // What is drawn of a row: low rows of ranks leave a line between each other.
  place(lane, view) {
    const { ratio, left, width } = this.box;
    const gap = lane.type === "rank" && lane.height < 14 ? 1 : 0;
    return { left, top: Math.round(this.y(lane, view)), width, height: Math.round((lane.height - gap) * ratio) };
  }

  seen(lane, view) { return this.y(lane, view) < this.canvas.height && this.y(lane, view) + lane.height * this.box.ratio > this.box.top; }

  frame(state) {
    const { context, canvas, box } = this;
    const { view, colours } = state;
    context.fillStyle = colours.background;
    context.fillRect(0, 0, canvas.width, canvas.height);
    const seen = state.lanes.filter((lane) => this.seen(lane, view));
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.width, box.height);
    context.clip();
    this.rows(state, seen);
    this.grid(state);
    this.spans(state, seen);
    if (state.chain) this.chain(state, state.chain);
    for (const [mark, colour, width] of [[state.hovered, colours.text, 1.5], [state.selected, colours.accent, 2.5]]) {
      if (mark) this.outline(state, mark, colour, width * box.ratio);
    }
    context.restore();
    this.axis(state);
    this.names(state, seen);
    this.scrollMark(state);
  }

  rows({ view, colours }, seen) {
    const { context, box } = this;
    context.fillStyle = colours.row;
    for (const lane of seen) context.fillRect(box.left, this.y(lane, view), box.width, lane.height * box.ratio);
  }

  marks(view) {
    const step = axisStep(view.length, this.box.width / this.box.ratio);
    const marks = [];
    for (let at = Math.ceil(Math.max(0, view.from) / step) * step; at <= view.to; at += step) marks.push(at);
    return { step, marks };
  }

  grid({ view, colours }) {
    const { context, box } = this;
    context.fillStyle = colours.line;
    for (const at of this.marks(view).marks) context.fillRect(Math.round(this.x(at, view)), box.top, Math.max(1, box.ratio), box.height);
  }

  axis({ view, colours, step }) {
    const { context, box } = this;
    context.fillStyle = colours.background;
    context.fillRect(0, 0, this.canvas.width, box.top);
    context.font = `${11 * box.ratio}px ${this.font}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    const { step: distance, marks } = this.marks(view);
    const unit = DURATIONS.find(([, factor]) => Math.max(view.to, 1) >= factor) || DURATIONS[3];
    const decimals = Math.max(0, Math.ceil(Math.log10(unit[1] / distance) - 1e-9));
    for (const at of marks) {
      const x = this.x(at, view);
      context.fillStyle = colours.quiet;
      context.fillRect(Math.round(x), box.top - 4 * box.ratio, Math.max(1, box.ratio), 4 * box.ratio);
      const text = `${(at / unit[1]).toFixed(decimals)} ${unit[0]}`;
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.max(box.left + half, Math.min(x, this.canvas.width - half - 2)), box.top / 2);
    }
    const end = this.x(step.endNs, view);
    if (end >= box.left && end <= this.canvas.width) {
      context.fillStyle = colours.accent;
      context.fillRect(Math.round(end), box.top - 6 * box.ratio, Math.max(1, 2 * box.ratio), 6 * box.ratio);
    }
  }

  // All spans of the rows: narrow ones by way of an image of one line for each row, then the wide ones.
  spans(state, seen) {
    const { context, box, pixels } = this;
    const { view, colours } = state;
    const width = Math.round(box.width);
    const lanes = seen.filter((lane) => lane.spans);
    if (!width || !lanes.length) return;
    const image = new ImageData(width, lanes.length);
    const words = new Uint32Array(image.data.buffer);
    const wide = lanes.map(() => []);
    const count = lanes.reduce((sum, lane) => sum + countOf(lane.spans, view), 0);
    const least = count > MANY ? WIDE.many : WIDE.few;
    lanes.forEach((lane, row) => mergeSpans(lane.spans, view, width, words, row * width, colours, wide[row], least));
    pixels.width = width;
    pixels.height = lanes.length;
    pixels.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    lanes.forEach((lane, row) => {
      const place = this.place(lane, view);
      if (lane.flying) this.flying(lane, view, colours, place);
      context.drawImage(pixels, 0, row, width, 1, place.left, place.top, width, place.height);
      if (wide[row].length) drawWide(context, wide[row], lane.spans, place, colours, this.labels, namesOf(lane));
    });
    this.labels.draw(context);
    for (const lane of seen) if (lane.type === "memory") this.memory(state, lane);
  }

  // Messages from when they enter their link until they arrive: a thin line under what occupies the link.
  flying(lane, view, colours, place) {
    const { context, box } = this;
    const { start, end, colour, latest } = lane.flying;
    const height = Math.max(2, Math.round(place.height * 0.2));
    let drawnTo = -1;
    for (let at = firstAbove(latest, view.from); at < start.length && start[at] < view.to; at += 1) {
      const left = Math.max(drawnTo, this.x(start[at], view));
      const right = this.x(end[at], view);
      if (right - left < 0.5) continue;
      context.fillStyle = colours.spans[colour[at]];
      context.globalAlpha = 0.45;
      context.fillRect(left, place.top + place.height - height, right - left, height);
      drawnTo = Math.max(drawnTo, right);
    }
    context.globalAlpha = 1;
  }

  // What a rank holds: the most in each pixel, and its limit.
  memory({ view, colours }, lane) {
    const { context, box } = this;
    const top = this.y(lane, view);
    const height = lane.height * box.ratio;
    const full = Math.max(lane.limit || 0, lane.peak, 1) * 1.08;
    const { time, bytes } = lane;
    context.fillStyle = colours.memory;
    context.beginPath();
    context.moveTo(box.left, top + height);
    const end = box.left + box.width;
    let at = Math.max(0, firstAbove(time, view.from) - 1);
    for (let x = box.left; x < end;) {
      let most = bytes[at]; // of this pixel
      while (at + 1 < time.length && this.x(time[at + 1], view) <= x + 1) {
        at += 1;
        most = Math.max(most, bytes[at]);
      }
      const next = at + 1 < time.length ? Math.floor(this.x(time[at + 1], view)) : end;
      const until = most > bytes[at] ? x + 1 : Math.min(end, Math.max(x + 1, next));
      context.lineTo(x, top + height * (1 - most / full));
      context.lineTo(until, top + height * (1 - most / full));
      x = until;
    }
    context.lineTo(end, top + height);
    context.fill();
    if (lane.limit) {
      context.fillStyle = colours.limit;
      const y = Math.round(top + height * (1 - lane.limit / full));
      for (let dash = box.left; dash < box.left + box.width; dash += 8 * box.ratio) context.fillRect(dash, y, 5 * box.ratio, Math.max(1, box.ratio));
    }
  }

  names({ view, colours, selected }, seen) {
    const { context, box } = this;
    context.fillStyle = colours.background;
    context.fillRect(0, box.top, box.left, box.height);
    context.textAlign = "right";
    context.textBaseline = "middle";
    let free = -Infinity;
    const least = 11 * box.ratio;
    for (const lane of seen) {
      const middle = this.y(lane, view) + (lane.height * box.ratio) / 2;
      if (middle < box.top || middle - free < least) continue;
      free = middle;
      const chosen = selected && selected.lane === lane;
      context.font = `${chosen ? "bold " : ""}${(lane.type === "rank" && lane.label !== "measured" ? 11.5 : 10.5) * box.ratio}px ${this.font}`;
      context.fillStyle = lane.type === "rank" && lane.label !== "measured" ? colours.text : colours.quiet;
      context.fillText(lane.label, box.left - 6 * box.ratio, middle, box.left - 8 * box.ratio);
    }
  }

  scrollMark({ view, colours, rowsHeight }) {
    const { context, box } = this;
    const room = box.height / box.ratio;
    if (rowsHeight <= room) return;
    context.fillStyle = colours.quiet;
    context.globalAlpha = 0.5;
    const width = 5 * box.ratio;
    context.fillRect(this.canvas.width - width, box.top + (view.top / rowsHeight) * box.height, width, (room / rowsHeight) * box.height);
    context.globalAlpha = 1;
  }

  outline({ view, lanes }, mark, colour, width) {
    const lane = lanes.find((each) => each === mark.lane);
    if (!lane || !lane.spans) return;
    const { context, box } = this;
    const left = this.x(lane.spans.start[mark.span], view);
    const right = this.x(lane.spans.end[mark.span], view);
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(left - 1, this.y(lane, view) - 0.5, Math.max(3 * box.ratio, right - left) + 1, lane.height * box.ratio + 1);
  }

  // The chain over a veil: its ops in their colours, and a line for each transfer from its producer to the op that took it.
  chain({ view, colours, laneOfRank, lanes }, { step, ops, transfers, collectives }) {
    const { context, box } = this;
    context.fillStyle = colours.veil;
    context.fillRect(box.left, box.top, box.width, box.height);
    const scale = box.width / view.length;
    const wide = new Map(); // by rank
    for (const op of ops) {
      if (step.end[op] < view.from || step.start[op] > view.to) continue;
      const rank = step.rankOf[op];
      if (!wide.has(rank)) wide.set(rank, []);
      const left = (step.start[op] - view.from) * scale;
      wide.get(rank).push(op - step.begin[rank], left, Math.max(left + box.ratio, (step.end[op] - view.from) * scale));
    }
    for (const [rank, spans] of wide) {
      const lane = laneOfRank(step, rank);
      const place = this.place(lane, view);
      drawWide(context, spans, lane.spans, place, colours, this.labels, namesOf(lane));
      context.fillStyle = colours.path;
      const thick = Math.max(1, Math.round(2 * box.ratio));
      for (let at = 0; at < spans.length; at += 3) {
        context.fillRect(place.left + spans[at + 1], place.top + place.height - thick, spans[at + 2] - spans[at + 1], thick);
      }
    }
    this.labels.draw(context);
    context.strokeStyle = colours.path;
    context.lineWidth = 1.5 * box.ratio;
    context.beginPath();
    for (const transfer of transfers) {
      const [from, to] = [step.producer[transfer], step.consumer[transfer]];
      if (step.arrival[transfer] < view.from || step.end[from] > view.to) continue;
      const [source, target] = [laneOfRank(step, step.rankOf[from]), laneOfRank(step, step.rankOf[to])];
      const middle = (lane) => this.y(lane, view) + (lane.height * box.ratio) / 2;
      context.moveTo(this.x(step.end[from], view), middle(source));
      context.lineTo(this.x(step.arrival[transfer], view), middle(target));
    }
    context.stroke();
    const chained = { link: new Set(transfers), collective: new Set(collectives) };
    context.fillStyle = colours.path;
    for (const lane of lanes) {
      if (lane.step !== step || !chained[lane.type]) continue;
      lane.spans.item.forEach((item, span) => {
        if (!chained[lane.type].has(item)) return;
        const left = this.x(lane.spans.start[span], view);
        const width = Math.max(1, this.x(lane.spans.end[span], view) - left);
        context.fillRect(left, this.y(lane, view), width, lane.height * box.ratio);
      });
    }
  }
}

// The long and the short name of what is in a lane.
function namesOf(lane) {
  const { step } = lane;
  if (lane.type === "rank") return (op) => [tokenOf(step, op), unitOf(step, op)];
  if (lane.type === "link") return (transfer) => [transferName(step, transfer), unitOf(step, step.producer[transfer])];
  return (at) => [`${step.collectives[at][0]}${step.collectives[at][1]}`, String(step.collectives[at][1])];
}
