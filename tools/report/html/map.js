// Who owns which matrices: classes of matrices down, ranks across, colours for waves. A class opens into its layers and
// a layer into its matrices.

const mapRow = {
  top: 22,
  open: 24,
  closed: 3,
  most: 600,
  cell: 3,
  // On a phone there is no room for names next to the bars: they are above them.
  narrow: 560,
  narrowTop: 40,
  band: 22
};

function runs(flat, count) {
  const list = new Int32Array(count);
  let at = 0;
  for (let i = 0; i < flat.length; i += 2) {
    list.fill(flat[i], at, at + flat[i + 1]);
    at += flat[i + 1];
  }
  return list;
}

function decodeMap(map) {
  const count = map.owner.length;
  let first = 0;
  const classes = map.classes.map((c) => {
    const begin = first;
    const layers = c.layers.map(([name, matrices]) => {
      first += matrices;
      return {name, first: first - matrices, count: matrices};
    });
    return {name: c.name, shape: c.shape, first: begin, count: first - begin, layers};
  });
  const places = map.replicas.map((replicas) => {
    const place = new Map();
    for (const ranks of replicas) ranks.forEach((rank, i) => place.set(rank, i));
    return place;
  });
  const repeated = runs(map.repeated_runs, count);
  const owners = (j) => {
    const set = repeated[j];
    if (set < 0) return [map.owner[j]];
    const place = places[set].get(map.owner[j]);
    return map.replicas[set].map((ranks) => ranks[place]);
  };
  return {...map, classes, wave: runs(map.wave_runs, count), owners};
}

// What a row of the map stands for: matrices first to first + count - 1, and what it opens into.
function mapRows(map, path) {
  if (path.length === 0) {
    return map.classes.map((c, i) => ({
                             name: c.name,
                             detail: `${c.shape} · ${countText(c.count)}`,
                             first: c.first,
                             count: c.count,
                             opens: c.count > 1 ? [i] : null
                           }));
  }
  const c = map.classes[path[0]];
  if (path.length === 1 && c.layers.length > 1) {
    return c.layers.map((layer, i) => ({
                          name: layer.name,
                          detail: countText(layer.count),
                          first: layer.first,
                          count: layer.count,
                          opens: layer.count > 1 ? [path[0], i] : null
                        }));
  }
  const layer = c.layers[path.length === 1 ? 0 : path[1]];
  const each = Math.ceil(layer.count / mapRow.most);
  const rows = [];
  for (let i = 0; i < layer.count; i += each) {
    const count = Math.min(each, layer.count - i);
    rows.push({
      name: count > 1 ? `${i}–${i + count - 1}` : String(i),
      detail: "",
      first: layer.first + i,
      count,
      opens: null
    });
  }
  return rows;
}

// How many characters all names begin with in common, up to the end of a part between dots.
function alike(names, read) {
  const [first, ...others] = names.map(read);
  let count = 0;
  while (count < first.length && others.every((name) => name[count] === first[count])) count += 1;
  return first.lastIndexOf(".", count - 1) + 1;
}

// Names cut so that they fit, and so that those that differ still differ: what they begin with alike goes first.
function shortNames(names, fits) {
  if (names.every(fits)) return names;
  const longest = (name, cut) => {
    if (fits(name)) return name;
    let kept = name.length - 1;
    while (kept > 1 && !fits(cut(name, kept))) kept -= 1;
    return cut(name, kept);
  };
  const begin = alike(names, (name) => name);
  const end = alike(names, (name) => [...name].reverse().join(""));
  const core = (name) => `…${name.slice(begin, name.length - end)}…`;
  const tail = (name, kept) => `…${name.slice(-kept)}`;
  const middle = (name, kept) => `${name.slice(0, Math.ceil(kept / 2))}…${name.slice(-Math.floor(kept / 2))}`;
  const different = new Set(names).size;
  for (const cut of [tail, core, middle]) {
    const short = names.map((name) => longest(name, cut));
    if (short.every(fits) && new Set(short).size === different) return short;
  }
  return names.map((name, i) => longest(name, (text, kept) => `${i + 1}: ${tail(text, kept)}`));
}

class MapView {
  constructor(frame, canvas, labels) {
    this.frame = frame;
    this.canvas = canvas;
    this.labels = labels;
    this.measure = document.createElement("canvas").getContext("2d");
    this.path = [];
    this.cursor = null;  // the cell that keys are at
    this.onchange = () => {};
  }

  show(map, path = []) {
    this.map = map;
    this.open(path);
  }

