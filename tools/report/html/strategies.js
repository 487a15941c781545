// Strategies side by side: one figure of each as a bar, bytes with the padding in them, and all figures as a table.

function barRow(row, parts, text, most) {
  const share = (value) => `${most > 0 ? (100 * value) / most : 0}%`;
  return el(
      "div", {class: "bar-row", "data-strategy": row.strategy},
      el("button", {type: "button", class: "name", onclick: () => choose(row.strategy)}, row.strategy),
      el("div", {class: "bar-track"},
         parts.map(([kind, value]) => el("div", {class: `bar ${kind}`, style: `width:${share(value)}`}))),
      el("div", {class: "bar-text"}, text));
}

function strategiesPart() {
  const rows = report.strategies;
  const figures = rows[0].figures;
  const metrics = [
    {
      label: "Bytes and padding",
      of: (row) => ({
        parts: [["payload", row.bytes_sent - row.padding_bytes], ["padding", row.padding_bytes]],
        text: row.padding_bytes > 0 ? `${bytesText(row.bytes_sent)}, ${bytesText(row.padding_bytes)} of it padding` :
                                      `${bytesText(row.bytes_sent)}, no padding`,
        total: row.bytes_sent
      }),
      keys: ["payload", "padding"]
    },
    ...figures.map((figure, i) => [figure, i])
        .filter(([figure]) => !["text", "yes_no"].includes(figure.unit))
        .map(([figure, i]) => ({
               label: figure.label[0].toUpperCase() + figure.label.slice(1),
               of: (row) => ({
                 parts: [["payload", row.figures[i].value]],
                 text: figureText(row.figures[i]),
                 total: row.figures[i].value
               }),
               keys: []
             })),
  ];
  const bars = el("div", {class: "bars", id: "strategy-bars", role: "group", "aria-label": "Bars by strategy"});
  const keys = el("div", {class: "legend"});
  const show = (index) => {
    const shown = rows.map((row) => metrics[index].of(row));
    const most = Math.max(...shown.map((s) => s.total));
    bars.replaceChildren(...rows.map((row, i) => barRow(row, shown[i].parts, shown[i].text, most)));
    keys.replaceChildren(
        ...metrics[index].keys.map((key) => swatch("", key === "payload" ? "data" : "padding", `bar ${key}`)));
    mark(chosen.strategy);
  };
  // How the best of each column reads: the least of it, or of speeds the most.
  const best = figures.map((figure, i) => {
    const values = rows.map((row) => row.figures[i].value);
    const texts = new Set(rows.map((row) => figureText(row.figures[i])));
    if (["text", "yes_no"].includes(figure.unit) || texts.size === 1) return null;
    return figureText({
      ...figure,
      value: ["speed_up", "tokens_per_s"].includes(figure.key) ? Math.max(...values) : Math.min(...values)
    });
  });
  const lines = rows.map(
      (row) =>
          el("tr", {"data-strategy": row.strategy},
             el("th", {scope: "row"},
                el("button", {type: "button", class: "name", onclick: () => choose(row.strategy)}, row.strategy)),
             row.figures.map(
                 (figure, i) =>
                     el("td", {
                       "data-key": figure.key,
                       "data-value": String(figure.value),
                       class: figureText(figure) === best[i] ? "best" : null
                     },
                        figureText(figure)))));
  const metric = picker("Bars show", metrics.map((m) => m.label), show);
  const section = part(
      "strategies", "Strategies", "What a step takes with each. Choose one, and the other parts show it.",
      el("div", {class: "controls"}, metric.field, keys), bars,
      table(["strategy", ...figures.map((figure) => figure.label)], lines, "All figures by strategy"));
  const mark = (strategy) => {
    for (const row of section.querySelectorAll("[data-strategy]")) {
      const is = row.dataset.strategy === strategy;
      row.classList.toggle("chosen", is);
      row.querySelector("button").setAttribute("aria-pressed", String(is));
    }
  };
  show(0);
  chosen.listeners.push(mark);
  return section;
}
