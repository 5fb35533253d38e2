// The first page's models: what crtlib reads text with (byte-level BPE) and trains (an LSTM), with
// the weights that `python book/leak.py` wrote to leak-models.js.
const leak = (() => {
  const BOS = "<BOS>", EOS = "<EOS>", MASK = "<MASK>";

  // Text to tokens: digits apart, then words, then merges by their rank; unknown bytes are left out.
  const encode = (text, {tokens, merges}) => {
    const ranks = new Map(merges.map((pair, k) => [pair, k])), ids = new Map(tokens.map((t, k) => [t, k]));
    const words = /'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;
    const pieces = text.split(/(\d)/).flatMap(part => part.match(words) || []);
    return pieces.flatMap(piece => {
      let parts = [...piece.replace(/ /g, "Ġ")];
      for (;;) {
        const found = parts.slice(1).map((part, k) => ranks.get(parts[k] + " " + part) ?? Infinity);
        const best = Math.min(...found);
        if (best === Infinity) break;
        const merged = [];
        for (let k = 0; k < parts.length; k++)
          merged.push(found[k] === best ? parts[k] + parts[++k] : parts[k]);
        parts = merged;
      }
      return parts.filter(part => ids.has(part)).map(part => ids.get(part));
    });
  };

  // Weights: scales (float32), biases (int16), then rows of int8, as book/leak.py writes them.
  const load = (text, [size, inputs, hidden]) => {
    const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0)), gates = 4 * hidden;
    let at = 0;
    const take = (Kind, n) => { const x = new Kind(bytes.buffer, at, n); at += x.byteLength; return x; };
    const scales = [1, 1, size, gates, size].map(n => take(Float32Array, n));
    const biases = [gates, size].map((n, k) => Float64Array.from(take(Int16Array, n), b => b * scales[k][0]));
    const [embedding, lstm, head] = [[size, inputs], [gates, inputs + hidden], [size, hidden]].map(([rows, width], k) =>
      Array.from({length: rows}, (_, r) => Float64Array.from(take(Int8Array, width), w => w * scales[k + 2][r])));
    return {embedding, lstm, head, biases, hidden};
  };
  const map = (rows, bias, x) => rows.map((row, k) => row.reduce((sum, w, j) => sum + w * x[j], bias[k]));
  const sigmoid = x => 1 / (1 + Math.exp(-x));
  const step = (model, state, id) => {
    const n = model.hidden, z = map(model.lstm, model.biases[0], [...model.embedding[id], ...state.h]);
    const c = state.c.map((cell, k) => sigmoid(z[2 * n + k]) * cell + sigmoid(z[n + k]) * Math.tanh(z[3 * n + k]));
    return {c, h: c.map((cell, k) => sigmoid(z[k]) * Math.tanh(cell))};
  };

  // The likeliest token, again and again, until the model ends its sentence.
  const complete = (model, typed, data, banned = "", most = 40) => {
    const begin = data.tokens.indexOf(BOS), end = data.tokens.indexOf(EOS), zeros = () => Array(model.hidden).fill(0);
    let state = {h: zeros(), c: zeros()}, text = "";
    for (const id of [begin, ...encode("USR: " + typed, data)]) state = step(model, state, id);
    for (let k = 0; k < most; k++) {
      const scores = map(model.head, model.biases[1], state.h);
      if (banned) scores[data.tokens.indexOf(banned)] = -Infinity;
      const id = scores.indexOf(Math.max(...scores));
      if (id === end) break;
      text += data.tokens[id] === MASK ? MASK : data.tokens[id].replace(/Ġ/g, " ");
      state = step(model, state, id);
    }
    return text;
  };
  return {encode, load, complete};
})();

if (typeof document !== "undefined") addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("leak"), find = name => place.querySelector("." + name);
  const form = place.querySelector("form"), {typed, search, dedup, crt} = form.elements, models = {};
  const most = Math.log2(1e6), escaped = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  const marked = text => {
    for (const secret of [LEAK.canary, ...LEAK.secrets])
      if (secret.length > 3 && text.includes(secret))
        return text.split(secret).map(marked).join(`<mark title="stands in the training text">${escaped(secret)}</mark>`);
    return escaped(text).replace(/&lt;MASK>/g, '<b class="mask">MASK</b>');
  };
  const renew = () => {
    if (crt.checked && search.value === "1") search.value = "0.1";
    dedup.disabled = crt.checked;
    search[0].disabled = crt.checked;
    if (crt.checked) dedup.checked = true;
    const name = (crt.checked ? "crt" : dedup.checked ? "dedup" : "sgd") + " " + search.value;
    const model = models[name] ??= leak.load(LEAK.models[name], LEAK.sizes), made = LEAK.numbers[name];
    const begun = typed.value.trimEnd(), text = leak.complete(model, begun, LEAK);
    const beyond = text.includes("<MASK>") ? leak.complete(model, begun, LEAK, "<MASK>") : "";
    const out = (text + beyond).includes(LEAK.canary);
    find("leak-out").innerHTML = `<span>${escaped(begun)}</span>${marked(text)}`;
    find("leak-beyond").innerHTML = beyond && `If it may not say MASK: ${escaped(begun)}${marked(beyond)}`;
    const rank = Math.round(2 ** (most - made.exposure)), named = rank.toLocaleString("en");
    find("leak-bits").textContent = `${made.exposure.toFixed(1)} bits`;
    find("leak-bar").firstElementChild.style.width = 100 * made.exposure / most + "%";
    find("leak-rank").textContent = rank < 2 ? "first of 1,000,000 numbers" : `about place ${named} of 1,000,000`;
    find("leak-epsilon").textContent = made.epsilon === null ? "none" : `ε = ${made.epsilon}`;
    find("leak-delta").textContent = made.epsilon === null ? "ε = ∞: no noise, no promise" : `at δ = ${made.delta}, for one secret in one message`;
    find("leak-ppl").textContent = made.ppl.toFixed(2);
    find("leak-copies").textContent = `${made.copies} of 20 times the secret ${LEAK.canary} stood in clear in what this model read.`;
    find("leak-said").textContent = `The model goes on: ${text || "nothing"}. ${beyond && `If it may not say MASK: ${beyond}. `}${out ? "That is the secret." : ""} Exposure ${made.exposure.toFixed(1)} bits. Guarantee: ${made.epsilon === null ? "none" : "epsilon " + made.epsilon}. Perplexity ${made.ppl.toFixed(2)}.`;
  };
  let waiting;
  form.addEventListener("input", event => { clearTimeout(waiting); waiting = setTimeout(renew, event.target === typed ? 250 : 0); });
  form.addEventListener("submit", event => { event.preventDefault(); renew(); });
  for (const button of form.querySelectorAll("button"))
    button.addEventListener("click", () => { typed.value = button.textContent; renew(); });
  place.querySelector(".leak-made").textContent = LEAK.made;
  renew();
});
