// The strip of rounds: one row a fragment, one column a revision (or gradient step), newest right.
// A cell's strength is how evenly the replicas counted; what went wrong has a colour of its own.

import { byId, count, el, fixed, percent } from "./draw.js";
import { place } from "./chart.js";

const COLUMN = 13; // pixels, gap included
const LABEL = 104;
const HEIGHT = 96; // of all rows, unless they are few

export function drawRounds(reports) {
  const host = byId("rounds");
  if (!reports.length) {
    host.style.gridTemplateColumns = "1fr";
    host.replaceChildren(el("div", { class: "none" }, "No round yet. The first is committed once the replicas have trained as many inner steps as lie between two rounds."));
    return;
  }
  const names = new Map(reports.map((report) => [report.fragment, report.fragment_name]));
  const fragments = [...names.keys()].sort((a, b) => a - b);
  const columns = Math.max(8, Math.floor((host.clientWidth - 32 - LABEL) / COLUMN));
  const keys = [...new Set(reports.map(column))].slice(-columns);
  const at = new Map(reports.map((report) => [`${report.fragment} ${column(report)}`, report]));
  const height = Math.max(3, Math.min(13, Math.floor(HEIGHT / fragments.length) - 2));
  host.style.gridTemplateColumns = `${LABEL}px repeat(${columns}, 1fr)`;
  host.style.gridAutoRows = `${height}px`;
  host.replaceChildren(
    ...fragments.flatMap((fragment) => [
      el("div", { class: "label" }, height >= 9 ? names.get(fragment) : ""),
      ...Array.from({ length: columns - keys.length }, () => el("div", { class: "cell gap" })),
      ...keys.map((key) => cell(at.get(`${fragment} ${key}`))),
    ]),
  );
}

function column(report) {
  return report.kind === "gradient" ? `g${report.gradient_step}` : `r${report.revision}`;
}

function cell(report) {
  if (!report) return el("div", { class: "cell gap" });
  const pushes = report.contributions.filter((one) => one.verdict === "accepted").length;
  const excluded = report.contributions.length > pushes;
  const early = report.closed_by === "deadline" || report.closed_by === "loss";
  const kind = excluded ? "excluded" : report.kind === "parameters" ? "offer" : early ? "early" : "";
  const even = pushes ? (report.effective_sample_size ?? pushes) / pushes : 0;
  const node = el("div", { class: `cell ${kind}`, style: { "--even": `${Math.round(18 + 70 * even ** 2)}%` } });
  node.addEventListener("mouseenter", () => explain(node, report));
  node.addEventListener("mouseleave", () => (byId("tip").hidden = true));
  return node;
}

function explain(node, report) {
  const what = report.kind === "gradient" ? `gradient step ${report.gradient_step}` : `revision ${report.revision}`;
  const facts = [
    `closed by ${report.closed_by}`,
    `${fixed(report.seconds, 2)} s`,
    report.effective_sample_size === null ? null : `effective replicas ${fixed(report.effective_sample_size, 2)}`,
    report.clip_factor !== null && report.clip_factor < 1 ? `clipped to ${percent(report.clip_factor, 0)}` : null,
  ].filter(Boolean);
  const rows = report.contributions.map((one) =>
    el("tr", {},
      el("td", {}, one.replica),
      el("td", { class: "n" }, one.verdict === "accepted" ? percent(one.weight) : "excluded"),
      el("td", { class: "n" }, `z ${fixed(one.z, 1)}`),
      el("td", { class: "n" }, `norm ${one.norm === null ? "not finite" : one.norm.toPrecision(3)}`),
      el("td", { class: "n" }, `${count(one.tokens)} tokens`),
      el("td", { class: "n" }, one.age ? `age ${one.age}` : ""),
    ),
  );
  const reasons = report.contributions.filter((one) => one.reason).map((one) => el("div", { class: "why" }, `${one.replica}: ${one.reason}`));
  const tip = byId("tip");
  tip.dataset.of = "rounds";
  tip.replaceChildren(el("b", {}, `${report.fragment_name}, ${what}`), el("div", { class: "quiet" }, facts.join(" · ")), el("table", {}, ...rows), ...reasons);
  const box = node.getBoundingClientRect();
  place(tip, box.left, box.top - tip.offsetHeight - 60);
}
