// Keys and buttons. Letters work on the whole page, arrows where the timeline has the focus.

function listenToKeys(report) {
  const { canvas } = report;
  const element = (id) => document.getElementById(id);
  const help = element("help");

  const onPage = {
    "?": () => help.showModal(),
    c: () => report.toggle("critical"),
    l: () => report.toggle("links"),
    m: () => report.toggle("memory"),
    t: () => report.theme(),
    "/": () => element("find").focus(),
    "+": () => report.zoom(0.5),
    "=": () => report.zoom(0.5),
    "-": () => report.zoom(2),
    "−": () => report.zoom(2),
    0: () => report.fit(),
    f: () => report.fit(),
    Escape: () => report.select(null),
  };
  const onTimeline = {
    ArrowLeft: () => report.pan(-0.15, true),
    ArrowRight: () => report.pan(0.15, true),
    ArrowUp: () => (report.selected ? report.otherRow(-1) : report.scroll(-40)),
    ArrowDown: () => (report.selected ? report.otherRow(1) : report.scroll(40)),
    PageUp: () => report.scroll(-report.room()),
    PageDown: () => report.scroll(report.room()),
    Home: () => report.show(-Infinity, report.view.length),
    End: () => report.show(report.view.endNs, report.view.length),
    Enter: () => report.selectMiddle(),
    ",": () => report.neighbour(-1),
    ".": () => report.neighbour(1),
    w: () => report.selectBinding(),
    z: () => report.zoomToSelected(),
  };
  addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLElement && event.target.matches("input, textarea, dialog, dialog *");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const action = (event.target === canvas && onTimeline[key]) || onPage[key];
    if (!action) return;
    action();
    event.preventDefault();
  });

  const clicks = {
    "zoom-in": () => report.zoom(0.5),
    "zoom-out": () => report.zoom(2),
    fit: () => report.fit(),
    critical: () => report.toggle("critical"),
    links: () => report.toggle("links"),
    memory: () => report.toggle("memory"),
    theme: () => report.theme(),
    "help-open": () => help.showModal(),
  };
  for (const [id, action] of Object.entries(clicks)) element(id).addEventListener("click", action);
  help.addEventListener("click", (event) => {
    if (event.target === help) help.close();
  });
  element("find").addEventListener("keydown", (event) => {
    if (event.key === "Enter") report.find(event.target.value);
    if (event.key === "Escape") canvas.focus();
  });
  canvas.addEventListener("focus", () => report.draw());
}
