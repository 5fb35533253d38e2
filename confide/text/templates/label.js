"use strict";
// Offsets are code points: Array.from splits a string into them, where JavaScript counts UTF-16.
const data = JSON.parse(document.getElementById("data").textContent);
const key = "crtlib:" + data.labels;
const one = (id) => document.getElementById(id);
const points = data.tasks.map((t) => Array.from(t.text));
let answers = data.tasks.map((t) => ({ done: false, undecided: false, secrets: t.secrets.slice() }));
let at = 0;
let chosen = null; // [start, end), or null
let past = []; // [task, its answer before]
let kept = true; // whether the browser keeps what is done

function load() {
  try {
    const stored = JSON.parse(localStorage.getItem(key) || "{}");
    data.tasks.forEach((t, i) => {
      if (stored.answers && stored.answers[t.task]) answers[i] = stored.answers[t.task];
    });
    if (stored.annotator) one("annotator").value = stored.annotator;
  } catch (error) {
    kept = false;
  }
  const first = answers.findIndex((a) => !a.done);
  at = first < 0 ? 0 : first;
}

function save() {
  try {
    const all = {};
    data.tasks.forEach((t, i) => { all[t.task] = answers[i]; });
    localStorage.setItem(key, JSON.stringify({ annotator: one("annotator").value, answers: all }));
  } catch (error) {
    kept = false;
  }
  one("warning").hidden = kept;
}

function words(i) {
  const spans = [];
  const letter = /[\p{L}\p{N}\p{M}_]/u;
  let start = -1;
  points[i].forEach((c, k) => {
    const near = [points[i][k - 1], points[i][k + 1]];
    const within = /['’-]/.test(c) && near.every((d) => d && letter.test(d)); // O'Neill is one word
    if (letter.test(c) || within) {
      if (start < 0) start = k;
    } else {
      if (start >= 0) spans.push([start, k]);
      start = -1;
      if (!/\s/u.test(c)) spans.push([k, k + 1]);
    }
  });
  if (start >= 0) spans.push([start, points[i].length]);
  return spans;
}

function show() {
  const task = data.tasks[at], answer = answers[at], chars = points[at];
  const text = one("text");
  text.textContent = "";
  const edges = new Set([0, chars.length]);
  for (const s of answer.secrets) { edges.add(s.start); edges.add(s.end); }
  if (chosen) { edges.add(chosen[0]); edges.add(chosen[1]); }
  const cuts = [...edges].sort((a, b) => a - b);
  for (let k = 0; k + 1 < cuts.length; k++) {
    const [a, b] = [cuts[k], cuts[k + 1]];
    const secret = answer.secrets.find((s) => s.start <= a && b <= s.end);
    const piece = document.createElement(secret ? "mark" : "span");
    piece.textContent = chars.slice(a, b).join("");
    if (secret && b === secret.end) piece.dataset.kind = secret.kind;
    if (secret) piece.setAttribute("aria-label", piece.textContent + ", " + secret.kind);
    if (chosen && chosen[0] <= a && b <= chosen[1]) piece.classList.add("chosen");
    text.append(piece);
  }
  one("before").textContent = task.before;
  one("after").textContent = task.after;
  const done = answers.filter((a) => a.done).length;
  one("progress").max = data.tasks.length;
  one("progress").value = done;
  const doubted = answers.filter((a) => a.undecided).length;
  one("count").textContent = done + " of " + data.tasks.length + " read" + (doubted ? ", " + doubted + " undecided" : "");
  const state = answer.done ? ", read" : answer.undecided ? ", undecided" : "";
  one("where").textContent = "Turn " + (at + 1) + " of " + data.tasks.length + state;
  document.body.dataset.task = task.task;
}

function say(message) { one("status").textContent = message; }

function change(edit) {
  past.push([at, JSON.parse(JSON.stringify(answers[at]))]);
  edit(answers[at]);
  save();
  show();
}

function settle() { // a turn with a mark counts as read, unless somebody said that it is undecided
  const a = answers[at];
  if (a.secrets.length && !a.done && !a.undecided) change((b) => { b.done = true; });
}

function go(step) {
  if (step > 0) settle();
  const next = at + step;
  if (next < 0 || next >= data.tasks.length) { show(); say("This is the " + (step < 0 ? "first" : "last") + " turn."); return; }
  at = next;
  chosen = null;
  say("");
  show();
}

function word() {
  const spans = words(at);
  const next = spans.find((s) => !chosen || s[0] >= chosen[1]) || spans[0];
  chosen = next ? next.slice() : null;
  tell();
}

function longer() {
  if (!chosen) { word(); return; }
  const next = words(at).find((s) => s[0] >= chosen[1]);
  if (next) chosen = [chosen[0], next[1]];
  tell();
}

function shorter() {
  if (!chosen) return;
  const inside = words(at).filter((s) => s[0] > chosen[0] && s[1] <= chosen[1]);
  if (inside.length) {
    const last = inside[inside.length - 1];
    const before = words(at).filter((s) => s[1] <= last[0]);
    chosen = [chosen[0], before[before.length - 1][1]];
  }
  tell();
}

function tell() {
  show();
  if (chosen) say("chosen: " + points[at].slice(chosen[0], chosen[1]).join(""));
}

function mark(kind) {
  if (!chosen || chosen[0] >= chosen[1]) { say("Choose words first: w, or drag."); return; }
  const [start, end] = chosen;
  change((a) => {
    a.secrets = a.secrets.filter((s) => s.end <= start || end <= s.start);
    a.secrets.push({ kind: kind, start: start, end: end });
    a.secrets.sort((x, y) => x.start - y.start);
    a.undecided = false;
  });
  say("marked as " + kind);
}

function remove() {
  if (!chosen) { say("Choose the marked words first."); return; }
  change((a) => { a.secrets = a.secrets.filter((s) => s.end <= chosen[0] || chosen[1] <= s.start); });
}

function none() {
  change((a) => { a.secrets = []; a.done = true; a.undecided = false; });
  go(1);
}

function doubt() {
  change((a) => { a.done = false; a.undecided = true; });
  go(1);
}

function open() { // the next turn that is not read
  settle();
  const order = answers.map((_, i) => (at + 1 + i) % answers.length);
  const next = order.find((i) => !answers[i].done);
  if (next === undefined) { say("All turns are read."); return; }
  at = next;
  chosen = null;
  say("");
  show();
}

function undo() {
  const last = past.pop();
  if (!last) { say("Nothing to undo."); return; }
  at = last[0];
  answers[at] = last[1];
  chosen = null;
  save();
  show();
}

function help() {
  one("help").hidden = !one("help").hidden;
  one("help-button").setAttribute("aria-expanded", String(!one("help").hidden));
}

function exported() {
  return {
    schema: "crtlib/labels/1",
    labels: data.labels,
    annotator: one("annotator").value,
    tasks: data.tasks.map((t, i) => ({ task: t.task, done: answers[i].done, undecided: answers[i].undecided === true, secrets: answers[i].secrets })),
  };
}

function download() {
  settle();
  const name = one("annotator").value.replace(/[^\p{L}\p{N}_-]/gu, "_") || "a";
  const date = new Date().toISOString().slice(0, 10).replaceAll("-", "");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(exported(), null, 1)], { type: "application/json" }));
  link.download = "labels-" + name + "-" + date + ".json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  say("exported " + link.download);
}

