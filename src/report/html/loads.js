// How long every rank is busy, with one strategy above another on the same scale: before and after balancing.

const loadPanel = {left: 64, right: 12, top: 26, height: 130, gap: 34, bottom: 24};

function loadFigures(load) {
  const total = load.compute_ns.map((ns, rank) => ns + load.exchange_ns[rank]);
  const slowest = total.reduce((most, ns) => Math.max(most, ns), 0);
  const mean = total.reduce((sum, ns) => sum + ns, 0) / total.length;
  return {load, total, slowest, mean, order: total.map((_, rank) => rank).sort((a, b) => total[b] - total[a] || a - b)};
}

// Neighbouring ranks share a bar where there are more of them than pixels: the slowest of them is shown.
function loadBars(figures, sorted, width) {
  const ranks = figures.total.length;
  const each = Math.max(1, Math.ceil((ranks * 2) / width));
  const bars = [];
  for (let first = 0; first < ranks; first += each) {
    let rank = sorted ? figures.order[first] : first;
    for (let i = first; !sorted && i < Math.min(ranks, first + each); i += 1) {
      if (figures.total[i] > figures.total[rank]) rank = i;
    }
    bars.push(rank);
  }
  return {bars, each};
}

function loadBarsPath(bars, step, from, to, y) {
  const width = step > 4 ? Math.min(72, step * 0.86) : step;
  return bars.map((rank, i) => {
    const left = ((i + 0.5) * step - width / 2).toFixed(2);
    const [top, bottom] = [y(to(rank)), y(from(rank))];
    return bottom > top ? `M${left} ${top.toFixed(2)}h${width.toFixed(2)}V${bottom.toFixed(2)}H${left}z` : "";
  }).join("");
}

function drawLoadPanel(figures, at, state) {
  const {left, top, height} = loadPanel;
  const width = state.width - left - loadPanel.right;
  const y = (ns) => height * (1 - ns / state.full);
  const {bars, each} = loadBars(figures, state.sorted, width);
  const step = width / bars.length;
  const compute = (rank) => figures.load.compute_ns[rank];
  const panel = svg("g", {transform: `translate(${left} ${at + top})`, class: "panel"});
  for (const tick of ticks(0, state.full, 4)) {
    panel.append(svg("line", {class: "grid", x2: width, y1: y(tick), y2: y(tick)}),
      svg("text", {class: "axis", x: -8, y: y(tick), "text-anchor": "end", "dominant-baseline": "middle"}, tick === 0 ? "0" : timeText(tick)));
  }
  panel.append(
    svg("path", {class: "compute", d: loadBarsPath(bars, step, () => 0, compute, y)}),
    svg("path", {class: "exchange", d: loadBarsPath(bars, step, compute, (rank) => figures.total[rank], y)}),
    svg("line", {class: "mean", x2: width, y1: y(figures.mean), y2: y(figures.mean)}),
    svg("text", {class: "panel-title", y: -12}, figures.load.strategy),
    svg("text", {class: "panel-note", x: width, y: -12, "text-anchor": "end", "data-strategy": figures.load.strategy, "data-slowest": figures.slowest},
      `slowest ${timeText(figures.slowest)}${width > 480 ? ` · mean ${timeText(figures.mean)} · ${ratioText(figures.slowest / figures.mean)}× the mean` : ""}`));
  return {panel, bars, each, step, figures, at};
}

