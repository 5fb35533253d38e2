// A field below each exercise: write the prediction first; what checks itself is judged in the page.
// The right answer is the one that the folded solution of the same page names.
const answering = (() => {
  const close = (a, b, tolerance) => Math.abs(a - b) <= Math.max(tolerance * Math.max(Math.abs(a), Math.abs(b)), tolerance / 1e3);
  const words = text => text.split(",").map(part => part.trim().split(/\s+/).join(" ").toLowerCase().replace(/^[. ]+|[. ]+$/g, "")).sort().join(", ");
  const same = (asked, a, b) => asked.kind === "number" ? close(Number(a), Number(b), asked.tolerance) : words(String(a)) === words(String(b));
  // [right, what is said]: the line of a likely mistake, else the next hint.
  const judge = (asked, right, said, hints) => {
    const given = said.trim().replace(/^["']|["']$/g, "");
    if (asked.kind === "number" && (given === "" || Number.isNaN(Number(given)))) return [false, `It wants ${asked.wants}.`];
    if (same(asked, given, right)) return [true, "Right."];
    const known = Object.entries(asked.wrong).find(([mistake]) => same(asked, given, mistake));
    const hint = Math.min(hints, asked.hints.length - 1);
    return [false, known ? `Not yet: ${known[1]}` : `Not yet. Hint ${hint + 1} of ${asked.hints.length}: ${asked.hints[hint]}`];
  };
  return {judge};
})();

if (typeof document !== "undefined") addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".answer")) {
    const field = place.querySelector("textarea, input"), told = place.querySelector("output");
    const kept = `answer ${place.dataset.id}`;
    try { field.value = localStorage.getItem(kept) || ""; } catch { /* nothing is kept then */ }
    field.addEventListener("input", () => { told.textContent = ""; try { localStorage.setItem(kept, field.value); } catch { /* as above */ } });
    if (!place.dataset.asked) continue;
    const asked = JSON.parse(place.dataset.asked), right = place.dataset.right;
    let hints = 0;
    place.addEventListener("submit", event => {
      event.preventDefault();
      if (field.value.trim() === "") return;  // without an answer nothing is said
      const [passed, said] = answering.judge(asked, right, field.value, hints);
      if (said.includes(" Hint ")) hints++;
      told.textContent = (passed ? "✓ " : "✗ ") + said;
    });
  }
});
