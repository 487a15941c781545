// Curves over steps. Those with the same values are drawn in turns along one line, so that all of them are seen.

const curveBox = {left: 56, right: 16, top: 14, bottom: 40, height: 300};
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

function curvePath(curve, x, y) {
  let move = true;
  return curve.x.map((value, i) => {
    if (curve.y[i] === null) {
      move = true;
      return "";
    }
    const to = `${move ? "M" : "L"}${x(value).toFixed(2)} ${y(curve.y[i]).toFixed(2)}`;
    move = false;
    return to;
  }).join("");
}

function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low <= high ? [low, high > low ? high : low + 1] : [0, 1];
}

const valueText = (value) => (value === null ? "–" : String(Number(value.toPrecision(6))));

function nearest(list, value) {
  let best = 0;
  list.forEach((x, i) => {
    if (Math.abs(x - value) < Math.abs(list[best] - value)) best = i;
  });
  return best;
}

function curveTable(chart) {
  const steps = [...new Set(chart.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const every = Math.max(1, Math.ceil(steps.length / 12));
  const rows = steps.filter((_, i) => i % every === 0 || i === steps.length - 1).map((step) =>
    el("tr", {}, el("th", {scope: "row"}, countText(step)), chart.curves.map((curve) => {
      const at = curve.x.indexOf(step);
      return el("td", {}, at < 0 ? "" : valueText(curve.y[at]));
    })));
  return el("details", {}, el("summary", {}, "As a table"), table([chart.x_label, ...chart.curves.map((c) => c.name)], rows, chart.title));
}

function curvesPart(chart, number) {
  const same = sameAs(chart.curves);
  const visible = chart.curves.map(() => true);
  const state = {width: 0, cursor: null, low: 0, high: 1};
  const drawing = svg("svg", {class: "chart curves", tabindex: "0", role: "img", "aria-label": `${chart.title}: ${chart.y_label} over ${chart.x_label}`});
  const shown = () => chart.curves.filter((_, i) => visible[i]);
  const xOf = (value) => curveBox.left + ((value - state.low) / (state.high - state.low)) * (state.width - curveBox.left - curveBox.right);

  const draw = () => {
    state.width = Math.max(320, drawing.parentElement.clientWidth);
    const height = curveBox.height;
    const curves = shown().length > 0 ? shown() : chart.curves;
    [state.low, state.high] = extent(curves.flatMap((curve) => curve.x));
    const marks = chart.marks.map((mark) => mark.y);
    const [low, high] = extent([...curves.flatMap((curve) => curve.y), ...marks]);
    const room = (high - low) * 0.05;
    const inner = height - curveBox.top - curveBox.bottom;
    const y = (value) => curveBox.top + inner * (1 - (value - low + room) / (high - low + 2 * room));
    state.y = y;
    const right = state.width - curveBox.right;
    drawing.setAttribute("viewBox", `0 0 ${state.width} ${height}`);
    drawing.replaceChildren(
      ...ticks(low - room, high + room, 6).map((tick) => svg("g", {},
        svg("line", {class: "grid", x1: curveBox.left, x2: right, y1: y(tick), y2: y(tick)}),
        svg("text", {class: "axis", x: curveBox.left - 8, y: y(tick), "text-anchor": "end", "dominant-baseline": "middle"}, valueText(tick)))),
      ...ticks(state.low, state.high, Math.max(2, state.width / 110)).map((tick) =>
        svg("text", {class: "axis", x: xOf(tick), y: height - curveBox.bottom + 16, "text-anchor": "middle"}, countText(tick))),
      svg("text", {class: "axis", x: right, y: height - 6, "text-anchor": "end"}, chart.x_label),
      svg("text", {class: "axis", x: curveBox.left, y: height - 6}, chart.y_label),
      ...chart.marks.map((mark) => svg("g", {class: "mark"},
        svg("line", {x1: curveBox.left, x2: right, y1: y(mark.y), y2: y(mark.y)}),
        svg("text", {x: right, y: y(mark.y) - 6, "text-anchor": "end"}, mark.label))),
      ...chart.curves.map((curve, i) => {
        if (!visible[i]) return svg("g");
        const twins = same.map((first, j) => (first === same[i] && visible[j] ? j : -1)).filter((j) => j >= 0);
        const turns = twins.length > 1 ? {"stroke-dasharray": `${dash} ${dash * (twins.length - 1)}`, "stroke-dashoffset": -dash * twins.indexOf(i)} : {};
        return svg("path", {class: "curve", "data-curve": curve.name, style: `stroke:var(--${seriesColour(i)})`, d: curvePath(curve, xOf, y), ...turns});
      }));
  };

  const point = (value, clientX, clientY) => {
    const first = shown()[0];
    if (!first) return null;
    const at = nearest(first.x, value);
    const step = first.x[at];
    state.cursor = at;
    for (const old of drawing.querySelectorAll(".crosshair")) old.remove();
    drawing.append(svg("line", {class: "crosshair", x1: xOf(step), x2: xOf(step), y1: curveBox.top, y2: curveBox.height - curveBox.bottom}));
    const lines = [];
    chart.curves.forEach((curve, i) => {
      const index = curve.x.indexOf(step);
      if (!visible[i] || index < 0) return;
      lines.push(`${curve.name}: ${valueText(curve.y[index])}`);
      if (curve.y[index] !== null) {
        drawing.append(svg("circle", {class: "crosshair", cx: xOf(step), cy: state.y(curve.y[index]), r: 3.5, style: `fill:var(--${seriesColour(i)})`}));
      }
    });
    const title = `${chart.x_label} ${countText(step)}`;
    showTip(clientX, clientY, title, lines);
    return {title, lines};
  };
  const leave = () => {
    for (const old of drawing.querySelectorAll(".crosshair")) old.remove();
    hideTip();
  };
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const x = ((event.clientX - box.left) * state.width) / box.width;
    point(state.low + ((x - curveBox.left) / (state.width - curveBox.left - curveBox.right)) * (state.high - state.low), event.clientX, event.clientY);
  });
  drawing.addEventListener("pointerleave", leave);
  drawing.addEventListener("blur", leave);
  drawing.addEventListener("keydown", (event) => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    const first = shown()[0];
    if (!move || !first) return;
    event.preventDefault();
    const at = state.cursor === null ? 0 : Math.max(0, Math.min(first.x.length - 1, state.cursor + move));
    const box = drawing.getBoundingClientRect();
    const said = point(first.x[at], box.left + (xOf(first.x[at]) * box.width) / state.width, box.top + 20);
    speak(said.title, said.lines);
  });

  const toggles = chart.curves.map((curve, i) => {
    const twin = same[i] !== i ? el("span", {class: "twin"}, `= ${chart.curves[same[i]].name}, every value`) : null;
    const button = el("button", {type: "button", class: "key", "data-curve": curve.name, "aria-pressed": "true", onclick: () => {
      visible[i] = !visible[i];
      button.setAttribute("aria-pressed", String(visible[i]));
      draw();
    }}, el("i", {style: `background:var(--${seriesColour(i)})`}), curve.name, twin);
    return button;
  });
  onDraw(draw);
  const twins = same.filter((first, i) => first !== i).length;
  const lead = twins > 0 ? "Curves whose values are all the same are drawn in turns, as one line of several colours." : "Choose a name to hide or show its curve.";
  return part(`curves-${number}`, chart.title, lead,
    el("div", {class: "controls"}, el("div", {class: "legend", role: "group", "aria-label": "Curves"}, toggles)),
    el("div", {class: "figure"}, drawing), curveTable(chart));
}
