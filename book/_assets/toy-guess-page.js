// Ten sentences, of which the model has read five: the reader guesses, then sees the scores.
const guessing = (() => {
  // The attack of the chapter: the likelier half is called "read".
  const calls = rows => {
    const order = rows.map((_, k) => k).sort((a, b) => rows[b].score - rows[a].score);
    return rows.map((_, k) => order.indexOf(k) < rows.length / 2);
  };
  const right = (rows, said) => rows.filter((row, k) => said[k] === row.read).length;
  return {calls, right};
})();

if (typeof document !== "undefined") addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("toy-guess"), {rows, made} = TOY_GUESS, list = place.querySelector("ol");
  const first = `A model has read five of these ten sentences. Its scores are right about ${guessing.right(rows, guessing.calls(rows))} of the ten, and luck about 5. Say which you think it has read, then look.`;
  let said = [];
  const show = revealed => {
    const model = guessing.calls(rows);
    list.innerHTML = rows.map((row, k) => {
      const choices = [true, false].map(value => `<button type="button" data-row="${k}" data-says="${value}" aria-pressed="${said[k] === value}">${value ? "read" : "not read"}</button>`).join("");
      const told = revealed ? `<br><b>${row.score.toFixed(2)}</b>, so the attack says “${model[k] ? "read" : "not read"}”: ${model[k] === row.read ? "right" : "wrong"}` : "";
      return `<li>${row.text.replace(/&/g, "&amp;").replace(/</g, "&lt;")}<br>${choices}${told}</li>`;
    }).join("");
    place.querySelector(".toy-again").hidden = !revealed;
    place.querySelector(".toy-said").textContent = revealed
      ? `The model's scores are right in ${guessing.right(rows, model)} of ${rows.length}; you in ${guessing.right(rows, said)} of ${said.filter(x => x !== undefined).length} that you guessed. Luck: 5 of 10.`
      : first;
  };
  list.addEventListener("click", event => {
    const {row, says} = event.target.dataset;
    if (row === undefined) return;
    said[row] = says === "true";
    for (const button of list.querySelectorAll(`button[data-row="${row}"]`)) button.setAttribute("aria-pressed", button.dataset.says === says);
  });
  place.querySelector(".toy-reveal").addEventListener("click", () => show(true));
  place.querySelector(".toy-again").addEventListener("click", () => { said = []; show(false); });
  place.querySelector(".toy-made").textContent = made;
  show(false);
});
