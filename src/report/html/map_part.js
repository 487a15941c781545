// The map with its way back up, its legend and the table of waves.

function mapPart() {
  const maps = report.maps.map(decodeMap);
  const names = maps.map((map) => map.strategy);
  const canvas = el("canvas", {id: "map-canvas", tabindex: "0", role: "img"});
  const labels = el("div", {class: "map-labels"});
  const view = new MapView(canvas, labels);
  const crumbs = el("div", {class: "crumbs", role: "group", "aria-label": "Where the map is"});
  const legend = el("div", {class: "legend"});
  const details = el("details", {id: "wave-table"});
  const note = el("p", {class: "small"});
  const state = {cursor: null};
  view.onchange = () => {
    state.cursor = null;
    const steps = [["All classes", []]];
    if (view.path.length > 0) steps.push([view.map.classes[view.path[0]].name, view.path.slice(0, 1)]);
    if (view.path.length > 1) steps.push([view.map.classes[view.path[0]].layers[view.path[1]].name, view.path]);
    crumbs.replaceChildren(...steps.map(([name, path], i) => (i === steps.length - 1
      ? el("span", {"aria-current": "location"}, name)
      : el("button", {type: "button", onclick: () => view.open(path)}, name))));
    Object.assign(canvas.dataset, {level: view.path.length, rows: view.rows.length, strategy: view.map.strategy});
    canvas.setAttribute("aria-label", `${plural(view.rows.length, "row")} of matrices by ${plural(view.map.ranks, "rank")}; arrow keys read cells`);
  };
  const redraw = () => {
    view.draw();
    note.textContent = view.each > 1 ? `A column is ${view.each} neighbouring ranks.` : "";
  };
  const show = (index) => {
    view.show(maps[index]);
    legend.replaceChildren(...waveLegend(maps[index]));
    details.replaceChildren(...waveTable(maps[index]));
    details.open = maps[index].waves.length <= 8;
  };
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    const finer = parseFloat(canvas.style.aspectRatio) / box.width;
    return [(event.clientX - box.left) * finer, (event.clientY - box.top) * finer];
  };
  canvas.addEventListener("pointermove", (event) => {
    const found = view.at(...place(event));
    if (!found) return hideTip();
    const {title, lines} = view.describe(found);
    showTip(event.clientX, event.clientY, title, lines);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("blur", hideTip);
  canvas.addEventListener("click", (event) => {
    const found = view.at(...place(event));
    if (found && view.rows[found.row].opens) view.open(view.rows[found.row].opens);
  });
  const moves = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
  canvas.addEventListener("keydown", (event) => {
    const at = state.cursor;
    if (event.key === "Enter" && at && view.rows[at.row].opens) view.open(view.rows[at.row].opens);
    else if (event.key === "Backspace" && view.path.length > 0) view.open(view.path.slice(0, -1));
    else if (moves[event.key]) {
      const [down, right] = at ? moves[event.key] : [0, 0];
      const {row, bin} = at || {row: 0, bin: 0};
      state.cursor = {row: Math.max(0, Math.min(view.rows.length - 1, row + down)), bin: Math.max(0, Math.min(view.bins - 1, bin + right))};
      const {title, lines} = view.describe(state.cursor);
      const box = canvas.getBoundingClientRect();
      const shrunk = box.width / parseFloat(canvas.style.aspectRatio);
      showTip(box.left + state.cursor.bin * view.step * shrunk, box.top + (mapRow.top + state.cursor.row * view.rowHeight) * shrunk, title, lines);
      speak(title, lines);
    } else return;
    event.preventDefault();
  });
  const which = picker("Plan of", names, show);
  chosen.listeners.push((strategy) => {
    const index = names.indexOf(strategy);
    if (index < 0) return;
    which.select.selectedIndex = index;
    show(index);
  });
  const section = part("map", "Plan map", "Which rank orthogonalizes which matrices, and in which wave. Within a row, height is how many; open a class to see its layers, and a layer to see its matrices.",
    el("div", {class: "controls"}, names.length > 1 ? which.field : null, crumbs, legend),
    el("div", {class: "map"}, labels, el("div", {class: "figure"}, canvas)), note, details);
  onDraw(() => {
    if (!view.map) show(0);
    redraw();
  });
  return section;
}
