// What a recorded model goes on with, word by word.
if (typeof document !== "undefined") addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("toy-tab"), {rows, made} = TOY_TAB, find = name => place.querySelector("." + name);
  const safe = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  const first = find("toy-said").textContent;
  let row = 0, taken = 1;  // one word is there already: the first frame shows what happens
  const show = () => {
    const {typed, words, people} = rows[row], done = taken >= words.length, said = words.slice(0, taken).join(" ");
    const word = done && people === 1 ? `<mark>${safe(said)}</mark>` : safe(said);
    find("toy-typed").innerHTML = `${safe(typed)} <b>${word}</b>${done ? "" : ` <span>${safe(words.slice(taken).join(" "))}</span>`}`;
    find("toy-next").disabled = done;
    find("toy-said").textContent = !done ? first : people === 1
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
    row = +event.target.dataset.row; taken = 0; show();
    find("toy-begin").querySelector(`[data-row="${row}"]`).focus();
  });
  find("toy-made").textContent = made;
  show();
});
