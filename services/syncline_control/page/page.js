// The live page: asks every two seconds, draws what it hears, and acts after a confirmation.
// It decides nothing about runs; every number comes from the REST API beside it.

import { Refused, call, follow, get, hasToken, keepToken } from "./api.js";
import { drawChart, forgetChart } from "./chart.js";
import { SERIES, byId, clock, count, duration, el, fixed, moment, percent } from "./draw.js";
import { drawRounds } from "./rounds.js";

const EVERY_MS = 2_000;
const CURVES_EVERY = 2; // rounds of asking
const EVENTS_SHOWN = 200;
const LEASE_S = { lan: 10, wan: 60 };

const now = { chosen: null, runs: [], replicas: [], rounds: [], roundsSeen: null, turn: 0, unfollow: null };

const path = (name, rest = "") => `/runs/${encodeURIComponent(name)}${rest}`;

async function refresh() {
  now.runs = await get("/runs?limit=200");
  services(await get("/sync-services"));
  const wanted = decodeURIComponent(location.hash.slice(1));
  const run = now.runs.find((one) => one.name === wanted) ?? now.runs.find((one) => one.state === "running") ?? now.runs[0];
  byId("empty").hidden = Boolean(run);
  byId("run").hidden = !run;
  runsList(run);
  if (!run) return;
  if (run.name !== now.chosen) await choose(run);
  now.replicas = await get(path(run.name, "/replicas"));
  if (run.fragment_rounds !== now.roundsSeen) {
    now.rounds = await get(path(run.name, "/rounds?limit=1000"));
    now.roundsSeen = run.fragment_rounds;
    drawRounds(now.rounds);
  }
  head(run);
  data(await get(path(run.name, "/data")));
  figures(run);
  replicas(run);
  if (now.turn++ % CURVES_EVERY === 0) await curves(run);
}

async function choose(run) {
  // First, so that where the call fails the run is chosen again at the next turn.
  const events = await get(`/events?run=${encodeURIComponent(run.name)}&limit=${EVENTS_SHOWN}`);
  now.unfollow?.();
  Object.assign(now, { chosen: run.name, roundsSeen: null, turn: 0 });
  byId("events").replaceChildren(...events.reverse().map((event) => line(event)));
  const last = events.length ? events[0].id : 0;
  now.unfollow = follow(run.name, last, (event) => {
    const list = byId("events");
    list.prepend(line(event, "new"));
    while (list.children.length > EVENTS_SHOWN) list.lastChild.remove();
    soon();
  }, (state) => (byId("live").textContent = state === "live" ? "live" : "reconnecting"));
}

async function curves(run) {
  const ordinals = new Map(now.replicas.map((one, i) => [one.replica, i]));
  drawChart(await get(path(run.name, "/metrics?points=800")), ordinals);
}

function services(list) {
  byId("services").replaceChildren(
    ...list.map((one) => el("span", { class: `dot ${one.alive ? "good" : "bad"}`, title: one.address }, one.name, one.alive ? "" : " is away")),
    ...(list.length ? [] : [el("span", { class: "dot hollow" }, "no sync service")]),
  );
}

function runsList(chosen) {
  byId("runs").replaceChildren(
    ...now.runs.map((run) => {
      const budget = run.settings.token_budget;
      const link = el("a", { href: `#${encodeURIComponent(run.name)}` },
        el("div", { class: "name" }, el("span", {}, run.name), el("span", { class: "quiet" }, run.waits_for === "replicas" ? `${run.state}, ${run.idle_since ? "idle" : "waits"}` : run.state)),
        budget ? bar(run.committed_tokens / budget, run.state) : null,
      );
      if (run === chosen) link.setAttribute("aria-current", "true");
      return link;
    }),
  );
}

function bar(share, state) {
  const width = `${(100 * Math.min(1, share)).toFixed(2)}%`;
  return el("div", { class: state === "running" ? "bar" : "bar idle" }, el("i", { style: { width } }));
}

