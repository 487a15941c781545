// How long every rank is busy, with one strategy above another on the same scale.

const loadPanel = {
  left: 64,
  right: 12,
  top: 26,
  height: 130,
  gap: 34,
  bottom: 24
};

function loadFigures(load) {
  const total = load.compute_ns.map((ns, rank) => ns + load.exchange_ns[rank]);
  const slowest = total.reduce((most, ns) => Math.max(most, ns), 0);
  const mean = total.reduce((sum, ns) => sum + ns, 0) / total.length;
  const order = total.map((_, rank) => rank).sort((a, b) => total[b] - total[a] || a - b);
  return {...load, total, slowest, mean, order};
}

// Neighbouring ranks share a bar where there are more of them than pixels: the slowest of them is shown.
function loadBars(load, sorted, each) {
  const ranks = load.total.length;
  const bars = [];
  for (let first = 0; first < ranks; first += each) {
    let rank = sorted ? load.order[first] : first;
    for (let i = first; !sorted && i < Math.min(ranks, first + each); i += 1) {
      if (load.total[i] > load.total[rank]) rank = i;
    }
    bars.push(rank);
  }
  return bars;
}

function barsPath(bars, step, from, to) {
  const width = step > 4 ? Math.min(72, step * 0.86) : step;
  return bars
      .map((rank, i) => {
        const left = ((i + 0.5) * step - width / 2).toFixed(2);
        const [top, bottom] = [to(rank), from(rank)];
        return bottom > top ? `M${left} ${top.toFixed(2)}h${width.toFixed(2)}V${bottom.toFixed(2)}H${left}z` : "";
      })
      .join("");
}

class LoadsView {
  constructor(chart, loads) {
    this.chart = chart;
    this.loads = loads;
    this.ranks = loads[0].total.length;
    this.before = 0;
    this.after = loads.length - 1;
    this.sorted = false;
  }

  shown() {
    return this.before === this.after ? [this.loads[this.after]] : [this.loads[this.before], this.loads[this.after]];
  }

  draw() {
    this.width = Math.max(1, this.chart.parentElement.clientWidth);
    this.inner = this.width - loadPanel.left - loadPanel.right;
    this.each = Math.max(1, Math.ceil((this.ranks * 2) / this.inner));
    this.step = this.inner / this.count();
    const shown = this.shown();
    this.full = Math.max(1, ...shown.map((load) => load.slowest));
    const pitch = loadPanel.top + loadPanel.height + loadPanel.gap;
    const height = shown.length * pitch - loadPanel.gap + loadPanel.bottom;
    this.panels = shown.map((load, i) => this.panel(load, i * pitch));
    this.chart.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.chart.replaceChildren(...this.panels.map((panel) => panel.group), this.axis(height));
    const words =
        shown.map((load) => `${load.strategy}: slowest ${timeText(load.slowest)}, mean ${timeText(load.mean)}`);
    this.chart.setAttribute("aria-label", `Predicted time of every rank. ${words.join("; ")}`);
  }

  panel(load, at) {
    const {left, top, height} = loadPanel;
    const y = (ns) => height * (1 - ns / this.full);
    const bars = loadBars(load, this.sorted, this.each);
    const compute = (rank) => y(load.compute_ns[rank]);
    const lines =
        ticks(0, this.full, 4)
            .flatMap(
                (tick) =>
                    [svg("line", {class: "grid", x2: this.inner, y1: y(tick), y2: y(tick)}),
                     svg("text",
                         {class: "axis", x: -8, y: y(tick), "text-anchor": "end", "dominant-baseline": "middle"},
                         tick === 0 ? "0" : timeText(tick)),
    ]);
    const ratio = ` · mean ${timeText(load.mean)} · ${ratioText(load.slowest / load.mean)}× the mean`;
    const group =
        svg("g", {transform: `translate(${left} ${at + top})`}, lines,
            svg("path", {class: "compute", d: barsPath(bars, this.step, () => height, compute)}),
            svg("path", {class: "exchange", d: barsPath(bars, this.step, compute, (rank) => y(load.total[rank]))}),
            svg("line", {class: "mean", x2: this.inner, y1: y(load.mean), y2: y(load.mean)}),
            svg("text", {class: "panel-title", y: -12}, load.strategy),
            svg("text", {
              class: "panel-note",
              x: this.inner,
              y: -12,
              "text-anchor": "end",
              "data-strategy": load.strategy,
              "data-slowest": load.slowest
            },
                `slowest ${timeText(load.slowest)}${this.inner > 480 ? ratio : ""}`));
    return {group, bars, load};
  }

