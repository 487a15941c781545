// Rows of figures next to each other: one figure of each row as a bar, and all figures as a table. Strategies are such
// rows, and can be chosen; their bytes show the padding in them.

function barRow(name, parts, text, most, choosable) {
  const share = (value) => `${most > 0 ? (100 * value) / most : 0}%`;
  const label = choosable ?
      el("button", {type: "button", class: "name", title: meaning(name), onclick: () => choose(name)}, name) :
      el("span", {class: "name"}, name);
  return el(
      "div", {class: "bar-row", "data-strategy": choosable ? name : null}, label,
      el("div", {class: "bar-track"},
         parts.map(([kind, value]) => el("div", {class: `bar ${kind}`, style: `width:${share(value)}`}))),
      el("div", {class: "bar-text"}, text));
}

const bytesMetric = {
  label: "Bytes and padding",
  of: (row) => ({
    parts: [["payload", row.bytes_sent - row.padding_bytes], ["padding", row.padding_bytes]],
    text: row.padding_bytes > 0 ? `${bytesText(row.bytes_sent)}, ${bytesText(row.padding_bytes)} of it padding` :
                                  `${bytesText(row.bytes_sent)}, no padding`,
    total: row.bytes_sent
  }),
  keys: ["payload", "padding"]
};

const withoutBars = ["text", "yes_no"];

function figureMetrics(figures) {
  return figures.map((figure, i) => [figure, i]).filter(([figure]) => !withoutBars.includes(figure.unit)).map(([
                                                                                                                figure,
                                                                                                                i
                                                                                                              ]) => {
    const label = labelText(figure);
    return {
      label: label[0].toUpperCase() + label.slice(1),
      of: (row) =>
          ({parts: [["payload", row.figures[i].value]], text: figureText(row.figures[i]), total: row.figures[i].value}),
      keys: []
    };
  });
}

// More or less of them is neither better nor worse.
const neutral = ["waves", "batch", "tolerance", "matrices", "elements"];

// How the best of each column reads: the least of it, or of speeds the most. Null where there is none.
function bestOf(rows) {
  return rows[0].figures.map((figure, i) => {
    const values = rows.map((row) => row.figures[i].value);
    const texts = new Set(rows.map((row) => figureText(row.figures[i])));
    if (withoutBars.includes(figure.unit) || neutral.includes(figure.key) || texts.size === 1) return null;
    const most = ["speed_up", "tokens_per_s", "gflops"].includes(figure.key);
    return figureText({...figure, value: most ? Math.max(...values) : Math.min(...values)});
  });
}

// Bars with a choice of the figure that they show. `shown` is called when they are new.
function bars(id, rows, metrics, {choosable, shown}) {
  const chart = el("div", {class: "bars", id: `${id}-bars`, role: "group", "aria-label": "Bars"});
  const keys = el("div", {class: "legend"});
  const show = (index) => {
    const values = rows.map((row) => metrics[index].of(row));
    const most = Math.max(...values.map((value) => value.total));
    chart.replaceChildren(...rows.map((row, i) => barRow(row.name, values[i].parts, values[i].text, most, choosable)));
    keys.replaceChildren(
        ...metrics[index].keys.map((key) => swatch("", key === "payload" ? "data" : "padding", `bar ${key}`)));
    shown();
  };
  const metric = picker("Bars show", metrics.map((m) => m.label), show);
  return {show, controls: el("div", {class: "controls"}, metric.field, keys), chart};
}

function figureTable(rows, rowLabel, caption, choosable) {
  const best = rows.length > 1 ? bestOf(rows) : [];
  const words = rows[0].figures.filter((figure) => figure.unit === "text").map((figure) => figure.label);
  const cell = (figure, i) =>
      el("td", {
        "data-key": figure.key,
        "data-value": String(figure.value),
        class: figure.unit === "text"      ? "words" :
            figureText(figure) === best[i] ? "best" :
                                             null
      },
         figureText(figure));
  const name = (row) => choosable ?
      el("button", {type: "button", class: "name", title: meaning(row.name), onclick: () => choose(row.name)},
         row.name) :
      row.name;
  const lines = rows.map(
      (row) =>
          el("tr", {"data-strategy": choosable ? row.name : null, "data-row": row.name},
             el("th", {scope: "row"}, name(row)), row.figures.map(cell)));
  return table([rowLabel, ...rows[0].figures.map(figureHead)], lines, caption, words);
}

// Bars are for figures that say how much: a number of waves, say, is in the table.
function comparisonPart({title, lead, row_label: rowLabel, rows}, number) {
  const id = `comparison-${number}`;
  const metrics = figureMetrics(rows[0].figures);
  const says = rows[0].figures.some((figure) => !["count", ...withoutBars].includes(figure.unit));
  const drawn = rows.length > 1 && says ? bars(id, rows, metrics, {choosable: false, shown: () => {}}) : null;
  if (drawn) drawn.show(0);
  return part(
      id, title, lead, drawn && drawn.controls, drawn && drawn.chart, figureTable(rows, rowLabel, title, false));
}

function strategiesPart() {
  const rows = report.strategies.map((row) => ({...row, name: row.strategy}));
  const mark = (strategy) => {
    for (const row of section.querySelectorAll("[data-strategy]")) {
      const is = row.dataset.strategy === strategy;
      row.classList.toggle("chosen", is);
      row.querySelector("button").setAttribute("aria-pressed", String(is));
    }
  };
  const figures = figureMetrics(rows[0].figures);
  const metrics = [...figures.slice(0, 1), bytesMetric, ...figures.slice(1)];
  const drawn = bars("strategy", rows, metrics, {choosable: true, shown: () => section && mark(chosen.strategy)});
  const sources = new Set(rows[0].figures.map((figure) => figure.source).filter((source) => source));
  let section = null;
  drawn.show(0);
  section = partFrom(
      sources.size === 1 ? [...sources][0] : "", "strategies", "Strategies",
      `What an optimizer step takes with each. ${report.strategies_note} Choose one, and the other parts show it.`,
      drawn.controls, drawn.chart, figureTable(rows, "strategy", "All figures by strategy", true));
  chosen.listeners.push(mark);
  return section;
}
