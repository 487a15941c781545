// The timeline with all that moves it: wheel, dragging, keys and buttons.

function moveByPointer(view) {
  const {canvas} = view;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  let grip = null;
  // A page must scroll on under the wheel; a timeline that was clicked, or Ctrl, says that it is meant.
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    const [x, y] = place(event);
    const factor = Math.exp(-Math.max(-80, Math.min(80, event.deltaY || event.deltaX)) / 200);
    if (event.shiftKey)
      view.zoomRanks(factor, (y - lane.top) / view.plot);
    else
      view.zoomTime(factor, Math.max(0, x - lane.left) / view.width);
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
  canvas.addEventListener(
      "dblclick", (event) => view.zoomTime(2, Math.max(0, place(event)[0] - lane.left) / view.width));
}

function moveByKeys(view) {
  const {canvas} = view;
  const time = () => (view.t1 - view.t0) / 8;
  const ranks = () => Math.max(1, (view.r1 - view.r0) / 8);
  const plain = {
    ArrowLeft: () => view.pan(-time(), 0),
    ArrowRight: () => view.pan(time(), 0),
    ArrowUp: () => view.pan(0, -ranks()),
    ArrowDown: () => view.pan(0, ranks()),
    "+": () => view.zoomTime(2),
    "=": () => view.zoomTime(2),
    "-": () => view.zoomTime(0.5),
    0: () => {
      view.fitAll();
      view.draw();
    },
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
      const middle = view.x(Math.max(view.t0, Math.min(view.t1, (track.begin[i] + track.end[i]) / 2)));
      showTip(box.left + middle, box.top + view.laneBox(row, track, index).top, said.title, said.lines);
    } else if (plain[event.key]) {
      event.preventDefault();
      plain[event.key]();
      hideTip();
    }
  });
  canvas.addEventListener("blur", hideTip);
}

function timelineTable(view) {
  const most = 32;
  const ranks = view.step.ranks.slice().sort((a, b) => b.end - a.end || a.rank - b.rank).slice(0, most);
  const rows = ranks.map((rank) => {
    const sums = busy(view.step, rank);
    return el("tr", {"data-rank": rank.rank}, el("th", {scope: "row"}, String(rank.rank)), [
      rank.end, sums.computing, sums.waiting, sums.exchanging
    ].map((ns) => el("td", {"data-value": ns}, timeText(ns))));
  });
  const caption = view.step.ranks.length > most ? `The ${most} slowest of ${countText(view.step.ranks.length)} ranks` :
                                                  "Ranks, slowest first";
  return [
    el("summary", {}, `${caption}, as a table`),
    table(["rank", "step", "computing", "waiting", "exchanges"], rows, caption)
  ];
}

function timelineNote(view) {
  const {name, length_ns: length, together_ns: together} = view.step;
  return [
    `${name}: ${timeText(view.t1 - view.t0)} of ${timeText(length)} shown.`,
    view.stride > 1 ? `One rank in ${view.stride} is drawn; zoom in for all of them.` : "",
    together > 0 ? `Neighbouring spans shorter than ${timeText(together)} are drawn as one.` : "",
  ].join(" ");
}

function zoomButtons(view) {
  const button = (text, label, onclick) =>
      el("button", {type: "button", "aria-label": label, title: label, onclick}, text);
  const group = (label, ...buttons) => el("div", {class: "segments", role: "group", "aria-label": label}, buttons);
  const fitAll = () => {
    view.fitAll();
    view.draw();
  };
  const time = group(
      "Zoom time", button("−", "Zoom out in time", () => view.zoomTime(0.5)),
      button("+", "Zoom in on time", () => view.zoomTime(2)), button("Fit", "Show the whole step", fitAll));
  if (view.rows.length === 1) return [time];
  const ranks = group(
      "Zoom ranks", button("Ranks −", "Show more ranks", () => view.zoomRanks(0.5)),
      button("Ranks +", "Show fewer ranks, larger", () => view.zoomRanks(2)));
  const sort = checkbox("slowest first", "timeline-sorted", (sorted) => {
    view.bySlowest = sorted;
    view.sort();
    view.draw();
  });
  return [time, ranks, sort];
}

const timelineHelp =
    "Click, then use the wheel to zoom (with Shift: ranks) and drag to move. Keys: + and − zoom, arrows " +
    "move, 0 shows all, Shift with arrows goes from span to span.";

function timelinePart() {
  const canvas = el("canvas", {
    id: "timeline-canvas",
    tabindex: "0",
    role: "application",
    "aria-roledescription": "timeline",
    "aria-describedby": "timeline-help"
  });
  const view = new TimelineView(canvas, report.timelines.map(decode));
  const names = report.timelines.map((timeline) => timeline.name);
  const legend = el("div", {class: "legend"});
  const details = el("details", {id: "timeline-table"});
  const note = el("p", {class: "small", id: "timeline-note"});
  view.onchange = () => {
    note.textContent = timelineNote(view);
  };
  const show = (index) => {
    view.show(index);
    view.draw();
    legend.replaceChildren(...[...view.step.kinds.colours].map(([name, at]) => swatch(`var(--${at})`, name)));
    details.replaceChildren(...timelineTable(view));
  };
  const which = picker("Step of", names, show);
  followChoice(names, (index) => {
    which.select.selectedIndex = index;
    show(index);
  });
  moveByPointer(view);
  moveByKeys(view);
  onDraw(() => (note.textContent ? view.draw() : show(0)));
  return partFrom(
      report.timelines_source, "timeline", "Timeline",
      `What every rank does in a step. ${report.timelines_note}`.trim(),
      el("div", {class: "controls"}, names.length > 1 ? which.field : null, zoomButtons(view)), legend,
      el("div", {class: "figure"}, canvas), el("p", {class: "small help", id: "timeline-help"}, timelineHelp), note,
      details);
}