function head(run) {
  byId("name").textContent = run.name;
  byId("state").textContent = run.state;
  byId("state").className = `chip ${run.state}`;
  const s = run.settings;
  const every = s.sync_seconds ? `${s.sync_seconds} s` : `${s.sync_every} inner steps`;
  const facts = [s.strategy, `synchronised every ${every}`, `outer lr ${s.outer.lr}, momentum ${s.outer.momentum}`, `${s.codec.up} up, ${s.codec.down} down`];
  byId("about").textContent = facts.join(" · ");
  byId("since").textContent = since(run);
  byId("pause").hidden = run.state !== "running";
  byId("resume").hidden = run.state !== "paused";
  byId("stop").hidden = ended(run);
  document.title = `${run.name} · Syncline`;
}

function data(read) {
  const epoch = read.epochs.find((one) => one.epoch === read.epoch);
  const part = (number) => percent(number / read.dataset.sequences);
  const excluded = read.excluded ? ` · ${count(read.excluded)} sequences excluded so far` : "";
  byId("data").textContent = epoch
    ? `data: epoch ${read.epoch}, ${part(epoch.trained + epoch.excluded)} done, ${part(epoch.leased)} leased${excluded}`
    : "";
}

const ended = (run) => run.state === "stopped" || run.state === "finished";

function since(run) {
  const age = (from, to = Date.now() / 1000) => duration(to - from);
  if (ended(run)) return `${run.state} at ${moment(run.ended_at)}, ${age(run.created_at, run.ended_at)} after it was created: ${why(run)}`;
  if (run.state === "paused") return `paused; Resume, or syncline runs resume ${run.name}, goes on`;
  if (run.idle_since) return `idle since ${moment(run.idle_since)} (${age(run.idle_since)}): no replica is alive; it goes on when one joins`;
  const origin = run.origin ? ` from ${run.origin.checkpoint}` : "";
  const waits = run.waits_for === "replicas" ? firstRound(run) || `; it waits for replicas${ofMinimum(run)}` : firstRound(run);
  return `created at ${moment(run.created_at)}, ${age(run.created_at)} ago${origin}${waits}`;
}

// Who has joined and is gone again is not waited for; who was refused at its join has not come.
function firstRound(run) {
  const s = run.settings;
  const [name, wanted] = s.expected_replicas ? ["expected_replicas", s.expected_replicas] : ["min_replicas", s.min_replicas];
  const come = (r) => held(r) || r.progress.phase !== "joining";
  const missing = wanted - now.replicas.filter(come).length;
  if (run.fragment_rounds || !run.replicas_alive || missing <= 0) return "";
  return `; the first round waits for ${missing} more of ${name} ${wanted}`;
}

const ofMinimum = (run) => (run.replicas_alive ? `: ${run.replicas_alive} of min_replicas ${run.settings.min_replicas} alive, and no round closes with fewer` : "");

function why(run) {
  if (run.state === "stopped") return "by an operator";
  return run.settings.token_budget ? "its token budget is committed" : "a replica said so";
}

// Rounds of pseudo-gradients, as each fragment has had them: the first revision after a
// synchronous phase is what a replica offered.
const outerRounds = (run) => Math.max(0, run.revision - (run.settings.warmup_steps ? 1 : 0));

