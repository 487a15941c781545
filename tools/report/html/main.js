// The page: its head, the parts there is something to show for, light, dark and paper.

function themeSwitch() {
  const names = ["auto", "light", "dark"];
  const buttons = names.map(
      (name) =>
          el("button", {
            type: "button",
            "data-theme-name": name,
            "aria-pressed": String(name === "auto"),
            onclick: () => {
              document.documentElement.dataset.theme = name;
              for (const button of buttons)
                button.setAttribute("aria-pressed", String(button.dataset.themeName === name));
              drawAll();
            }
          },
             name[0].toUpperCase() + name.slice(1)));
  return el("div", {class: "segments", role: "group", "aria-label": "Colours"}, buttons);
}

function factsPart() {
  const tiles = report.facts.map(
      (fact) =>
          el("div", {class: "tile", "data-key": fact.key, "data-value": String(fact.value), title: meaning(fact.key)},
             el("dt", {}, fact.label, fact.source ? " " : null, sourceTag(fact.source)), el("dd", {}, figureText(fact)),
             fact.note ? el("dd", {class: "note"}, fact.note) : null));
  return el("section", {id: "facts", "aria-label": "Figures"}, el("dl", {class: "tiles"}, tiles));
}

function findingsPart() {
  return el(
      "section", {id: "findings", "aria-label": "Findings"},
      el("ul", {}, report.findings.map((finding) => el("li", {}, finding))));
}

// Names break behind their dots and underscores, where there is no room for the whole.
const breakable = (name) => name.split(/(?<=[._])/).flatMap((piece) => [piece, el("wbr")]);

// A window over a long table: its heads and the names of its rows stay in sight.
function tablePart({title, lead, heads, words, rows, total}, number) {
  const line = ([first, ...rest]) =>
      el("tr", {}, el("th", {scope: "row"}, breakable(first)),
         rest.map((cell, i) => el("td", {class: words.includes(heads[i + 1]) ? "words" : null}, cell)));
  const scroll = table(heads, rows.map(line), title, words);
  scroll.classList.add("window");
  if (total.length > 0) scroll.querySelector("table").append(el("tfoot", {}, line(total)));
  return part(`table-${number}`, title, lead, scroll);
}

// What the names of strategies and figures mean.
function termsPart() {
  const list = report.terms.flatMap(({key, name, text}) => [el("dt", {"data-term": key}, name), el("dd", {}, text)]);
  return part(
      "terms", "What the words mean", "Strategies and figures of this report.", el("dl", {class: "terms"}, list));
}

function head(parts) {
  const links = parts.filter((p) => p.querySelector("h2"))
                    .map((p) => el("a", {href: `#${p.id}`}, p.querySelector("h2").firstChild.textContent));
  return [
    el("header", {},
       el("div", {}, el("p", {class: "brand"}, "Muster"), el("h1", {}, report.title),
          el("p", {class: "subtitle"}, report.subtitle)),
       themeSwitch()),
    links.length > 1 ? el("nav", {"aria-label": "Parts"}, links) : null,
  ];
}

// Paper gets everything: light colours, finer drawings, and tables that are folded on a screen.
function followMedium() {
  const folded = new Set();
  const enter = () => {
    if (printing) return;
    printing = true;
    for (const details of document.querySelectorAll("details:not([open])")) {
      folded.add(details);
      details.open = true;
    }
    hideTip();
    document.documentElement.dataset.medium = "paper";
    drawAll();
  };
  const leave = () => {
    if (!printing) return;
    printing = false;
    for (const details of folded) details.open = false;
    folded.clear();
    delete document.documentElement.dataset.medium;
    drawAll();
  };
  const paper = window.matchMedia("print");
  paper.addEventListener("change", () => (paper.matches ? enter() : leave()));
  window.addEventListener("beforeprint", enter);
  window.addEventListener("afterprint", leave);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (document.body.clientWidth === width || printing) return;
    width = document.body.clientWidth;
    drawAll();
  }).observe(document.body);
}

function drawReport() {
  document.documentElement.dataset.theme = "auto";
  const parts = [
    report.findings.length > 0 ? findingsPart() : null,
    report.facts.length > 0 ? factsPart() : null,
    ...report.comparisons.filter((comparison) => comparison.rows.length > 0).map(comparisonPart),
    ...report.charts.map(curvesPart),
    report.strategies.length > 0 ? strategiesPart() : null,
    report.loads.length > 0 ? loadsPart() : null,
    report.timelines.length > 0 ? timelinePart() : null,
    report.maps.some((map) => map.owner.length > 0) ? mapPart() : null,
    ...report.tables.map(tablePart),
    report.terms.length > 0 ? termsPart() : null,
  ].filter((part) => part !== null);
  const notes =
      report.notes.length > 0 ? el("ul", {class: "notes"}, report.notes.map((note) => el("li", {}, note))) : null;
  document.body.append(
      ...head(parts).filter((part) => part !== null), el("main", {}, parts, notes),
      el("footer", {}, `Muster ${report.version}`), probe, tip, spoken);
  followMedium();
  document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
  document.addEventListener("scroll", hideTip, {passive: true});
  drawAll();
  if (report.strategies.length > 0) choose(report.strategies[report.strategies.length - 1].strategy);
  document.documentElement.dataset.drawn = "yes";
}
