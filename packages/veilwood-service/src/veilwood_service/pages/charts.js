// Charts as SVG, with a text for who cannot see them. Colours come from the style sheet, so both themes work.
import { t } from "/page/dom.js";

const SPACE = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function chart(width, height, title, ...children) {
  return svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, style: `max-width:${width}px`, role: "img", "aria-label": title }, ...children);
}

/** Narrower on a phone, so that letters stay as large as the text around them. */
const wide = (usual) => Math.min(usual, Math.max(300, window.innerWidth - 72));

const text = (x, y, words, more = {}) => svg("text", { x, y, ...more }, String(words));
const neat = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3))));

/** How sure somebody can become about one person: before the release, and at most after it. */
export function odds(epsilon, title) {
  const after = 1 / (1 + Math.exp(-epsilon));
  const width = wide(800), left = width > 500 ? 160 : 136, long = width - left - 60;
  const bar = (y, share, words, fill) => [
    text(0, y + 17, words, { class: "strong" }),
    svg("rect", { x: left, y, width: long, height: 24, rx: 5, fill: "var(--pale)" }),
    svg("rect", { x: left, y, width: Math.max(2, long * share), height: 24, rx: 5, fill }),
    text(width - 52, y + 17, `${(100 * share).toFixed(share > 0.995 ? 2 : 0)} %`, { class: "strong" }),
  ];
  return chart(width, 72, title, ...bar(4, 0.5, t("plan.odds.before"), "var(--blue)"),
    ...bar(40, after, t("plan.odds.after"), "var(--amber)"));
}

/** What was spent over time, as steps below the line of the budget. */
export function spends(entries, budget, title) {
  const width = wide(960), height = 190, left = 44, right = width - 20, top = 14, bottom = 160;
  const counted = entries.filter((entry) => entry.counts);
  const high = Math.max(budget, counted.reduce((sum, entry) => sum + entry.epsilon, 0)) || 1;
  const times = counted.map((entry) => Date.parse(entry.time));
  const first = Math.min(...times, Date.now()), last = Math.max(Date.now(), first + 1);
  const x = (time) => left + ((right - left) * (time - first)) / (last - first);
  const y = (value) => bottom - ((bottom - top) * value) / high;
  let sum = 0, path = `M${left} ${y(0)}`;
  const marks = [];
  for (const entry of counted) {
    const at = x(Date.parse(entry.time));
    path += `H${at}`;
    sum += entry.epsilon;
    path += `V${y(sum)}`;
    marks.push(svg("circle", { cx: at, cy: y(sum), r: 4, fill: "var(--green)" }, svg("title", {}, `${entry.time}: ${entry.words}`)));
  }
  path += `H${right}`;
  return chart(width, height, title,
    svg("line", { x1: left, x2: right, y1: y(budget), y2: y(budget), stroke: "var(--amber)", "stroke-width": 2, "stroke-dasharray": "6 4" }),
    text(right, y(budget) - 5 < 12 ? y(budget) + 15 : y(budget) - 5, t("set.budget.line", { budget: neat(budget) }), { "text-anchor": "end" }),
    svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, stroke: "var(--line)" }),
    svg("path", { d: path, fill: "none", stroke: "var(--green)", "stroke-width": 2.5 }), ...marks,
    text(0, y(0) + 4, "0"), text(0, y(sum) + 4, neat(sum)),
    text(left, height - 8, new Date(first).toLocaleDateString()), text(right, height - 8, t("now"), { "text-anchor": "end" }));
}