function dragged() {
  const selection = window.getSelection();
  if (!selection.rangeCount || selection.isCollapsed) return;
  const range = selection.getRangeAt(0), text = one("text");
  if (!text.contains(range.startContainer) || !text.contains(range.endContainer)) return;
  const before = document.createRange();
  before.selectNodeContents(text);
  before.setEnd(range.startContainer, range.startOffset);
  const start = Array.from(before.toString()).length;
  const end = start + Array.from(range.toString()).length;
  if (start < end) { chosen = [start, end]; selection.removeAllRanges(); tell(); }
}

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s") {
    event.preventDefault();
    download();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
  const kind = data.kinds[Number(event.key) - 1];
  const actions = {
    w: word, W: longer, B: shorter, n: none, d: doubt, g: open, u: undo, "?": help, Backspace: remove,
    j: () => go(1), ArrowRight: () => go(1), k: () => go(-1), ArrowLeft: () => go(-1),
  };
  const action = kind ? () => mark(kind) : actions[event.key];
  if (action) { event.preventDefault(); action(); }
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.kind) mark(button.dataset.kind);
  const actions = { remove: remove, back: () => go(-1), none: none, doubt: doubt, open: open, next: () => go(1), undo: undo };
  if (button.dataset.do) actions[button.dataset.do]();
});
one("text").addEventListener("mouseup", dragged);
one("export").addEventListener("click", download);
one("help-button").addEventListener("click", help);
one("annotator").addEventListener("change", save);
load();
save();
show();
