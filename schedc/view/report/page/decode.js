// Reads the columns that schedc/view/report/chart.py writes: base64 of a tag, the number of values, and varints.

const DIFFERENCES = 1;
const PALETTE = 2;

// The bytes of base64 text.
function bytesOf(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

// A column as 64-bit floats, which hold every integer of a plan exactly.
function readColumn(text) {
  const bytes = bytesOf(text);
  let at = 1;
  // Seven bits at a time: shifts for the first 28, which is nearly always all; beyond them multiplication, as shifts have 32 bits.
  const next = () => {
    let byte = bytes[at++];
    let value = byte & 127;
    for (let shift = 7; byte > 127 && shift < 28; shift += 7) {
      byte = bytes[at++];
      value |= (byte & 127) << shift;
    }
    if (byte < 128) return value & 1 ? -(value >>> 1) - 1 : value >>> 1;
    for (let factor = 2 ** 28; byte > 127; factor *= 128) {
      byte = bytes[at++];
      value += (byte & 127) * factor;
    }
    return value % 2 ? -(value - 1) / 2 - 1 : value / 2;
  };
  const running = (count) => {
    const values = new Float64Array(count);
    for (let place = 0, sum = 0; place < count; place += 1) values[place] = sum += next();
    return values;
  };
  const count = next();
  if (bytes[0] === DIFFERENCES) return running(count);
  const values = new Float64Array(count);
  if (bytes[0] === PALETTE) {
    const colours = running(next());
    if (colours.length === 1) return values.fill(colours[0]);
    for (let place = 0; place < count; place += 1) values[place] = colours[next()];
  } else {
    for (let place = 0; place < count; place += 1) values[place] = next();
  }
  return values;
}
