"""Mistakes that would void a guarantee, each with the test that must notice.

A row alters one function: ``old``, which stands once in its source, becomes ``new``. ``python -m
tests.faults`` plants them one by one. A row that no longer applies is a failure: the function has
changed, and the mistake has to be made anew.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    name: str
    target: str  # module:function or module:Class.method
    old: str
    new: str
    guard: str  # the test that must fail, as pytest names it
    quick: bool = False  # planted by every run of the tests, and not by "make faults" alone


def rows(module, file, *faults):
    """Faults of one module, or of another of its room that a target names; guarded by tests of
    ``file``, or of another that a guard names."""
    return [
        Fault(
            name,
            f"crtlib.training.{target}" if ":" in target else f"crtlib.{module}:{target}",
            old,
            new,
            f"tests/{guard}" if ".py::" in guard else f"tests/{file}::{guard}",
            *quick,
        )
        for name, target, old, new, guard, *quick in faults
    ]


STEP_NOISE = "test_noise_of_every_number_is_the_accounted_one[one for each point-lstm]"
DRAW = "piece.add_(draw(piece), alpha=std)"
# fmt: off
NOISE = rows(
    "training.noise",
    "training/test_noise_of_a_step.py",
    *(
        (f"10 % less noise for tensor {k}", "add_noise", DRAW,
         f"piece.add_(draw(piece), alpha=std * (0.9 if grad is grads[{k}] else 1))",
         STEP_NOISE)
        for k in range(5)
    ),
    ("10 % less noise where there is no gradient", "add_noise", DRAW,
     "piece.add_(draw(piece) * (1 - 0.1 * (piece == 0)), alpha=std)",
     STEP_NOISE, True),
    ("no noise where there is no gradient", "add_noise", DRAW,
     "piece.add_(draw(piece) * (piece != 0), alpha=std)", STEP_NOISE),
    ("noise only for parameters with a gradient", "add_noise",
     "p.grad = torch.zeros_like(p)", "continue",
     "training/test_loop.py::test_an_empty_batch_still_adds_noise_and_counts"),
    ("every piece of a tensor has the same noise", "add_noise", DRAW,
     "piece.add_(normals(piece, torch.Generator().manual_seed(1)), alpha=std)",
     "test_noise_of_a_large_tensor_does_not_repeat_itself"),
    ("every tensor starts with the same noise", "add_noise",
     "for piece in grad.",
     "generator.manual_seed(generator.initial_seed())\n            for piece in grad.",
     STEP_NOISE),
    ("secure noise with 2 % too little", "box_muller",
     "mul(-2)", "mul(-1.92)", "test_secure_noise_is_as_good"),
    ("secure noise from half of the angles", "box_muller", "math.pi * 2.0**-31",
     "math.pi * 2.0**-32",
     "training/test_secure_noise.py::test_numbers_are_normal_and_independent[openssl]"),
    ("secure noise ends at 9 deviations", "box_muller", "+ ((low ^", "+ (0.5 + 0 * (low ^",
     "training/test_secure_noise.py::test_a_radius_is_as_likely_as_it_is_far"),
    ("a cipher of eighteen rounds", "words", "range(10)", "range(9)",
     "training/test_secure_noise.py::test_words_are_those_of_the_rfc"),
    ("tensors of a step share secure noise", "_source", "stream.update(",
     "Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), None).encryptor().update(",
     "training/test_secure_noise.py::test_tensors_of_one_step_share_no_noise[openssl]"),
    ("pieces of a tensor share secure noise", "_source",
     "words(os.urandom(32), n", "words(bytes(32), n",
     "training/test_secure_noise.py::test_tensors_of_one_step_share_no_noise[operators]"),
    ("every step has the same secret key", "_source", "ChaCha20(os.urandom(32)",
     "ChaCha20(bytes(32)",
     "training/test_secure_noise.py::test_every_step_has_a_key_of_its_own[openssl]"),
    ("secure uniforms repeat", "uniform",
     "os.urandom(8 * n)", "bytes(range(8)) * n",
     "training/test_loop.py::test_secure_randomness_repeats_neither_batches_nor_noise"),
    ("seeded noise is uniform instead of normal", "_source",
     "torch.empty_like(like).normal_(generator=generator)",
     "torch.empty_like(like).uniform_(-3**0.5, 3**0.5, generator=generator)",
     "training/test_clipping.py::"
     "test_noise_has_the_variance_asked_for_and_its_own_generator"),
)

CLIPPED = "test_clipped_sum_is_that_of_a_loop"
BOUNDED = "test_clipped_example_does_not_exceed_the_bound"
CLIPPING = rows(
    "training.bookkeeping",
    "training/test_clipping.py",
    ("cross term of a tied head left out", "recording:Book.add",
     "2 * cross(a, b)", "0 * cross(a, b)", f"{BOUNDED}[gpt2-tied]", True),
    ("cross term counted once", "recording:Book.add", "2 * cross(a, b)", "cross(a, b)",
     f"{BOUNDED}[lstm-tied]"),
    ("buffer of queries, keys and values scaled in place", "Outer._add",
     "_parts(columns * factors, rows.dtype)", "_parts(columns.mul_(factors), rows.dtype)",
     f"{CLIPPED}[bert-mean-1000000000]"),
    ("a layer's norm left out", "Whole.square", ".square()", ".square() * 0",
     f"{BOUNDED}[gpt2-untied]"),
    ("a bias left out of the norm", "Outer.square", "gram += _matmul(self.column, self.column.mT)",
     "pass", f"{BOUNDED}[lstm]"),
    ("repeated tokens counted as different rows", "Lookup.square",
     "self.ids[:, :, None] == self.ids[:, None, :]", "torch.eye(self.ids.shape[1])[None] > 0",
     f"{BOUNDED}[lstm]"),
    ("positions added in squares", "layers:_positions", ".sum(1, dtype=wide(grad))",
     ".square().sum(1, dtype=wide(grad)).sqrt()", f"{CLIPPED}[gpt2-untied-mean-64]"),
    ("the batch clipped instead of its examples", "clip_factors",
     "(clip_norm / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1)",
     "(clip_norm / norms.norm()).clamp_max(1).expand_as(norms)", f"{CLIPPED}[lstm-mean-64]"),
    ("scaled up to the bound as well", "clip_factors", ".clamp_max(1)", "",
     "test_gradients_below_the_bound_are_left_alone_and_equal_the_plain_sum[lstm]"),
    ("an overflow enters the sum", "clip_factors",
     "factors.nan_to_num(0, posinf=math.inf)", "factors",
     "test_example_whose_gradient_is_not_finite_is_left_out[inf-lstm-bookkeeping]", True),
    ("0 times infinity", "recording:Book.add_clipped", "if none.any():", "if False:",
     "test_example_whose_gradient_is_not_finite_is_left_out[nan-gpt2-tied-bookkeeping]"),
    ("a parameter used outside of its layer passes", "recording:Book.backward",
     "if p.grad is not None:", "if False:",
     "test_parameter_used_outside_of_its_layer_is_not_left_unclipped"),
    ("a head's blocks forgotten", "recording:Book.norms", "total[span].add_(square)",
     "total[span] = square", f"{CLIPPED}[lstm-mean-64]"),
    ("gradients of a tied embedding rounded in the cross term", "cross",
     "b.columns.to(grads.dtype), grads.mT",
     "b.columns.float(), grads.to(b.columns.dtype).float().mT",
     "test_the_cross_term_of_a_tied_embedding_is_taken_in_the_wider_type"),
    ("a batch norm is let in", "layers:refuse_unfit", "module.track_running_stats or not instance",
     "False", "training/test_architectures.py::"
     "test_a_batch_norm_is_refused_by_name[bookkeeping]"),
    ("half-precision factors rounded once", "_parts",
     "[coarse, (x - coarse).to(dtype)]", "[coarse * 1.01]",
     "test_what_a_gpu_rounds_is_added_as_a_second_part"),
) + rows(
    "training.clipping",
    "training/test_clipping.py",
    ("the loop clips without the norm", "_loop", "add_(g * factor)", "add_(g)",
     f"{CLIPPED}[lstm-mean-64]"),
    ("a loss is the mean over the width of the batch", "examples:_sorted",
     "weights.sum(1, keepdim=True).clamp_min(1)", "weights.shape[1]",
     "test_a_private_run_has_the_loss_curve_of_opacus_own_optimizer"),
    ("the head sees too few positions", "_head_and_loss",
     "losses[rows] = (nll * w)", "losses[rows] = (nll[: len(nll)] * w * (w < w.max()))",
     f"{CLIPPED}[lstm-mean-64]"),
)

PHASES = rows(
    "training.steps",
    "training/test_loop.py",
    ("noise divided by the batch", "private_step", "std=noise_multiplier * clip_norm",
     "std=noise_multiplier * clip_norm / max(len(norms), 1)",
     "training/test_noise_of_a_step.py::test_noise_of_every_number_is_the_accounted_one"
     "[masked-lstm]"),
    ("90 % of the noise", "private_step", "std=noise_multiplier * clip_norm",
     "std=0.9 * noise_multiplier * clip_norm", "training/test_noise_of_a_step.py::"
     "test_noise_of_every_number_is_the_accounted_one[selective-lstm]"),
    ("noise after every micro-batch", "private_step",
     "        non_finite = non_finite + (~norms",
     "        add_noise(parameters, std=noise_multiplier * clip_norm, generator=noise)\n"
     "        non_finite = non_finite + (~norms",
     "training/test_noise_of_a_step.py::test_noise_of_every_number_is_the_accounted_one"
     "[masked-lstm]"),
    ("of two processes the first adds no noise", "private_step", "if crew().leads:", "if False:",
     "training/test_parallel.py::test_the_noise_of_a_step_is_there_once"),
    ("noise in every share of a batch", "private_step", "    crew().add_up(parameters)",
     "    add_noise(parameters, std=noise_multiplier * clip_norm * (crew().size - 1),\n"
     "              generator=noise)\n    crew().add_up(parameters)",
     "training/test_parallel.py::test_the_noise_of_a_step_is_there_once"),
    ("two processes read all of a batch", "parallel:Crew.share", "[self.rank :: self.size]", "[:]",
     "training/test_parallel.py::test_each_point_is_in_one_share", True),
    ("norms of rounded products", "recording:Book.add", "with exact:", "if True:",
     "training/test_devices.py::test_a_norm_is_exact_where_products_are_not", True),
    ("divided by the batch that was drawn", "private_step", "_divide(parameters, normaliser)",
     "_divide(parameters, max(len(norms), 1))", "test_the_normaliser_does_not_depend_on_the_data"),
    ("what an earlier step left is released again", "_cleared", "p.grad = None", "pass",
     "training/test_selective.py::test_a_batch_is_that_of_the_definition[4096-0.3]"),
    ("overflows are not counted", "private_step", "return non_finite", "return 0",
     "test_gradients_that_are_not_finite_move_nothing_and_are_counted"),
) + rows(
    "training.phases",
    "training/test_loop.py",
    ("an empty batch is skipped", "PrivatePhase.batches",
     "yield (uniform(len(lengths), generator) < p).nonzero().flatten()",
     "batch = (uniform(len(lengths), generator) < p).nonzero().flatten()\n"
     "            if len(batch): yield batch", "test_an_empty_batch_still_adds_noise_and_counts"),
    ("a shuffled loader instead of Poisson samples", "PrivatePhase.batches",
     "yield (uniform(len(lengths), generator) < p).nonzero().flatten()",
     "yield torch.randperm(len(lengths), generator=generator)[: int(p * len(lengths))]",
     "test_the_sampler_is_poisson_with_the_probability_of_the_event", True),
    ("one Poisson sample for all steps", "PrivatePhase.batches",
     "for _ in range(self.steps):\n            yield (uniform(len(lengths), generator) < p)",
     "u = uniform(len(lengths), generator)\n        for _ in range(self.steps):\n"
     "            yield (u < p)", "test_the_sampler_is_poisson_with_the_probability_of_the_event"),
    ("all points share one draw", "PrivatePhase.batches",
     "uniform(len(lengths), generator) <", "uniform(1, generator).expand(len(lengths)) <",
     "test_the_sampler_is_poisson_with_the_probability_of_the_event"),
    ("a step more than is accounted", "PrivatePhase.batches", "range(self.steps)",
     "range(self.steps + 1)", "test_updates_are_counted_by_kind"),
    ("sampled more often than accounted", "PrivatePhase._probabilities", "return p\n",
     "return min(1.0, 1.1 * p)\n",
     "test_the_sampler_is_poisson_with_the_probability_of_the_event"),
    ("the event has another probability", "PrivatePhase.event",
     "SampledGaussian(p, ", "SampledGaussian(p / 2, ",
     "test_the_sampler_is_poisson_with_the_probability_of_the_event"),
    ("the event has a step too few", "PrivatePhase.event",
     "SampledGaussian(p, self.noise_multiplier, self.steps)",
     "SampledGaussian(p, self.noise_multiplier, self.steps - 1)",
     "test_an_empty_batch_still_adds_noise_and_counts"),
    ("weighted points sampled alike", "PrivatePhase._probabilities",
     "torch.tensor(p, dtype=torch.float64)", "sum(p) / len(p)",
     "training/test_phases.py::test_each_point_is_sampled_with_its_own_probability[generator0]"),
    ("a phase of a plan forgotten", "schedules:weighted",
     "np.linspace(0, plan.steps, epochs + 1)", "np.linspace(0, plan.steps - 1, epochs + 1)",
     "training/test_phases.py::test_the_phases_of_a_plan_keep_its_promises"),
    ("a plan's noise halved", "schedules:weighted", "noise_multiplier=plan.noise_multiplier",
     "noise_multiplier=plan.noise_multiplier / 2",
     "training/test_phases.py::test_the_phases_of_a_plan_keep_its_promises"),
)

LOOP = rows(
    "training.state",
    "training/test_loop.py",
    ("all streams have one seed", "_seed", "[seed, 7, stream]", "[seed, 7, 0]",
     "test_streams_are_pairwise_different", True),
    ("noise repeats the initialisation", "_seed",
     "return int(", "return seed if stream == 2 else int(", "test_streams_are_pairwise_different"),
    ("secure batches from the seed", "streams", 'name != "public order"', 'name == "noise"',
     "test_secure_randomness_repeats_neither_batches_nor_noise"),
    ("secure noise from the seed", "streams", 'name != "public order"', 'name == "poisson"',
     "test_secure_noise_alone_does_not_repeat"),
    ("a resumed run repeats its noise", "Checkpoint.restore", "generator.set_state(content)",
     "pass", "test_resume_is_bit_identical[1]"),
    ("events forgotten when a run resumes", "Checkpoint.restore",
     'for e in saved["events"]', 'for e in saved["events"][1:]', "test_resume_is_bit_identical[2]"),
    ("a checkpoint of other data is taken up", "Checkpoint._read",
     'if saved["identity"] != self.identity:', "if False:",
     "test_a_checkpoint_of_another_run_is_refused"),
    ("a checkpoint may run code", "Checkpoint._read", "weights_only=True", "weights_only=False",
     "test_a_checkpoint_that_would_run_code_is_refused"),
    ("a checkpoint that anybody may read", "Checkpoint.save", "mode=0o600", "mode=0o644",
     "test_a_checkpoint_is_readable_by_its_owner_alone"),
) + rows(
    "training.loop",
    "training/test_loop.py",
    ("batches and noise from one stream", "_run_phase", "state.generators[phase.order]",
     'state.generators["noise"]', "test_each_stream_is_used_for_its_own_purpose"),
    ("a secure phase that is run again is not charged", "train", "if secure and file:",
     "if False:", "test_a_secure_phase_that_is_run_again_is_counted_again"),
    ("a private phase is not entered", "train", "run.events.append(event)",
     "run.events[:] = [event]", "test_secure_runs_resume"),
    ("private updates with the public optimizer", "_run_phase",
     "state.optimizers[update.kind]", 'state.optimizers["public"]',
     "training/test_selective.py::test_a_batch_is_that_of_the_definition[4096-None]"),
)

SELECTIVE = rows(
    "training.selective",
    "training/test_selective.py",
    ("a released state without noise", "SelectivePhase.released",
     "clipped + self.noise_multiplier", "clipped + 0 * self.noise_multiplier",
     "training/test_noise_of_a_step.py::"
     "test_noise_of_a_released_state_is_the_accounted_one"),
    ("a released state with 10 % less noise", "SelectivePhase.released",
     "clipped + self.noise_multiplier", "clipped + 0.9 * self.noise_multiplier",
     "training/test_noise_of_a_step.py::"
     "test_noise_of_a_released_state_is_the_accounted_one"),
    ("a state that is not clipped", "SelectivePhase.released", "(x * factors)",
     "(x * factors.sign())",
     "test_a_released_state_is_clipped"),
    ("a private state goes on in clear", "SelectivePhase._segment", "if t % 2 else x",
     "if not t % 2 else x", "test_a_batch_is_that_of_the_definition[4096-0.3]"),
    ("private segments start a token late", "segments", "a or b", "a",
     "test_every_private_token_is_read_and_predicted_in_private_segments_alone"),
    ("released states not accounted", "SelectivePhase.event",
     "each = 1 if self.hidden_clip is None else 3", "each = 1",
     "test_the_event_counts_what_a_point_takes_part_in"),
    ("batches sorted by length", "SelectivePhase.batches",
     "torch.randperm(len(lengths), generator=generator)", "lengths.argsort()",
     "test_batches_do_not_depend_on_lengths"),
    ("a private segment learned without noise", "SelectivePhase.updates", "if t % 2 == 0:",
     "if True:", "test_a_batch_is_that_of_the_definition[4096-None]"),
)

ACCOUNTING = rows(
    "accounting.confidentiality",
    "accounting/test_confidentiality.py",
    ("Proposition 6 with the square of the miss rate", "_amplified",
     "math.log1p(gamma * math.expm1(epsilon))", "math.log1p(gamma**2 * math.expm1(epsilon))",
     "test_the_authors_own_setting"),
    ("delta multiplied by the miss rate, not divided", "bayes_at_fixed_delta",
     "(delta - delta2) / gamma)", "(delta - delta2) * gamma)", "test_figure_6_cells"),
    ("delta2 forgotten", "bayes_at_fixed_delta", "curve((delta - delta2) / gamma)",
     "curve(delta / gamma)", "test_edges_of_gamma"),
    ("one direction of two", "indistinguishability", "hockey_stick(q, p, epsilon=epsilon)",
     "hockey_stick(p, q, epsilon=epsilon)",
     "test_hockey_stick_is_the_worst_of_all_events"),
    ("outcomes that only one law has are forgotten", "hockey_stick", " + one[~here].sum()", "",
     "test_hockey_stick_is_the_worst_of_all_events"),
    ("a group pays for one point", "group_naive", "np.cumsum(eps[:-1])", "eps[:0]",
     "test_definition_3_and_the_group_bound_on_a_finite_mechanism"),
    ("a group is one point to the composition", "_group",
     "[event.sampling_probability] * group", "[event.sampling_probability]",
     "test_a_group_in_one_step_equals_the_integral"),
    ("replacing a group as removing it", "_group", 'if relation == "add_or_remove":',
     'if relation != "swap":', "test_a_replaced_group_in_one_step_equals_the_integral"),
) + rows(
    "accounting.ledger",
    "accounting/test_ledger.py",
    ("equal phases are accounted once", "profile", "total.get(key, 0) + int(e.steps)",
     "int(e.steps)", "test_composition_of_phases"),
) + rows(
    "accounting.mixtures",
    "accounting/test_mixtures.py",
    ("what is cut off a law is not charged", "counts", "0.0, tail)", "0.0, 0.0 * tail)",
     "test_what_is_cut_off_is_charged"),
    ("a certain point is never drawn", "counts", "pmf[:n, 1:] += drawn",
     "pmf[:n, 1:] += drawn * (q < 1)", "test_certain_points_are_a_shifted_gaussian"),
    ("the other direction of the divergence", "_kl_block",
     'if direction == "forward":', 'if direction != "forward":', "test_golden_divergences"),
    ("mass moved down instead of to both ends", "_connect_the_dots", "mass[1:] += upper",
     "mass[:-1] += upper", "test_one_round_against_its_thresholds"),
) + rows(
    "accounting.posteriors",
    "accounting/test_secrets.py",
    ("the unsafe end of a posterior", "posterior", "np.where(c == 0, p, high)",
     "np.where(c == 0, p, 0.99 * high)", "test_posterior_inverts_divergence"),
) + rows(
    "accounting.secrets",
    "accounting/test_secrets.py",
    ("what is cut to 1 is not given to the others", "sampling_probabilities",
     "left = batch_size - certain.sum()", "left = batch_size", "test_sampling_probabilities"),
    ("a thousandth less noise than is needed", "noise_multiplier", "return sigma\n",
     "return 0.999 * sigma\n", "test_noise_is_the_least_that_keeps_every_promise"),
    ("a plan for one step", "plan", "sigma = noise_multiplier(held, q, p, r, steps=steps",
     "sigma = noise_multiplier(held, q, p, r, steps=1", "test_golden_plan"),
    ("phases without noise count nothing", "guarantees", "+= math.inf", "+= 0.0",
     "training/test_phases.py::test_without_noise_nothing_is_promised_of_a_sampled_secret"),
    ("phases do not add up", "guarantees", "spent += event.steps *", "spent = event.steps *",
     "training/test_phases.py::test_the_phases_of_a_plan_keep_its_promises"),
) + rows(
    "accounting.secret_lp",
    "accounting/test_secret_lp.py",
    ("weights beyond a budget", "_repaired", "return feasible(w)", "return np.minimum(1, 1.1 * w)",
     "test_weights_are_feasible_and_certified"),
) + rows(
    "accounting.selective",
    "training/test_selective.py",
    ("S-DP promises something of an imperfect policy", "guarantee",
     "if gamma.bound == 0 else math.inf", "if gamma.rate == 0 else math.inf",
     "test_a_guarantee_needs_a_perfect_policy"),
) + rows(
    "intervals",
    "accounting/test_ledger.py",
    ("a two-sided bound sold as one-sided", "clopper_pearson_upper",
     "of - count, confidence)", "of - count, confidence - (1 - confidence))", "test_recall_bounds"),
)

SCREENING = rows(
    "screening.prepare",
    "screening/test_prepare.py",
    ("a point with a mask is public", "prepare", " or MASK in p.text", "",
     "test_every_point_with_a_mask_is_private_even_a_raw_one"),
    ("what only the cautious policy flags is public", "prepare", "bool(a or b)",
     "bool(a)", "test_neighbours_stay_neighbours", True),
    ("a masked duplicate goes to the public part", "prepare",
     "parts[1].append(replace(p", "parts[0].append(replace(p",
     "screening/test_dedup.py::"
     "test_a_false_positive_becomes_a_mask_and_never_a_public_point"),
    ("duplicates are looked for after redaction", "prepare",
     "_repeated(points, private", "_repeated([redact(p, m) for p, m in zip(points, pi)], private",
     "test_dedup_before_redaction_breaks_group_confidentiality_on_templates"),
    ("no secret is ever counted as missed", "prepare", "missed += len(", "missed += 0 * len(",
     "test_what_a_mask_leaves_of_a_secret_is_a_missed_secret"),
) + rows(
    "screening.redact",
    "screening/test_prepare.py",
    ("labels that a mask covers in part are dropped", "redact",
     "if c.start < c.end", "if c.start <= s.start and s.end <= c.end",
     "test_what_a_mask_leaves_of_a_secret_is_a_missed_secret"),
    ("an overlap leaves the end of a secret in clear", "clear", "at = max(at, s.end)",
     "at = s.end", "screening/test_redact.py::test_a_span_inside_of_another_uncovers_nothing"),
) + rows(
    "screening.spans",
    "screening/test_spans.py",
    ("half a secret counts as caught", "uncovered", "if at < s.end:", "if at == s.start:",
     "test_uncovered_are_those_with_a_character_in_clear"),
) + rows(
    "screening.dedup",
    "screening/test_dedup.py",
    ("the first of several equal texts is marked as well", "_exact", "codes <= before",
     "codes < before", "test_exact_and_an_almost_exact_filter_equal_brute_force"),
)

FAULTS = NOISE + CLIPPING + PHASES + LOOP + SELECTIVE + ACCOUNTING + SCREENING