  open(path) {
    this.path = path;
    this.rows = mapRows(this.map, path);
    this.labelled = this.rows.length <= 100;
    this.cursor = null;
    this.draw();
  }

  // Matrices by row, bin of ranks and wave.
  count(bins, each) {
    const cells = new Map();
    this.rows.forEach((row, at) => {
      for (let j = row.first; j < row.first + row.count; j += 1) {
        for (const owner of this.map.owners(j)) {
          const key = at * bins + Math.floor(owner / each);
          if (!cells.has(key)) cells.set(key, new Map());
          const waves = cells.get(key);
          waves.set(this.map.wave[j], (waves.get(this.map.wave[j]) || 0) + 1);
        }
      }
    });
    return cells;
  }

  // Rows of labels and canvas are the same by construction: both take their heights from here.
  layOut() {
    const narrow = this.frame.clientWidth < mapRow.narrow;
    this.frame.classList.toggle("narrow", narrow);
    this.frame.classList.toggle("labelled", this.labelled);
    this.top = narrow && this.labelled ? mapRow.narrowTop : mapRow.top;
    this.band = narrow && this.labelled ? mapRow.band : 0;
    this.rowHeight = this.labelled ? this.band + mapRow.open :
                                     Math.max(mapRow.closed, Math.min(12, Math.floor(1200 / this.rows.length)));
  }

  draw() {
    this.layOut();
    this.labels.replaceChildren(...this.rowLabels());
    const {context, width} = fit(this.canvas, this.top + this.rows.length * this.rowHeight + 2);
    this.each = Math.max(1, Math.ceil((this.map.ranks * mapRow.cell) / width));
    this.bins = Math.ceil(this.map.ranks / this.each);
    this.step = Math.min(width / this.bins, 96);
    this.cells = this.count(this.bins, this.each);
    this.drawAxis(context);
    const most = new Array(this.rows.length).fill(1);
    const total = (waves) => [...waves.values()].reduce((sum, n) => sum + n, 0);
    for (const [key, waves] of this.cells) {
      const row = Math.floor(key / this.bins);
      most[row] = Math.max(most[row], total(waves));
    }
    for (const [key, waves] of this.cells)
      this.drawCell(context, key, waves, total(waves), most[Math.floor(key / this.bins)]);
    this.tell();
    this.onchange();
  }

  // What it shows, for tests and for who cannot see it.
  tell() {
    Object.assign(this.canvas.dataset, {level: this.path.length, rows: this.rows.length, strategy: this.map.strategy});
    const size = `${plural(this.rows.length, "row")} of matrices by ${plural(this.map.ranks, "rank")}`;
    this.canvas.setAttribute("aria-label", `${size}; arrow keys read cells`);
  }

  drawAxis(context) {
    context.fillStyle = colour("muted");
    context.textAlign = "center";
    for (const rank of ticks(0, this.map.ranks - 1, Math.min(this.map.ranks, this.step * this.bins / 48))
             .filter(Number.isInteger)) {
      context.fillText(countText(rank), Math.max(10, (rank / this.each + 0.5) * this.step), this.top - 13);
    }
    context.fillStyle = colour("line");
    for (let row = 0; this.labelled && row <= this.rows.length; row += 1) {
      context.fillRect(
          0, this.top + row * this.rowHeight, this.band > 0 ? this.canvas.clientWidth : this.step * this.bins, 1);
    }
  }

  // As high as its share of the fullest cell of the row, cut by waves.
  drawCell(context, key, waves, total, most) {
    const gap = this.rowHeight > 8 ? 2 : 0;
    const x = (key % this.bins) * this.step;
    const bottom = this.top + (Math.floor(key / this.bins) + 1) * this.rowHeight - gap / 2;
    const full = this.rowHeight - this.band - gap - (gap > 0 ? 1 : 0);
    const width = this.step - (this.step > 5 ? 1.5 : 0);
    let y = bottom;
    const sorted = [...waves].sort((a, b) => a[0] - b[0]);
    for (const [wave, count] of sorted) {
      const high = full * (count / most);
      y -= high;
      context.fillStyle = paint(waveColour(wave, this.map.wave_count));
      context.fillRect(x, y, width, high);
    }
    if (this.step < 26 || full * (total / most) < 14 || total < 2) return;
    context.textAlign = "center";
    context.fillStyle = inkOn(paint(waveColour(sorted[0][0], this.map.wave_count)));
    context.fillText(countText(total), x + width / 2, bottom - 8);
  }

