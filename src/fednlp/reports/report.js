"use strict";
// Draws the charts of a report from the data beside each: values under the pointer, methods on and off, zoom.
// Without this script the page shows the same charts as still pictures.

const hidden = new Set();
const charts = [];
let namespace = "";

// ---- numbers -------------------------------------------------------------------------------------------------

/** Return at most about `count` round numbers from `low` to `high`. */
function ticks(low, high, count, whole) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(n * step);
  return found;
}

/** Return a number for people: four digits, never an exponent that is not needed. */
function shortNumber(value) {
  return value === null ? "–" : String(Number(value.toPrecision(Math.abs(value) >= 1000 ? 6 : 4)));
}

/** Return a value with its spread: shares in percent with one decimal, as in the tables. */
function valueText(value, spread, unit) {
  const number = (n) => (unit && n !== null ? n.toFixed(1) : shortNumber(n));
  return number(value) + (spread == null ? "" : ` ± ${number(spread)}`) + unit;
}

/** Move places apart until none is nearer to the next than `gap`, in their order, within `low` and `high`. */
function apart(places, gap, low, high) {
  const order = places.map((_, i) => i).sort((a, b) => places[a] - places[b]);
  const moved = [];
  let last = -Infinity;
  for (const i of order) last = moved[i] = Math.max(places[i], last + gap, low);
  let next = high + gap;
  for (const i of order.reverse()) next = moved[i] = Math.min(moved[i], next - gap);
  return moved;
}

/** Return the index of the point nearest to a place, distances measured in pixels; -1 if there is none. */
function nearest(points, x, y) {
  let found = -1, least = Infinity;
  points.forEach((point, i) => {
    const distance = Math.abs(point.x - x) + 0.4 * Math.abs(point.y - y);
    if (distance < least) [found, least] = [i, distance];
  });
  return found;
}

/** Return the ends of an axis: as given, or around the values with a little room. */
function extent(values, given, room) {
  let low = Math.min(...values), high = Math.max(...values);
  if (!values.length) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - Math.abs(low) * 0.1 - 0.01, high + Math.abs(high) * 0.1 + 0.01];
  const more = (high - low) * room;
  return [given[0] ?? low - more, given[1] ?? high + more];
}

/** Return a range cut to the full one, or null if it is no part of it. */
function within(range, full) {
  const cut = [Math.max(range[0], full[0]), Math.min(range[1], full[1])];
  return cut[0] <= full[0] && cut[1] >= full[1] ? null : cut;
}

// ---- elements ------------------------------------------------------------------------------------------------