  axis(height) {
    const places = this.sorted ? [] : ticks(0, this.ranks - 1, 10).filter(Number.isInteger);
    return svg(
        "g", {transform: `translate(${loadPanel.left} ${height - 8})`},
        places.map(
            (rank) =>
                svg("text", {class: "axis", x: (rank / this.each + 0.5) * this.step, "text-anchor": "middle"},
                    countText(rank))),
        svg("text", {class: "axis", x: -8, "text-anchor": "end"}, this.sorted ? "place" : "rank"));
  }

  count() {
    return Math.ceil(this.ranks / this.each);
  }

  at(x) {
    const bar = Math.floor((x - loadPanel.left) / this.step);
    return bar >= 0 && bar < this.count() ? bar : null;
  }

  x(bar) {
    return loadPanel.left + (bar + 0.5) * this.step;
  }

  mark(bar) {
    for (const old of this.chart.querySelectorAll(".cursor")) old.remove();
    if (bar === null) return;
    const width = Math.max(1, this.step);
    for (const {group} of this.panels) {
      group.append(svg("rect", {class: "cursor", x: bar * this.step, width, height: loadPanel.height}));
    }
  }

  describe(bar) {
    const lines = this.panels.map(({bars, load}) => {
      const rank = bars[bar];
      const parts = `${timeText(load.compute_ns[rank])} computing, ${timeText(load.exchange_ns[rank])} exchanging`;
      return `${load.strategy}${this.sorted ? `, rank ${rank}` : ""}: ${timeText(load.total[rank])} (${parts})`;
    });
    const first = bar * this.each;
    const last = Math.min(this.ranks, first + this.each) - 1;
    const ranks = first === last ? `Rank ${first}` : `Slowest of ranks ${first} to ${last}`;
    return {title: this.sorted ? `Place ${first + 1}` : ranks, lines};
  }
}

// Why the step and the busy time of its slowest rank differ.
function stepAndBusy({strategy, step_ns: step, slowest}) {
  const begin = `${strategy}: the slowest rank is busy for ${timeText(slowest)}, and the step takes ${timeText(step)}.`;
  if (step < slowest)
    return `${begin} The step is shorter, because exchanges and computation overlap, and busy time counts both.`;
  return step > slowest ? `${begin} The rest is waiting for other ranks.` : begin;
}

function loadsPart() {
  const chart = svg("svg", {class: "chart", id: "loads-chart", tabindex: "0", role: "img"});
  const view = new LoadsView(chart, report.loads.map(loadFigures));
  const names = report.loads.map((load) => load.strategy);
  const note = el("div", {class: "small", id: "loads-note"});
  const draw = () => {
    view.draw();
    const each = view.each > 1 ? [`Each bar is the slowest of ${view.each} neighbouring ranks.`] : [];
    note.replaceChildren(...[...view.shown().map(stepAndBusy), ...each].map((line) => el("p", {}, line)));
  };
  const set = (values) => {
    Object.assign(view, values);
    draw();
  };
  const before = picker("Compare", names, (index) => set({before: index}));
  const after = picker("with", names, (index) => set({after: index}));
  after.select.selectedIndex = view.after;
  followChoice(names, (index) => {
    after.select.selectedIndex = index;
    set({after: index});
  });
  readByPlace(chart, view);
  onDraw(draw);
  return partFrom(
      "predicted", "loads", "Loads of ranks",
      "How long each rank computes and exchanges in a step, waiting left out. The dashed line is the mean: the nearer " +
          "the slowest rank is to it, the better the balance.",
      el("div", {class: "controls"}, names.length > 1 ? [before.field, after.field] : null,
         checkbox("slowest first", "loads-sorted", (sorted) => set({sorted})),
         el("div", {class: "legend"}, swatch("var(--compute)", "computing"), swatch("var(--exchange)", "exchanging"))),
      el("div", {class: "figure"}, chart), note);
}
