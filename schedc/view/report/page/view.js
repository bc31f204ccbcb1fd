// The stretch of time that is shown, and the rows: zoom, pan, and how both end at the edges of the step.

const LEAST_NS = 20; // shown at least, across the whole width
const SLACK = 0.01; // of the step, shown before its begin and after its end

class View {
  constructor(endNs) {
    this.endNs = Math.max(1, endNs);
    this.fit();
    this.top = 0; // in pixels, of the rows
  }

  get length() { return this.to - this.from; }

  get isWhole() { return this.length >= this.endNs * (1 + 2 * SLACK) * 0.999; }

  fit() {
    this.from = -this.endNs * SLACK;
    this.to = this.endNs * (1 + SLACK);
  }

  // Show this stretch, or the nearest that the step has.
  show(from, length) {
    const whole = this.endNs * (1 + 2 * SLACK);
    const shown = Math.min(whole, Math.max(LEAST_NS, length));
    const first = -this.endNs * SLACK;
    this.from = Math.min(Math.max(from, first), first + whole - shown);
    this.to = this.from + shown;
  }

  // Show `factor` times as much; what is at the share `at` of the width stays there.
  zoom(factor, at = 0.5) {
    const fixed = this.from + at * this.length;
    const least = Math.max(LEAST_NS, this.length * factor);
    const length = Math.min(this.endNs * (1 + 2 * SLACK), least);
    this.show(fixed - at * length, length);
  }

  // Go later by this share of what is shown.
  pan(share) { this.show(this.from + share * this.length, this.length); }

  scroll(pixels, rowsHeight, roomHeight) {
    this.top = Math.max(0, Math.min(this.top + pixels, rowsHeight - roomHeight));
  }
}

// The place of the first value that is above `limit`, in an ascending array.
function firstAbove(values, limit) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}
