"use strict";
// Shows what the server's events say. All text is set as text, so that no name can be markup.

const LAST_ROUNDS = 12, MOST_AWAITED = 20;
const RETRY = 10000; // milliseconds
let rounds = [], metric = "accuracy", state = null;

const at = (id) => document.getElementById(id);

// ---- words -----------------------------------------------------------------------------------------------------

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) [count, unit] = [count / 1000, unit + 1];
  return `${unit ? Number(count.toPrecision(3)) : count} ${units[unit]}`;
}

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const hours = Math.floor(whole / 3600);
  return hours < 48 ? `${hours} h ${Math.floor((whole % 3600) / 60)} min` : `${Math.floor(hours / 24)} days`;
}

function number(value) {
  return value == null ? "–" : String(Number(value.toPrecision(4)));
}

function words(name) {
  return name.replaceAll("_", " ");
}

function score(round, part) {
  return round.scores[part]?.[metric] ?? null;
}

function anyScore(round) {
  return score(round, "global") ?? score(round, "federated") ?? score(round, "personal");
}

// ---- elements --------------------------------------------------------------------------------------------------

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function shape(parent, name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

/** Set a text only if it is another one: a screen reader says what changes. */
function say(id, text) {
  if (at(id).textContent !== text) at(id).textContent = text;
}

function row(cells) {
  const made = element("tr");
  cells.forEach(([text, className], place) => {
    const cell = element(place ? "td" : "th", text, className);
    if (!place) cell.scope = "row";
    made.append(cell);
  });
  return made;
}

// ---- the status ------------------------------------------------------------------------------------------------

function showStatus() {
  at("problem").hidden = !state.problem;
  say("problem", state.problem ?? "");
  const status = state.status;
  if (!status) return say("phase", "The server has not written its status yet.");
  document.title = `${status.phase} – ${status.run}`;
  say("run", status.run);
  say("experiment", `Experiment ${status.experiment}`);
  say("phase", status.phase[0].toUpperCase() + status.phase.slice(1));
  at("progress").hidden = false;
  at("progress").max = Math.max(1, status.rounds);
  at("progress").value = rounds.length;
  at("awaited").hidden = !status.awaited.length;
  const longest = [...status.awaited].sort((a, b) => b.seconds - a.seconds);
  const awaited = longest.slice(0, MOST_AWAITED).map((one) => `${one.name} for ${duration(one.seconds)}, until ${one.release}`);
  if (longest.length > MOST_AWAITED) awaited.push(`and ${longest.length - MOST_AWAITED} more`);
  at("awaited-list").replaceChildren(...awaited.map((text) => element("li", text)));
  at("sites").replaceChildren(...status.sites.map((site) => row([
    [site.name], [site.state, `state ${site.state}`], [duration(status.updated - site.since)],
    [bytes(site.bytes_in), "number"], [bytes(site.bytes_out), "number"], [site.doing],
  ])));
  showTiles(status);
}

function showTiles(status) {
  const last = (key) => [...rounds].reverse().map(key).find((value) => value != null);
  const total = (key) => status.sites.reduce((sum, site) => sum + site[key], 0);
  const there = status.sites.filter((site) => ["connected", "working"].includes(site.state)).length;
  const members = status.sites.filter((site) => site.state !== "removed").length;
  const tiles = [
    ["rounds done", `${rounds.length} of ${status.rounds}`],
    ["sites connected", `${there} of ${members}`],
    ["training loss", number(last((round) => round.loss))],
    [`test ${words(metric)}`, number(last(anyScore))],
    ["received, sent", `${bytes(total("bytes_in"))}, ${bytes(total("bytes_out"))}`],
  ];
  if (status.privacy) {
    tiles.push([`epsilon at delta ${status.privacy.delta}`, status.privacy.epsilon == null ? "infinite" : number(status.privacy.epsilon)]);
  }
  if (status.round_ended) tiles.push(["last round", `${duration(status.updated - status.round_ended)} ago`]);
  tiles.push(["server up for", duration(status.updated - status.started)]);
  at("tiles").replaceChildren(...tiles.map(([name, value]) => {
    const tile = element("div");
    tile.append(element("dt", name), element("dd", value));
    return tile;
  }));
}

// ---- the rounds ------------------------------------------------------------------------------------------------

function showRounds() {
  const names = ["round", "loss", words(metric), "clients", "dropped", "up", "down", "time"];
  at("rounds-head").replaceChildren(...names.map((name, place) => {
    const cell = element("th", name, place ? "number" : "");
    cell.scope = "col";
    return cell;
  }));
  at("rounds").replaceChildren(...rounds.slice(-LAST_ROUNDS).reverse().map((one) => row([
    [one.aborted ? `${one.round}, no sum` : String(one.round)],
    ...[number(one.loss), number(anyScore(one)), String(one.clients), String(one.dropped),
      bytes(one.bytes_up), bytes(one.bytes_down), one.seconds == null ? "–" : duration(one.seconds)].map((text) => [text, "number"]),
  ])));
  const lines = (...all) => all.map(([name, style, value]) => ({
    name, style, points: rounds.map((one) => [one.round, value(one)]).filter((point) => point[1] != null),
  })).filter((line) => line.points.length);
  at("charts").replaceChildren(
    ...chart("Loss", lines(["training", "a", (one) => one.loss], ["global test", "b", (one) => one.scores.global?.loss])),
    ...chart(words(metric), lines(
      ["global test", "a", (one) => score(one, "global")],
      ["clients' tests, summed", "d", (one) => score(one, "federated")],
      ["clients' own tests", "b", (one) => score(one, "personal")],
      ["worst decile of clients", "c", (one) => one.scores.personal?.[`${metric}_worst_decile`]])),
  );
}

/** Return round numbers for an axis from `low` to `high`, about `count` of them. */
function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high + step / 1e6; n++) found.push(n * step);
  return found;
}