function figures(run) {
  const alive = now.replicas.filter(held);
  const speed = alive.reduce((sum, one) => sum + (rate(one) ?? 0), 0);
  const budget = run.settings.token_budget;
  const left = budget ? budget - run.committed_tokens : null;
  const eta = run.state === "running" && left > 0 && speed > 0 ? `${duration(left / speed)} left` : "";
  byId("figures").replaceChildren(
    el("div", { class: "figure" },
      el("div", { class: "label" }, "Tokens committed"),
      el("div", { class: "value" }, count(run.committed_tokens), el("small", {}, budget ? `of ${count(budget)}` : "", eta ? ` · ${eta}` : "")),
      budget ? bar(run.committed_tokens / budget, run.state) : null,
    ),
    figure("Tokens/s", speed ? count(speed) : "–"),
    figure("Loss", fixed(run.loss, 3), run.loss === null ? "" : "nats"),
    figure("Alive", run.replicas_wanted === null ? String(run.replicas_alive) : `${run.replicas_alive} of ${run.replicas_wanted}`),
    figure("Taking part", String(run.replicas_taking_part), "", run.fragment_rounds && run.replicas_taking_part < run.replicas_alive ? "warn" : ""),
    Object.assign(figure("Rounds", count(outerRounds(run))), { title: "Of each fragment" }),
    figure("Revision", count(run.revision)),
    figure("Exclusions", count(run.exclusions), pushes(run) ? percent(run.exclusions / pushes(run)) : "", run.exclusions ? "bad" : ""),
  );
}

// Pushes judged so far, guessed from the rounds at hand, since only those tell how many came.
function pushes(run) {
  const judged = now.rounds.filter((one) => one.kind !== "parameters");
  const mean = judged.reduce((sum, one) => sum + one.contributions.length, 0) / Math.max(1, judged.length);
  return run.fragment_rounds * mean;
}

function figure(label, value, small = "", kind = "") {
  return el("div", { class: "figure" }, el("div", { class: "label" }, label), el("div", { class: `value ${kind}` }, value, small ? el("small", {}, small) : null));
}

