// The timeline with all that moves it: wheel, dragging, keys and buttons.

function moveByPointer(view) {
  const {canvas} = view;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    const finer = (lane.left + view.width) / box.width;
    return [(event.clientX - box.left) * finer, (event.clientY - box.top) * finer];
  };
  let grip = null;
  // A page must scroll on under the wheel; a timeline that was clicked, or Ctrl, says that it is meant.
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    const [x, y] = place(event);
    const factor = Math.exp(-Math.max(-80, Math.min(80, event.deltaY || event.deltaX)) / 200);
    if (event.shiftKey) view.zoomRanks(factor, (y - lane.top) / view.plot);
    else view.zoomTime(factor, Math.max(0, x - lane.left) / view.width);
    hideTip();
  }, {passive: false});
  canvas.addEventListener("pointerdown", (event) => {
    grip = place(event);
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("dragging");
  });
  const release = () => {
    grip = null;
    canvas.classList.remove("dragging");
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (grip) {
      view.pan(((grip[0] - x) / view.width) * (view.t1 - view.t0), (grip[1] - y) / view.rowHeight);
      grip = [x, y];
      hideTip();
      return;
    }
    const found = view.at(x, y);
    if (!found) return hideTip();
    const {title, lines} = view.describe(found);
    showTip(event.clientX, event.clientY, title, lines);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", (event) => view.zoomTime(2, Math.max(0, place(event)[0] - lane.left) / view.width));
}

function moveByKeys(view) {
  const {canvas} = view;
  const time = () => (view.t1 - view.t0) / 8;
  const ranks = () => Math.max(1, (view.r1 - view.r0) / 8);
  const plain = {
    ArrowLeft: () => view.pan(-time(), 0), ArrowRight: () => view.pan(time(), 0),
    ArrowUp: () => view.pan(0, -ranks()), ArrowDown: () => view.pan(0, ranks()),
    "+": () => view.zoomTime(2), "=": () => view.zoomTime(2), "-": () => view.zoomTime(0.5),
    0: () => { view.fitAll(); view.draw(); },
  };
  const selecting = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.shiftKey && selecting[event.key]) {
      event.preventDefault();
      const said = view.select(...selecting[event.key]);
      if (!said) return;
      speak(said.title, said.lines);
      const {row, track, index, i} = view.selected;
      const box = canvas.getBoundingClientRect();
      const shrunk = box.width / (lane.left + view.width);
      const middle = view.x(Math.max(view.t0, Math.min(view.t1, (track.begin[i] + track.end[i]) / 2)));
      showTip(box.left + middle * shrunk, box.top + view.laneBox(row, track, index).top * shrunk, said.title, said.lines);
    } else if (plain[event.key]) {
      event.preventDefault();
      plain[event.key]();
      hideTip();
    }
  });
  canvas.addEventListener("blur", hideTip);
}

function timelineTable(view) {
  const most = 64;
  const ranks = view.step.ranks.slice().sort((a, b) => b.end - a.end || a.rank - b.rank).slice(0, most);
  const rows = ranks.map((rank) => {
    const sums = busy(view.step, rank);
    return el("tr", {"data-rank": rank.rank}, el("th", {scope: "row"}, String(rank.rank)),
      [rank.end, sums.computing, sums.waiting, sums.exchanging].map((ns) => el("td", {"data-value": ns}, timeText(ns))));
  });
  const caption = view.step.ranks.length > most ? `The ${most} slowest of ${countText(view.step.ranks.length)} ranks` : "Ranks, slowest first";
  return [el("summary", {}, `${caption}, as a table`), table(["rank", "step", "computing", "waiting", "exchanges"], rows, caption)];
}

function timelinePart() {
  const canvas = el("canvas", {id: "timeline-canvas", tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-describedby": "timeline-help"});
  const view = new TimelineView(canvas, report.timelines.map(decode));
  const names = report.timelines.map((timeline) => timeline.name);
  const legend = el("div", {class: "legend"});
  const details = el("details", {id: "timeline-table"});
  const note = el("p", {class: "small", id: "timeline-note"});
  const refresh = () => {
    const {colours} = view.step.kinds;
    legend.replaceChildren(...[...colours].map(([name, at]) => swatch(`var(--${at})`, name)));
    details.replaceChildren(...timelineTable(view));
    canvas.setAttribute("aria-label", `Timeline of ${view.step.name}, ${plural(view.step.ranks.length, "rank")}, ${timeText(view.step.length_ns)}`);
  };
  view.onchange = () => {
    Object.assign(canvas.dataset, {t0: view.t0, t1: view.t1, r0: view.r0, r1: view.r1, step: view.step.name, spans: view.step.ranks.length});
    const parts = [`${view.step.name}: ${timeText(view.t1 - view.t0)} of ${timeText(view.step.length_ns)} shown.`];
    if (view.stride > 1) parts.push(`Every ${view.stride}th rank is drawn; zoom in for all of them.`);
    if (view.step.together_ns > 0) parts.push(`Neighbouring spans shorter than ${timeText(view.step.together_ns)} are drawn as one.`);
    note.textContent = parts.join(" ");
  };
  const show = (index) => {
    view.show(index);
    refresh();
    view.draw();
  };
  const which = picker("Step of", names, show);
  const button = (text, label, act) => el("button", {type: "button", "aria-label": label, title: label, onclick: act}, text);
  const sort = el("label", {class: "field"}, el("input", {type: "checkbox", onchange: (event) => { view.bySlowest = event.target.checked; view.sort(); view.draw(); }}), " slowest first");
  chosen.listeners.push((strategy) => {
    const index = names.indexOf(strategy);
    if (index < 0) return;
    which.select.selectedIndex = index;
    show(index);
  });
  moveByPointer(view);
  moveByKeys(view);
  refresh();
  onDraw(() => view.draw());
  const many = view.rows.length > 1;
  return part("timeline", "Timeline", report.timelines_note || "What every rank does in a step.",
    el("div", {class: "controls"}, names.length > 1 ? which.field : null,
      el("div", {class: "segments", role: "group", "aria-label": "Zoom time"},
        button("−", "Zoom out in time", () => view.zoomTime(0.5)), button("+", "Zoom in on time", () => view.zoomTime(2)),
        button("Fit", "Show the whole step", () => { view.fitAll(); view.draw(); })),
      many ? el("div", {class: "segments", role: "group", "aria-label": "Zoom ranks"},
        button("Ranks −", "Show more ranks", () => view.zoomRanks(0.5)), button("Ranks +", "Show fewer ranks, larger", () => view.zoomRanks(2))) : null,
      many ? sort : null),
    legend, el("div", {class: "figure"}, canvas),
    el("p", {class: "small help", id: "timeline-help"}, "Click, then use the wheel to zoom (with Shift: ranks) and drag to move. Keys: + and − zoom, arrows move, 0 shows all, Shift with arrows goes from span to span."),
    note, details);
}
