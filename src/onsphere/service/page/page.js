import { drawBars, drawCapital, drawCoverage, drawIntervals, drawProbabilities, drawScores, formatNumber } from "./charts.js";

const at = id => document.getElementById(id);
const PAUSE = 2000;
let model = null, shownModel = null, announced = "";

async function ask(path, options = {}) {
  const key = sessionStorage.getItem("onsphere-key");
  const headers = { ...options.headers, ...(key ? { "X-API-Key": key } : {}) };
  const answer = await fetch(path, { ...options, headers });
  const body = await answer.json();
  if (answer.status === 401) {
    at("key-form").hidden = false;
    throw new Error(key ? "The key is not known." : "A key is needed.");
  }
  if (!answer.ok) throw Object.assign(new Error(body.detail), { errors: body.errors });
  return body;
}

function element(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

// Screen readers read the status aloud, so it changes only when there is news.
function say(lines) {
  const text = JSON.stringify(lines);
  if (text === announced) return;
  announced = text;
  at("status").replaceChildren(...lines.map(([kind, line]) => element("p", { class: kind }, line)));
}

function show(live) {
  const minute = live.minute;
  at("requests").textContent = minute ? formatNumber(minute.requests_per_second) : "–";
  at("rows").textContent = minute ? formatNumber(minute.rows_per_second) : "–";
  at("median").textContent = minute && minute.seconds_median !== null ? `${formatNumber(1000 * minute.seconds_median)} ms` : "–";
  at("slow").textContent = minute && minute.seconds_99 !== null ? `${formatNumber(1000 * minute.seconds_99)} ms` : "–";
  at("accepted").textContent = minute && minute.accepted !== null ? `${formatNumber(100 * minute.accepted)} %` : "–";
  if (minute) at("throughput").replaceChildren(drawBars(minute.requests, minute.bin_seconds));
  at("uncertainty").replaceChildren(drawScores(live.points, "uncertainty", "Uncertainty", model.calibration_band, model.threshold));
  at("novelty").replaceChildren(drawScores(live.points, "missed", "Shortfall", model.novelty_band, model.novelty_threshold));
  at("novelty-figure").hidden = !model.frames?.includes("input");
  at("drift").replaceChildren(live.drift ? drawCapital(live.points, live.drift) : element("p", { class: "note" },
    live.store.working ? "The file does not say what the calibration rows were like, so there is nothing to compare with." : "Not known while the store does not work."));
  at("reset").hidden = !live.drift;
  at("promise").textContent = live.drift ? describePromise(Math.exp(-live.drift.alarm_line)) : "";
  showHints(live.drift?.hints ?? [], live.drift);
  showLabels(live.labels);
  showRejected(live.rejected);
  const lines = [];
  if (!live.store.working) lines.push(["bad", `Assessments are answered but not stored. ${live.store.reason}`]);
  if (model.reload_trouble) lines.push(["bad", `The model's file changed and cannot be loaded; the model before it answers. ${model.reload_trouble}`]);
  if (live.drift && live.drift.alarm) lines.push(["bad", `Drift alarm, raised ${formatTime(live.drift.alarm_time)}at row ${live.drift.alarmed_at}${live.drift.watched.length > 1 ? ` by the ${live.drift.alarmed_by}` : ""}: the rows are not like those of the calibration.`]);
  if (live.process) lines.push(["bad", live.process]);
  const labels = live.labels, chance = labels ? 3 * Math.sqrt(labels.promised * (1 - labels.promised) / labels.n_labels) : 0;
  if (labels && labels.coverage !== null && labels.coverage < labels.promised - chance) lines.push(["warn", `Only ${formatNumber(100 * labels.coverage)} % of the latest ${labels.n_labels} labels were covered, and ${formatNumber(100 * labels.promised)} % were promised.`]);
  const outside = live.drift?.outside ?? [];
  if (outside.length) lines.push(["warn", `Values far outside the range of the training rows: ${outside.join(", ")}. See whether they are right.`]);
  else if (!lines.length && live.drift?.hints?.length) lines.push(["warn", describeQuiet(live.drift)]);
  say(lines.length ? lines : [["good", describeQuiet(live.drift)]]);
}

function formatTime(seconds) {
  return seconds ? `on ${new Date(1000 * seconds).toLocaleString()} ` : "";
}

function describeQuiet(drift) {
  if (!drift) return "Everything works. Drift is not watched.";
  return drift.hints?.length ? "Everything works. There is no drift alarm, but columns moved: see Drift." : "Everything works, and there is no sign of drift.";
}

// How likely a false alarm is depends on how the model was calibrated.
function describePromise(alpha) {
  const chance = `${formatNumber(100 * alpha)}\u00a0%`;
  if (model.calibrated_by === "cross-validation") return `The model was calibrated by cross-validation, so a false alarm is more likely than ${chance}.`;
  const kept = `a false alarm has a chance of at most ${chance}, however long one looks.`;
  return model.calibrated_by ? `A${kept.slice(1)}` : `If the model was calibrated on rows kept apart for it, ${kept}`;
}

function showLabels(labels) {
  at("coverage-figure").hidden = !labels;
  if (!labels) return;
  at("coverage").replaceChildren(labels.coverage === null ? element("p", { class: "note" }, "The model has no intervals or sets.") : drawCoverage(labels));
  at("error").textContent = `${model.classes ? "Share of wrong classes" : "Mean absolute error"} among them: ${formatNumber(labels.mean_error)}`;
}

function showHints(hints, drift) {
  at("hints").hidden = !hints.length;
  const silent = drift?.watched.length > 1 ? "neither uncertainty nor novelty shows it" : "the uncertainty does not show it";
  const title = drift?.alarm ? "Columns that moved:" : `Columns that moved, though ${silent}:`;
  at("hints").replaceChildren(element("p", {}, title), element("ul", {}, ...hints.map(hint => element("li", {}, hint))));
}

function showRejected(rows) {
  const features = model.columns.filter(column => column.required || column.kind === "key").map(column => column.name);
  const withRows = rows.some(row => row.row);
  const withNovelty = rows.some(row => "novelty" in row.answer);
  const names = ["Time", "Value", "Uncertainty", ...(withNovelty ? ["Novelty"] : []), "Why", ...(withRows ? features : [])];
  at("rejected-head").replaceChildren(element("tr", {}, ...names.map(name => element("th", { scope: "col" }, name))));
  const lines = rows.map(row => element("tr", {},
    element("td", { class: "time" }, new Date(1000 * row.at).toLocaleTimeString()),
    element("td", {}, formatValue(row.answer.value)),
    element("td", {}, formatNumber(row.answer.uncertainty)),
    ...(withNovelty ? [element("td", {}, formatNumber(row.answer.novelty))] : []),
    element("td", { class: "wide" }, row.answer.reason ?? ""),
    ...(withRows ? features.map(name => element("td", {}, formatCell({ ...row.row, ...row.key }[name]))) : [])));
  at("rejected").replaceChildren(...(lines.length ? lines : [element("tr", {}, element("td", { colspan: names.length }, "None yet."))]));
}

function formatCell(value) {
  return value === null || value === undefined ? "–" : typeof value === "number" ? formatNumber(value, 5) : String(value).replace("T00:00:00+00:00", "");
}

function formatValue(value) {
  if (value !== null && typeof value === "object") return Object.entries(value).map(([name, one]) => `${name} ${formatNumber(one, 4)}`).join(", ");
  return typeof value === "number" ? formatNumber(value, 4) : String(value);
}

function makeField(column, index) {
  const id = `field-${index}`, label = element("label", { for: id }, column.name);
  let input;
  if (column.kind === "boolean") {
    input = element("select", { id }, ...[["", "not known"], ["true", "true"], ["false", "false"]].map(([value, text]) => element("option", { value }, text)));
  } else {
    input = element("input", { id, autocomplete: "off", ...(column.kind === "number" ? { inputmode: "decimal" } : {}),
      ...(column.kind === "date" ? { placeholder: "2024-01-31" } : {}), ...(column.levels.length ? { list: `${id}-levels` } : {}) });
  }
  input.dataset.column = column.name;
  const levels = column.levels.length ? [element("datalist", { id: `${id}-levels` }, ...column.levels.map(value => element("option", { value })))] : [];
  return element("div", {}, label, input, ...levels);
}

function readRow(form) {
  const row = {};
  for (const column of model.columns.filter(column => column.required)) {
    const text = form.querySelector(`[data-column="${CSS.escape(column.name)}"]`).value.trim();
    if (text === "") row[column.name] = null;
    else if (column.kind === "boolean") row[column.name] = text === "true";
    // Text that is not a number goes as it is, so that the service says what is wrong with it.
    else if (column.kind === "number") row[column.name] = Number.isFinite(Number(text)) ? Number(text) : text;
    else row[column.name] = text;
  }
  return row;
}

function showAnswer(answer) {
  const verdict = answer.accepted === null ? ["", "No threshold is set"] : answer.accepted ? ["good", "✓ Accepted"] : ["bad", "✗ Rejected"];
  const facts = [["Value", formatValue(answer.value)], ["Uncertainty", formatNumber(answer.uncertainty, 4)]];
  if ("noise" in answer) facts.push(["Noise", formatValue(answer.noise)]);
  if ("novelty" in answer) facts.push(["Novelty", formatNumber(answer.novelty)]);
  if (answer.confidence !== undefined && answer.confidence !== null) facts.push(["Confidence", `${formatNumber(100 * answer.confidence)} %`]);
  if (answer.expected_error !== undefined) facts.push(["Expected error", formatNumber(answer.expected_error, 4)]);
  if (answer.set) facts.push([`Set with coverage ${formatNumber(100 * model.coverage)} %`, answer.set.join(", ") || "empty"]);
  if ("lower" in answer) facts.push(["Coverage of the interval", `${formatNumber(100 * model.coverage)} %`]);
  at("answer").replaceChildren(
    element("p", { class: `verdict ${verdict[0]}` }, verdict[1]),
    ...(answer.reason ? [element("p", {}, answer.reason)] : []),
    drawAnswer(answer),
    element("p", { class: "note" }, facts.map(([name, value]) => `${name}: ${value}`).join(" · ")));
}

function drawAnswer(answer) {
  const share = `${formatNumber(100 * model.coverage)} %`;
  if (answer.probabilities) {
    return drawProbabilities(answer.probabilities, answer.set ?? [], `Probability of each class. The set with coverage ${share}: ${(answer.set ?? []).join(", ")}.`);
  }
  const several = answer.value !== null && typeof answer.value === "object";
  const part = (name, key) => several ? answer[name]?.[key] ?? null : answer[name] ?? null;
  const outputs = (several ? Object.keys(answer.value) : model.targets).map(name => ({
    name, value: part("value", name), lower: part("lower", name), upper: part("upper", name), bounded: "lower" in answer }))
    .filter(output => typeof output.value === "number");
  if (!outputs.length) return element("p", {}, "The model has no value for this row.");
  const words = outputs.map(output => `${output.name} ${formatNumber(output.value, 4)}` + (output.bounded ? `, between ${formatNumber(output.lower, 4)} and ${formatNumber(output.upper, 4)} with coverage ${share}` : "")).join("; ");
  return drawIntervals(outputs, `${words}.`);
}

function showError(error) {
  for (const input of at("fields").querySelectorAll("[data-column]")) input.removeAttribute("aria-invalid");
  const columns = new Set((error.errors ?? []).map(one => one.column));
  const wrong = [...at("fields").querySelectorAll("[data-column]")].filter(input => columns.has(input.dataset.column));
  for (const input of wrong) input.setAttribute("aria-invalid", "true");
  at("answer").replaceChildren(element("p", { class: "bad" }, error.message));
  if (wrong.length) wrong[0].focus();
}

async function loadModel() {
  model = await ask("/v1/model");
  at("key-form").hidden = true;
  document.title = `${model.name} · onsphere`;
  at("model").textContent = `${model.name}: ${model.targets.join(", ")} by ${model.model}${model.backbone ? ` (${model.backbone})` : ""}`;
  if (shownModel !== model.sha256) {
    at("fields").replaceChildren(...model.columns.filter(column => column.required).map(makeField));
    shownModel = model.sha256;
  }
}

async function refresh() {
  try {
    await loadModel();
    show(await ask("/v1/live"));
  } catch (error) {
    say([["bad", error instanceof TypeError ? "The service does not answer." : error.message]]);
  }
}

at("key-form").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem("onsphere-key", at("key").value);
  refresh();
});
at("row-form").addEventListener("submit", async event => {
  event.preventDefault();
  try {
    const body = JSON.stringify({ rows: [readRow(event.target)] });
    const answer = await ask("/v1/assess?record=false", { method: "POST", body, headers: { "Content-Type": "application/json" } });
    for (const input of at("fields").querySelectorAll("[data-column]")) input.removeAttribute("aria-invalid");
    showAnswer(answer.rows[0]);
  } catch (error) {
    showError(error);
  }
});
at("reset").addEventListener("click", async () => {
  try { await ask("/v1/reset", { method: "POST" }); } catch (error) { say([["bad", error.message]]); return; }
  refresh();
});

(async function watch() {
  await refresh();
  setTimeout(watch, PAUSE);
})();
