// The colours of the page's theme, read from its style sheet, as text and as the bytes of pixels.

function hexToPixel(hex) { // opaque; little-endian bytes are red, green, blue, alpha
  const value = Number.parseInt(hex.slice(1), 16);
  return ((value & 255) << 16) | (value & 0xff00) | (value >> 16);
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["f0", "f1", "b0", "b1", "w0", "w1", "bw0", "bw1", "u0", "u1", "link-f", "link-b", "gather", "scatter"];
  const spans = names.map((name) => of(name));
  return {
    spans,
    onSpans: names.map((name) => of(`on-${name}`) || of("on-span")),
    pixels: Uint32Array.from(spans, hexToPixel),
    background: of("panel"), row: of("row"), line: of("line"), text: of("text"), quiet: of("quiet"),
    accent: of("accent"), path: of("path"), memory: of("memory"), limit: of("limit"), veil: of("veil"),
  };
}
