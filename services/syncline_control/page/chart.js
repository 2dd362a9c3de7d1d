// The loss curves: one line per replica, held-out losses as dashes, the merged model in ink.
// Training loss is noisy, so a smoothed line stands over a faint one of what was measured.

import { SERIES, byId, colour, count, el, fixed } from "./draw.js";

const SMOOTHING = 0.8; // of the weight of what came before, per point
const SMOOTHED_FROM = 60; // points; shorter curves are shown as they are
const JOINED_FROM = 5; // dots; a line through fewer would tell of a course that nobody measured
const LEGEND_MAX = 10;

let plot = null;
let drawn = "";
let named = []; // [label, colour, index into the plot's data] of each line with a name

export function drawChart(curves, ordinals) {
  const lines = linesOf(withOneMerged(curves), ordinals);
  named = lines.map((line, i) => [line.label, line.stroke, i + 1]).filter(([label]) => label);
  legend(lines);
  const host = byId("plot");
  const shape = JSON.stringify(lines.map(({ label, stroke, width, dash, dots, x }) => [label, stroke, width, dash, dots && x.length < JOINED_FROM]));
  if (!lines.length) {
    clear();
    const own = ["No loss yet. Replicas report theirs as they train (in your own loop: ", el("code", {}, "replica.report(loss=…)"), ")."];
    host.replaceChildren(el("div", { class: "none" }, el("p", {}, ...own)));
    return;
  }
  const data = uPlot.join(lines.map((line) => [line.x, line.y]));
  if (plot && shape === drawn) {
    plot.setData(data);
    return;
  }
  clear();
  host.replaceChildren();
  plot = new uPlot(options(lines, host), data, host);
  drawn = shape;
}

// The columns that are plotted: the tokens, then the losses of each line.
export const plotted = () => plot?.data ?? [];

export function forgetChart() {
  drawn = "";
}

function clear() {
  plot?.destroy();
  plot = null;
}

function linesOf(curves, ordinals) {
  const lines = [];
  const order = { train: 0, "held-out": 1, merged: 2 };
  for (const curve of [...curves].sort((a, b) => order[a.kind] - order[b.kind] || (ordinals.get(a.replica) ?? 0) - (ordinals.get(b.replica) ?? 0))) {
    const { x, y } = rising(curve);
    const stroke = curve.kind === "merged" ? colour("--ink") : colour(`--series-${(ordinals.get(curve.replica) ?? 0) % SERIES}`);
    if (curve.kind === "train" && x.length >= SMOOTHED_FROM) {
      lines.push({ label: "", x, y, stroke: `${stroke}38`, width: 1 });
      lines.push({ label: curve.replica, x, y: smooth(y), stroke, width: 2 });
    } else if (curve.kind === "train") {
      lines.push({ label: curve.replica, x, y, stroke, width: 1.75 });
    } else if (curve.kind === "held-out") {
      lines.push({ label: `${curve.replica}, held out`, x, y, stroke, width: 1.75, dash: [5, 4] });
    } else {
      lines.push({ label: "merged", x, y, stroke, width: 2.5, dots: true });
    }
  }
  return lines;
}

// Every replica may evaluate the merged model, and there is only one: one line, whoever said it.
function withOneMerged(curves) {
  const merged = curves.filter((curve) => curve.kind === "merged");
  if (merged.length < 2) return curves;
  const all = (key) => merged.flatMap((curve) => curve[key]);
  const one = { ...merged[0], tokens: all("tokens"), loss: all("loss"), time: all("time") };
  return [...curves.filter((curve) => curve.kind !== "merged"), one];
}

// A replica that started again may step back; a plot wants each x once, in order.
function rising(curve) {
  const points = curve.tokens.map((tokens, i) => [tokens, curve.loss[i]]).sort((a, b) => a[0] - b[0]);
  const last = new Map(points);
  return { x: [...last.keys()], y: [...last.values()] };
}

// From both ends, so that the line does not lag behind where the loss falls fast.
function smooth(values) {
  const forward = lagging(values);
  const backward = lagging([...values].reverse()).reverse();
  return forward.map((value, i) => (value + backward[i]) / 2);
}

