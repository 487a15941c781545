// Curves over steps. Those with the same values are drawn in turns along one line, so that all of them are seen.

const curveBox = {
  left: 56,
  right: 16,
  top: 14,
  bottom: 40,
  height: 300
};
const dash = 9;

// By curve, the first one with the same values.
function sameAs(curves) {
  const seen = new Map();
  return curves.map((curve, i) => {
    const key = JSON.stringify([curve.x, curve.y]);
    if (!seen.has(key)) seen.set(key, i);
    return seen.get(key);
  });
}

// Gaps, which are null, interrupt the line.
function curvePath(curve, x, y) {
  return curve.x
      .map((value, i) => {
        if (curve.y[i] === null) return "";
        const begins = i === 0 || curve.y[i - 1] === null;
        return `${begins ? "M" : "L"}${x(value).toFixed(2)} ${y(curve.y[i]).toFixed(2)}`;
      })
      .join("");
}

// Around each stretch in which both ends are known: along the upper end, and back along the lower one.
function bandPath(curve, x, y) {
  const stretches = [];
  let open = null;
  (curve.low ?? []).forEach((low, i) => {
    const known = low !== null && curve.high[i] !== null;
    if (!known) open = null;
    if (known && open === null) stretches.push(open = []);
    if (known) open.push(i);
  });
  const point = (i, value) => `${x(curve.x[i]).toFixed(2)} ${y(value).toFixed(2)}`;
  return stretches
      .map((places) => {
        const there = places.map((i) => point(i, curve.high[i]));
        const back = places.map((i) => point(i, curve.low[i])).reverse();
        return `M${[...there, ...back].join("L")}Z`;
      })
      .join("");
}

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low <= high ? [low, high > low ? high : low + 1] : [0, 1];
}

const valueText = (value) => (value === null ? "–" : String(Number(value.toPrecision(6))));

// A value with the band around it, if there is one.
function pointText(curve, i) {
  const [low, high] = [curve.low?.[i] ?? null, curve.high?.[i] ?? null];
  if (low === null || high === null) return valueText(curve.y[i]);
  return `${valueText(curve.y[i])} ± ${Number(((high - low) / 2).toPrecision(3))}`;
}

// Values of a curve from a place on.
function valuesFrom(curve, x) {
  return [curve.y, curve.low ?? [], curve.high ?? []].flatMap((list) => list.filter((_, i) => curve.x[i] >= x));
}

class CurvesView {
  constructor(drawing, chart) {
    this.drawing = drawing;
    this.chart = chart;
    this.same = sameAs(chart.curves);
    this.visible = chart.curves.map(() => true);
  }

  curves() {
    return this.chart.curves.filter((_, i) => this.visible[i]);
  }

  draw() {
    const {left, right, top, bottom, height} = curveBox;
    this.width = Math.max(1, this.drawing.parentElement.clientWidth);
    const curves = this.curves();
    [this.low, this.high] = extent(curves.flatMap((curve) => curve.x));
    const heights = curves.flatMap((curve) => valuesFrom(curve, this.chart.fit_from ?? -Infinity));
    const [least, most] = extent([...heights, ...this.chart.marks.map((mark) => mark.y)]);
    const room = (most - least) * 0.05;
    this.range = [least - room, most + room];
    this.y = (value) => top + (height - top - bottom) * (1 - (value - this.range[0]) / (this.range[1] - this.range[0]));
    this.drawing.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.drawing.replaceChildren(
        ...this.axes(), ...this.marks(this.width - right, left),
        this.frame(
            this.chart.curves.map((_, i) => i).filter((i) => this.visible[i]).map((i) => this.band(i)),
            this.chart.curves.map((_, i) => i).filter((i) => this.visible[i]).map((i) => this.line(i))));
  }

  // Cuts off what goes beyond the axis, but not half of a line on its edge.
  frame(...content) {
    const {left, right, top, bottom, height} = curveBox;
    const edge = 2;
    const box = {
      x: left - edge,
      y: top - edge,
      width: Math.max(0, this.width - left - right) + 2 * edge,
      height: height - top - bottom + 2 * edge
    };
    const viewBox = `${box.x} ${box.y} ${box.width} ${box.height}`;
    return svg("svg", {class: "frame", ...box, viewBox}, ...content);
  }

  axes() {
    const {left, bottom, height} = curveBox;
    const right = this.width - curveBox.right;
    const text = (attributes, words) => svg("text", {class: "axis", ...attributes}, words);
    return [
      ...ticks(...this.range, 6)
          .flatMap(
              (tick) =>
                  [svg("line", {class: "grid", x1: left, x2: right, y1: this.y(tick), y2: this.y(tick)}),
                   text(
                       {x: left - 8, y: this.y(tick), "text-anchor": "end", "dominant-baseline": "middle"},
                       valueText(tick)),
    ]),
      ...ticks(this.low, this.high, Math.max(2, this.width / 110))
          .filter(Number.isInteger)
          .map(
              (tick) =>
                  text({x: this.across(tick), y: height - bottom + 16, "text-anchor": "middle"}, countText(tick))),
      text({x: right, y: height - 6, "text-anchor": "end"}, this.chart.x_label),
      text({x: left, y: height - 6}, this.chart.y_label),
    ];
  }

