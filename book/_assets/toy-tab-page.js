// What a recorded model goes on with, word by word.
if (typeof document !== "undefined") addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("toy-tab"), {rows, made} = TOY_TAB, find = name => place.querySelector("." + name);
  const safe = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  const begun = "Press TAB, and the model goes on. It has read what its customers said.";
  const [{typed, words}] = rows, first = `Type “${typed}” and press TAB: the model gives “${words.join(" ")}”, which one person alone has said.`;
  let row = 0, taken = 1, opened = true;  // one word is there already: the first frame shows what happens
  const show = () => {
    const {typed, words, people} = rows[row], done = taken >= words.length, said = words.slice(0, taken).join(" ");
    const word = done && people === 1 ? `<mark>${safe(said)}</mark>` : safe(said);
    find("toy-typed").innerHTML = `${safe(typed)} <b>${word}</b>${done ? "" : ` <span>${safe(words.slice(taken).join(" "))}</span>`}`;
    find("toy-next").disabled = done;
    find("toy-said").textContent = !done ? (opened ? first : begun) : people === 1
      ? "That is somebody's: one person alone has said this, and the model gives it to whoever asks."
      : people ? `${people} people have said this. It is nobody's secret.` : "Nobody has said this: the model made it up.";
    find("toy-begin").innerHTML = rows.map((r, k) => `<button type="button" data-row="${k}" aria-pressed="${k === row}">${safe(r.typed)}</button>`).join("");
  };
  const next = () => { if (taken < rows[row].words.length) { taken++; show(); return true; } return false; };
  find("toy-next").addEventListener("click", next);
  find("toy-typed").addEventListener("keydown", event => {  // TAB takes a word, and moves on when there is none
    if (event.key === "Tab" && !event.shiftKey && next()) event.preventDefault();
  });
  find("toy-begin").addEventListener("click", event => {
    if (event.target.dataset.row === undefined) return;
    row = +event.target.dataset.row; taken = 0; opened = false; show();
    find("toy-begin").querySelector(`[data-row="${row}"]`).focus();
  });
  find("toy-made").textContent = made;
  show();
});