/** Return a figure in a list, or an empty list where there is nothing to draw. */
function chart(title, lines) {
  if (!lines.length) return [];
  const [width, height, left, right, top, bottom] = [480, 260, 48, 470, 14, 226];
  const all = lines.flatMap((line) => line.points);
  const ends = (values, room) => {
    const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
    const more = high > low ? (high - low) * room : Math.abs(high) * 0.1 + 0.01;
    return [low - more, high + more];
  };
  const [x0, x1] = ends(all.map((point) => point[0]), 0.02), [y0, y1] = ends(all.map((point) => point[1]), 0.08);
  const px = (x) => (left + ((x - x0) / (x1 - x0)) * (right - left)).toFixed(1);
  const py = (y) => (bottom - ((y - y0) / (y1 - y0)) * (bottom - top)).toFixed(1);
  const figure = element("figure");
  const latest = lines.map((line) => `${line.name} ${number(line.points.at(-1)[1])}`).join(", ");
  const name = `${title} by round. Last: ${latest}.`;
  const svg = shape(figure, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
  for (const y of ticks(y0, y1, 5)) {
    shape(svg, "line", { class: "grid", x1: left, x2: right, y1: py(y), y2: py(y) });
    shape(svg, "text", { x: left - 6, y: +py(y) + 4, "text-anchor": "end" }, number(y));
  }
  for (const x of ticks(x0, x1, 6).filter(Number.isInteger)) {
    shape(svg, "text", { x: px(x), y: bottom + 18, "text-anchor": "middle" }, String(x));
  }
  shape(svg, "text", { x: right, y: bottom + 32, "text-anchor": "end" }, "round");
  for (const line of lines) {
    shape(svg, "polyline", { class: `line ${line.style}`, points: line.points.map(([x, y]) => `${px(x)},${py(y)}`).join(" ") });
    const [x, y] = line.points.at(-1);
    shape(svg, "circle", { class: line.style, cx: px(x), cy: py(y), r: 3 });
  }
  figure.append(caption(title, lines));
  return [figure];
}

function caption(title, lines) {
  const made = element("figcaption", `${title[0].toUpperCase()}${title.slice(1)}: `);
  for (const line of lines) {
    const key = element("span", undefined, "key");
    const svg = shape(key, "svg", { viewBox: "0 0 26 8", "aria-hidden": "true" });
    shape(svg, "polyline", { class: `line ${line.style}`, points: "0,4 26,4" });
    key.append(`${line.name} ${number(line.points.at(-1)[1])}`);
    made.append(key);
  }
  return made;
}

// ---- events ----------------------------------------------------------------------------------------------------

function listen() {
  const source = new EventSource("events");
  source.addEventListener("rounds", (event) => {
    const news = JSON.parse(event.data);
    metric = news.metric;
    rounds = [...rounds.slice(0, news.after), ...news.rounds];
    showRounds();
    if (state) showStatus();
  });
  source.addEventListener("status", (event) => {
    state = JSON.parse(event.data);
    showStatus();
  });
  source.addEventListener("error", () => {
    const ended = state?.status?.phase === "finished";
    at("problem").hidden = ended;
    say("problem", ended ? "" : "No connection to the server: it has stopped, is not reached, or shows this page in too many windows. Trying again.");
    if (ended) source.close();
    else if (source.readyState === EventSource.CLOSED) setTimeout(listen, RETRY);
  });
}

listen();
