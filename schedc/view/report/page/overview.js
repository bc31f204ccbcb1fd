// The strip above the timeline: how many ranks compute over the whole step, by kind, and which stretch is shown below.

class Overview {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
  }

  resize(step) {
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    this.ratio = ratio;
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(this.canvas.clientHeight * ratio);
    this.left = layoutOf(this.canvas, ratio).left;
    this.columns(step);
  }

  // Per pixel and kind, the share of the ranks' time.
  columns(step) {
    const width = Math.max(1, this.canvas.width - this.left);
    const whole = new View(step.endNs);
    this.whole = whole;
    this.shares = Array.from(KINDS, () => new Float32Array(width + 1));
    const scale = width / whole.length;
    const ranks = step.begin.length - 1;
    for (let op = 0; op < step.count; op += 1) {
      const shares = this.shares[step.kind[op]];
      const left = (step.start[op] - whole.from) * scale;
      const right = (step.end[op] - whole.from) * scale;
      for (let pixel = Math.floor(left); pixel <= right && pixel < width; pixel += 1) {
        shares[pixel] += (Math.min(right, pixel + 1) - Math.max(left, pixel)) / ranks;
      }
    }
    this.picture = null;
  }

  frame({ view, colours }) {
    const { context, canvas, left, ratio } = this;
    if (!this.picture || this.pictureColours !== colours) this.paint(colours);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(this.picture, 0, 0);
    const x = (time) => left + ((time - this.whole.from) / this.whole.length) * (canvas.width - left);
    if (!view.isWhole) {
      context.fillStyle = colours.veil;
      context.fillRect(left, 0, x(view.from) - left, canvas.height);
      context.fillRect(x(view.to), 0, canvas.width - x(view.to), canvas.height);
    }
    context.strokeStyle = colours.accent;
    context.lineWidth = 1.5 * ratio;
    context.strokeRect(x(view.from) + 1, 1, Math.max(3, x(view.to) - x(view.from) - 2), canvas.height - 2);
  }

  paint(colours) {
    const picture = document.createElement("canvas");
    picture.width = this.canvas.width;
    picture.height = this.canvas.height;
    const context = picture.getContext("2d");
    context.fillStyle = colours.row;
    context.fillRect(this.left, 0, picture.width - this.left, picture.height);
    const width = picture.width - this.left;
    for (let pixel = 0; pixel < width; pixel += 1) {
      let top = picture.height;
      KINDS.forEach((_, kind) => {
        const height = this.shares[kind][pixel] * picture.height;
        context.fillStyle = colours.spans[kind * 2];
        context.fillRect(this.left + pixel, top - height, 1, height);
        top -= height;
      });
    }
    context.fillStyle = colours.quiet;
    context.font = `${10.5 * this.ratio}px ${getComputedStyle(document.body).fontFamily}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText("ranks", this.left - 6 * this.ratio, picture.height * 0.35);
    context.fillText("computing", this.left - 6 * this.ratio, picture.height * 0.68, this.left - 8 * this.ratio);
    this.picture = picture;
    this.pictureColours = colours;
  }

  // The time at a place, in pixels of the page from the strip's left edge.
  time(cssX) {
    const share = (cssX * this.ratio - this.left) / (this.canvas.width - this.left);
    return this.whole.from + share * this.whole.length;
  }
}
