"""Leaks that ``python -m tests.neighbours --planted`` plants, and must find.

Each is a change of one function of the library by which something of a message gets past the noise,
past a rate, or past the sensitivity that is accounted.
"""

from tests.faults.table import Fault

NOT_COVERED = (
    (
        "a vocabulary from raw text",
        "studies.study_data:_train_tokenizer",
        "if not flagged and MASK not in turn.text",
        "if True",
    ),
    (
        "noise times zero",
        "training.steps:set_private_gradient",
        "std=noise_multiplier * clip_norm",
        "std=0 * noise_multiplier * clip_norm",
    ),
    (
        "noise for the first tensor alone",
        "training.noise:add_noise",
        "[gradient_buffer(p) for p in parameters]",
        "[gradient_buffer(p) for p in parameters[:1]]",
    ),
    (
        "a layer without clipping",
        "training.gradient_entries:EmbeddingGrad.add",
        "factors[:, None, None].to(scaled.dtype)",
        "1",
    ),
    (
        "a unit of several texts without clipping",
        "training.clipping:add_clipped_by_autograd",
        "gradient_buffer(p).add_(g * factor.to(g.dtype))",
        "gradient_buffer(p).add_(g)",
    ),
    (
        "a count in a file name",
        "confide.training.training_record:_public_texts",
        '"experiment.json": ',
        'f"describe_corpus-{hash(str(facts)) % 999}.json": ',
    ),
    (
        "a count in a setting",
        "confide.training.training_of_study:_portable_settings",
        "settings = asdict(study) |",
        "settings = asdict(study) | "
        "{'seen': sum(len(p.text) for p in study_data.prepare_data(study).points)} |",
    ),
    (
        "the exact perplexity on the card",
        "confide.training.training_record:_public_texts",
        '"perplexity": interval.value',
        '"perplexity": str(facts["perplexity"])',
    ),
    (
        "a private n as divisor",
        "confide.training.study_of_text:choose_hyperparameters_by_size",
        "normaliser=max(1.0, probability * count)",
        "normaliser=sum(len(p.text) for p in prepared.prepared.private)",
    ),
    (
        "the batch that was drawn as divisor",
        "training.steps:set_private_gradient",
        "_divide_gradients(parameters, normaliser)",
        "_divide_gradients(parameters, 1 + float(norms.sum()))",
    ),
    (
        "long texts are drawn more often",
        "training.phases:PrivatePhase.batches",
        "generator) < p)",
        "generator) * lengths.float().mean() / lengths < p)",
    ),
    (
        "a redacted point is read raw",
        "screening.preparation:prepare_points",
        "append(redact(point, spans))",
        "append(point)",
    ),
    (
        "a state without clipping",
        "training.selective:SelectivePhase.released",
        "clipped = (x * factors)",
        "clipped = (9 * x)",
    ),
    (
        "a state without noise",
        "training.selective:SelectivePhase.released",
        "if self.noise_multiplier == 0",
        "if True",
    ),
)
"""What is read, clipped, noised or written without the promise's leave."""
REPEATED = (
    (
        "copies of private points are left out",
        "screening.preparation:prepare_points",
        '(duplicates == "mask_private" and is_private)',
        "False",
    ),
    (
        "the first of several copies is masked as well",
        "screening.deduplication:mark_repeats",
        "return make_duplicate_filter(method, len(texts), error_rate=error_rate)(points)",
        "return [texts.count(text) > 1 for text in texts]",
    ),
    (
        "what is held out follows from the different messages",
        "confide.training.study_of_text:build_study",
        "size = len(corpora.load_corpus(corpus))",
        "size = len({tuple(t.text for t in d.turns) for d in "
        "corpora.load_corpus(corpus).dialogues})",
    ),
    (
        "the vocabulary follows from the different messages",
        "studies.study_data:_train_tokenizer",
        "train_bpe(public_texts,",
        "train_bpe(public_texts[len({p.text for p in points}) % 2 :],",
    ),
    (
        "the different messages are counted in a setting",
        "confide.training.training_of_study:_portable_settings",
        "settings = asdict(study) |",
        "settings = asdict(study) | {'seen': len({p.text for p in "
        "study_data.prepare_data(study).points})} |",
    ),
    (
        "near duplicates are copies",
        "screening.preparation:_mark_hidden_repeats",
        "pattern = mark_repeats(points)",
        'pattern = mark_repeats(points, "near")',
    ),
    (
        "messages that share a byte of their hash are copies",
        "screening.deduplication:make_duplicate_filter",
        "digest[:16]",
        "digest[:1]",
    ),
    (
        "copies are found whatever their case",
        "screening.deduplication:make_duplicate_filter",
        "_policy_input_bytes(point)",
        "_policy_input_bytes(point).lower()",
    ),
    (
        "copies are found without their spaces",
        "screening.deduplication:make_duplicate_filter",
        "_policy_input_bytes(point)",
        '_policy_input_bytes(point).replace(b" ", b"")',
    ),
    (
        "copies are found without their signs",
        "screening.deduplication:make_duplicate_filter",
        "_policy_input_bytes(point)",
        r'_policy_input_bytes(point).split(b"\x1f")[0].replace(b".", b"")',
    ),
    (
        "what ends alike is a copy",
        "screening.deduplication:make_duplicate_filter",
        "_policy_input_bytes(point)",
        r'_policy_input_bytes(point).split(b"\x1f")[0][-16:]',
    ),
    (
        "a folder that was screened by likeness is certified",
        "confide.screening.screened_rates:is_deduplicated_by_likeness",
        '"exact"',
        'summary["dedup_by"]',
    ),
    (
        "the coin of the dial is drawn from the name of a message",
        "confide.training.study_of_text:build_study",
        '"coin": "text"',
        '"coin": "point"',
    ),
)
"""One message decides how others are read."""
UNCOUNTED = (
    ("a secret in a repeated message is no trace", "screening.rates:RateCounter._with_repeats",
     "if texts is None", "if True"),
    ("the masked message is not looked for elsewhere",
     "screening.secret_outcomes:SecretOutcome.is_repeated",
     "return repeats_as_it_is or (", "return repeats_as_it_is or False and ("),
    ("the message itself is not looked for elsewhere",
     "screening.secret_outcomes:SecretOutcome.is_repeated",
     "repeats_as_it_is = texts.stands_elsewhere(self.text_hash, here=True)",
     "repeats_as_it_is = False"),
    ("drawn labels look for no repeated message",
     "confide.screening.judged_policies:judge_policies",
     "texts=texts,", "texts=None,"),
    ("a drawn value is looked for in its message alone",
     "confide.screening.judged_policies:judge_policies",
     "find_values_in_whole_point=True", "find_values_in_whole_point=False"),
    ("a drawn value is looked for as it is written", "screening.secret_outcomes:find_value_places",
     "if is_long_enough(value) and", "if False and"),
    ("a drawn value is looked for up to its place", "screening.rates:RateCounter._places_of_values",
     "places_of_value += further",
     "places_of_value += [s for s in further if s.start <= places_of_value[0].start]"),
    ("the last place of a value stands for all", "screening.rates:RateCounter._places_of_values",
     "places_of_value += further", "places_of_value[:] = further[-1:] or places_of_value"),
    ("short values are not looked for", "screening.secret_outcomes:find_value_places",
     "if k not in findable", "if False"),
    ("a value is looked for in the first turn", "screening.secret_outcomes:find_value_places",
     "in spoken_spans(point):", "in [*spoken_spans(point)][:1]:"),
    ("a value is looked for in the beginning of a turn",
     "screening.secret_outcomes:find_value_places",
     "point.text[start:end]", "point.text[start : min(end, start + 20)]"),
    ("a value is masked at one of its places", "screening.rates:RateCounter._judge_point",
     "NeighbourCase(point, redacted, places[value])", "NeighbourCase(point, redacted, [secret])"),
)  # fmt: skip
"""A secret that leaves a trace, or is public, counts as one that is not."""
MIXED = (
    ("activations follow the longest text of a batch", "models.recurrent_lm:RecurrentLM.features",
     "x = layer(x)", "x = layer(x) * (1 + x.shape[1] / 50)"),
    ("activations lose a part of the mean of their batch",
     "models.recurrent_lm:RecurrentLM.features",
     "x = layer(x)", "x = layer(x) - 0.02 * x.mean(0, keepdim=True)"),
    ("the first of a batch moves the others a little", "models.recurrent_lm:RecurrentLM.features",
     "x = layer(x)", "x = layer(x) + 0.05 * x[:1, :1].mean()"),
    ("a message is clipped by the norm of its neighbour", "training.gradient_entries:clip_factors",
     "norms.clamp_min(", "norms.roll(1).clamp_min("),
    ("a message is read as far as the shortest of its batch",
     "training.phases:collate_micro_batches",
     "lengths = torch.tensor([len(row) for row in block])",
     "lengths = torch.tensor([min(map(len, block)) for _ in block])"),
    ("a message is clipped by the norms of its batch", "training.gradient_entries:clip_factors",
     "norms.clamp_min(", "norms.mean().expand_as(norms).clamp_min("),
    ("a model is not tried with a long text", "training.probe:refuse_mixing",
     "longest_tokens > max(SHORT_TEXT_TOKENS)", "False"),
)  # fmt: skip
"""What a model makes of a message depends on the others of its batch."""
LEAKS = [
    Fault(name, target if target.startswith("confide.") else f"crtlib.{target}", old, new, "")
    for name, target, old, new in (*NOT_COVERED, *REPEATED, *UNCOUNTED, *MIXED)
]
OF_CRT = {name for name, *_ in (*REPEATED, *UNCOUNTED)}
"""Those by name that no other method than crt can show."""
