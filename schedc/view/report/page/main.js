// The report: reads the data, keeps what is shown and selected, and draws at most once for each frame of the screen.

// What a mark of a lane means in the chains.
const eventOf = ({ lane, span }) => ({ [{ rank: "op", link: "transfer", collective: "collective" }[lane.type]]: lane.spans.item[span] });

class Report {
  constructor(data) {
    this.chart = data.chart;
    this.steps = data.steps.map((step) => readStep(step, data.chart.slices));
    this.sets = this.steps.map((step) => allLanes(this.chart, step));
    this.canvas = document.getElementById("chart");
    this.tooltip = document.getElementById("tooltip");
    this.details = document.getElementById("details");
    this.nothingSelected = [...this.details.childNodes];
    this.painter = new Painter(this.canvas);
    this.overview = new Overview(document.getElementById("overview"));
    this.view = new View(Math.max(...this.steps.map((step) => step.endNs)));
    const few = this.chart.ranks <= 8 && this.sets.length === 1;
    this.shown = { links: few, memory: few && this.sets[0].memory.some((lane) => lane.peak > 0), critical: false };
    this.hovered = this.selected = this.chain = null;
    this.frames = 0;
    this.gentle = matchMedia("(prefers-reduced-motion: reduce)");
    this.colours = readColours();
    this.layout();
    for (const name of ["links", "memory"]) this.press(name);
    this.legend();
    listenToPointer(this);
    listenToKeys(this);
    new ResizeObserver(() => this.layout()).observe(this.canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    addEventListener("beforeprint", () => this.paint());
    this.nameTheme();
  }

  // The rows and the size of the canvas.
  layout() {
    const most = Math.max(280, Math.round(innerHeight * 0.74));
    const { lanes, height } = shownLanes(this.sets, this.shown, most - AXIS_HEIGHT);
    const same = (mark) => (mark ? lanes.find((lane) => lane.spans === mark.lane.spans && lane.step === mark.lane.step) : null);
    for (const name of ["hovered", "selected"]) {
      const lane = same(this[name]);
      this[name] = lane ? { ...this[name], lane } : null;
    }
    this.lanes = lanes;
    this.rowsHeight = height;
    this.ofRank = new Map(lanes.filter((lane) => lane.type === "rank").map((lane) => [`${lane.step.name} ${lane.rank}`, lane]));
    const low = lanes.some((lane) => lane.type === "rank" && lane.height < 14);
    this.painter.resize(Math.min(most, height + AXIS_HEIGHT + 2), low ? 9 : 11);
    this.overview.resize(this.steps[0]);
    this.view.scroll(0, height, this.room());
    this.paint();
  }

  room() { return this.painter.box.height / this.painter.box.ratio; }

  laneOfRank(step, rank) { return this.ofRank.get(`${step.name} ${rank}`); }

  // Draw soon: once, however often it is asked for until then.
  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.paint();
    });
  }

  paint() {
    if (!this.canvas.width || !this.overview.canvas.width) return; // the page is not shown: its first width draws it
    const begin = performance.now();
    const { view, lanes, colours, hovered, selected, rowsHeight } = this;
    this.painter.frame({
      view, lanes, colours, hovered, selected, rowsHeight, chain: this.chain, step: this.steps[this.steps.length - 1],
      laneOfRank: (step, rank) => this.laneOfRank(step, rank),
    });
    this.overview.frame({ view, colours });
    this.frames += 1;
    this.frameMs = performance.now() - begin;
  }

  // Move what is shown, in a few frames unless the reader asked for less motion.
  move(change, at_once = false) {
    const { view } = this;
    const from = { from: view.from, length: view.length };
    if (this.target) [view.from, view.to] = this.target;
    change(view);
    const to = { from: view.from, length: view.length };
    if (at_once || this.gentle.matches) {
      this.target = null;
      this.draw();
      return;
    }
    this.target = [view.from, view.to];
    const began = performance.now();
    const target = this.target;
    const frame = (now) => {
      if (this.target !== target) return;
      const share = Math.min(1, Math.max(0, (now - began) / 140));
      const eased = share * (2 - share);
      view.from = from.from + (to.from - from.from) * eased;
      view.to = view.from + from.length + (to.length - from.length) * eased;
      this.paint();
      if (share < 1) requestAnimationFrame(frame);
      else this.target = null;
    };
    view.from = from.from;
    view.to = from.from + from.length;
    requestAnimationFrame(frame);
  }

  zoom(factor, at = 0.5, at_once = false) { this.move((view) => view.zoom(factor, at), at_once); }

  pan(share, gently = false) { this.move((view) => view.pan(share), !gently); }

  show(from, length, at_once = true) { this.move((view) => view.show(from, length), at_once); }

  fit() { this.move((view) => view.fit()); }

  scroll(pixels) {
    this.view.scroll(pixels, this.rowsHeight, this.room());
    this.draw();
  }

  hover(mark) {
    const same = mark && this.hovered && mark.lane === this.hovered.lane && mark.span === this.hovered.span;
    this.hovered = mark;
    if (!same) this.draw();
  }

  // Select a span, say all about it, and show the chain that led to it; null: nothing.
  select(mark) {
    this.selected = mark;
    this.chain = null;
    if (!mark) {
      this.details.replaceChildren(...this.nothingSelected);
      if (this.shown.critical) this.chain = this.criticalPath();
      this.draw();
      return;
    }
    this.details.replaceChildren(...descriptionNodes(describe(this.chart, mark), this.sets.length > 1));
    this.chain = chainOf(mark.lane.step, eventOf(mark));
    this.draw();
  }

  selectOp(step, op) {
    const lane = this.laneOfRank(step, step.rankOf[op]);
    this.select({ lane, span: op - step.begin[lane.rank] });
    this.reveal();
  }

  // Bring the selected span into sight.
  reveal() {
    const { lane, span } = this.selected;
    const [start, end] = [lane.spans.start[span], lane.spans.end[span]];
    const { view } = this;
    if (end - start < view.length / 400) this.show((start + end) / 2 - (end - start) * 15, Math.max(LEAST_NS, (end - start) * 30), false);
    else if (start < view.from || end > view.to) this.show((start + end - view.length) / 2, view.length, false);
    if (lane.top < view.top) this.scroll(lane.top - view.top);
    if (lane.top + lane.height > view.top + this.room()) this.scroll(lane.top + lane.height - view.top - this.room());
  }

  selectMiddle() {
    const middle = (this.view.from + this.view.to) / 2;
    const lane = this.lanes.find((each) => each.type === "rank" && each.top >= this.view.top && each.spans.item.length);
    if (!lane) return;
    this.select({ lane, span: Math.max(0, firstAbove(lane.spans.start, middle) - 1) });
    this.reveal();
  }

  neighbour(by) {
    if (!this.selected) return;
    const { lane, span } = this.selected;
    if (span + by < 0 || span + by >= lane.spans.item.length) return;
    this.select({ lane, span: span + by });
    this.reveal();
  }

  otherRow(by) {
    const rows = this.lanes.filter((lane) => lane.spans && lane.spans.item.length);
    const lane = rows[rows.indexOf(this.selected.lane) + by];
    if (!lane) return;
    const time = this.selected.lane.spans.start[this.selected.span];
    this.select({ lane, span: Math.max(0, firstAbove(lane.spans.start, time) - 1) });
    this.reveal();
  }

  selectBinding() {
    if (!this.selected) return;
    const { step } = this.selected.lane;
    let event = before(step, eventOf(this.selected));
    while (event && event.op === undefined) event = before(step, event);
    if (event) this.selectOp(step, event.op);
  }

  zoomToSelected() {
    if (!this.selected) return;
    const { lane, span } = this.selected;
    const length = Math.max(LEAST_NS, lane.spans.end[span] - lane.spans.start[span]);
    this.show(lane.spans.start[span] - length * 4, length * 9, false);
  }

  find(text) {
    const answer = document.getElementById("find-answer");
    const op = findOp(this.steps[0], text);
    answer.textContent = op < 0 ? `There is no op ${text}; a name is a kind, a stage and a microbatch, as in F3.12.` : "";
    if (op < 0) return;
    this.selectOp(this.steps[0], op);
    this.canvas.focus();
  }

  // The chain that ends the step: of what was measured, where there is a trace.
  criticalPath() {
    const step = this.steps[this.steps.length - 1];
    return chainOf(step, lastEvent(step));
  }

  toggle(name) {
    this.shown[name] = !this.shown[name];
    this.press(name);
    if (name === "critical") {
      this.selected = null;
      this.select(null);
    } else {
      this.layout();
      this.legend();
    }
  }

  press(name) { document.getElementById(name).setAttribute("aria-pressed", String(this.shown[name])); }

  // Light or dark: the reader's choice goes before the system's.
  theme() {
    const root = document.documentElement;
    root.dataset.theme = this.isDark() ? "light" : "dark";
    this.recolour();
  }

  isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  nameTheme() {
    const button = document.getElementById("theme");
    button.textContent = this.isDark() ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(this.isDark()));
  }

  recolour() {
    this.colours = readColours();
    this.nameTheme();
    this.draw();
  }

  // What the colours mean, of what the step has.
  legend() {
    const used = new Set();
    const shades = new Set();
    for (const lane of this.lanes) {
      if (!lane.spans) continue;
      for (const colour of lane.spans.colour) {
        used.add(colour);
        if (colour < ON_LINK) shades.add(colour % 2);
      }
    }
    const words = [
      ...KINDS.map((kind, at) => [at * 2, `${kind}: ${KIND_WORDS[at]}`]),
      [ON_LINK, "activation on a link"], [ON_LINK + 1, "gradient on a link"], [ON_LINK + 2, "all-gather"],
      [ON_LINK + 3, this.chart.zeroStage === 0 ? "all-reduce" : "reduce-scatter"],
    ].filter(([colour]) => used.has(colour) || (colour < ON_LINK && used.has(colour + 1)));
    const items = words.map(([colour, text]) => {
      const item = document.createElement("li");
      const names = ["f", "b", "w", "bw", "u"];
      const shown = colour < ON_LINK
        ? [...shades].sort().map((shade) => names[colour / 2] + shade)
        : [["link-f", "link-b", "gather", "scatter"][colour - ON_LINK]];
      for (const name of shown) {
        const swatch = document.createElement("i");
        swatch.style.background = `var(--${name})`;
        item.append(swatch);
      }
      item.append(text);
      return item;
    });
    if (shades.size > 1) {
      const item = document.createElement("li");
      item.textContent = "lighter: every second chunk of a rank";
      items.push(item);
    }
    document.getElementById("legend").replaceChildren(...items);
  }
}

const report = new Report(JSON.parse(document.getElementById("chart-data").textContent));

// For tests and for those who look at a page from outside: what it has, shows and does.
window.schedcReport = {
  ready: true,
  report,
  openedMs: performance.now(),
  ops: report.steps.map((step) => step.count),
  transfers: report.steps.map((step) => step.sent),
  get view() { return { from: report.view.from, to: report.view.to, top: report.view.top, whole: report.view.isWhole }; },
  get selected() { return report.selected && describe(report.chart, report.selected); },
  get hovered() { return report.hovered && describe(report.chart, report.hovered); },
  get chain() { return report.chain && { ops: report.chain.ops.map((op) => tokenOf(report.chain.step, op)), transfers: report.chain.transfers.length }; },
  get frames() { return report.frames; },
};
