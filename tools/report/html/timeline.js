// What every rank does in a step. Time runs to the right; a rank has lanes for what it computes and what it exchanges.

const lane = {
  left: 68,
  top: 24,
  best: 16,
  gap: 6,
  highest: 640,
  lowest: 150
};

// The kinds of spans that colours tell apart, and what their names begin with. Others get the colours that are left.
const spanKinds = [
  {name: "orthogonalize", colour: "span-orthogonalize", match: /^orthogonalize/},
  {name: "normalize", colour: "span-normalize", match: /^normalize/},
  {name: "pack, assemble, stage", colour: "span-pack", match: /^(pack|assemble|stage)/},
  {name: "apply", colour: "span-apply", match: /^apply/},
  {name: "AdamW and Lion", colour: "span-elementwise", match: /^elementwise/},
  {name: "forward and backward", colour: "span-model", match: /^forward/},
  {name: "waiting", colour: "span-waiting", match: /^wait/},
  {name: "control", colour: "span-control", match: /^control/},
];
const exchangeKinds = [
  {name: "exchange in", colour: "span-in", match: / in$/},
  {name: "exchange out", colour: "span-out", match: / out$/},
  {name: "other exchanges", colour: "span-exchange", match: /./},
];

function kindsOf(labels) {
  const used = new Map();
  const of = labels.map(([text, exchange]) => {
    const plain = text.replace(/^[\d,]+ × /, "");
    const known = (exchange ? exchangeKinds : spanKinds).find((kind) => kind.match.test(plain));
    const name = known ? known.name : plain.split(" ")[0];
    if (!used.has(name)) used.set(name, known ? known.colour : seriesColour(used.size));
    return name;
  });
  return {of, colours: used};
}

function decode(timeline) {
  const ranks = timeline.ranks.map(([rank, end, tracks]) => ({
                                     rank,
                                     end,
                                     tracks: tracks.map(([exchange, flat]) => {
                                       const count = flat.length / 3;
                                       const track = {
                                         exchange,
                                         label: new Int32Array(count),
                                         begin: new Float64Array(count),
                                         end: new Float64Array(count)
                                       };
                                       let at = 0;
                                       for (let i = 0; i < count; i += 1) {
                                         track.label[i] = flat[3 * i];
                                         track.begin[i] = at + flat[3 * i + 1];
                                         track.end[i] = at = track.begin[i] + flat[3 * i + 2];
                                       }
                                       return track;
                                     })
                                   }));
  const lanesOf = (exchange) =>
      Math.max(1, ...ranks.map((r) => r.tracks.filter((t) => t.exchange === exchange).length));
  return {...timeline, ranks, kinds: kindsOf(timeline.labels), computeLanes: lanesOf(0), exchangeLanes: lanesOf(1)};
}

