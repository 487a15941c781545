// What all parts of a report share: elements, figures as text, colours, tooltips, drawing again.

const report = JSON.parse(document.getElementById("data").textContent);
const svgNamespace = "http://www.w3.org/2000/svg";

// el("button", {class: "x", onclick: f}, "text", child): attributes that are functions are listeners, null is left out.
function setUp(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function")
      element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false)
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null));
  return element;
}
const el = (tag, attributes = {}, ...children) => setUp(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
    setUp(document.createElementNS(svgNamespace, tag), attributes, children);

// Three significant digits; the next unit takes over before "1000" (or "1024") would have to be shown.
function scaled(value, step, units) {
  let unit = 0;
  while (unit + 1 < units.length && Math.abs(value) >= step - 0.5) {
    value /= step;
    unit += 1;
  }
  if (unit === 0) return `${Math.round(value)} ${units[0]}`;
  const size = Math.abs(value);
  return `${value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2)} ${units[unit]}`;
}
const timeText = (ns) => scaled(ns, 1000, ["ns", "µs", "ms", "s"]);
const bytesText = (bytes) => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const countText = (count) => Math.round(count).toString().replace(/\B(?=(\d{3})+$)/g, ",");
const ratioText = (ratio) => (ratio < 1.1 ? ratio.toFixed(3) : ratio.toFixed(2));
// As the command prints it: 50 %, 12.5 %, 0.25 %.
function percentText(part) {
  const percent = 100 * part;
  const whole = Math.abs(percent) >= 99.95 || percent === Math.round(percent);
  return `${percent.toFixed(whole ? 0 : Math.abs(percent) < 0.995 ? 2 : 1)} %`;
}
const plural = (count, word) => `${countText(count)} ${word}${count === 1 ? "" : "s"}`;

function figureText(figure) {
  switch (figure.unit) {
    case "ns":
      return timeText(figure.value);
    case "bytes":
      return bytesText(figure.value);
    case "count":
      return countText(figure.value);
    case "number":
      return String(Number(figure.value.toPrecision(5)));
    case "share":
      return percentText(figure.value);
    case "ratio":
      return `${ratioText(figure.value)}×`;
    case "mbps":
      return `${(figure.value / 1000).toFixed(2)} GB/s`;
    case "yes_no":
      return figure.value ? "yes" : "no";
    default:
      return figure.value;
  }
}

// Where a number comes from, next to what it is.
const sourceTag = (source) => (source ? el("span", {class: "source", "data-source": source}, source) : null);
const labelText = (figure) => (figure.source ? `${figure.label}, ${figure.source}` : figure.label);
// What a figure or a strategy means; null if its name says it all.
const meaning = (key) => (report.terms.find((term) => term.key === key) || {text: null}).text;

// Round numbers from low to high, about `count` of them. Times and counts go by tens, bytes by powers of two.
function ticks(low, high, count, unit = "count") {
  const span = high - low;
  if (!(span > 0)) return [low];
  const base = unit === "bytes" ? 2 ** Math.floor(Math.log2(span / count)) : 10 ** Math.floor(Math.log10(span / count));
  const step = base * (unit === "bytes" ? [1, 2, 4] : [1, 2, 5, 10]).find((m) => span / (base * m) <= count);
  const list = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i += 1) list.push(i * step);
  return list;
}

// A tick of a time axis, with as many digits as tell it from its neighbours.
function tickTime(ns, step) {
  const units = ["ns", "µs", "ms", "s"];
  let unit = 0;
  let size = 1;
  while (unit < 3 && Math.max(Math.abs(ns), step) >= 1000 * size) {
    size *= 1000;
    unit += 1;
  }
  return ns === 0 ? "0" :
                    `${(ns / size).toFixed(Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9)))} ${units[unit]}`;
}

// Colours are those of the style sheet, which knows about light and dark. A canvas has to ask for them.
const probe = el("span", {hidden: true});
const resolved = new Map();
function paint(css) {
  if (!resolved.has(css)) {
    probe.style.color = css;
    resolved.set(css, getComputedStyle(probe).color);
  }
  return resolved.get(css);
}
const colour = (name) => paint(`var(--${name})`);
const seriesColour = (index) => `series-${index % 8}`;