function loadsPart() {
  const all = report.loads.map(loadFigures);
  const names = report.loads.map((load) => load.strategy);
  const state = {before: 0, after: all.length - 1, sorted: false, panels: [], cursor: null};
  const chart = svg("svg", {class: "chart", id: "loads-chart", tabindex: "0", role: "img", "aria-label": "Predicted time of every rank"});
  const note = el("p", {class: "small"});
  const draw = () => {
    state.width = Math.max(320, chart.parentElement.clientWidth);
    const shown = state.before === state.after ? [state.after] : [state.before, state.after];
    state.full = Math.max(1, ...shown.map((i) => all[i].slowest));
    const pitch = loadPanel.top + loadPanel.height + loadPanel.gap;
    const height = shown.length * pitch - loadPanel.gap + loadPanel.bottom;
    chart.setAttribute("viewBox", `0 0 ${state.width} ${height}`);
    state.panels = shown.map((index, i) => drawLoadPanel(all[index], i * pitch, state));
    const last = state.panels[state.panels.length - 1];
    const label = state.sorted ? "ranks, slowest first" : "rank";
    const ranks = all[0].total.length;
    const places = state.sorted ? [] : ticks(0, ranks - 1, 10).filter(Number.isInteger);
    const axis = svg("g", {transform: `translate(${loadPanel.left} ${height - 8})`},
      places.map((rank) => svg("text", {class: "axis", x: (rank / last.each + 0.5) * last.step, "text-anchor": "middle"}, countText(rank))),
      svg("text", {class: "axis", x: -8, "text-anchor": "end"}, label));
    chart.replaceChildren(...state.panels.map((p) => p.panel), axis);
    note.textContent = last.each > 1 ? `Each bar is the slowest of ${last.each} neighbouring ranks.` : "";
    chart.setAttribute("aria-label", `Predicted time of every rank. ${shown.map((i) => `${names[i]}: slowest ${timeText(all[i].slowest)}, mean ${timeText(all[i].mean)}`).join("; ")}`);
  };
  const describe = (index) => {
    const lines = state.panels.map(({bars, figures}) => {
      const rank = bars[index];
      const {load, total} = figures;
      return `${load.strategy}${state.sorted ? `, rank ${rank}` : ""}: ${timeText(total[rank])} (${timeText(load.compute_ns[rank])} computing, ${timeText(load.exchange_ns[rank])} exchanging)`;
    });
    const {bars, each} = state.panels[0];
    const title = state.sorted ? `Place ${index * each + 1}` : each > 1 ? `Ranks ${index * each} to ${Math.min(all[0].total.length, (index + 1) * each) - 1}, slowest` : `Rank ${bars[index]}`;
    return {title, lines};
  };
  const point = (index, x, y) => {
    state.cursor = index;
    for (const line of chart.querySelectorAll(".cursor")) line.remove();
    for (const {panel, step} of state.panels) {
      panel.append(svg("rect", {class: "cursor", x: index * step, y: 0, width: Math.max(1, step), height: loadPanel.height}));
    }
    const {title, lines} = describe(index);
    showTip(x, y, title, lines);
    return {title, lines};
  };
  const leave = () => {
    for (const line of chart.querySelectorAll(".cursor")) line.remove();
    hideTip();
  };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) * state.width) / box.width - loadPanel.left;
    const {step, bars} = state.panels[0];
    const index = Math.floor(x / step);
    if (index >= 0 && index < bars.length) point(index, event.clientX, event.clientY);
    else leave();
  });
  chart.addEventListener("pointerleave", leave);
  chart.addEventListener("blur", leave);
  chart.addEventListener("keydown", (event) => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!move) return;
    event.preventDefault();
    const {bars, step} = state.panels[0];
    const index = state.cursor === null ? 0 : Math.max(0, Math.min(bars.length - 1, state.cursor + move));
    const box = chart.getBoundingClientRect();
    const {title, lines} = point(index, box.left + ((loadPanel.left + index * step) * box.width) / state.width, box.top + loadPanel.top);
    speak(title, lines);
  });
  const before = picker("Before", names, (i) => { state.before = i; draw(); });
  const after = picker("After", names, (i) => { state.after = i; draw(); });
  after.select.selectedIndex = state.after;
  const sort = el("label", {class: "field"}, el("input", {type: "checkbox", id: "loads-sorted", onchange: (event) => { state.sorted = event.target.checked; draw(); }}), " slowest first");
  chosen.listeners.push((strategy) => {
    const index = names.indexOf(strategy);
    if (index < 0) return;
    state.after = index;
    after.select.selectedIndex = index;
    draw();
  });
  onDraw(draw);
  return part("loads", "Loads of ranks", "Predicted time each rank is busy in a step, waiting left out. The dashed line is the mean: no rank can end before it if all are to be done.",
    el("div", {class: "controls"}, names.length > 1 ? [before.field, after.field] : null, sort,
      el("div", {class: "legend"}, swatch("var(--compute)", "computing"), swatch("var(--exchange)", "exchanging"))),
    el("div", {class: "figure"}, chart), note);
}