/** Effects of one column: a bar for each group, with the range that noise and chance leave; or shares, from 0 to 1. */
export function effects(groups, values, errors, title, shares = false) {
  const line = 26, width = wide(800), left = width > 500 ? 150 : 120, right = width - 20, height = groups.length * line + 30;
  const most = width > 500 ? 30 : 16;
  const reach = Math.max(...values.map((value, i) => Math.abs(value) + (errors[i] ?? 0)), 1e-9);
  const x = (value) => (shares ? left + (right - left - 56) * value : (left + right) / 2 + ((right - left) / 2) * (value / reach) * 0.97);
  const parts = [svg("line", { x1: x(0), x2: x(0), y1: 4, y2: groups.length * line + 4, stroke: "var(--line)" })];
  groups.forEach((group, i) => {
    const y = 6 + i * line, from = Math.min(x(0), x(values[i])), size = Math.abs(x(values[i]) - x(0));
    parts.push(
      text(left - 10, y + 15, group.length > most ? `${group.slice(0, most - 1)}…` : group, { "text-anchor": "end", class: "strong" }),
      svg("rect", { x: from, y: y + 3, width: Math.max(size, 1), height: line - 10, rx: 3, fill: values[i] < 0 ? "var(--amber)" : "var(--green)" },
        svg("title", {}, `${group}: ${neat(values[i])} ± ${neat(errors[i] ?? 0)}`)),
      shares ? text(x(values[i]) + 6, y + 15, `${(100 * values[i]).toFixed(1)} %`) : svg("line", { x1: x(values[i] - (errors[i] ?? 0)), x2: x(values[i] + (errors[i] ?? 0)), y1: y + line / 2 - 2, y2: y + line / 2 - 2,
        stroke: "var(--ink)", "stroke-width": 1.5 }));
  });
  if (!shares) parts.push(text(left, height - 6, neat(-reach)), text(x(0), height - 6, "0", { "text-anchor": "middle" }),
    text(right, height - 6, neat(reach), { "text-anchor": "end" }));
  return chart(width, height, title, ...parts);
}

/** A curve with a band: calibration, or the quality to expect at other budgets. */
export function curve(points, { title, xName, yName, diagonal = false, logarithmic = false }) {
  const width = wide(800), height = 310, left = 44, right = width - 20, top = 30, bottom = 262;
  const scale = (value) => (logarithmic ? Math.log(value) : value);
  const xs = points.map((point) => scale(point.x));
  const ys = points.flatMap((point) => [point.low ?? point.y, point.high ?? point.y]);
  const [x0, x1] = diagonal ? [0, 1] : [Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1e-9)];
  const [y0, y1] = diagonal ? [0, 1] : [Math.min(0, ...ys), Math.max(1, ...ys)];
  const x = (value) => left + ((right - left) * (scale(value) - x0)) / (x1 - x0);
  const y = (value) => bottom - ((bottom - top) * (Math.min(Math.max(value, y0), y1) - y0)) / (y1 - y0);
  const parts = [];
  for (const tick of [y0, (y0 + y1) / 2, y1]) {
    parts.push(svg("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), stroke: "var(--line)" }), text(left - 8, y(tick) + 4, neat(tick), { "text-anchor": "end" }));
  }
  for (const tick of diagonal ? [0, 0.5, 1] : points.map((point) => point.x)) parts.push(text(x(tick), bottom + 18, neat(tick), { "text-anchor": "middle" }));
  if (diagonal) parts.push(svg("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(1), stroke: "var(--soft)", "stroke-dasharray": "5 4" }));
  if (points.every((point) => point.low !== undefined)) {
    const band = [...points.map((point) => `${x(point.x)},${y(point.high)}`), ...[...points].reverse().map((point) => `${x(point.x)},${y(point.low)}`)];
    parts.push(svg("polygon", { points: band.join(" "), fill: "var(--pale)" }));
  }
  parts.push(svg("polyline", { points: points.map((point) => `${x(point.x)},${y(point.y)}`).join(" "), fill: "none", stroke: "var(--green)", "stroke-width": 2.5 }));
  for (const point of points) parts.push(svg("circle", { cx: x(point.x), cy: y(point.y), r: 4, fill: "var(--green)" }));
  parts.push(text((left + right) / 2, height - 8, xName, { "text-anchor": "middle" }), text(4, 12, yName));
  return chart(width, height, title, ...parts);
}