// What is legible on it.
function inkOn(fill) {
  const parts = fill.match(/[\d.]+/g).slice(0, 3).map((value) => Number(value) * (fill.startsWith("color(") ? 255 : 1));
  return 0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2] > 140 ? "#111" : "#fff";
}

// Waves are ordered, and so are their colours: from dark to bright, in steps that every eye tells apart.
const waveStops = 6;
function waveColour(wave, count) {
  const at = count <= 1 ? 1 : (wave / (count - 1)) * (waveStops - 1);
  const low = Math.min(waveStops - 2, Math.floor(at));
  return `color-mix(in srgb, var(--wave-${low + 1}) ${(100 * (at - low)).toFixed(1)}%, var(--wave-${low}))`;
}

// Whatever depends on widths, the theme or the medium registers how it is drawn.
const drawings = [];
let printing = false;
function onDraw(draw) {
  drawings.push(draw);
}
function drawAll() {
  resolved.clear();
  for (const draw of drawings) draw();
}

// The canvas exactly as wide as what it is in, with coordinates in CSS pixels: what stands next to it in HTML stays
// next to it. Paper is finer than a screen.
function fit(canvas, height) {
  const width = Math.max(1, canvas.parentElement.clientWidth);
  const finer = printing ? 3 : Math.max(1, window.devicePixelRatio);
  canvas.width = Math.round(width * finer);
  canvas.height = Math.round(height * finer);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(finer, 0, 0, finer, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  return {context, width, height};
}

// One tooltip for all, beside the pointer, and the same words for who cannot see it.
const tip = el("div", {id: "tip", role: "tooltip", hidden: true});
const spoken = el("div", {id: "spoken", class: "unseen", "aria-live": "polite"});
function showTip(x, y, title, lines) {
  tip.replaceChildren(el("strong", {}, title), ...lines.map((line) => el("div", {}, line)));
  tip.hidden = false;
  const {width, height} = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, window.innerWidth - width - 8))}px`;
  tip.style.top = `${y + 18 + height > window.innerHeight ? y - height - 10 : y + 18}px`;
}
function hideTip() {
  tip.hidden = true;
}
function speak(title, lines) {
  spoken.textContent = [title, ...lines].join(", ");
}

// The strategy that all parts show; parts that have it follow.
const chosen = {
  strategy: null,
  listeners: []
};
function choose(strategy) {
  chosen.strategy = strategy;
  for (const listener of chosen.listeners) listener(strategy);
}
// Calls with the place of the chosen one among `names`.
function followChoice(names, follow) {
  chosen.listeners.push((strategy) => {
    if (names.includes(strategy)) follow(names.indexOf(strategy));
  });
}

function part(id, title, lead, ...content) {
  return partFrom("", id, title, lead, ...content);
}
// A part all of whose figures come from one source.
function partFrom(source, id, title, lead, ...content) {
  const heading = el("h2", {id: `${id}-title`}, title, source ? " " : null, sourceTag(source));
  return el(
      "section", {id, class: "part", "aria-labelledby": `${id}-title`}, heading, el("p", {class: "lead"}, lead),
      content);
}

function picker(label, names, onchange) {
  const select =
      el("select", {onchange: () => onchange(select.selectedIndex)}, names.map((name) => el("option", {}, name)));
  return {select, field: el("label", {class: "field"}, `${label} `, select)};
}

function checkbox(label, id, onchange) {
  return el(
      "label", {class: "field"},
      el("input", {type: "checkbox", id, onchange: (event) => onchange(event.target.checked)}), ` ${label}`);
}

function swatch(background, text, extra = "") {
  return el("span", {class: "key"}, el("i", {class: extra, style: `background:${background}`}), text);
}

// Columns are figures, but for the first and those in `words`. A head is a text or {text, source, key}.
function tableHead(head, words) {
  const {text, source, key} = typeof head === "string" ? {text: head} : head;
  return el(
      "th", {scope: "col", class: words.includes(text) ? "words" : null, title: meaning(key)}, text,
      source ? el("br") : null, sourceTag(source));
}
const figureHead = (figure) => ({text: figure.label, source: figure.source, key: figure.key});

function table(heads, rows, caption, words = []) {
  return el(
      "div", {class: "scroll", tabindex: "0", role: "region", "aria-label": caption},
      el("table", {}, el("caption", {class: "unseen"}, caption),
         el("thead", {}, el("tr", {}, heads.map((head) => tableHead(head, words)))), el("tbody", {}, rows)));
}