const byName = new Intl.Collator("en", { numeric: true }).compare; // replica-2 before replica-10
const held = (one) => one.state === "alive" || one.state === "draining";
const rate = (one) => (held(one) && one.progress.phase !== "paused" ? one.progress.tokens_per_second : null);
// How fast it is beside the others; its figure is red while it straggles, and says so.
const pace = (one) => (one.pace === null ? "" : `${fixed(one.pace, 2)} times as fast as the others' median${one.straggles ? ": it straggles" : ""}${one.step_share < 1 ? `, and makes ${percent(one.step_share, 0)} of a round's inner steps` : ""}`);
const DOT = { alive: "good", draining: "warn", lost: "bad", kicked: "bad", left: "hollow" };

function replicas(run) {
  const lease = run.settings.timeouts.lease ?? LEASE_S[run.settings.timeouts.profile];
  const order = [...now.replicas.keys()].sort((a, b) => held(now.replicas[b]) - held(now.replicas[a]) || byName(now.replicas[a].replica, now.replicas[b].replica));
  byId("replicas").replaceChildren(...order.map((i) => row(run, now.replicas[i], i, lease)));
  byId("crew-head").hidden = !order.length;
  byId("crew").textContent = order.length ? `${order.length} in all` : "";
  if (!order.length) byId("replicas").append(el("tr", { class: "none" }, el("td", { colSpan: 11 }, ...nobody(run))));
}

function nobody(run) {
  if (ended(run)) return ["No replica ever joined."];
  return ["No replica has joined yet. Start one with ", el("code", {}, `syncline train job.toml --run ${run.name} --control ${location.origin}`)];
}

function row(run, one, i, lease) {
  const p = one.progress;
  const here = held(one);
  const drain = el("button", { type: "button", class: "small", disabled: one.state !== "alive" }, "Drain");
  drain.addEventListener("click", () => act(`Drain ${one.replica}?`, "It finishes its inner step, pushes what it has done and leaves the run.", "Drain", path(run.name, `/replicas/${one.replica}/drain`)));
  const number = (text, kind = "", title = "") => el("td", { class: `n ${kind}`, title }, text);
  return el("tr", { class: here ? "" : "gone" },
    el("td", {}, el("span", { class: "mark", style: { background: `var(--series-${i % SERIES})` } }), one.replica, el("span", { class: "host" }, `${one.host}${one.ranks > 1 ? ` · ${one.ranks} ranks` : ""}${one.incarnation > 1 ? ` · life ${one.incarnation}` : ""}`)),
    el("td", {}, el("span", { class: `dot ${DOT[one.state]}` }, one.state)),
    el("td", {}, here ? el("span", { class: `dot ${one.taking_part ? "good" : "hollow"}` }, one.taking_part ? "yes" : `no, ${p.phase}`) : "–"),
    number(here && one.weight !== null ? percent(one.weight) : "–"),
    number(here ? fixed(one.z, 1) : "–", here && one.z > run.settings.penalty.z_max ? "bad" : ""),
    number(fixed(p.loss, 3)),
    number(count(rate(one)), one.straggles ? "bad" : "", pace(one)),
    number(p.wall_s > 0 ? percent(p.exposed_sync_s / p.wall_s) : "–"),
    number(String(one.exclusions), one.exclusions ? "bad" : ""),
    number(here ? `${fixed(Math.max(0, lease - one.lease_left_s), 0)} s ago` : "–"),
    el("td", {}, here ? drain : null),
  );
}

const MOOD = [[/lost|straggles|excluded|kicked|failed|stopped|damaged/, "bad"], [/fenced|drain|paused|waits|steps|restart|deadline|_back/, "warn"], [/joined|created|resumed|finished|goes_on|keeps_up|back|saved|restored/, "good"]];

function line(event, kind = "") {
  const mood = MOOD.find(([pattern]) => pattern.test(event.kind))?.[1] ?? "";
  return el("li", { class: `${mood} ${kind}` }, el("time", {}, clock(event.time)), el("span", { class: "kind" }, event.kind), el("span", { class: "message" }, event.message));
}

function ask(title, text, yes, wantsToken = false) {
  const dialog = byId("ask");
  byId("ask-title").textContent = title;
  byId("ask-text").textContent = text;
  byId("ask-yes").textContent = yes;
  byId("ask-token").hidden = !wantsToken;
  byId("ask-token").value = "";
  dialog.returnValue = "no";
  dialog.showModal();
  (wantsToken ? byId("ask-token") : byId("ask-yes")).focus();
  return new Promise((answer) => {
    dialog.addEventListener("close", () => answer(dialog.returnValue === "yes"), { once: true });
  });
}

async function act(title, text, yes, where) {
  if (!(await ask(title, text, yes))) return;
  try {
    await call("POST", where);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    await ask("That did not work", error.message, "Good to know");
  }
  soon();
}

let timer = 0;
let asking = false;

function soon() {
  clearTimeout(timer);
  timer = setTimeout(tick, 150);
}

async function tick() {
  clearTimeout(timer);
  if (asking) return;
  asking = true;
  let wanted = true;
  try {
    if (!document.hidden) await refresh();
    link("live", "live");
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      link("lost", "a token is wanted; reload to give it");
      const why = hasToken() ? "It refused the one it was given." : "Ask whoever runs it.";
      wanted = await ask("This control plane wants a token", `${why} It is kept in this tab only.`, "Go on", true);
      if (wanted) keepToken(byId("ask-token").value);
    } else if (error instanceof TypeError || error instanceof Refused) {
      link("lost", "the control plane does not answer");
    } else {
      throw error;
    }
  } finally {
    asking = false;
    if (wanted) timer = setTimeout(tick, EVERY_MS);
  }
}

function link(state, text) {
  byId("link").dataset.state = state;
  byId("link").textContent = text;
}

const TEXT = {
  pause: ["Pause this run?", "Replicas finish their inner step and wait. Nothing is lost.", "Pause"],
  resume: ["Resume this run?", "Replicas go on where they were.", "Resume"],
  stop: ["Stop this run for good?", "Replicas leave and it cannot be resumed. What was committed stays in the store.", "Stop"],
};
for (const [id, [title, text, yes]] of Object.entries(TEXT)) {
  byId(id).addEventListener("click", () => act(title, text, yes, path(now.chosen, `/${id}`)));
}
addEventListener("hashchange", soon);
addEventListener("resize", () => drawRounds(now.rounds));
document.addEventListener("visibilitychange", soon);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  forgetChart();
  now.turn = 0;
  soon();
});
tick();