function shape(parent, name, attributes, text) {
  const made = document.createElementNS(namespace, name);
  for (const key in attributes) if (attributes[key] != null) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function element(parent, name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

const MARKS = {
  s: (r) => `M${-r},${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  D: (r) => `M0,${-1.3 * r}L${1.3 * r},0L0,${1.3 * r}L${-1.3 * r},0z`,
  "^": (r) => `M0,${-1.2 * r}L${1.2 * r},${r}H${-1.2 * r}z`,
  v: (r) => `M0,${1.2 * r}L${1.2 * r},${-r}H${-1.2 * r}z`,
  P: (r) => `M${-r},0H${r}M0,${-r}V${r}`,
};

function mark(parent, line, x, y, radius, className) {
  const path = MARKS[line.marker];
  const look = { fill: line.paint, stroke: line.paint, class: className };
  if (path) shape(parent, "path", { ...look, d: path(radius), transform: `translate(${x},${y})` });
  else shape(parent, "circle", { ...look, cx: x, cy: y, r: radius });
}

function stroke(line, width) {
  return { stroke: line.paint, "stroke-width": width, "stroke-dasharray": line.dash && line.dash.map((n) => n * 1.3).join() };
}

// ---- a chart -------------------------------------------------------------------------------------------------

function build(figure) {
  const chart = JSON.parse(figure.querySelector("script").textContent);
  chart.lines.forEach((line) => {
    line.paint = `var(${line.color})`;
    line.x ??= line.keys ?? [];
    line.level = !line.x.length;
  });
  chart.zoom = null;
  chart.box = element(figure, "div", "live");
  figure.prepend(chart.box);
  chart.svg = shape(chart.box, "svg", { role: "group", tabindex: 0, "aria-label": chart.title });
  chart.tip = element(chart.box, "div", "tip");
  chart.tip.hidden = true;
  chart.id = figure.dataset.name;
  addKeys(chart);
  listen(chart);
  figure.classList.add("drawn");
  new ResizeObserver(() => chart.box.clientWidth !== chart.width && draw(chart)).observe(chart.box);
  return chart;
}

function addKeys(chart) {
  const row = element(chart.box, "div", "keys");
  chart.buttons = chart.lines.length < 2 ? [] : chart.lines.map((line) => {
    const button = element(row, "button");
    button.type = "button";
    const key = shape(button, "svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
    shape(key, "path", { d: "M0,5H26", ...stroke(line, Math.min(3, line.width)) });
    if (line.marker) mark(key, line, 13, 5, 3);
    element(button, "span", "", line.label);
    button.addEventListener("click", () => toggle(line.label));
    button.addEventListener("pointerenter", () => highlight(chart, line));
    button.addEventListener("pointerleave", () => highlight(chart, null));
    return button;
  });
  chart.reset = element(row, "button", "reset", "Reset zoom");
  chart.reset.type = "button";
  chart.reset.addEventListener("click", () => zoomTo(chart, null));
}

function toggle(label) {
  if (!hidden.delete(label)) hidden.add(label);
  charts.forEach(draw);
}

function zoomTo(chart, range) {
  chart.zoom = range;
  draw(chart);
}

function highlight(chart, line) {
  for (const part of chart.svg.querySelectorAll("[data-line]")) {
    const own = line && part.dataset.line === String(chart.lines.indexOf(line));
    part.classList.toggle("strong", Boolean(own));
    part.classList.toggle("faint", Boolean(line) && !own && !part.classList.contains("band"));
  }
}

/** Draw a chart from its data at the width that it has now. */
function draw(chart) {
  const width = (chart.width = chart.box.clientWidth);
  if (!width) return;
  const height = Math.round(Math.min(340, Math.max(240, width * 0.55)));
  const shown = chart.lines.filter((line) => !hidden.has(line.label));
  const named = width >= 460 && shown.length > 1 && shown.length <= 10;
  const letters = named ? Math.min(20, Math.max(...shown.map((line) => line.label.length))) : 0;
  chart.area = { left: 44, right: width - (named ? letters * 6.4 + 14 : 12), top: 30, bottom: height - 40 };
  setScales(chart, shown);
  chart.svg.replaceChildren();
  chart.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  drawAxes(chart, height);
  drawLines(chart, shown);
  if (named) nameLines(chart, shown);
  chart.over = shape(chart.svg, "g", {});
  chart.tip.hidden = true;
  chart.reset.hidden = !chart.zoom;
  chart.buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(!hidden.has(chart.lines[i].label))));
}

function setScales(chart, shown) {
  const { left, right, top, bottom } = chart.area;
  const all = chart.lines.flatMap((line) => line.x);
  chart.full = extent(all.filter((v) => v !== null), chart.xRange, 0.02);
  const [x0, x1] = chart.zoom ?? chart.full;
  const visible = (line, i) => line.level || (line.x[i] >= x0 && line.x[i] <= x1);
  const values = shown.flatMap((line) => line.y.filter((v, i) => v !== null && visible(line, i)));
  const [y0, y1] = extent(values, chart.zoom ? [null, null] : chart.yRange, 0.08);
  Object.assign(chart, { x0, x1, y0, y1 });
  chart.px = (x) => left + ((x - x0) / (x1 - x0)) * (right - left);
  chart.py = (y) => bottom - ((y - y0) / (y1 - y0)) * (bottom - top);
  chart.points = shown.flatMap((line) => line.x.map((x, i) => ({ line, i, key: line.keys[i], x: chart.px(x), y: chart.py(line.y[i]) }))
    .filter((p) => line.y[p.i] !== null && p.x >= left - 1 && p.x <= right + 1));
}

function drawAxes(chart, height) {
  const { left, right, top, bottom } = chart.area;
  shape(chart.svg, "text", { x: 0, y: 14, class: "title" }, chart.title);
  for (const y of ticks(chart.y0, chart.y1, (bottom - top) / 36, false)) {
    shape(chart.svg, "path", { class: "grid", d: `M${left},${chart.py(y)}H${right}` });
    shape(chart.svg, "text", { x: left - 7, y: chart.py(y) + 4, "text-anchor": "end" }, shortNumber(y));
  }
  for (const x of ticks(chart.x0, chart.x1, (right - left) / 60, chart.whole)) {
    shape(chart.svg, "text", { x: chart.px(x), y: bottom + 17, "text-anchor": "middle" }, shortNumber(x));
  }
  shape(chart.svg, "text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle" }, chart.xlabel);
}

function drawLines(chart, shown) {
  const { left, right, top, bottom } = chart.area;
  const clip = shape(chart.svg, "clipPath", { id: `clip-${chart.id}` });
  shape(clip, "rect", { x: left - 5, y: top - 5, width: right - left + 10, height: bottom - top + 10 });
  const plot = shape(chart.svg, "g", { "clip-path": `url(#clip-${chart.id})` });
  shape(plot, "rect", { x: left, y: top, width: right - left, height: bottom - top, fill: "transparent" });
  for (const line of shown) {
    const data = { "data-line": chart.lines.indexOf(line) };
    if (line.spread) shape(plot, "path", { ...data, class: "band", fill: line.paint, d: bandPath(chart, line) });
    shape(plot, "path", { ...data, class: "line", ...stroke(line, line.width), d: linePath(chart, line) });
    if (!line.marker || line.x.length > 12) continue;
    const group = shape(plot, "g", data);
    line.x.forEach((x, i) => line.y[i] !== null && mark(group, line, chart.px(x), chart.py(line.y[i]), 1.4 + line.width / 2));
  }
}

function linePath(chart, line) {
  if (line.level) return `M${chart.area.left},${chart.py(line.y[0])}H${chart.area.right}`;
  let path = "", pen = "M";
  line.x.forEach((x, i) => {
    if (line.y[i] === null) { pen = "M"; return; }
    path += `${pen}${chart.px(x).toFixed(1)},${chart.py(line.y[i]).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

function bandPath(chart, line) {
  const known = line.x.map((_, i) => i).filter((i) => line.y[i] !== null && line.spread[i] !== null);
  const at = (sign) => (i) => `${chart.px(line.x[i]).toFixed(1)},${chart.py(line.y[i] + sign * line.spread[i]).toFixed(1)}`;
  return known.length ? `M${[...known.map(at(1)), ...known.reverse().map(at(-1))].join("L")}z` : "";
}

function nameLines(chart, shown) {
  const last = (line) => line.level ? line.y[0] : chart.points.filter((p) => p.line === line).map((p) => line.y[p.i]).pop();
  const ends = shown.map((line) => ({ line, y: last(line) })).filter((end) => end.y != null);
  const { right, top, bottom } = chart.area;
  const places = apart(ends.map((end) => chart.py(end.y)), 14, top, bottom);
  ends.forEach(({ line }, i) => {
    const name = line.label.length > 20 ? `${line.label.slice(0, 19)}…` : line.label;
    const text = shape(chart.svg, "text", { x: right + 9, y: places[i] + 4, "data-line": chart.lines.indexOf(line) }, name);
    text.style.fill = line.paint;
    text.addEventListener("pointerenter", () => highlight(chart, line));
    text.addEventListener("pointerleave", () => highlight(chart, null));
  });
}

// ---- pointer and keys ----------------------------------------------------------------------------------------

function listen(chart) {
  let start = null;
  const place = (event) => {
    const box = chart.svg.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const value = (x) => chart.x0 + ((x - chart.area.left) / (chart.area.right - chart.area.left)) * (chart.x1 - chart.x0);
  const clamp = (x) => Math.min(chart.area.right, Math.max(chart.area.left, x));
  chart.svg.addEventListener("pointerdown", (event) => { if (event.button === 0) start = clamp(place(event)[0]); });
  chart.svg.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (start === null || !event.buttons) { start = null; show(chart, nearest(chart.points, x, y)); return; }
    if (Math.abs(clamp(x) - start) > 4) chart.svg.setPointerCapture(event.pointerId);
    chart.tip.hidden = true;
    chart.over.replaceChildren();
    const { top, bottom } = chart.area;
    shape(chart.over, "rect", { class: "drag", x: Math.min(start, clamp(x)), width: Math.abs(clamp(x) - start), y: top, height: bottom - top });
  });
  chart.svg.addEventListener("pointerup", (event) => {
    const ends = start === null ? [] : [start, clamp(place(event)[0])].sort((a, b) => a - b);
    start = null;
    if (ends[1] - ends[0] > 8) zoomTo(chart, ends.map(value));
  });
  chart.svg.addEventListener("pointercancel", () => { start = null; leave(chart); });
  chart.svg.addEventListener("pointerleave", () => leave(chart));
  chart.svg.addEventListener("dblclick", () => zoomTo(chart, null));
  chart.svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const centre = value(clamp(place(event)[0])), factor = event.deltaY > 0 ? 1.25 : 0.8;
    const range = [chart.x0, chart.x1].map((end) => centre + (end - centre) * factor);
    zoomTo(chart, within(range, chart.full));
  }, { passive: false });
  chart.svg.addEventListener("keydown", (event) => press(chart, event));
  chart.svg.addEventListener("blur", () => leave(chart));
}

function leave(chart) {
  chart.tip.hidden = true;
  chart.over.replaceChildren();
  highlight(chart, null);
}

function press(chart, event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (event.key === "Escape") zoomTo(chart, null);
  if (!step || !chart.points.length) return;
  event.preventDefault();
  const keys = [...new Set(chart.points.map((p) => p.key))].sort((a, b) => a - b);
  const next = keys[Math.max(0, Math.min(keys.length - 1, keys.indexOf(chart.key) + step))];
  show(chart, chart.points.findIndex((p) => p.key === next));
}

/** Show what every method has at the key (the round) of one point. */
function show(chart, index) {
  leave(chart);
  if (index < 0) return;
  const near = chart.points[index], { top, bottom, left, right } = chart.area;
  chart.key = near.key;
  highlight(chart, chart.lines.length > 1 ? near.line : null);
  shape(chart.over, "path", { class: "cross", d: `M${near.x},${top}V${bottom}` });
  chart.tip.replaceChildren();
  element(chart.tip, "div", "", `${chart.step} ${shortNumber(near.key)}`);
  const same = chart.points.filter((p) => p.key === near.key).map((p) => [p.line, p.i, p]);
  const level = chart.lines.filter((line) => line.level && !hidden.has(line.label)).map((line) => [line, 0, null]);
  for (const [line, i, point] of [...same, ...level].sort((a, b) => b[0].y[b[1]] - a[0].y[a[1]])) {
    if (point) mark(chart.over, line, point.x, point.y, 4);
    const row = element(chart.tip, "div", line === near.line ? "near" : "");
    element(row, "span", "", line.label).style.color = line.paint;
    const where = line.level || line.x === line.keys ? "" : ` at ${shortNumber(line.x[i])}`;
    element(row, "span", "", valueText(line.y[i], line.spread?.[i], chart.unit) + where);
  }
  chart.tip.hidden = false;
  const beside = near.x + 14 + chart.tip.offsetWidth < chart.width ? near.x + 14 : near.x - 14 - chart.tip.offsetWidth;
  const x = Math.max(0, Math.min(chart.width - chart.tip.offsetWidth, beside));
  chart.tip.style.transform = `translate(${Math.round(x)}px, ${top + 4}px)`;
}

// ---- the page ------------------------------------------------------------------------------------------------

function start() {
  const figures = [...document.querySelectorAll("figure.chart")];
  if (!figures.length) return;
  namespace = figures[0].querySelector("svg").namespaceURI;
  charts.push(...figures.map(build));
  charts.forEach(draw);
  document.querySelectorAll(".hint").forEach((hint) => { hint.hidden = false; });
}

if (typeof document !== "undefined") {
  start();
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => { fold.open = true; }));
}
