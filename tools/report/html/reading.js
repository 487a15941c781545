// Charts whose places are numbered from left to right, read by pointer and by arrow keys.

// `view` has
//   count()            places there are now
//   at(x)              the place at an x of the chart's own coordinates, or null
//   x(place)           the other way round
//   mark(place)        shows which one is meant; null: none
//   describe(place)    {title, lines}
//   width              of the chart, in its own coordinates
function readByPlace(chart, view) {
  let place = null;
  const show = (next, x, y) => {
    place = next;
    view.mark(place);
    const {title, lines} = view.describe(place);
    showTip(x, y, title, lines);
    return {title, lines};
  };
  const leave = () => {
    view.mark(null);
    hideTip();
  };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const found = view.at(((event.clientX - box.left) * view.width) / box.width);
    if (found === null)
      leave();
    else
      show(found, event.clientX, event.clientY);
  });
  chart.addEventListener("pointerleave", leave);
  chart.addEventListener("blur", leave);
  chart.addEventListener("keydown", (event) => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!move || view.count() === 0) return;
    event.preventDefault();
    const next = place === null ? 0 : Math.max(0, Math.min(view.count() - 1, place + move));
    const box = chart.getBoundingClientRect();
    const {title, lines} = show(next, box.left + (view.x(next) * box.width) / view.width, box.top + 20);
    speak(title, lines);
  });
}
