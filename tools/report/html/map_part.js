// The map with its way back up, its legend and the table of waves.

// Reads cells by pointer and arrow keys, and opens rows: a click or Enter goes down, Backspace up.
function readMap(view) {
  const {canvas} = view;
  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect();
    return view.at(event.clientX - box.left, event.clientY - box.top);
  };
  const open = (cell) => {
    if (cell && view.rows[cell.row].opens) view.open(view.rows[cell.row].opens);
  };
  const show = (cell, x, y) => {
    const {title, lines} = view.describe(cell);
    showTip(x, y, title, lines);
    return [title, lines];
  };
  canvas.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    if (cell)
      show(cell, event.clientX, event.clientY);
    else
      hideTip();
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("blur", hideTip);
  canvas.addEventListener("click", (event) => open(cellAt(event)));
  const moves = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter")
      open(view.cursor);
    else if (event.key === "Backspace" && view.path.length > 0)
      view.open(view.path.slice(0, -1));
    else if (moves[event.key]) {
      view.move(...moves[event.key]);
      const box = canvas.getBoundingClientRect();
      const [x, y] = view.corner(view.cursor);
      speak(...show(view.cursor, box.left + x, box.top + y));
    } else
      return;
    event.preventDefault();
  });
}

function crumbsOf(view) {
  const [c, layer] = view.path;
  const steps = [["All classes", []]];
  if (view.path.length > 0) steps.push([view.map.classes[c].name, [c]]);
  if (view.path.length > 1) steps.push([view.map.classes[c].layers[layer].name, view.path]);
  return steps.map(
      ([name, path], i) =>
          (i === steps.length - 1 ? el("span", {"aria-current": "location"}, name) :
                                    el("button", {type: "button", onclick: () => view.open(path)}, name)));
}

function mapPart() {
  const maps = report.maps.map(decodeMap);
  const names = maps.map((map) => map.strategy);
  const canvas = el("canvas", {id: "map-canvas", tabindex: "0", role: "img"});
  const labels = el("div", {class: "map-labels"});
  const frame = el("div", {class: "map"}, labels, el("div", {class: "figure"}, canvas));
  const view = new MapView(frame, canvas, labels);
  const crumbs = el("div", {class: "crumbs", role: "group", "aria-label": "Where the map is"});
  const legend = el("div", {class: "legend"});
  const details = el("details", {id: "wave-table"});
  const note = el("p", {class: "small"});
  view.onchange = () => {
    crumbs.replaceChildren(...crumbsOf(view));
    note.textContent = view.each > 1 ? `A column is ${view.each} neighbouring ranks.` : "";
  };
  const show = (index) => {
    view.show(maps[index]);
    legend.replaceChildren(...waveLegend(maps[index]));
    details.replaceChildren(...waveTable(maps[index]));
    details.open = maps[index].waves.length <= 8;
  };
  const which = picker("Plan of", names, show);
  followChoice(names, (index) => {
    which.select.selectedIndex = index;
    show(index);
  });
  readMap(view);
  onDraw(() => (view.map ? view.draw() : show(0)));
  return part(
      "map", "Plan map",
      "Which rank orthogonalizes which matrices, and in which wave. Within a row, height is how many; open a class " +
          "to see its layers, and a layer to see its matrices.",
      el("div", {class: "controls"}, names.length > 1 ? which.field : null, crumbs, legend), frame, note, details);
}
