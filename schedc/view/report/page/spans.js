// Drawing what takes time in a row. A span that is wide enough is a rectangle with its name; narrower ones are merged into a line of
// pixels, each with the colour that takes most of it and as opaque as it is busy, so that 100,000 ops cost a frame next to nothing.

const WIDE = { few: 4, many: 9 }; // device pixels from which on a span is a rectangle, where few or many can be seen
const MANY = 4000;
const NARROWEST = 0.4; // so that what takes no time can be seen
const WEIGHT_INSET = 0.22; // of the height: W is lower than the others, which tells kinds apart without colours

// How many spans of a row can be seen.
const countOf = (spans, view) => Math.max(0, firstAbove(spans.start, view.to) - firstAbove(spans.latest, view.from));

// Fill the pixels of a row from its narrow spans, and collect the wide ones.
//   pixels: the row's part of an image; first: its place there; width: in device pixels
//   wide: a list of [span, left, right] that is added to; least: how wide these are
function mergeSpans(spans, view, width, pixels, first, colours, wide, least) {
  const scale = width / view.length;
  const share = new Float32Array(CLASSES);
  let at = 0; // the pixel whose shares are known so far
  let any = false;
  const flush = () => {
    let most = 0;
    let busy = 0;
    for (let each = 0; each < CLASSES; each += 1) {
      busy += share[each];
      if (share[each] > share[most]) most = each;
    }
    if (busy > 0) {
      const alpha = Math.min(255, Math.round(busy * 255));
      pixels[first + at] = ((alpha << 24) | (colours.pixels[most] & 0xffffff)) >>> 0;
    }
    share.fill(0);
    any = false;
  };
  const { start, end, colour } = spans;
  const count = start.length;
  for (let span = firstAbove(spans.latest, view.from); span < count && start[span] < view.to; span += 1) {
    const left = (start[span] - view.from) * scale;
    const right = Math.max((end[span] - view.from) * scale, left + NARROWEST);
    if (right - left >= least) {
      wide.push(span, left, right);
      continue;
    }
    const last = Math.min(width - 1, Math.floor(right));
    for (let pixel = Math.max(0, Math.floor(left)); pixel <= last; pixel += 1) {
      if (pixel !== at) {
        if (any) flush();
        at = pixel;
      }
      const part = Math.min(right, pixel + 1) - Math.max(left, pixel);
      if (part > 0) {
        share[colour[span]] += part;
        any = true;
      }
    }
  }
  if (any) flush();
}

// Names of ops as little pictures on a sheet, each written once: copying one is many times faster than writing text. Names are collected
// and drawn together, new ones written first: a browser copies the whole sheet whenever writing follows copying.
class Labels {
  constructor() { this.reset(1, "sans-serif"); }

  // size: of the letters, in pixels of the page.
  reset(ratio, font, size = 11) {
    this.ratio = ratio;
    this.font = font;
    this.size = size;
    this.sheet = document.createElement("canvas");
    this.sheet.width = 2048;
    this.sheet.height = 1024;
    this.context = this.sheet.getContext("2d");
    this.context.font = `${Math.round(size * ratio)}px ${font}`;
    this.context.textBaseline = "middle";
    this.height = Math.round((size + 2) * ratio);
    this.known = new Map();
    this.x = this.y = 0;
    this.fresh = []; // to be written: text, colour, place
    this.asked = []; // to be drawn: place, x, y
  }

  // Where on the sheet the text is in this colour.
  place(context, text, colour) {
    const key = `${colour}${text}`;
    let place = this.known.get(key);
    if (place) return place;
    const width = Math.ceil(this.context.measureText(text).width) + 2;
    if (this.x + width > this.sheet.width) {
      this.x = 0;
      this.y += this.height;
    }
    if (this.y + this.height > this.sheet.height) {
      this.draw(context);
      this.reset(this.ratio, this.font, this.size);
    }
    place = { x: this.x, y: this.y, width };
    this.x += width;
    this.known.set(key, place);
    this.fresh.push([text, colour, place]);
    return place;
  }

  // Draw the place with its corner here, at the next `draw`.
  ask(place, x, y) { this.asked.push([place, x, y]); }

  draw(context) {
    for (const [text, colour, { x, y }] of this.fresh) {
      this.context.fillStyle = colour;
      this.context.fillText(text, x + 1, y + this.height / 2);
    }
    for (const [place, x, y] of this.asked) {
      context.drawImage(this.sheet, place.x, place.y, place.width, this.height, x, y, place.width, this.height);
    }
    this.fresh = [];
    this.asked = [];
  }
}

// Draw the wide spans of a row as rectangles, colour by colour, and ask for their names where there is room.
//   names: gives for a span its long and its short name
function drawWide(context, wide, spans, box, colours, labels, names) {
  const gap = box.height > 12 ? labels.ratio : 0;
  for (let colour = 0; colour < CLASSES; colour += 1) {
    let any = false;
    for (let at = 0; at < wide.length; at += 3) {
      if (spans.colour[wide[at]] !== colour) continue;
      if (!any) context.fillStyle = colours.spans[colour];
      any = true;
      const left = Math.max(wide[at + 1], -2);
      const right = Math.min(wide[at + 2], box.width + 2);
      const inset = colour === 4 || colour === 5 ? Math.round(box.height * WEIGHT_INSET) : 0;
      const thin = right - left > 8 ? gap : gap / 2;
      context.fillRect(box.left + left, box.top + inset, right - left - thin, box.height - inset);
    }
  }
  if (box.height < labels.height * 0.8) return;
  const room = 8 * labels.ratio;
  for (let at = 0; at < wide.length; at += 3) {
    const left = Math.max(wide[at + 1], 0);
    const width = Math.min(wide[at + 2], box.width) - left;
    if (width < room + labels.ratio * 4) continue;
    const colour = spans.colour[wide[at]];
    const ink = colours.onSpans[colour];
    const [long, short] = names(spans.item[wide[at]]);
    const place = labels.place(context, width > 46 * labels.ratio ? long : short, ink);
    if (place.width + 2 > width) continue;
    const inset = colour === 4 || colour === 5 ? Math.round(box.height * WEIGHT_INSET) : 0;
    const x = Math.round(box.left + left + (width - place.width) / 2);
    const y = Math.round(box.top + inset + (box.height - inset - labels.height) / 2);
    labels.ask(place, x, y);
  }
}