  rowLabels() {
    if (!this.labelled) return [el("div", {class: "map-many"}, plural(this.rows.length, "row"))];
    const style = `height:${this.band || this.rowHeight}px;margin-bottom:${this.band > 0 ? mapRow.open : 0}px`;
    const names = this.shortRowNames();
    const labels = this.rows.map((row, i) => {
      const inside = [el("span", {}, names[i]), el("small", {}, row.detail)];
      return row.opens ? el("button", {
        type: "button",
        class: "map-label",
        style,
        title: `Open ${row.name}`,
        onclick: () => this.open(row.opens)
      },
                            inside) :
                         el("div", {class: "map-label", style, title: row.name}, inside);
    });
    return [el("div", {class: "map-head", style: `height:${this.top}px`}, "rank →"), ...labels];
  }

  // As long as the column has room for, next to the details.
  shortRowNames() {
    const context = this.measure;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    context.font = `${0.8125 * rem}px ${getComputedStyle(this.labels).fontFamily}`;
    const around = 36;
    const detail = Math.max(...this.rows.map((row) => context.measureText(row.detail).width));
    const room = this.labels.clientWidth - detail - around;
    return shortNames(this.rows.map((row) => row.name), (name) => context.measureText(name).width <= room);
  }

  at(x, y) {
    const row = Math.floor((y - this.top) / this.rowHeight);
    const bin = Math.floor(x / this.step);
    if (row < 0 || row >= this.rows.length || bin < 0 || bin >= this.bins) return null;
    return {row, bin};
  }

  move(down, right) {
    const {row, bin} = this.cursor || {row: -down, bin: -right};
    const within = (value, count) => Math.max(0, Math.min(count - 1, value));
    this.cursor = {row: within(row + down, this.rows.length), bin: within(bin + right, this.bins)};
  }

  corner({row, bin}) {
    return [bin * this.step, this.top + row * this.rowHeight];
  }

  describe({row, bin}) {
    const last = Math.min(this.map.ranks, (bin + 1) * this.each) - 1;
    const ranks = this.each > 1 ? `ranks ${bin * this.each} to ${last}` : `rank ${bin}`;
    const waves = this.cells.get(row * this.bins + bin);
    const of = this.rows[row];
    const leaf = of.opens === null && of.count === 1;
    const lines = [];
    if (!waves)
      lines.push(`${ranks}: none`);
    else
      for (const [wave, count] of [...waves].sort((a, b) => a[0] - b[0]).slice(0, 12))
        lines.push(`${ranks}: ${plural(count, "matrix").replace("matrixs", "matrices")} in wave ${wave}`);
    if (waves && waves.size > 12) lines.push(`… ${waves.size - 12} more waves`);
    if (leaf) lines.push(`owned by rank ${this.map.owners(of.first).join(", ")}`);
    return {title: `${this.path.length > 0 && !this.labelled ? "matrix " : ""}${of.name}`, lines};
  }
}

function waveLegend(map) {
  if (map.wave_count > 12) {
    const stops = [0, 0.2, 0.4, 0.6, 0.8, 1].map((at) => waveColour(at * 100, 101));
    return [el(
        "span", {class: "key"}, "wave 0",
        el("i", {class: "ramp", style: `background:linear-gradient(90deg,${stops.join(",")})`}),
        `wave ${countText(map.wave_count - 1)}`)];
  }
  return Array.from({length: map.wave_count}, (_, wave) => swatch(waveColour(wave, map.wave_count), `wave ${wave}`));
}

function waveTable(map) {
  if (map.waves.length === 0) return [];
  const rows = [];
  map.waves.forEach((wave, i) => {
    const before = i > 0 ? wave.wave - map.waves[i - 1].wave - 1 : 0;
    if (before > 0)
      rows.push(
          el("tr", {}, el("td", {colspan: 3 + wave.figures.length, class: "more"}, `… ${countText(before)} more`)));
    rows.push(el(
        "tr", {"data-wave": wave.wave}, el("th", {scope: "row"}, String(wave.wave)),
        el("td", {class: "words"}, wave.shapes), el("td", {class: "words"}, wave.transport),
        wave.figures.map(
            (figure) => el("td", {"data-key": figure.key, "data-value": String(figure.value)}, figureText(figure)))));
  });
  return [
    el("summary", {}, `${plural(map.wave_count, "wave")}, as a table`),
    table(
        ["wave", "shapes", "transport", ...map.waves[0].figures.map(figureHead)], rows, "Waves",
        ["shapes", "transport"])
  ];
}
