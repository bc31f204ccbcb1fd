// The pointer on the timeline: hover, click, drag, wheel, two fingers.

const TOLERANCE = 4; // pixels beside a span that still mean it

// What is at a place of the canvas, in pixels of the page: a row, and in it a span or a moment; null: nothing.
function markAt(report, x, y) {
  const { painter, view, lanes } = report;
  const { box } = painter;
  const row = y - box.top / box.ratio + view.top;
  if (y * box.ratio < box.top || x * box.ratio < box.left) return null;
  const lane = lanes.find((each) => row >= each.top && row < each.top + each.height);
  if (!lane) return null;
  const time = view.from + ((x * box.ratio - box.left) / box.width) * view.length;
  if (!lane.spans) return { lane, time };
  const { start, end } = lane.spans;
  const tolerance = (TOLERANCE * box.ratio * view.length) / box.width;
  const after = firstAbove(start, time);
  let best = -1;
  let least = tolerance;
  for (const span of [after - 1, after, after - 2]) {
    if (span < 0 || span >= start.length) continue;
    const apart = Math.max(0, start[span] - time, time - end[span]);
    if (apart < least || (apart === 0 && best < 0)) {
      least = apart;
      best = span;
    }
  }
  return best < 0 ? null : { lane, span: best };
}

function listenToPointer(report) {
  const { canvas, tooltip } = report;
  const fingers = new Map();
  let pressed = null; // where a drag began
  let dragged = false;
  let armed = false; // whether the pointer moved here since the page scrolled, so that scrolling the page does not end in the timeline

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const shareAt = (x) => Math.max(0, Math.min(1, (x * report.painter.box.ratio - report.painter.box.left) / report.painter.box.width));

  const hover = (event) => {
    const { x, y } = place(event);
    const mark = markAt(report, x, y);
    report.hover(mark);
    if (!mark) {
      tooltip.hidden = true;
      return;
    }
    tooltip.replaceChildren(...descriptionNodes(describe(report.chart, mark), report.sets.length > 1));
    tooltip.hidden = false;
    const width = tooltip.offsetWidth;
    const height = tooltip.offsetHeight;
    const left = event.clientX + 14 + width > innerWidth - 8 ? Math.max(8, event.clientX - width - 14) : event.clientX + 14;
    const top = event.clientY + 18 + height > innerHeight - 8 ? Math.max(8, event.clientY - height - 12) : event.clientY + 18;
    tooltip.style.transform = `translate(${left}px, ${top}px)`;
  };

  canvas.addEventListener("pointerdown", (event) => {
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, place(event));
    pressed = place(event);
    dragged = false;
  });
  canvas.addEventListener("pointermove", (event) => {
    armed = true;
    const before = fingers.get(event.pointerId);
    if (!before) {
      hover(event);
      return;
    }
    const now = place(event);
    if (fingers.size === 2) {
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      const apart = Math.abs(before.x - other.x);
      const nowApart = Math.abs(now.x - other.x);
      if (apart > 4 && nowApart > 4) report.zoom(apart / nowApart, shareAt((now.x + other.x) / 2), true);
      dragged = true;
    } else if (dragged || Math.hypot(now.x - pressed.x, now.y - pressed.y) > 4) {
      dragged = true;
      tooltip.hidden = true;
      report.pan(((before.x - now.x) * report.painter.box.ratio) / report.painter.box.width);
      report.scroll(before.y - now.y);
    }
    fingers.set(event.pointerId, now);
  });
  const release = (event) => {
    const was = fingers.delete(event.pointerId);
    if (was && event.type === "pointerup" && !dragged) {
      const { x, y } = place(event);
      const mark = markAt(report, x, y);
      report.select(mark && mark.lane.spans ? mark : null);
    }
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => {
    tooltip.hidden = true;
    report.hover(null);
  });
  addEventListener("scroll", () => {
    armed = false;
    tooltip.hidden = true;
  }, { passive: true });
  canvas.addEventListener("wheel", (event) => {
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    const pixels = event.deltaMode === 1 ? 16 : 1;
    if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
      report.pan((sideways * pixels * report.painter.box.ratio) / report.painter.box.width);
    } else {
      if (!event.ctrlKey && (!armed || (event.deltaY > 0 && report.view.isWhole))) return;
      report.zoom(2 ** (Math.max(-240, Math.min(240, event.deltaY * pixels)) / 240), shareAt(place(event).x), true);
    }
    event.preventDefault();
  }, { passive: false });

  const strip = report.overview.canvas;
  const move = (event) => {
    const time = report.overview.time(event.clientX - strip.getBoundingClientRect().left);
    report.show(time - report.view.length / 2, report.view.length);
  };
  strip.addEventListener("pointerdown", (event) => {
    strip.setPointerCapture(event.pointerId);
    if (report.view.isWhole) report.zoom(0.25, 0.5, true);
    move(event);
  });
  strip.addEventListener("pointermove", (event) => {
    if (event.buttons) move(event);
  });
}
