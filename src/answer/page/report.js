"use strict";
/* The page of memfit report. Data comes in two parts per run: a JSON object (names, marks) and packed numbers (zlib, base64;
   report_pack.c says how). Nothing is fetched; names are only ever put in as text. */
(async () => {
const doc = document, $ = id => doc.getElementById(id);
const make = (tag, text, cls) => { const e = doc.createElement(tag); if (text !== undefined) e.textContent = text; if (cls) e.className = cls; return e; };

/* ---- numbers as people read them ---- */
function size(b, digits = 2) {
  const sign = b < 0 ? "-" : ""; b = Math.abs(b);
  if (b < 1024) return sign + Math.round(b) + " B";
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"]; let u = -1;
  do { b /= 1024; u++; } while (b >= 1024 && u < 4);
  return sign + b.toFixed(digits) + " " + units[u];
}
const signed = b => (b > 0 ? "+" : "") + size(b);
function seconds(ns) {
  if (!ns) return "0 s";
  if (ns >= 1e10) return (ns / 1e9).toFixed(1) + " s";
  if (ns >= 1e7) return (ns / 1e9).toFixed(3) + " s";
  return (ns / 1e6).toPrecision(3) + " ms";
}
const count = n => Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, ",");

/* ---- reading the packed numbers ---- */
async function unpack(text) {
  const raw = atob(text.trim()), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
function reader(bytes) {
  let at = 0;
  const number = () => {
    let v = 0, f = 1, b;
    do { b = bytes[at++]; v += (b & 127) * f; f *= 128; } while (b & 128);
    return v;
  };
  const series = (n, sum) => { /* zigzag numbers; 0 is followed by how many more zeros there are */
    const out = new Float64Array(n); let last = 0;
    for (let i = 0; i < n;) {
      const z = number(), d = z % 2 ? -(z + 1) / 2 : z / 2;
      if (z === 0) { let more = number(); for (; more >= 0 && i < n; more--) out[i++] = sum ? last : 0; continue; }
      last += d; out[i++] = sum ? last : d;
    }
    return out;
  };
  return { series };
}
async function load(k) {
  const run = JSON.parse($("meta" + k).textContent), r = reader(await unpack($("data" + k).textContent));
  const n = run.columns;
  run.ev = r.series(n + 1, true); run.t = r.series(n + 1, true); run.total = r.series(n, true); run.when = r.series(n, false).map((d, c) => d + run.t[c]);
  run.reserved = run.has_reserved ? r.series(n, true) : null;
  run.pool = run.has_pool ? r.series(n, true) : null;
  run.at = []; run.mean = []; run.area = [];
  for (let i = 0; i < run.rows.length; i++) {
    const a = r.series(n, true), m = r.series(n, false), area = new Float64Array(n + 1);
    for (let c = 0; c < n; c++) { m[c] += a[c]; area[c + 1] = area[c] + m[c] * (run.t[c + 1] - run.t[c]) / 1e9; }
    run.at.push(a); run.mean.push(m); run.area.push(area);
  }
  run.duration = run.t[n] || 1; run.events = run.ev[n] || 1;
  run.kinds = run.kind_names.map((name, k) => {
    const sum = new Float64Array(n); let used = false;
    run.rows.forEach((row, i) => { if (row.kind === k) { used = true; const a = run.at[i]; for (let c = 0; c < n; c++) sum[c] += a[c]; } });
    return { name, colour: run.kind_colours[k], sum, used };
  }).filter(x => x.used).sort((a, b) => (b.name === "fixed") - (a.name === "fixed")); /* at the bottom, as in a plan */
  const marks = run.steps;
  run.edges = { time: run.t.map(x => x / run.duration), events: run.ev.map(x => x / run.events) };
  if (marks.length > 1) { /* one unit a step; what is before the first is a step of its own */
    const at = marks.map(m => m[0]), last = run.duration, pos = new Float64Array(n + 1);
    let s = -1;
    for (let c = 0; c <= n; c++) {
      while (s + 1 < at.length && at[s + 1] <= run.t[c]) s++;
      const from = s < 0 ? 0 : at[s], to = s + 1 < at.length ? at[s + 1] : last;
      pos[c] = s + 1 + (to > from ? Math.min(1, (run.t[c] - from) / (to - from)) : 0);
    }
    run.step_units = at.length + 1; run.edges.steps = pos;
  }
  return run;
}

/* ---- colours ---- */
const palette = ["#2563eb", "#d97706", "#0d9488", "#e11d48", "#7c3aed", "#65a30d", "#0891b2", "#c026d3", "#b45309", "#4f46e5", "#be123c", "#15803d"];
const rest_colour = "#94a3b8";
function ink_on(colour) {
  const c = [1, 3, 5].map(i => { const v = parseInt(colour.slice(i, i + 2), 16) / 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
  const l = .2126 * c[0] + .7152 * c[1] + .0722 * c[2];
  return 1.05 / (l + .05) >= (l + .05) / .05 ? "#ffffff" : "#000000";
}
let themes = {}; /* asking the style again in every frame would lay out the page each time */
const theme = name => themes[name] || (themes[name] = getComputedStyle(doc.documentElement).getPropertyValue(name).trim());

/* ---- state ---- */
let runs;
try { runs = [await load(0)]; if ($("meta1")) runs.push(await load(1)); } catch (e) { return; } /* the summary stays as it is */
let bands = runs.every(r => r.kinds.length < 2) ? "owner" : "kind", axis = "time", weight = "peak", active = 0, sort = { key: "bytes", down: true };
const LEFT = 66, RIGHT = 8, TOP = 14, BOTTOM = 22;
const most = Math.max(...runs.map(r => Math.max(r.peak, r.reserved ? Math.max(...r.reserved) : 0, r.limit && r.limit < 4 * r.peak ? r.limit : 0)));
const stack_of = row => row.name.split(" < ").reverse();

/* ---- a timeline ---- */
function timeline(k) {
  const run = runs[k], n = run.columns, box = $("plot" + k), tip = $("tip" + k), live = $("live" + k);
  const base = doc.createElement("canvas"), over = doc.createElement("canvas");
  box.prepend(base, over);
  let w = 0, h = 0, scale = 1, view = [0, 1], sel = null, cursor = null, groups = [];
  let drag = null, dirty = false, updated = 0;
  const unit = () => axis === "steps" ? Math.max(...runs.map(r => r.step_units || 1)) : 1;
  const edges = () => run.edges[axis] || run.edges.time;
  const whole = () => edges() === run.edges.steps ? unit() : 1;
  const x_of = p => LEFT + (p / whole() - view[0]) / (view[1] - view[0]) * (w - LEFT - RIGHT);
  const p_of = x => ((x - LEFT) / (w - LEFT - RIGHT) * (view[1] - view[0]) + view[0]) * whole();
  const y_of = b => h - BOTTOM - b / most * (h - BOTTOM - TOP);
  function column(p) { /* the last column that begins at or before p and has a width, or the last */
    const e = edges(); let lo = 0, hi = n;
    while (hi - lo > 1) { const m = (lo + hi) >> 1; if (e[m] <= p) lo = m; else hi = m; }
    return lo;
  }
  function make_groups() {
    if (bands === "kind") { groups = run.kinds.map(x => ({ name: x.name, colour: x.colour, of: c => x.sum[c] })); return; }
    const order = run.rows.map((r, i) => i).filter(i => !run.rows[i].rest).sort((a, b) => run.at[b][run.peak_column] - run.at[a][run.peak_column]);
    const top = order.slice(0, palette.length), rest = run.rows.map((r, i) => i).filter(i => !top.includes(i));
    groups = top.map((i, g) => ({ name: run.rows[i].name, row: i, colour: palette[g], of: c => run.at[i][c] }));
    if (rest.length) {
      const sum = new Float64Array(n);
      for (const i of rest) for (let c = 0; c < n; c++) sum[c] += run.at[i][c];
      groups.unshift({ name: "all others", colour: rest_colour, of: c => sum[c] });
    }
  }
  function highest(a, b) { let best = a; for (let c = a + 1; c < b; c++) if (run.total[c] > run.total[best]) best = c; return best; }
  function draw() { /* every pixel shows one whole moment: the highest of those that fall into it */
    const g = base.getContext("2d"), e = edges();
    g.setTransform(scale, 0, 0, scale, 0, 0); g.clearRect(0, 0, w, h);
    g.font = "12px system-ui,sans-serif"; g.textBaseline = "middle";
    g.fillStyle = theme("--dim"); g.strokeStyle = theme("--line"); g.lineWidth = 1; g.textAlign = "right";
    for (let i = 0; i <= 4; i++) {
      const b = most * i / 4, y = Math.round(y_of(b)) + .5;
      g.beginPath(); g.moveTo(LEFT, y); g.lineTo(w - RIGHT, y); g.stroke();
      if (i === 0 || i === 4 || h > 200) g.fillText(i ? size(b, 1) : "0", LEFT - 6, y);
    }
    g.save(); g.beginPath(); g.rect(LEFT, 0, w - LEFT - RIGHT, h); g.clip();
    let c = column(p_of(LEFT));
    const pixels = [];
    for (let x = LEFT; x < w - RIGHT; x++) {
      const to = p_of(x + 1); let best = c;
      while (c + 1 < n && e[c + 1] < to) { c++; if (run.total[c] > run.total[best]) best = c; }
      if (e[n] >= p_of(x)) pixels.push([x, best]);
    }
    const heights = new Float64Array(pixels.length);
    for (const grp of groups) {
      g.fillStyle = grp.colour;
      for (let i = 0; i < pixels.length;) { /* equal neighbours in one rectangle */
        const v = grp.of(pixels[i][1]), low = heights[i]; let j = i;
        for (; j < pixels.length && grp.of(pixels[j][1]) === v && heights[j] === low; j++) heights[j] = low + v;
        if (v > 0) { const y = y_of(low + v); g.fillRect(pixels[i][0], y, j - i, Math.max(y_of(low) - y, .5)); }
        i = j;
      }
    }
    const line = (series, dash) => {
      if (!series) return;
      g.strokeStyle = theme("--mark"); g.setLineDash(dash); g.beginPath();
      pixels.forEach(([x, c], i) => { const y = y_of(series[c]); if (i) g.lineTo(x, y); else g.moveTo(x, y); });
      g.stroke(); g.setLineDash([]);
    };
    line(run.reserved, [1, 2]);
    if (run.pool && $("with-pool") && $("with-pool").checked) line(run.pool, [6, 3]);
    if (run.limit && run.limit <= most) {
      const y = y_of(run.limit);
      g.strokeStyle = theme("--bad"); g.setLineDash([8, 4]); g.beginPath(); g.moveTo(LEFT, y); g.lineTo(w - RIGHT, y); g.stroke(); g.setLineDash([]);
      g.fillStyle = theme("--bad"); g.textAlign = "left"; g.fillText("limit " + size(run.limit), LEFT + 4, Math.max(8, y - 8));
    }
    marks(g);
    g.restore();
    labels(g);
  }
  const mark_p = m => axis === "events" ? m[1] / run.events : axis === "steps" && run.edges.steps ? null : m[0] / run.duration;
  function marks(g) {
    const px = run.steps.map((m, i) => x_of(axis === "steps" && run.edges.steps ? i + 1 : mark_p(m))).filter(x => x >= LEFT && x <= w - RIGHT);
    if (px.length * 4 < w) {
      g.strokeStyle = theme("--mark"); g.globalAlpha = .35; g.beginPath();
      for (const x of px) { g.moveTo(Math.round(x) + .5, TOP); g.lineTo(Math.round(x) + .5, h - BOTTOM); }
      g.stroke(); g.globalAlpha = 1;
    }
    for (const f of run.fails) {
      const x = x_of(axis === "time" ? f[0] / run.duration : edges()[column_of_event(f[1])]);
      const tip_x = x > w - RIGHT - 12 ? x - 9 : x + 9;
      g.fillStyle = theme("--bad"); g.beginPath(); g.moveTo(x, TOP); g.lineTo(tip_x, TOP - 6); g.lineTo(x, TOP - 12); g.fill();
      g.fillRect(x - .5, TOP - 12, 1.5, h - BOTTOM - TOP + 12);
    }
  }
  function column_of_event(e) { let lo = 0, hi = n; while (hi - lo > 1) { const m = (lo + hi) >> 1; if (run.ev[m] <= e) lo = m; else hi = m; } return lo; }
  function labels(g) {
    g.fillStyle = theme("--dim"); g.textBaseline = "middle";
    const text = p => axis === "time" ? seconds(p * run.duration) : axis === "events" ? count(p * run.events) : run.edges.steps ? "step " + Math.floor(p * whole()) : seconds(p * run.duration);
    const places = w > 500 ? [0, .25, .5, .75, 1] : [0, 1];
    for (const f of places) {
      g.textAlign = f === 0 ? "left" : f === 1 ? "right" : "center";
      g.fillText(text(view[0] + f * (view[1] - view[0])), LEFT + f * (w - LEFT - RIGHT), h - 9);
    }
  }
  function overlay() {
    const g = over.getContext("2d"), e = edges();
    g.setTransform(scale, 0, 0, scale, 0, 0); g.clearRect(0, 0, w, h);
    g.save(); g.beginPath(); g.rect(LEFT, 0, w - LEFT - RIGHT, h); g.clip();
    if (sel) {
      const a = x_of(e[sel[0]]), b = x_of(e[sel[1]]);
      g.fillStyle = theme("--sel"); g.fillRect(a, TOP, Math.max(b - a, 2), h - BOTTOM - TOP);
      g.strokeStyle = theme("--link"); g.lineWidth = 1.5; g.strokeRect(a, TOP, Math.max(b - a, 2), h - BOTTOM - TOP);
      const best = highest(sel[0], sel[1]), x = x_of((e[best] + e[best + 1]) / 2), y = y_of(run.total[best]);
      g.fillStyle = theme("--link"); g.beginPath(); g.arc(x, y, 4, 0, 7); g.fill();
    }
    if (cursor !== null) {
      const x = x_of((e[cursor] + e[cursor + 1]) / 2);
      g.strokeStyle = theme("--mark"); g.lineWidth = 1; g.beginPath(); g.moveTo(x, TOP); g.lineTo(x, h - BOTTOM); g.stroke();
    }
    g.restore();
  }
  function step_at(c) { let s = 0; while (s < run.steps.length && run.steps[s][0] <= run.t[c]) s++; return s; }
  function words(c, bytes) { /* what is under the pointer; without one, the largest */
    const lines = [seconds(run.when[c]) + (run.steps.length ? ", step " + step_at(c) : "") + ": " + size(run.total[c]) + " live"];
    let row = -1;
    if (bytes !== null && bytes <= run.total[c]) {
      let low = 0, hit = null;
      for (const grp of groups) { const v = grp.of(c); if (bytes < low + v) { hit = grp; break; } low += v; }
      if (hit) {
        lines.push(hit.name + ": " + size(hit.of(c)));
        if (hit.row !== undefined) row = hit.row;
        else if (bands === "kind") row = largest(c, i => run.kind_names[run.rows[i].kind] === hit.name && !run.rows[i].rest);
      }
    }
    if (row < 0) row = largest(c, i => !run.rows[i].rest);
    if (row >= 0 && run.at[row][c] > 0) {
      lines.push("largest: " + size(run.at[row][c]) + ", " + run.kind_names[run.rows[row].kind]);
      for (const frame of stack_of(run.rows[row])) lines.push(frame);
    }
    if (run.reserved) lines.push("reserved " + size(run.reserved[c]));
    return lines;
  }
  function largest(c, may) { let best = -1; run.rows.forEach((r, i) => { if (may(i) && (best < 0 || run.at[i][c] > run.at[best][c])) best = i; }); return best; }
  function show_tip(x, y) {
    if (cursor === null) { tip.hidden = true; return; }
    const bytes = y === null ? null : (h - BOTTOM - y) / (h - BOTTOM - TOP) * most, lines = words(cursor, bytes);
    tip.replaceChildren(...lines.slice(0, 8).map((l, i) => make(i ? "span" : "b", l)));
    tip.hidden = false;
    const at = x === null ? x_of(edges()[cursor]) : x;
    tip.style.left = at < w / 2 ? Math.min(at + 14, w - tip.offsetWidth - 4) + "px" : Math.max(4, at - tip.offsetWidth - 14) + "px";
    if (y === null) { live.textContent = lines.join("; "); box.setAttribute("aria-valuetext", lines.join("; ")); box.setAttribute("aria-valuenow", cursor); }
  }
  function frame(now) {
    dirty = false; overlay();
    if (drag && drag.moved && now - updated < 120) { request(); return; } /* tables follow a few times a second */
    if (active === k && me.changed) { updated = now; me.changed = false; selected(); }
  }
  function request() { if (!dirty) { dirty = true; requestAnimationFrame(frame); } }
  function set_selection(a, b) {
    sel = a === null ? null : [Math.max(0, Math.min(a, b)), Math.min(n, Math.max(a, b) + 1)];
    if (active !== k) set_active(k);
    me.changed = true; request();
  }
  function resize() {
    const r = box.getBoundingClientRect(); w = r.width; h = r.height; scale = window.devicePixelRatio || 1;
    for (const cv of [base, over]) { cv.width = Math.round(w * scale); cv.height = Math.round(h * scale); }
    draw(); overlay();
  }
  const place = ev => { const r = box.getBoundingClientRect(); return [ev.clientX - r.left, ev.clientY - r.top]; };
  box.addEventListener("pointerdown", ev => {
    if (ev.button) return;
    const [x] = place(ev), c = column(Math.max(0, p_of(x)));
    drag = { from: c, moved: false, x }; box.setPointerCapture(ev.pointerId);
  });
  box.addEventListener("pointermove", ev => {
    const [x, y] = place(ev); cursor = column(Math.max(0, Math.min(p_of(x), whole())));
    if (drag && (drag.moved || Math.abs(x - drag.x) > 3)) { drag.moved = dragging = true; set_selection(drag.from, cursor); tip.hidden = true; }
    else show_tip(x, y);
    request();
  });
  box.addEventListener("pointerup", () => { if (drag && !drag.moved) set_selection(null); drag = null; dragging = false; me.changed = true; request(); });
  box.addEventListener("pointercancel", () => { drag = null; dragging = false; me.changed = true; request(); });
  box.addEventListener("pointerleave", () => { if (!drag) { cursor = null; tip.hidden = true; request(); } });
  box.addEventListener("keydown", ev => {
    const step = Math.max(1, Math.round(n * (view[1] - view[0]) / 200)), from = cursor === null ? run.peak_column : cursor;
    let to = null;
    if (ev.key === "ArrowRight") to = Math.min(n - 1, from + (ev.altKey ? 1 : step));
    else if (ev.key === "ArrowLeft") to = Math.max(0, from - (ev.altKey ? 1 : step));
    else if (ev.key === "Home") to = 0;
    else if (ev.key === "End") to = n - 1;
    else if (ev.key === "p") to = run.peak_column;
    else if (ev.key === "z" || ev.key === "Enter") { zoom(true); ev.preventDefault(); return; }
    else if (ev.key === "Escape") { if (sel) set_selection(null); else zoom(false); return; }
    else return;
    ev.preventDefault();
    if (ev.shiftKey) { if (!me.anchor && me.anchor !== 0) me.anchor = from; set_selection(me.anchor, to); } else me.anchor = null;
    cursor = to; show_tip(null, null); request();
  });
  box.addEventListener("blur", () => { cursor = null; tip.hidden = true; request(); });
  function zoom(into) {
    const e = edges();
    if (into && sel) view = [e[sel[0]] / whole(), Math.max(e[sel[1]] / whole(), e[sel[0]] / whole() + 1e-9)]; else view = [0, 1];
    draw(); overlay();
  }
  const me = {
    run, resize, zoom, changed: false, anchor: null,
    redraw() { view = [0, 1]; make_groups(); draw(); overlay(); }, repaint() { draw(); overlay(); },
    range: () => sel || [0, n], highest, groups: () => groups, select: set_selection, has: () => sel !== null
  };
  box.setAttribute("aria-valuemin", 0); box.setAttribute("aria-valuemax", n - 1); box.setAttribute("aria-valuenow", run.peak_column);
  box.setAttribute("aria-valuetext", "peak " + size(run.peak));
  make_groups();
  return me;
}

/* ---- what is selected: sums, flame graph, table ---- */
let rows_now = [], dragging = false;
function selected() {
  const t = lines[active], run = t.run, [a, b] = t.range(), best = t.highest(a, b), span = (run.t[b] - run.t[a]) / 1e9;
  rows_now = run.rows.map((row, i) => {
    const area = run.area[i][b] - run.area[i][a], bytes = run.at[i][best];
    return { i, row, name: row.name, kind: run.kind_names[row.kind], bytes, area, mean: span > 0 ? area / span : bytes,
      change: run.at[i][b - 1] - run.at[i][a] };
  });
  const total = run.total[best];
  $("range").textContent = (t.has() ? "Selected: " : "The whole trace: ") + seconds(run.t[a]) + " to " + seconds(run.t[b]) + ", highest " + size(total) +
    " at " + seconds(run.when[best]) + (runs.length > 1 ? " (" + (active ? "second" : "first") + " trace)" : "");
  flame(run); table();
}
function flame(run) {
  const box = $("flame"), value = r => weight === "peak" ? r.bytes : r.area;
  const root = { name: "all", v: 0, kids: new Map(), depth: 0 };
  let deepest = 0;
  for (const r of rows_now) {
    const v = value(r);
    if (!(v > 0)) continue;
    let node = root; node.v += v;
    const path = [r.kind, ...(r.row.rest ? [r.name] : stack_of(r.row))];
    path.forEach((name, d) => {
      let kid = node.kids.get(name);
      if (!kid) node.kids.set(name, kid = { name, v: 0, kids: new Map(), depth: d + 1, colour: run.kind_colours[r.row.kind] });
      kid.v += v; node = kid; deepest = Math.max(deepest, d + 1);
    });
  }
  const out = [], width = box.clientWidth || 300, show = v => weight === "peak" ? size(v) : size(v) + "·s";
  const put = (node, left) => {
    const share = root.v ? node.v / root.v : 0;
    if (share * width < 2) return;
    const e = make("button", node.name + " " + show(node.v));
    e.title = node.name + "\n" + show(node.v) + ", " + (100 * share).toFixed(1) + " %";
    e.style.left = 100 * left + "%"; e.style.width = 100 * share + "%"; e.style.top = node.depth * 23 + "px";
    e.style.background = node.colour || "#cbd5e1"; e.style.color = ink_on(node.colour || "#cbd5e1");
    e.tabIndex = out.length ? -1 : 0; e.dataset.name = node.depth ? node.name : ""; e.dataset.depth = node.depth;
    out.push(e);
    let at = left;
    for (const kid of [...node.kids.values()].sort((x, y) => y.v - x.v)) { put(kid, at); at += root.v ? kid.v / root.v : 0; }
  };
  put(root, 0);
  box.style.height = (deepest + 1) * 23 + "px";
  box.replaceChildren(...out);
}
$("flame").addEventListener("click", ev => { const e = ev.target.closest("button"); if (e) { $("search").value = e.dataset.name; table(); } });
$("flame").addEventListener("keydown", ev => {
  const all = [...$("flame").children], at = all.indexOf(doc.activeElement); let to = -1;
  if (at < 0) return;
  const depth = +all[at].dataset.depth;
  if (ev.key === "ArrowRight") to = at + 1;
  else if (ev.key === "ArrowLeft") to = at - 1;
  else if (ev.key === "ArrowDown") { if (all[at + 1] && +all[at + 1].dataset.depth > depth) to = at + 1; }
  else if (ev.key === "ArrowUp") { for (to = at - 1; to >= 0 && +all[to].dataset.depth >= depth;) to--; }
  else return;
  ev.preventDefault();
  if (all[to]) { all[at].tabIndex = -1; all[to].tabIndex = 0; all[to].focus(); }
});
function table() {
  const run = lines[active].run, want = $("search").value.trim().toLowerCase(), down = sort.down ? -1 : 1;
  const list = rows_now.filter(r => (r.bytes > 0 || r.area > 0) && (!want || r.name.toLowerCase().includes(want) || r.kind.includes(want)));
  const whole = rows_now.reduce((s, r) => s + r.bytes, 0);
  list.sort((x, y) => (typeof x[sort.key] === "string" ? (x[sort.key] < y[sort.key] ? -1 : x[sort.key] > y[sort.key] ? 1 : 0) : x[sort.key] - y[sort.key]) * down || x.i - y.i);
  const sum = { bytes: 0, mean: 0, area: 0, change: 0 };
  for (const r of list) for (const k in sum) sum[k] += r[k];
  const shown = dragging ? list.slice(0, 30) : list; /* all of them when the range stands */
  $("rows").replaceChildren(...shown.map(r => {
    const tr = make("tr"), name = make("td", undefined, "name"), dot = make("span", undefined, "dot");
    dot.style.background = run.kind_colours[r.row.kind]; const text = make("span", undefined, "t"); text.append(dot, r.name); name.append(text); name.title = r.name;
    tr.append(name, make("td", r.kind, "wide"), make("td", size(r.bytes), "n"), make("td", whole ? (100 * r.bytes / whole).toFixed(1) + " %" : "", "n"),
      make("td", size(r.mean), "n wide"), make("td", r.change ? signed(r.change) : "", "n wide"));
    return tr;
  }));
  $("sum-name").textContent = list.length + (list.length === 1 ? " row" : " rows");
  $("sum-bytes").textContent = size(sum.bytes); $("sum-bytes").title = count(sum.bytes) + " bytes"; $("sum-share").textContent = whole ? (100 * sum.bytes / whole).toFixed(1) + " %" : "";
  $("sum-mean").textContent = size(sum.mean); $("sum-change").textContent = sum.change ? signed(sum.change) : "";
  for (const th of doc.querySelectorAll("#owners th[data-key]"))
    if (th.dataset.key === sort.key) th.setAttribute("aria-sort", sort.down ? "descending" : "ascending"); else th.removeAttribute("aria-sort");
}
for (const th of doc.querySelectorAll("#owners th[data-key]"))
  th.querySelector("button").addEventListener("click", () => {
    sort = { key: th.dataset.key, down: th.dataset.key === sort.key ? !sort.down : th.dataset.key !== "name" && th.dataset.key !== "kind" }; table();
  });
$("search").addEventListener("input", table);

/* ---- switches ---- */
function legend() {
  for (const t of lines) {
    const box = $("legend" + lines.indexOf(t)), c = t.run.peak_column;
    const items = t.groups().map(g => [g.colour, g.name + " " + size(g.of(c))]).reverse();
    box.replaceChildren(...items.map(([colour, text]) => { const li = make("li"), d = make("span", undefined, "dot"); d.style.background = colour; li.append(d, text); li.title = text; return li; }));
    if (t.run.reserved) box.append(make("li", "⋯ reserved"));
    if (t.run.fails.length) box.append(make("li", "⚑ refused: " + t.run.fails.length));
  }
}
const lines = runs.map((r, k) => timeline(k));
function set_active(k) {
  active = k;
  for (const e of doc.querySelectorAll("input[name=run]")) e.checked = +e.value === k;
  lines[k].changed = true;
}
function on(name, what) { for (const e of doc.querySelectorAll("input[name=" + name + "]")) e.addEventListener("change", () => { if (e.checked) what(e.value); }); }
on("bands", v => { bands = v; lines.forEach(t => t.redraw()); legend(); });
on("axis", v => { axis = v; lines.forEach(t => t.redraw()); });
on("weight", v => { weight = v; flame(lines[active].run); });
on("run", v => { set_active(+v); selected(); });
$("zoom-in").addEventListener("click", () => lines[active].zoom(true));
$("zoom-out").addEventListener("click", () => { lines[active].zoom(false); lines[active].select(null); });
if ($("with-pool")) $("with-pool").addEventListener("change", () => lines.forEach(t => t.repaint()));
if (!runs.some(r => r.edges.steps)) for (const e of doc.querySelectorAll(".steps-only")) e.hidden = true;

for (const e of doc.querySelectorAll("input[name=bands]")) e.checked = e.value === bands;
for (const e of doc.querySelectorAll(".static")) e.hidden = true;
for (const e of doc.querySelectorAll(".dynamic")) e.hidden = false;
lines.forEach(t => t.resize()); legend(); selected();
addEventListener("resize", () => { lines.forEach(t => t.resize()); flame(lines[active].run); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { themes = {}; lines.forEach(t => t.repaint()); });
doc.documentElement.dataset.drawn = Math.round(performance.now());
})();
