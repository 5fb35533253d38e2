// The model of crtlib/figures/live.py: counts of what follows the last characters.
const counts = (texts, order) => {
  const after = new Map();
  for (const text of texts)
    for (let at = 0; at < text.length; at++)
      for (let back = 0; back <= Math.min(at, order); back++) {
        const context = text.slice(at - back, at);
        let next = after.get(context);
        if (!next) after.set(context, next = {total: 0, kinds: new Map()});
        next.total += 1;
        next.kinds.set(text[at], (next.kinds.get(text[at]) || 0) + 1);
      }
  return after;
};
const probability = (after, order, alphabet, context, character) => {
  let value = 1 / alphabet;
  for (let back = 0; back <= Math.min(context.length, order); back++) {
    const next = after.get(context.slice(context.length - back));
    if (next) value = ((next.kinds.get(character) || 0) + next.kinds.size * value) / (next.total + next.kinds.size);
  }
  return value;
};
const exposure = (after, order, alphabet, prefix, digits) => {
  let scores = [["", 0]];
  for (let k = 0; k < digits.length; k++)
    scores = scores.flatMap(([number, score]) => [..."0123456789"].map(digit =>
      [number + digit, score + Math.log(probability(after, order, alphabet, prefix + number, digit))]));
  const truth = scores.find(([number]) => number === digits)[1];
  const above = scores.filter(([, score]) => score > truth + 1e-9).length;
  const equal = scores.filter(([, score]) => Math.abs(score - truth) <= 1e-9).length;
  return digits.length * Math.log2(10) - Math.log2(above + (equal + 1) / 2);
};
