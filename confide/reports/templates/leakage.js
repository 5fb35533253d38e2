"use strict";
const rows = JSON.parse(document.getElementById("data").textContent);
const {compared, labelled} = JSON.parse(document.getElementById("facts").textContent);
const textual = true;
const get = id => document.getElementById(id);
const make = (tag, name, text) => {
  const e = document.createElement(tag);
  if (name) e.className = name;
  if (text !== undefined) e.textContent = text;
  return e;
};
const number = v => v === "infinite" ? Infinity : v;
const show = v => v === null || v === undefined ? "\u2013" : v === "infinite" ? "\u221e"
  : typeof v === "number" && !Number.isInteger(v) ? v.toPrecision(3) : v.toLocaleString("en");
const columns = [["sequence", "sequence"], ["length", "tokens"], ["total_in_s", "guessed"],
  ["users_in_s", "guessed, users"], ["total_in_d", "in the text"],
  ["users_in_d", "in the text, users"],
  ["context", "shortest context"], ["perplexity", "perplexity"],
  ...(compared ? [["public", "public perplexity"], ["ratio", "ratio"]] : [])];
const state = {by: "sequence", down: false, shown: 100};
for (const [key, name] of columns) {
  const th = make("th"), b = make("button", "", name);
  th.dataset.key = key; th.scope = "col"; b.type = "button";
  b.onclick = () => { state.down = state.by === key ? !state.down : key !== "sequence";
    state.by = key; get("sort").value = key; draw(); };
  th.append(b); get("head").append(th);
  const o = make("option", "", key === "sequence" ? "most worrying" : name);
  o.value = key; get("sort").append(o);
}
for (const [id, used] of [["searching", textual], ["rating", compared], ["labels", labelled]])
  if (!used) get(id).remove();
const value = id => get(id) ? get(id).value : "";
function chosen() {
  const q = value("q").toLowerCase(), users = +value("users") || Infinity;
  const least = +value("length") || 1, ratio = value("ratio") === "" ? -1 : +value("ratio");
  const secret = get("secret") && get("secret").checked;
  const kept = rows.filter(r => r.users_in_d <= users && r.length >= least
    && (ratio < 0 || (r.ratio !== null && number(r.ratio) >= ratio))
    && (!secret || r.secret_tokens > 0)
    && (!q || r.text.toLowerCase().includes(q)
        || (r.contexts || []).some(c => c.toLowerCase().includes(q))));
  const sign = state.down ? -1 : 1, key = state.by;
  return kept.sort((a, b) => {
    const x = number(a[key]), y = number(b[key]);
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (x < y ? -1 : x > y ? 1 : 0) || a.sequence - b.sequence;
  });
}
function label(r) {
  const td = make("td");
  if (textual) {
    const line = make("div", "text");
    const c = r.contexts[0] || "";
    const near = c.length > 60 ? "\u2026" + c.slice(-60) : c;
    line.append(make("span", "context", near), make("b", "", r.text));
    td.append(line);
  } else {
    const bar = make("span", "bar " + (r.users_in_d === 1 ? "one" : "many"));
    bar.style.width = Math.min(r.length * 7, 240) + "px"; bar.title = r.length + " tokens";
    td.append(make("span", "context", "#" + r.sequence + " "), bar);
  }
  for (const k of r.kinds || []) td.append(make("span", "kind", k));
  if (r.secret_tokens && !r.kinds.length) td.append(make("span", "kind part", "part of a secret"));
  const d = make("details"), ul = make("ul");
  d.append(make("summary", "", r.total_in_s === 1 ? "1 context" : r.total_in_s + " contexts"));
  r.context_lengths.forEach((n, i) => {
    const who = r.users && r.users.length === 1 ? "user " + r.users[0] + ": " : "";
    const li = make("li", "", who + "after " + n + (n === 1 ? " token" : " tokens")
      + ", perplexity " + show(r.perplexities[i])
      + (compared ? ", public " + show(r.public_perplexities[i]) : ""));
    if (textual) li.append(make("div", "text", r.contexts[i]));
    ul.append(li);
  });
  if (r.total_in_s > r.context_lengths.length)
    ul.append(make("li", "", "and " + show(r.total_in_s - r.context_lengths.length) + " more"));
  d.append(ul); td.append(d);
  return td;
}
function draw() {
  const kept = chosen();
  get("rows").replaceChildren(...kept.slice(0, state.shown).map(r => {
    const tr = make("tr");
    tr.append(label(r), ...columns.slice(1).map(([key, name]) => {
      const td = make("td", key === "users_in_d" && r[key] === 1 ? "alone" : "", show(r[key]));
      td.dataset.name = name;
      return td;
    }));
    return tr;
  }));
  for (const th of get("head").children) {
    const way = state.down ? "descending" : "ascending";
    if (th.dataset.key === state.by) th.setAttribute("aria-sort", way);
    else th.removeAttribute("aria-sort");
  }
  get("count").textContent = show(kept.length) + " of " + show(rows.length);
  get("more").hidden = kept.length <= state.shown;
}
for (const id of ["q", "users", "length", "ratio", "secret"])
  if (get(id)) get(id).addEventListener("input", () => { state.shown = 100; draw(); });
get("sort").addEventListener("input", () => {
  state.by = get("sort").value; state.down = state.by !== "sequence"; draw(); });
get("more").onclick = () => { state.shown += 200; draw(); };
draw();