// The first span that ends after `time`.
function firstAfter(track, time) {
  let low = 0;
  let high = track.end.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (track.end[middle] > time)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

function busy(step, rank) {
  const sum = {computing: 0, exchanging: 0, waiting: 0};
  for (const track of rank.tracks) {
    for (let i = 0; i < track.label.length; i += 1) {
      const kind = step.kinds.of[track.label[i]];
      sum[track.exchange         ? "exchanging" :
              kind === "waiting" ? "waiting" :
                                   "computing"] += track.end[i] - track.begin[i];
    }
  }
  return sum;
}

// What may stand in a span, the longest first. Cut anywhere else, "wave 10 in" and "wave 11 out" would read alike.
function spanTexts(text) {
  const exchange = text.match(/^wave (\d+) (in|out)$/);
  if (exchange) return [text, `${exchange[1]} ${exchange[2]}`];
  return /^\d/.test(text) ? [text] : [text, text.split(" ")[0]];
}

class TimelineView {
  constructor(canvas, steps) {
    this.canvas = canvas;
    this.steps = steps;
    this.bySlowest = false;
    this.onchange = () => {};
    this.show(0);
  }

  show(index) {
    this.step = this.steps[index];
    this.sort();
    this.fitAll();
  }

  sort() {
    this.rows = this.step.ranks.slice();
    if (this.bySlowest) this.rows.sort((a, b) => b.end - a.end || a.rank - b.rank);
    this.selected = null;
  }

  fitAll() {
    [this.t0, this.t1, this.r0, this.r1] = [0, this.step.length_ns, 0, this.rows.length];
  }

  get lanes() {
    return this.step.computeLanes + this.step.exchangeLanes;
  }

  // Around a place given in shares of what is seen.
  zoomTime(factor, share = 0.5) {
    const span = Math.min(this.step.length_ns, Math.max(10, (this.t1 - this.t0) / factor));
    const fixed = this.t0 + (this.t1 - this.t0) * share;
    this.t0 = fixed - span * share;
    this.t1 = this.t0 + span;
    this.clamp();
  }

  zoomRanks(factor, share = 0.5) {
    const span = Math.min(this.rows.length, Math.max(1, (this.r1 - this.r0) / factor));
    const fixed = this.r0 + (this.r1 - this.r0) * share;
    this.r0 = fixed - span * share;
    this.r1 = this.r0 + span;
    this.clamp();
  }

  pan(time, ranks) {
    [this.t0, this.t1] = [this.t0 + time, this.t1 + time];
    [this.r0, this.r1] = [this.r0 + ranks, this.r1 + ranks];
    this.clamp();
  }

  clamp() {
    const shift = (low, high, most) => (low < 0 ? -low : high > most ? most - high : 0);
    const time = shift(this.t0, this.t1, this.step.length_ns);
    const ranks = shift(this.r0, this.r1, this.rows.length);
    [this.t0, this.t1] = [this.t0 + time, this.t1 + time];
    [this.r0, this.r1] = [this.r0 + ranks, this.r1 + ranks];
    this.draw();
  }

  height() {
    const wanted = lane.top + this.rows.length * (this.lanes * lane.best + lane.gap);
    return Math.max(lane.lowest, Math.min(lane.highest, wanted));
  }

  draw() {
    const {context, width, height} = fit(this.canvas, this.height());
    this.width = width - lane.left;
    this.plot = height - lane.top;
    this.rowHeight = this.plot / (this.r1 - this.r0);
    // A lane takes a pixel at least: where there are too many, some ranks stand for their neighbours.
    this.stride = Math.max(1, Math.ceil(this.lanes / this.rowHeight));
    this.drawAxis(context, height);
    context.save();
    context.beginPath();
    context.rect(lane.left, lane.top, this.width, this.plot);
    context.clip();
    for (let row = this.shown(this.r0); row < Math.min(this.rows.length, this.r1); row += this.stride)
      this.drawRow(context, row);
    context.restore();
    this.drawNames(context, height);
    this.tell();
    this.onchange();
  }

  // What it shows, for tests and for who cannot see it.
  tell() {
    const {name, ranks, length_ns: length} = this.step;
    Object.assign(this.canvas.dataset, {t0: this.t0, t1: this.t1, r0: this.r0, r1: this.r1, step: name});
    const words = `Timeline of ${name}, ${plural(ranks.length, "rank")}, ${timeText(length)}`;
    this.canvas.setAttribute("aria-label", words);
  }

  // The rank that is drawn there.
  shown(row) {
    return Math.floor(row / this.stride) * this.stride;
  }

  x(time) {
    return lane.left + ((time - this.t0) / (this.t1 - this.t0)) * this.width;
  }

  drawAxis(context, height) {
    const places = ticks(this.t0, this.t1, Math.max(2, this.width / 110));
    const step = places.length > 1 ? places[1] - places[0] : this.t1 - this.t0;
    context.textAlign = "center";
    for (const time of places) {
      context.fillStyle = colour("line");
      context.fillRect(Math.round(this.x(time)), lane.top - 6, 1, height);
      context.fillStyle = colour("muted");
      const text = tickTime(time, step);
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(this.x(time), lane.left + this.width - half), 9);
    }
  }

  laneBox(row, track, index) {
    const gap = this.rowHeight > 12 ? lane.gap / 2 : 0;
    const top = lane.top + (row - this.r0) * this.rowHeight + gap;
    const each = (this.rowHeight * this.stride - 2 * gap) / this.lanes;
    const before = this.rows[row].tracks.slice(0, index).filter((t) => t.exchange === track.exchange).length;
    const at = top + each * (before + (track.exchange ? this.step.computeLanes : 0));
    // On whole pixels: lanes that share one would mix their colours.
    return {top: Math.round(at), height: Math.max(1, Math.round(at + each) - Math.round(at) - (each > 4 ? 1 : 0))};
  }

  drawRow(context, row) {
    this.rows[row].tracks.forEach((track, index) => {
      const box = this.laneBox(row, track, index);
      let drawnTo = -1;
      for (let i = firstAfter(track, this.t0); i < track.label.length && track.begin[i] < this.t1; i += 1) {
        const from = Math.max(lane.left, this.x(track.begin[i]));
        const to = Math.max(from + 0.6, Math.min(lane.left + this.width, this.x(track.end[i])));
        if (to < drawnTo + 0.4) continue;
        drawnTo = to;
        this.drawSpan(context, track.label[i], from, to, box);
      }
    });
    if (this.selected && this.selected.row === row) {
      const {track, index, i} = this.selected;
      const box = this.laneBox(row, track, index);
      context.strokeStyle = colour("text");
      context.lineWidth = 2;
      context.strokeRect(
          this.x(track.begin[i]), box.top, Math.max(2, this.x(track.end[i]) - this.x(track.begin[i])), box.height);
    }
  }

  drawSpan(context, label, from, to, box) {
    const fill = colour(this.step.kinds.colours.get(this.step.kinds.of[label]));
    context.fillStyle = fill;
    context.fillRect(from, box.top, to - from - (to - from > 3 ? 0.5 : 0), box.height);
    if (box.height < 11 || to - from < 24) return;
    const room = Math.floor((to - from - 8) / 6);
    const text = spanTexts(this.step.labels[label][0]).find((words) => words.length <= room);
    if (!text) return;
    context.fillStyle = inkOn(fill);
    context.textAlign = "left";
    context.fillText(text, from + 4, box.top + box.height / 2 + 0.5);
  }

  drawNames(context, height) {
    const every = Math.max(1, Math.ceil(14 / this.rowHeight));
    context.textAlign = "right";
    context.fillStyle = colour("muted");
    for (let row = Math.floor(this.r0 / every) * every; row < Math.min(this.rows.length, this.r1); row += every) {
      const y = lane.top + (row - this.r0) * this.rowHeight + (every > 1 ? 6 : this.rowHeight / 2);
      if (y >= lane.top + 6 && y <= height - 5) context.fillText(`rank ${this.rows[row].rank}`, lane.left - 8, y);
    }
  }

  // What is under a place on the canvas, in CSS pixels.
  at(x, y) {
    const row = this.shown(this.r0 + (y - lane.top) / this.rowHeight);
    if (x < lane.left || y < lane.top || row < 0 || row >= this.rows.length) return null;
    const time = this.t0 + ((x - lane.left) / this.width) * (this.t1 - this.t0);
    const tolerance = ((this.t1 - this.t0) / this.width) * 1.5;
    let found = null;
    this.rows[row].tracks.forEach((track, index) => {
      const box = this.laneBox(row, track, index);
      if (y < box.top || y > box.top + box.height + 1) return;
      const i = firstAfter(track, time - tolerance);
      if (i < track.label.length && track.begin[i] <= time + tolerance) found = {row, track, index, i};
    });
    return found;
  }

  describe({row, track, i}) {
    const [text, , wave, bytes] = this.step.labels[track.label[i]];
    const duration = track.end[i] - track.begin[i];
    const lines = [
      `rank ${this.rows[row].rank}`,
      `${timeText(duration)}, from ${timeText(track.begin[i])} to ${timeText(track.end[i])}`
    ];
    if (wave >= 0) lines.push(`wave ${wave}`);
    if (bytes > 0)
      lines.push(`${bytesText(bytes)}${duration > 0 ? `, ${((bytes / duration)).toPrecision(3)} GB/s` : ""}`);
    return {title: text, lines};
  }

  // Moves the selection along its lane, or to another rank, and brings it into view.
  select(along, ranks) {
    const old = this.selected;
    if (!old) {
      const row = this.rows.findIndex((r) => r.tracks.some((t) => t.label.length > 0));
      if (row < 0) return null;
      const index = this.rows[row].tracks.findIndex((t) => t.label.length > 0);
      this.selected = {row, track: this.rows[row].tracks[index], index, i: 0};
    } else if (along) {
      old.i = Math.max(0, Math.min(old.track.label.length - 1, old.i + along));
    } else {
      const row = Math.max(0, Math.min(this.rows.length - 1, old.row + ranks));
      const {tracks} = this.rows[row];
      const index = Math.min(old.index, tracks.length - 1);
      if (index < 0 || tracks[index].label.length === 0) return null;
      this.selected = {
        row,
        track: tracks[index],
        index,
        i: Math.min(tracks[index].label.length - 1, firstAfter(tracks[index], old.track.begin[old.i]))
      };
    }
    const {row, track, i} = this.selected;
    const middle = (track.begin[i] + track.end[i]) / 2;
    const time = middle < this.t0 || middle > this.t1 ? middle - (this.t0 + this.t1) / 2 : 0;
    const rows = row < this.r0 ? row - this.r0 : row + 1 > this.r1 ? row + 1 - this.r1 : 0;
    this.pan(time, rows);
    return this.describe(this.selected);
  }
}
