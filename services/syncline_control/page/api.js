// Asking the control plane: JSON calls, the token, the live event stream.
// The token, if one is wanted, stays in this tab's sessionStorage and goes nowhere else.

const KEY = "syncline-token";

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export async function call(method, path, { headers = {}, signal } = {}) {
  const token = sessionStorage.getItem(KEY);
  if (token) headers = { ...headers, Authorization: `Bearer ${token}` };
  const response = await fetch(`/v1${path}`, { method, headers, signal, cache: "no-store" });
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Refused(response.status, problem.detail ?? response.statusText);
}

export async function get(path) {
  return (await call("GET", path)).json();
}

export const hasToken = () => Boolean(sessionStorage.getItem(KEY));

export function keepToken(token) {
  sessionStorage.setItem(KEY, token);
}

// Calls `onEvent` with each event as it happens, for ever; comes back after each break from where
// it was. EventSource cannot send a token, so the stream is read by hand.
export function follow(run, after, onEvent, onState) {
  const stop = new AbortController();
  (async () => {
    let wait = 500;
    while (!stop.signal.aborted) {
      try {
        const response = await call("GET", `/events/stream?run=${encodeURIComponent(run)}`, {
          headers: { "Last-Event-ID": String(after) },
          signal: stop.signal,
        });
        onState("live");
        wait = 500;
        for await (const event of events(response.body)) {
          after = event.id;
          onEvent(event);
        }
      } catch (error) {
        if (stop.signal.aborted) return;
        if (!(error instanceof TypeError || error instanceof Refused)) throw error;
      }
      onState("lost");
      await new Promise((go) => setTimeout(go, wait));
      wait = Math.min(wait * 2, 10_000);
    }
  })();
  return () => stop.abort();
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").find((line) => line.startsWith("data: "));
      if (data) yield JSON.parse(data.slice(6));
    }
  }
}
