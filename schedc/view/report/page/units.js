// Quantities for people, as schedc/units.py writes them.

const DURATIONS = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]];
const SIZES = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];

function withUnit(value, units, decimals) {
  if (value < 0) return "−" + withUnit(-value, units, decimals);
  let at = units.findIndex(([, factor]) => value >= factor);
  if (at < 0) at = units.length - 1;
  let shown = (value / units[at][1]).toFixed(decimals);
  if (at > 0 && Number(shown) * units[at][1] >= units[at - 1][1]) {
    at -= 1;
    shown = "1";
  }
  if (shown.includes(".")) shown = shown.replace(/\.?0+$/, "");
  return `${shown} ${units[at][0]}`;
}

const duration = (ns, decimals = 3) => withUnit(ns, DURATIONS, decimals);
const size = (bytes, decimals = 2) => withUnit(bytes, SIZES, decimals);
