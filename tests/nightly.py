"""Which tests ``make test`` leaves to ``make nightly``."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NIGHTLY = {
    "tests/accounting/test_accountants.py::test_delta_agrees_with_importance_sampling[0.01": "6 s",
    "tests/accounting/test_accountants.py::"
    "test_noise_is_found_with_few_evaluations[add_or_remove-1.0-1e-08": "8 s",
    "tests/accounting/test_accountants.py::test_a_thousand_different": "compares times",
    "tests/accounting/test_accountants.py::test_many_unsampled_steps_are_one_gaussian[1000": "5 s",
    "tests/attacks/test_leakage_of_a_foreign_model.py": "trains by transformers",
    "tests/test_months.py::test_two_months_are_certified": "trains and certifies, twice",
    "tests/test_months.py::test_a_month_without_labels": "trains and certifies, twice",
    "tests/attacks/test_run_audit.py::test_a_model_of_a_screened_text_is": "trains and audits",
    "tests/book/experiments/test_audits.py": "trains and audits each method, twice",
    "tests/book/experiments/test_axis.py::test_every_method_is_a_run_like_the_others": "trains",
    "tests/book/experiments/test_claims.py::test_who_looks_after_each_seed": "60 s",
    "tests/book/experiments/test_crt.py::test_a_dry_run_says_hours": "6 s",
    "tests/book/experiments/test_crt.py::test_a_policy_that_learned": "teaches a tagger",
    "tests/book/experiments/test_crt.py::test_a_pretrained_folder": "trains",
    "tests/book/experiments/test_crt.py::test_a_second_sweep": "trains in other processes",
    "tests/book/experiments/test_crt.py::test_kill_9": "kills a sweep",
    "tests/book/experiments/test_game.py": "trains some hundred models",
    "tests/book/experiments/test_ledger.py::test_a_ledger_computed_anew": "13 s",
    "tests/book/experiments/test_ledger.py::test_a_measured_row_names_what_makes": "15 s",
    "tests/book/experiments/test_ledger.py::test_the_command_prints_every_paper_or_one": "7 s",
    "tests/book/figures/test_crt.py::test_a_table_that_is_half_recorded_is_drawn_as_far_as_it_goes"
    "[chosen0": "draws each figure",
    "tests/book/figures/test_crt.py::test_a_table_that_is_half_recorded_is_drawn_as_far_as_it_goes"
    "[chosen2": "draws each figure",
    "tests/test_readme.py::test_all": "trains a model",
    "tests/book/teach/test_labs.py::test_what_honest_work": "solves a lab",
    "tests/book/teach/test_labs.py::test_two_hundred": "trains six models",
    "tests/book/teach/test_labs.py::test_a_script_for_another": "trains six models",
    "tests/book/teach/test_labs.py::test_guessing": "trains six models",
    "tests/book/teach/test_labs.py::test_hints": "trains six models",
    "tests/book/teach/test_labs.py::test_of_ten": "trains twenty models",
    "tests/book/teach/test_labs.py::test_the_defence_lab_is_solved": "solves a lab",
    "tests/book/test_chapters.py::test_an_interval_in_a_sentence_is": "reads the ledger",
    "tests/book/test_course.py::test_slides_stand_alone": "makes all slides",
    "tests/book/test_notebooks.py": "runs each chapter with other parameters",
    "tests/book/test_pages.py": "builds the published edition and opens it in a browser",
    "tests/fuzz/test_fuzz.py::test_a_sample_of_bad_input_is_refused_in_one_line": "60 commands",
    "tests/kills/test_kills.py::test_what_is_killed_goes_on_as_if_nothing_had_happened": "10 kills",
    "tests/kills/test_disk_faults.py": "a minute of CPU time for each command",
    "tests/kills/test_every_call.py": "dies at each of some hundred calls",
    "tests/models/test_pretrained.py::test_turns_become_text_as_the_template_says[named": "2 s",
    "tests/models/test_pretrained.py::test_turns_become_text_as_the_template_says[plain": "2 s",
    "tests/pins/test_certificates.py": "trains",
    "tests/pins/test_grids.py": "declares the studies of all profiles",
    "tests/pins/test_studies.py": "trains by each method",
    "tests/release/test_library.py::test_twelve_lines": "screens, trains and certifies",
    **dict.fromkeys(
        (
            "tests/reports/test_leakage.py::"
            f"test_a_corpus_in_many_lots_has_the_report_of_one[more{k}"
            for k in range(5)
        ),
        "2 to 8 s",
    ),
    "tests/screening/test_policies.py::test_regex_on_the_original": "reads corpora",
    "tests/screening/test_policies.py::test_regex_is_fast": "compares times",
    "tests/screening/test_scaling.py": "compares times",
    "tests/test_gpu_script.py": "trains with every engine",
    "tests/test_reliability.py::test_any_number_of_threads_gives_the_same": "8 s",
    "tests/text/test_customersim.py::test_our_wording_is_our_own": "reads corpora",
    "tests/text/test_customersim.py::test_the_table_is_what_the_original_says": "reads corpora",
    "tests/test_examples.py": "runs each example",
    "tests/training/test_probe.py::test_more_architectures": "makes 26 architectures",
    "tests/training/test_noise_of_a_step.py::"
    "test_noise_of_every_number_is_the_accounted_one[masked-gpt2]": "6 s",
    "tests/training/test_noise_of_a_step.py::"
    "test_noise_of_every_number_is_the_accounted_one[one probability": "4 s each",
    "tests/test_nightly.py::test_the_quick_tests_of_a_file": "collects tests",
    "tests/text/test_read_formats.py::test_two_processes_make_the_same": "5 s",
    "tests/text/test_read_formats.py::test_workers_end_though_torch_had_threads": "three processes",
    "tests/accounting/test_accountants.py::test_every_epsilon_falls": "3 s",
    "tests/accounting/test_confidentiality.py::test_groups_at_a_fixed_delta[setting0": "3 s",
    "tests/accounting/test_confidentiality.py::test_replacing_a_group_is_tight": "4 s",
    "tests/accounting/test_privacy_cost.py::test_calibrate_then_account[autodp-replace": "4 s",
    "tests/book/experiments/test_leakage.py::test_a_snapshot_has_spent": "trains",
    "tests/book/experiments/test_runner.py::test_workers_have": "starts processes",
    "tests/book/test_first_page.py": "runs a browser's JavaScript 200 times",
    "tests/book/test_pitfalls.py": "trains",
    "tests/models/test_pretrained.py::test_the_end_of_a_text": "trains",
    "tests/models/test_pretrained.py::test_trained_by_the_command_line_and_read_by_transformers"
    "[bloom": "trains",
    "tests/models/test_pretrained.py::test_trained_by_the_command_line_and_read_by_transformers"
    "[mistral": "trains",
    "tests/models/test_pretrained.py::test_turns_become_text_as_the_template_says[chat": "3 s",
    "tests/release/test_secret_plans.py::"
    "test_every_plan_that_can_be_made_can_be_certified[reference": "trains, 5 s",
    "tests/release/test_secret_plans.py::"
    "test_every_plan_that_can_be_made_can_be_certified[replace": "trains, 5 s",
    "tests/release/test_secret_plans.py::"
    "test_every_plan_that_can_be_made_can_be_certified[add_or_remove-linear": "trains, 2 s",
    "tests/release/test_evidence.py::test_an_audit_of_a_training": "trains and audits",
    "tests/release/test_odometer_run.py::test_two_trainings_at_once": "two processes",
    "tests/release/test_odometer_run.py::test_a_run_that_was_killed_after_its_last_step": "trains",
    "tests/release/test_certify.py::test_what_may_be_shown": "makes everything twice",
    "tests/test_reliability.py::test_a_sweep_on_a_full_disk": "trains",
    "tests/accounting/test_privacy_cost.py::test_one_step_equals_the_integral": "5 s",
    "tests/accounting/test_group_mixtures.py::test_divergences_against_thirty_digits": "3 s",
    "tests/accounting/test_accountants.py::"
    "test_noise_is_found_with_few_evaluations[replace-1.0-1e-08": "2 s",
    "tests/attacks/test_exposure.py::test_exposure_of_random_secrets": "draws many models",
    "tests/book/experiments/test_claims.py::test_one_seed_decides_nothing": "5 s",
    "tests/book/experiments/test_crt.py::test_a_cell_goes_on": "trains",
    "tests/book/experiments/test_runner.py::test_a_scheduler": "starts processes",
    "tests/faults/test_faults.py::test_the_quick_faults": "a step of its own in CI",
    "tests/pins/test_keys.py": "declares the studies of all profiles",
    "tests/release/test_advise.py::test_what_was_spent": "trains twice",
    "tests/screening/test_rates_coverage.py::test_it_holds_on_simulated": "draws labels many times",
    "tests/test_commands.py::test_every_command": "calls all twice, a step of its own in CI",
    "tests/test_commands.py::test_json_prints": "calls all twice, a step of its own in CI",
    "tests/text/test_ingest.py::test_twice_the_input_takes_twice_the_time": "compares times",
    "tests/accounting/test_confidentiality.py::test_command_account": "3 s",
    "tests/attacks/test_run_audit.py::test_canaries_auto": "4 s",
    "tests/book/experiments/test_ledger.py::test_the_errata_have": "2 s",
    "tests/book/experiments/test_secrets.py::test_every_profile": "declares many studies",
    "tests/book/experiments/test_secrets.py::test_extraction_counts": "trains, 6 s",
    "tests/book/test_book.py::test_an_interrupted": "3 s",
    "tests/release/test_advise.py::test_a_plan_is_certified": "trains, 5 s",
    "tests/release/test_advise.py::test_the_least_noise": "2 s",
    "tests/release/test_advise.py::test_what_labels_would_do": "2 s",
    "tests/attacks/test_attack.py::test_rows_are_those_of_the_attacks_own_functions": "2 s",
    "tests/attacks/test_inference.py::test_a_memoriser_names_what_it_read": "3 s",
    "tests/book/experiments/test_crt.py::"
    "test_the_table_holds_every_measurement_with_its_provenance": "4 s",
    "tests/book/experiments/test_settings.py::test_dotted_names_reach_everything": "4 s",
    "tests/models/test_pretrained.py::"
    "test_trained_by_the_command_line_and_read_by_transformers[gpt2": "2 s",
    "tests/release/test_advise.py::test_advice_counts_what_earlier_searches_passed_over": "8 s",
    "tests/release/test_advise.py::"
    "test_advice_for_a_base_is_what_the_certificate_says[bare.jsonl-70": "7 s",
    "tests/release/test_advise.py::test_every_pair_that_was_tried_is_charged": "10 s",
    "tests/release/test_advise.py::test_labels_that_advice_asks_for_are_charged_as_it_said": "2 s",
    "tests/release/test_advise.py::test_the_page_has_the_frontier_and_is_never_overwritten": "4 s",
    "tests/release/test_certify.py::test_a_plan_is_certified_secret_by_secret": "2 s",
    "tests/release/test_damaged_records.py::"
    "test_a_record_that_was_signed_again_is_refused_in_one_line[phases-new0": "2 s",
    "tests/release/test_earlier_runs.py::"
    "test_shares_of_earlier_searches_are_told_where_they_are_named": "3 s",
    "tests/release/test_limits.py::"
    "test_a_limit_is_not_ignored_where_a_certificate_is_verified": "2 s",
    "tests/release/test_limits.py::"
    "test_a_limit_of_a_share_counts_what_earlier_searches_passed_over": "2 s",
    "tests/release/test_odometer_run.py::"
    "test_a_run_that_begins_anew_counts_what_was_trained_in_between": "2 s",
    "tests/release/test_of_0_3.py::"
    "test_a_model_that_read_each_copy_stays_certified_once_the_other_is_struck": "2 s",
    "tests/release/test_public_vocabulary.py::"
    "test_what_reads_raw_text_learns_no_vocabulary_from_it[user_dpsgd": "2 s",
    "tests/release/test_rates_of_another_text.py::"
    "test_noise_on_everything_composes_over_texts": "2 s",
    "tests/release/test_rolling_exports.py::"
    "test_a_rolling_export_of_people_without_a_name_composes": "3 s",
    "tests/release/test_spending.py::test_a_model_that_was_saved_again_is_known": "2 s",
    "tests/release/test_text_registry.py::"
    "test_a_screened_folder_elsewhere_is_of_the_same_text": "2 s",
    "tests/release/test_text_registry.py::"
    "test_runs_of_a_ledger_that_was_taken_over_are_known_to_other_texts[None": "2 s",
    "tests/release/test_text_registry.py::"
    "test_runs_of_a_ledger_that_was_taken_over_are_known_to_other_texts[void0": "2 s",
    "tests/release/test_text_registry.py::"
    "test_two_months_of_the_same_people_compose_and_strangers_do_not": "2 s",
    "tests/release/test_text_registry.py::"
    "test_what_was_screened_first_and_moved_is_of_the_same_text": "2 s",
    "tests/release/test_texts_cut_otherwise.py::"
    "test_one_conversation_in_common_is_no_same_cut": "2 s",
    "tests/release/test_units_of_a_promise.py::"
    "test_what_was_screened_says_how_many_messages_were_read[user": "3 s",
    "tests/release/test_verifier.py::test_a_page_that_was_edited_is_not_verified": "2 s",
    "tests/release/test_withdrawn_runs.py::"
    "test_a_certificate_of_a_struck_run_is_not_up_to_date": "2 s",
    "tests/release/test_withdrawn_runs.py::test_what_was_spent_says_what_was_forgotten": "2 s",
    "tests/reports/test_leakage.py::test_a_redacted_report_is_no_oracle": "2 s",
    "tests/screening/test_rates.py::"
    "test_one_secret_of_each_user_counts_and_every_one_of_them_may": "2 s",
    "tests/screening/test_rates.py::"
    "test_who_taught_a_policy_does_not_judge_it_in_whatever_unit": "3 s",
    "tests/test_a_stranger_adds.py::test_they_are_in_the_table_of_a_sweep": "2 s",
    "tests/test_cli.py::test_a_limit_on_the_size_of_files_is_one_line": "2 s",
    "tests/test_golden_path.py::test_a_project_runs_the_path_and_stops_where_people_label": "2 s",
    "tests/test_golden_path.py::"
    "test_from_messages_to_a_model_that_says_what_it_gives_away[schema_guided-300": "16 s",
    "tests/test_held_out.py::test_a_training_that_holds_nobody_out_says_so": "2 s",
    "tests/test_hf.py::"
    "test_each_door_leaves_the_model_of_the_command[SFTTrainer-CRT by turn": "3 s",
    "tests/text/test_ingest.py::"
    "test_what_duckdb_writes_is_private_and_gone_and_it_reads_nothing_else": "2 s",
    "tests/attacks/test_attack.py::test_every_summary_has_the_promised_columns": "1 s",
    "tests/attacks/test_inference.py::test_small_corpora_and_wrong_numbers": "2 s",
    "tests/attacks/test_leakage.py::test_runs_are_what_the_model_says_token_by_token": "1 s",
    "tests/book/experiments/test_settings.py::test_profiles_differ_in_sizes_only": "2 s",
    "tests/book/experiments/test_settings.py::"
    "test_the_corpora_are_large_enough_for_every_profile[schema_guided": "2 s",
    "tests/book/test_redraws.py::"
    "test_the_factor_of_gaussian_noise_is_enough_for_the_training_of_the_chapter": "1 s",
    "tests/book/test_tight.py::test_epsilons_beyond_the_range_of_exp_keep_their_order": "2 s",
    "tests/models/test_pretrained.py::"
    "test_trained_by_the_command_line_and_read_by_transformers[gemma3": "2 s",
    "tests/models/test_pretrained.py::"
    "test_training_moves_what_it_should_and_the_adapter_gives_the_merged_weights": "1 s",
    "tests/release/test_advise.py::test_the_command": "6 s",
    "tests/release/test_advise.py::test_what_is_said_of_a_plan_is_said": "trains 14 plans",
    "tests/release/test_damaged_records.py::"
    "test_a_record_that_was_signed_again_is_refused_in_one_line[labels-new10": "1 s",
    "tests/release/test_evidence.py::test_evidence_names_its_model": "2 s",
    "tests/release/test_limits.py::test_the_command_ends_with_four_where_a_limit_is_not_met": "3 s",
    "tests/release/test_odometer_run.py::test_a_copied_checkpoint_makes_another_run": "1 s",
    "tests/release/test_public_vocabulary.py::"
    "test_what_reads_raw_text_learns_no_vocabulary_from_it[dpsgd": "1 s",
    "tests/release/test_rates_of_smaller_points.py::"
    "test_noise_on_everything_composes_with_larger_points": "2 s",
    "tests/release/test_text_registry.py::test_the_page_says_by_what_a_text_is_known": "2 s",
    "tests/reports/test_leakage.py::test_text_is_there_when_asked_for": "1 s",
    "tests/screening/test_corpus.py::test_labels_judge_and_each_pair_is_counted_once": "2 s",
    "tests/screening/test_own_policies.py::test_knowing_all_names_loads_no_heavy_package": "1 s",
    "tests/screening/test_policies.py::test_the_dial_misses_a_share_gamma": "1 s",
    "tests/screening/test_tagger.py::test_it_finds_secrets_that_it_never_saw": "2 s",
    "tests/test_a_stranger_adds.py::test_what_the_toy_policy_flags_is_what_a_run_counts": "1 s",
    "tests/test_cli.py::test_a_python_that_drops_docstrings_is_refused_in_one_line": "1 s",
    "tests/test_hf.py::test_what_a_callback_stops_is_charged_in_full": "1 s",
    "tests/test_odd_places.py::test_a_command_without_standard_input_answers": "1 s",
    "tests/test_project.py::test_a_project_whose_answer_is_no_ends_with_4": "1 s",
    "tests/test_without_torch.py::"
    "test_the_command_without_its_extra_says_in_one_line_what_to_install[confide": "1 s",
    "tests/test_without_torch.py::"
    "test_the_command_without_its_extra_says_in_one_line_what_to_install[crtlib": "1 s",
    "tests/text/test_customersim.py::test_command_refuses_an_unwritable_place": "2 s",
    "tests/text/test_customersim.py::"
    "test_command_refuses_in_one_line_and_writes_nothing[arguments0": "1 s",
    "tests/text/test_customersim.py::"
    "test_command_refuses_in_one_line_and_writes_nothing[arguments1": "2 s",
    "tests/text/test_customersim.py::test_command_writes_the_corpus": "2 s",
    "tests/text/test_ingest.py::test_little_memory_and_small_lots_make_the_same_corpus": "2 s",
    "tests/text/test_sources.py::test_packages_are_not_asked_for_a_corpus_of_ours": "1 s",
    "tests/text/test_customersim.py::test_paper_variety": "reads corpora",
    **dict.fromkeys(
        (
            f"tests/accounting/test_accountants.py::test_noise_is_found_with_few_evaluations[{row}"
            for row in ("add_or_remove-1e-09", "add_or_remove-8.0", "replace-1e-09", "replace-8.0")
        ),
        "2 s each; the others of both relations stay",
    ),
    **dict.fromkeys(
        (
            f"tests/accounting/test_accountants.py::test_renyi_divergences_against_twenty_digits[{row}"
            for row in (
                "0.0001-1-1.1-replace",
                "0.0001-1-1.1-backward",
                "0.03-2-3.0-forward",
                "0.03-2-3.0-replace",
                "0.3-1-2.5-backward",
                "0.3-1-2.5-forward",
            )
        ),
        "of rows and directions each is met once by day",
    ),
    "tests/accounting/test_accountants.py::test_runs_of_different_shapes_compose[1-add": "2 s",
    "tests/accounting/test_accountants.py::test_runs_of_different_shapes_compose[3-add": "2 s",
    "tests/accounting/test_accountants.py::test_mixed_runs_against_dp_accounting": "2 s",
    "tests/accounting/test_accountants.py::test_many_different_steps_are": "2 s",
    "tests/accounting/test_confidentiality.py::test_edges_of_the_group": "4 s",
    "tests/accounting/test_confidentiality.py::test_groups_at_a_fixed_delta[setting1": "4 s",
    "tests/accounting/test_confidentiality.py::"
    "test_a_group_in_one_step_equals_the_integral[8-0.05": "2 s",
    "tests/accounting/test_privacy_cost.py::test_epsilon_and_delta_are_inverse[prv": "3 s",
    "tests/accounting/test_privacy_cost.py::test_calibrated_noise[setting1": "2 s",
    "tests/accounting/test_privacy_cost.py::test_a_tighter_accountant_is_never_above": "2 s",
    "tests/accounting/test_privacy_cost.py::"
    "test_a_sigma_rounded_up_keeps_the_promise[pld-0.05": "2 s",
    "tests/book/test_tight.py::"
    "test_dp_accountings_mixture_without_dots_is_below_the_truth": "of another library",
    "tests/book/test_tight.py::test_a_tilted_sum_is_not_one_in_dp_accounting": "of another library",
    "tests/accounting/test_odometer.py::test_four_processes": "starts processes",
    "tests/accounting/test_secret_protection.py::"
    "test_every_secret_keeps_its_promise[sqrt-True-8": "2 s",
    "tests/accounting/test_guess_bounds.py::test_the_worked_example_by_other_routes": "3 s",
    "tests/accounting/test_tradeoff.py::test_no_curve_is_above_a_test_that_exists[1-add": "1 s",
    "tests/accounting/test_tradeoff.py::test_no_curve_is_above_a_test_that_exists[3-rep": "1 s",
    "tests/attacks/test_audit.py::test_one_run_names_the_extremes": "3 s",
    "tests/attacks/test_inference.py::test_no_value_is_asked_twice": "4 s",
    "tests/attacks/test_run_audit.py::test_a_model_that_learned_them": "trains, 5 s",
    "tests/book/experiments/test_crt.py::test_a_new_measurement_scores": "trains",
    "tests/book/test_course.py::test_the_printed_book": "binds the book",
    "tests/pins/test_dirty.py::test_a_dirty_file": "5 s",
    "tests/release/test_advise.py::test_hours_that_are_left": "trains, 6 s",
    "tests/release/test_advise.py::"
    "test_advice_for_a_base_is_what_the_certificate_says[o.jsonl": "trains, 5 s",
    "tests/reports/test_leakage.py::test_even_one_who_knows": "3 s",
    "tests/screening/test_rates_coverage.py::test_the_simulation_takes": "3 s",
    "tests/screening/test_deduplication.py::"
    "test_the_pattern_is_the_same_in_another": "starts processes",
    "tests/screening/test_tagger.py::test_canaries_are_learned": "teaches a tagger",
    "tests/test_options.py::test_every_option_of_a_method_changes": "begins forty trainings, each",
    "tests/text/test_read_formats.py::test_a_person_is_the_unit_from": "trains and certifies, 7 s",
    **dict.fromkeys(
        (
            "tests/models/test_pretrained.py::"
            f"test_trained_by_the_command_line_and_read_by_transformers[{family}"
            for family in ("llama", "qwen2", "gemma2", "phi", "gpt-neox")
        ),
        "trains; by day one of each way of building layers",
    ),
    "tests/accounting/test_confidentiality.py::test_a_group_of_one_is_a_data_point": "3 s",
    "tests/book/test_tight.py::test_tight_accounting_finds_the_least_noise": "2 s",
    "tests/attacks/test_membership.py::test_a_memoriser_is_found": "trains, 3 s",
    "tests/attacks/test_leakage.py::test_users_left_out": "trains",
    "tests/book/experiments/test_claims.py::test_holm_keeps": "2 s",
    "tests/book/experiments/test_ledger.py::test_a_table_of_ones_own": "2 s",
    "tests/faults/test_faults.py::test_a_fault_that_no_longer_applies": "plants faults, 3 s",
    "tests/release/test_units_of_a_promise.py::"
    "test_what_was_screened_says_how_many_messages_were_read[dialogue": "trains, 3 s",
    "tests/screening/test_rates_coverage.py::test_it_holds_on_dialogues": "2 s",
    "tests/test_cli.py::test_account_gives_the_authors_figure[autodp": "of another library",
    "tests/text/test_customersim.py::test_another_process": "starts a process",
    "tests/attacks/test_membership_scores.py::test_every_score": "trains, 6 s",
    "tests/attacks/test_membership_scores.py::test_without_a_reference": "trains the same",
    "tests/release/test_certify.py::test_the_certificate_of_a_multiwoz": "trains",
    "tests/screening/test_deduplication.py::test_near_finds_edited": "2 s",
    "tests/test_hf.py::test_a_script_of_trl": "3 s",
    "tests/book/experiments/test_settings.py::"
    "test_the_corpora_are_large_enough_for_every_profile[multiwoz": "2 s",
    "tests/screening/test_tagger.py::test_the_conservative_policy_flags_every": "2 s",
    "tests/attacks/test_leakage.py::test_hardening": "trains",
    "tests/test_a_stranger_adds.py::test_their_names": "draws a figure",
    "tests/accounting/test_accountants.py::test_never_below_a_test_that_exists": "1 s",
    "tests/accounting/test_accountants.py::test_the_renyi_bound": "1 s",
    "tests/screening/test_own_policies.py::test_a_long_turn": "1 s",
    "tests/screening/test_policies.py::test_annotate_gives": "1 s",
    "tests/fuzz/test_fuzz.py::test_a_case_is_the_same": "1 s",
    "tests/reports/test_leakage.py::test_nothing_is_in_clear_by_default[1-options0": "1 s",
    "tests/screening/test_secret_shares.py::test_the_counted_bound_covers_all_secrets[100": "2 s",
    "tests/test_reliability.py::test_the_mode_of_every_file_that_is_written_is_that_of_the_table"
    "[18": "by day with another mask",
    "tests/book/experiments/test_runner.py::test_a_sweep_that_was_killed": "1 s",
    "tests/book/experiments/test_runner.py::test_of_a_pool_that_breaks": "5 s",
    "tests/book/experiments/test_crt.py::test_the_guarantee_says_what_it_rests_on": "2 s",
    "tests/test_cli.py::test_train_writes_model_guarantee_and_attack": "2 s",
    "tests/test_nightly.py::test_the_quick_tests_of_a_file_with_both_kinds": "4 s",
    "tests/book/experiments/test_axis.py::test_every_method_of_the_papers": "1 s",
    "tests/models/test_pretrained.py::test_a_text_beyond": "1 s",
    "tests/release/test_drawn_turns.py::"
    "test_a_promise_is_of_those_who_taught_no_policy[tagger": "teaches a tagger",
    "tests/release/test_earlier_runs.py::test_a_void_run_counts_as_one_without_protection"
    "[a_base": "2 s",
    "tests/attacks/test_run_audit.py::test_a_model_that_never_read_them_shows": "trains and audits",
    "tests/reports/test_leakage.py::"
    "test_what_a_late_text_lacks_is_said_before_the_first_is_scored[fault1": "1 s",
    "tests/accounting/test_accountants.py::test_runs_of_different_shapes_compose[3-replace": "1 s",
    "tests/accounting/test_privacy_cost.py::test_epsilon_and_delta_are_inverse[autodp": "1 s",
    "tests/book/experiments/test_crt.py::test_without_labels_nothing_is_known": "1 s",
    "tests/book/experiments/test_fine_tuning.py::test_every_arm_starts_from_the_same": "trains",
    "tests/book/experiments/test_fine_tuning.py::"
    "test_the_grid_searches_every_arm_alike_and_repeats_what_was_chosen": "declares many studies",
    "tests/book/experiments/test_leakage.py::"
    "test_the_owners_of_unique_sequences_are_left_out_of_the_model_that_is_compared": "trains",
    "tests/book/test_masked_lm.py::test_training_lowers_the_loss": "trains",
    "tests/book/test_tight.py::test_replacement_by_the_worst_pair_takes_half": "1 s",
    "tests/book/test_tight.py::test_replacement_is_bracketed_like_dp_accountings_pair": "1 s",
    "tests/book/test_tight.py::test_the_chain_of_a_replaced_group": "1 s",
    "tests/fuzz/test_fuzz.py::test_the_judge_sees_each_fault[resource.setrlimit": "uses a second",
    "tests/models/test_pretrained.py::"
    "test_trained_by_the_command_line_and_read_by_transformers[qwen3": "2 s",
    "tests/pins/test_released.py::test_a_method_releases_what_it_released[crt gpt2": "1 s",
    "tests/pins/test_released.py::test_a_method_releases_what_it_released[dpsgd gru": "1 s",
    "tests/release/test_counted_judgements.py::"
    "test_a_screened_folder_that_others_followed_was_chosen_among_all": "1 s",
    "tests/release/test_earlier_runs.py::"
    "test_a_base_of_other_text_that_stands_on_a_counted_one_says_so": "trains twice",
    "tests/release/test_edited_files.py::"
    "test_who_edits_what_is_read_before_training_is_told_in_one_line[labels": "1 s",
    "tests/release/test_edited_files.py::"
    "test_who_edits_what_is_read_before_training_is_told_in_one_line[screened": "1 s",
    "tests/release/test_rates_of_another_text.py::"
    "test_a_rate_of_another_text_bounds_nothing_here[the_public_part": "1 s",
    "tests/reports/test_leakage.py::test_a_killed_report_scores_no_shard_twice": "starts processes",
    "tests/screening/test_tagger.py::test_an_encoder_learns_and_a_word": "teaches an encoder",
    "tests/screening/test_tagger.py::test_thresholds_are_those_of_the_scores": "teaches a tagger",
    "tests/text/test_arxiv.py::test_one_abstract_is_read_before_the_next": "reads a corpus",
    "tests/text/test_labels.py::test_the_table_says_which_n": "1 s",
    "tests/text/test_multiwoz.py::test_the_dialogues_of_all_domains_are": "reads a corpus",
    "tests/text/test_wikitext.py::test_wikitext_itself": "reads a corpus",
    "tests/training/test_probe.py::test_what_mixes_long_texts_alone_is_refused[hy_v4": "1 s",
    "tests/book/experiments/test_utility.py::"
    "test_epsilon_of_a_learned_policy_uses_what_it_was_counted_to_miss": "1 s",
    "tests/fuzz/test_fuzz.py::test_900_cases_reach_every_option": "2 s",
    "tests/reports/test_leakage.py::test_nothing_is_in_clear_by_default[1-options1": "1 s",
    "tests/test_a_stranger_adds.py::test_a_model_of_theirs_is_in_a_report": "trains",
    "tests/text/test_hostile_records.py::test_a_broken_mail_is_a_row[multipart": "1 s",
}
"""Files and tests (by the beginning of their names) that ``make test`` leaves to ``make nightly``:
what takes long, or reads a clock."""

LONG = ("test_pages", "test_kills", "test_notebooks", "test_crt", "test_scaling")
"""Files that take half a minute or more: they go first, so that no core waits at the end."""


def by_night(item):
    """Whether ``make nightly`` alone runs it."""
    return item.nodeid.startswith(tuple(NIGHTLY))
