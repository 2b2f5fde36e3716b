// Small drawings in SVG, by hand: nothing is loaded from elsewhere.

const NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 420, HEIGHT = 180, LEFT = 48, RIGHT = 8, TOP = 14, BOTTOM = 24;

export function shape(name, attributes, text) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function formatNumber(number, digits = 3) {
  if (number === null || number === undefined) return "–";
  if (number === 0) return "0";
  const size = Math.abs(number);
  return size >= 1e5 || size < 1e-3 ? number.toExponential(2) : String(Number(number.toPrecision(digits)));
}

function frame(label, height = HEIGHT) {
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label });
}

function scale(low, high, from, to) {
  const span = high - low || 1;
  return value => from + (value - low) / span * (to - from);
}

function grid(svg, y, ticks) {
  for (const value of ticks) {
    svg.append(shape("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(shape("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, formatNumber(value, 2)));
  }
}

function caption(svg, left, right) {
  svg.append(shape("text", { x: LEFT, y: HEIGHT - 6 }, left));
  svg.append(shape("text", { x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, right));
}

function limit(svg, y, value, text) {
  svg.append(shape("line", { class: "limit", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
  const above = y(value) - 4;
  svg.append(shape("text", { class: "limit-text", x: WIDTH - RIGHT, y: above < 10 ? y(value) + 14 : above, "text-anchor": "end" }, text));
}

// Ticks of a linear axis, or of one that grows tenfold where a few large values would flatten all others.
function chooseAxis(values, low, high) {
  const sorted = values.filter(value => value > 0).sort((a, b) => a - b), usual = sorted[Math.floor(0.9 * (sorted.length - 1))];
  if (low < 0 || !sorted.length || high < 10 * usual) return { place: value => value, ticks: [low, (low + high) / 2, high], text: "" };
  const bottom = Math.floor(Math.log10(sorted[0])), top = Math.ceil(Math.log10(high / 1.05));
  const place = value => Math.log10(Math.max(value, 10 ** bottom));
  return { place, ticks: [10 ** bottom, 10 ** Math.round((bottom + top) / 2), 10 ** top], text: ", log axis" };
}

export function drawBars(values, seconds) {
  const high = Math.max(1, ...values);
  const svg = frame(`Requests per second over the last ${values.length * seconds} seconds: now ${formatNumber(values.at(-1) ?? 0)}, at most ${formatNumber(high)}.`);
  const y = scale(0, high, HEIGHT - BOTTOM, TOP), step = (WIDTH - LEFT - RIGHT) / Math.max(values.length, 1);
  grid(svg, y, [0, high / 2, high]);
  values.forEach((value, index) => svg.append(shape("rect", {
    class: "bar", x: LEFT + index * step + 1, width: Math.max(1, step - 2), y: y(value), height: HEIGHT - BOTTOM - y(value) })));
  caption(svg, `${values.length * seconds} s ago`, "now");
  return svg;
}

// A score of each request, by its name in the points, against the band of the calibration rows.
export function drawScores(points, score, title, band, threshold) {
  const known = points.filter(point => point[score] !== null);
  const values = known.map(point => point[score]);
  const high = Math.max(...values, band ? band.high : 0, threshold ?? 0, 1e-12) * 1.05, low = Math.min(0, ...values);
  const outside = threshold === null ? 0 : values.filter(value => value > threshold).length;
  const svg = frame(known.length ? `${title} of the last ${known.length} requests: latest ${formatNumber(values.at(-1))}, ${outside} above the threshold${threshold === null ? "" : ` of ${formatNumber(threshold)}`}.` : "No requests yet.");
  const axis = chooseAxis([...values, ...(band ? [band.high] : [])], low, high);
  const linear = scale(axis.place(axis.ticks[0]), axis.place(axis.ticks[2]), HEIGHT - BOTTOM, TOP), y = value => linear(axis.place(value));
  const x = scale(0, Math.max(known.length - 1, 1), LEFT + 4, WIDTH - RIGHT - 4);
  if (band) svg.append(shape("rect", { class: "band", x: LEFT, width: WIDTH - LEFT - RIGHT, y: y(band.high), height: y(band.low) - y(band.high) }));
  grid(svg, y, axis.ticks);
  known.forEach((point, index) => svg.append(shape("circle", {
    class: threshold !== null && point[score] > threshold ? "dot bad" : "dot", r: 2, cx: x(index), cy: y(point[score]) })));
  if (threshold !== null) limit(svg, y, threshold, "threshold");
  caption(svg, known.length ? `${known.length} request${known.length === 1 ? "" : "s"}${axis.text}` : "no requests yet", "latest");
  return svg;
}

export function drawCapital(points, drift) {
  const values = points.map(point => point.log_capital).filter(value => value !== null);
  const high = Math.max(drift.alarm_line, ...values) * 1.1, low = Math.min(0, ...values);
  const svg = frame(`Evidence of drift ${formatNumber(drift.log_capital)}, alarm at ${formatNumber(drift.alarm_line)}: ${drift.alarm ? "the alarm is raised" : "no alarm"}, after ${drift.rows_seen} rows.`);
  const y = scale(low, high, HEIGHT - BOTTOM, TOP), x = scale(0, Math.max(values.length - 1, 1), LEFT, WIDTH - RIGHT);
  grid(svg, y, [low, (low + high) / 2, high]);
  svg.append(shape("path", { class: "path", d: values.map((value, index) => `${index ? "L" : "M"}${x(index)} ${y(value)}`).join("") }));
  if (values.length) svg.append(shape("circle", { class: drift.alarm ? "dot bad" : "dot", r: 3, cx: values.length > 1 ? x(values.length - 1) : LEFT, cy: y(values.at(-1)) }));
  limit(svg, y, drift.alarm_line, "alarm");
  caption(svg, `${drift.rows_seen} rows seen`, "latest");
  return svg;
}

export function drawCoverage(labels) {
  const { promised, rolling, n_labels } = labels, chance = 2 * Math.sqrt(promised * (1 - promised) / n_labels);
  const ends = [Math.max(0, promised - chance), Math.min(1, promised + chance)];
  const low = Math.max(0, Math.min(...rolling, ends[0]) - .02), high = 1;
  const share = `promised ${formatNumber(100 * promised)}\u00a0%`;
  const svg = frame(`${formatNumber(100 * labels.coverage)} % of the latest ${n_labels} labels were covered, ${share}.`);
  const y = scale(low, high, HEIGHT - BOTTOM, TOP), x = scale(0, Math.max(rolling.length - 1, 1), LEFT, WIDTH - RIGHT);
  svg.append(shape("rect", { class: "band", x: LEFT, width: WIDTH - LEFT - RIGHT, y: y(ends[1]), height: y(ends[0]) - y(ends[1]) }));
  grid(svg, y, [low, (low + high) / 2, high]);
  svg.append(shape("path", { class: "path", d: rolling.map((value, index) => `${index ? "L" : "M"}${x(index)} ${y(value)}`).join("") }));
  svg.append(shape("circle", { class: labels.coverage < ends[0] ? "dot bad" : "dot", r: 3, cx: rolling.length > 1 ? WIDTH - RIGHT : LEFT, cy: y(labels.coverage) }));
  limit(svg, y, promised, share);
  caption(svg, `${n_labels} label${n_labels === 1 ? "" : "s"}`, "latest");
  return svg;
}

// A value with its interval, on a line of its own for each output, and to its own scale: they may be of different units.
export function drawIntervals(outputs, label) {
  const svg = frame(label, 60 * outputs.length + 4);
  outputs.forEach((output, index) => {
    const finite = [output.lower, output.value, output.upper].filter(value => typeof value === "number");
    const low = Math.min(...finite), high = Math.max(...finite), x = scale(low, high, 30, WIDTH - 30);
    const y = 60 * index + 26, [from, to] = [output.lower ?? low, output.upper ?? high];
    svg.append(shape("line", { class: "axis", x1: 10, x2: WIDTH - 10, y1: y, y2: y }));
    if (output.bounded) svg.append(shape("line", { class: "interval", x1: x(from), x2: x(to), y1: y, y2: y }));
    svg.append(shape("circle", { class: "dot", r: 6, cx: x(output.value), cy: y }));
    svg.append(shape("text", { x: x(output.value), y: y - 12, "text-anchor": "middle" }, outputs.length > 1 ? `${output.name} ${formatNumber(output.value, 4)}` : formatNumber(output.value, 4)));
    if (output.bounded && to > from) {
      svg.append(shape("text", { x: x(from), y: y + 22, "text-anchor": "middle" }, output.lower === null ? "−∞" : formatNumber(output.lower, 4)));
      svg.append(shape("text", { x: x(to), y: y + 22, "text-anchor": "middle" }, output.upper === null ? "∞" : formatNumber(output.upper, 4)));
    }
  });
  return svg;
}

export function drawProbabilities(shares, members, label) {
  const names = Object.keys(shares).sort((a, b) => shares[b] - shares[a]).slice(0, 12);
  const svg = frame(label, 26 * names.length + 10), x = scale(0, 1, 130, WIDTH - 60);
  names.forEach((name, index) => {
    const y = 26 * index + 8;
    svg.append(shape("text", { x: 124, y: y + 13, "text-anchor": "end" }, (members.includes(name) ? "✓ " : "") + name.slice(0, 16)));
    svg.append(shape("rect", { class: "bar", x: x(0), y, width: Math.max(1, x(shares[name]) - x(0)), height: 16 }));
    svg.append(shape("text", { x: x(shares[name]) + 6, y: y + 13 }, `${(100 * shares[name]).toFixed(1)} %`));
  });
  return svg;
}