  marks(right, left) {
    return this.chart.marks.map(
        (mark) =>
            svg("g", {class: "mark"}, svg("line", {x1: left, x2: right, y1: this.y(mark.y), y2: this.y(mark.y)}),
                svg("text", {x: right, y: this.y(mark.y) - 6, "text-anchor": "end"}, mark.label)));
  }

  band(i) {
    const curve = this.chart.curves[i];
    return svg("path", {
      class: "band",
      "data-band": curve.name,
      style: `fill:var(--${seriesColour(i)})`,
      d: bandPath(curve, (x) => this.across(x), this.y),
    });
  }

  line(i) {
    const curve = this.chart.curves[i];
    const twins =
        this.same.map((first, j) => (first === this.same[i] && this.visible[j] ? j : -1)).filter((j) => j >= 0);
    const turns = {
      "stroke-dasharray": `${dash} ${dash * (twins.length - 1)}`,
      "stroke-dashoffset": -dash * twins.indexOf(i),
    };
    return svg("path", {
      class: "curve",
      "data-curve": curve.name,
      style: `stroke:var(--${seriesColour(i)})`,
      d: curvePath(curve, (x) => this.across(x), this.y),
      ...(twins.length > 1 ? turns : {}),
    });
  }

  across(value) {
    const inner = this.width - curveBox.left - curveBox.right;
    return curveBox.left + ((value - this.low) / (this.high - this.low)) * inner;
  }

  // Places are the steps of the first curve that is shown.
  steps() {
    const [first] = this.curves();
    return first ? first.x : [];
  }

  count() {
    return this.steps().length;
  }

  at(x) {
    let best = null;
    this.steps().forEach((step, i) => {
      const distance = Math.abs(this.across(step) - x);
      if (best === null || distance < best.distance) best = {i, distance};
    });
    return best && best.i;
  }

  x(place) {
    return this.across(this.steps()[place]);
  }

  // What each curve that is shown has at a step.
  values(step) {
    return this.chart.curves.map((curve, i) => ({curve, i, at: this.visible[i] ? curve.x.indexOf(step) : -1}))
        .filter(({at}) => at >= 0)
        .map(
            ({curve, i, at}) =>
                ({name: curve.name, colour: seriesColour(i), y: curve.y[at], text: pointText(curve, at)}));
  }

  mark(place) {
    for (const old of this.drawing.querySelectorAll(".crosshair")) old.remove();
    if (place === null) return;
    const x = this.x(place);
    const {top, bottom, height} = curveBox;
    this.drawing.append(svg("line", {class: "crosshair", x1: x, x2: x, y1: top, y2: height - bottom}));
    for (const {colour: fill, y} of this.values(this.steps()[place])) {
      if (y === null || y < this.range[0] || y > this.range[1]) continue;
      this.drawing.append(
          svg("circle", {class: "crosshair", cx: x, cy: this.y(y), r: 3.5, style: `fill:var(--${fill})`}));
    }
  }

  describe(place) {
    const step = this.steps()[place];
    const lines = this.values(step).map(({name, text}) => `${name}: ${text}`);
    return {title: `${this.chart.x_label} ${countText(step)}`, lines};
  }
}

function curveToggle(view, i) {
  const curve = view.chart.curves[i];
  const twin = view.same[i] === i ? null : `the same as ${view.chart.curves[view.same[i]].name}, every value`;
  const button = el(
      "button", {
        type: "button",
        class: "key",
        "data-curve": curve.name,
        "aria-pressed": "true",
        onclick: () => {
          view.visible[i] = !view.visible[i];
          button.setAttribute("aria-pressed", String(view.visible[i]));
          view.draw();
        }
      },
      el("i", {style: `background:var(--${seriesColour(i)})`}), curve.name, twin && el("span", {class: "twin"}, twin));
  return button;
}

function curveTable(chart) {
  const steps = [...new Set(chart.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const every = Math.max(1, Math.ceil(steps.length / 12));
  const rows = steps.filter((_, i) => i % every === 0 || i === steps.length - 1)
                   .map((step) => el("tr", {}, el("th", {scope: "row"}, countText(step)), chart.curves.map((curve) => {
                          const at = curve.x.indexOf(step);
                          return el("td", {}, at < 0 ? "" : pointText(curve, at));
                        })));
  const heads = [chart.x_label, ...chart.curves.map((curve) => curve.name)];
  return el("details", {}, el("summary", {}, "As a table"), table(heads, rows, chart.title));
}

function curvesPart(chart, number) {
  const label = `${chart.title}: ${chart.y_label} over ${chart.x_label}`;
  const drawing = svg("svg", {class: "chart curves", tabindex: "0", role: "img", "aria-label": label});
  const view = new CurvesView(drawing, chart);
  readByPlace(drawing, view);
  onDraw(() => view.draw());
  const alike = view.same.some((first, i) => first !== i);
  return partFrom(
      chart.source, `curves-${number}`, chart.title,
      alike ? "Curves whose values are all the same are drawn in turns, as one line of several colours." :
              chart.lead || "Choose a name to hide or show its curve.",
      el("div", {class: "controls"},
         el("div", {class: "legend", role: "group", "aria-label": "Curves"},
            chart.curves.map((_, i) => curveToggle(view, i)))),
      el("div", {class: "figure"}, drawing), curveTable(chart));
}
