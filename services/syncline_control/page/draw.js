// Small tools for drawing: elements, and numbers in words that fit.

export const byId = (id) => document.getElementById(id);

// An element with properties, classes and children. Text is only ever text: nothing that comes
// from a run is read as HTML.
export function el(name, props = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(props)) {
    if (key === "class") node.className = value;
    else if (key === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size * 0.9995) {
      const scaled = value / size;
      return `${scaled.toFixed(scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0)} ${unit}`;
    }
  }
  return String(Math.round(value));
}

export function fixed(value, digits) {
  return value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");
}

export function percent(value, digits = 1) {
  return value === null || Number.isNaN(value) ? "–" : `${(100 * value).toFixed(digits)} %`;
}

export function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  if (whole < 172_800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.round(whole / 86_400)} days`;
}

export function clock(time) {
  return new Date(1000 * time).toLocaleTimeString("en-GB");
}

// The time of a day, and which day unless it is this one.
export function moment(time) {
  const then = new Date(1000 * time);
  const day = then.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return then.toDateString() === new Date().toDateString() ? clock(time) : `${day}, ${clock(time)}`;
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const SERIES = 8;