function lagging(values) {
  let mean = 0;
  let weight = 0;
  return values.map((value) => {
    mean = SMOOTHING * mean + (1 - SMOOTHING) * value;
    weight = SMOOTHING * weight + (1 - SMOOTHING);
    return mean / weight;
  });
}

function options(lines, host) {
  const axis = {
    stroke: colour("--quiet"),
    grid: { stroke: colour("--faint"), width: 1 },
    ticks: { show: false },
    font: "11.5px Inter, system-ui, sans-serif",
    labelFont: "11.5px Inter, system-ui, sans-serif",
    labelSize: 16,
    labelGap: 0,
  };
  return {
    ...size(host),
    legend: { show: false },
    cursor: { points: { size: 6 }, y: false, drag: { x: true, y: false } },
    scales: { x: { time: false } },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map(tokens), size: 26, gap: 6, label: "tokens of the run" },
      { ...axis, values: (_, ticks) => ticks.map((tick) => fixed(tick, decimals(ticks))), size: room, gap: 6, label: "nats per token" },
    ],
    series: [
      {},
      ...lines.map((line) => ({
        label: line.label,
        stroke: line.stroke,
        width: line.width,
        dash: line.dash,
        spanGaps: true,
        points: { show: Boolean(line.dots), size: 6, fill: line.stroke },
        ...(line.dots && line.x.length < JOINED_FROM ? { paths: () => null } : {}),
      })),
    ],
    hooks: { setCursor: [hover] },
  };
}

const tokens = (tick) => (tick ? count(tick).replace(/\.0+ |(\.\d*?)0+ /, "$1 ") : "0");

// The more decimals, the wider the labels.
const room = (_, labels) => Math.max(40, 10 + 6.5 * Math.max(0, ...(labels ?? []).map((label) => label.length)));

// As many decimals as the step between neighbouring ticks has: 3 for 0.025.
export function decimals(ticks) {
  const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : 1;
  const whole = (digits) => Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) < 1e-6 * step * 10 ** digits;
  let digits = 0;
  while (digits < 6 && !whole(digits)) digits++;
  return digits;
}

function hover(u) {
  const tip = byId("tip");
  const at = u.cursor.idx;
  if (at === null || at === undefined || u.cursor.left < 0) {
    if (tip.dataset.of === "chart") tip.hidden = true;
    return;
  }
  const rows = named.flatMap(([label, stroke, i]) => {
    const value = nearest(u.data[i], at);
    if (value === null) return [];
    return [el("tr", {}, el("td", { style: { color: stroke } }, label), el("td", { class: "n" }, fixed(value, 3)))];
  });
  tip.replaceChildren(el("b", {}, `${count(u.data[0][at])} tokens`), el("table", {}, ...rows));
  tip.dataset.of = "chart";
  place(tip, u.over.getBoundingClientRect().left + u.cursor.left, u.over.getBoundingClientRect().top + 12);
}

function nearest(values, at) {
  for (let step = 0; step < values.length; step++) {
    const value = values[at - step] ?? values[at + step];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}

export function place(tip, x, y) {
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${x + box.width + 24 > innerWidth ? x - box.width - 14 : x + 14}px`;
  tip.style.top = `${Math.max(8, Math.min(y, innerHeight - box.height - 10))}px`;
}

function legend(lines) {
  const key = (label, stroke, line = "solid") =>
    el("span", {}, el("i", { class: "stroke", style: { "border-color": stroke, "border-top-style": line } }), label);
  const solid = named.filter(([, , i]) => !lines[i - 1].dash);
  const keys = solid.slice(0, LEGEND_MAX).map(([label, stroke]) => key(label, stroke));
  if (solid.length > LEGEND_MAX) keys.push(el("span", {}, `and ${solid.length - LEGEND_MAX} more`));
  if (solid.length < named.length) keys.push(key("held out", colour("--quiet"), "dashed"));
  byId("legend").replaceChildren(...keys);
}

function size(host) {
  return { width: Math.max(200, host.clientWidth - 14), height: Math.max(120, host.clientHeight - 6) };
}

new ResizeObserver(() => plot?.setSize(size(byId("plot")))).observe(byId("plot"));
