"""Cases that repeat, with another model or setting, what a usual case shows; `make soak` runs them.

By folder and file: beginnings of test ids. A case that begins with a line of `KEPT` stays among the usual tests.
"""

SOAK = {
    "contract/test_real_models.py": [
        f"test_a_real_model_trains_as_on_one_worker[{case}]"
        for case in ("torch-fsdp-bert", "torch-ddp-resnet", "tf-mirrored-vit", "torch-ddp-mixtral")
    ],
    "contract/test_mesh_of_real_models.py": [
        f"test_a_layout_trains_a_real_model_as_one_worker_does[{case}"
        for case in ("bert shard=2", "llama shard=2,tensor=2]", "gpt context=2]", "gpt pipeline=2 zbv",
                     "llama context=2 clip", "mixtral shard=2,expert=2 clip", "llama pipeline=2,context=2 recompute",
                     "mixtral shard=2,pipeline=2,expert=2 accumulation", "bert tensor=2 clip")
    ],
    "contract/test_usual_runs.py": ["test_it_ends_without_a_word_of_what_broke_after_its_work"],
    "integration/test_wrong_model.py": ["test_a_model_that_is_wrong_when_built_is_refused_before_any_run"],
    "integration/test_wrong_input.py": ["test_a_report_that_cannot_be_written_is_refused_and_the_results_stay[/proc"],
    "integration/test_going_on.py": [
        "test_files_in_the_users_folder_do_not_stand_in_for_modules_of_the_same_name",
        "test_more_repeats_add_to_what_is_there",
    ],
    "validation/test_guide.py": ["test_the_tables_of_the_guide_are_what_make_docs_writes"],
    "golden/test_predicted_text.py": ["test_the_answer_is_as_stored_at_this_width[recommend-many"],
    "integration/test_calibrate.py": [
        "test_a_model_of_the_users_is_calibrated_with_and_predicted",
        "test_a_calibration_that_is_interrupted_ends_and_writes_nothing[in a run]",
    ],
    "integration/test_joined.py": [
        "test_processes_find_each_other_by_what_their_launcher_says[mpirun]",
        "test_processes_find_each_other_by_what_their_launcher_says[tf_config]",
        "test_processes_with_other_options_do_not_train_together",
        "test_a_signal_to_all_processes_is_an_interrupted_run",
    ],
    "integration/test_slurm.py": [
        "test_an_allocation_ends_with_its_launcher[ended]",
        "test_doctor_shows_the_nodes_and_what_slurm_refuses_is_said",
    ],
    "integration/test_breakdown_of_late_processes.py": [
        "test_a_breakdown_calls_the_delay_of_one_process_waiting_in_the_other",
    ],
    "integration/test_breakdown_is_true.py": [
        "test_a_breakdown_of_served_workers_finds",
    ],
    "integration/test_emitted_scripts.py": [
        "test_a_script_loses_what_pacelines_run_of_a_built_in_model_loses",
        "test_a_script_with_other_settings_still_loses_what_pacelines_run_loses",
        "test_a_script_loses_what_pacelines_run_of_the_transformer_loses",
        "test_a_script_loses_what_pacelines_run_of_the_users_model_loses",
    ],
    "contract/test_loss_follows_one_worker.py": [
        f"test_loss_{what}[{name}-2-{workload}"
        for what in ("follows_one_worker_step_by_step", "aside_the_weights_end_the_same")
        # Of strategies that keep the model whole one workload is enough; the transformer where XLA compiles it.
        for workload, names in {
            "transformer": ("torch-zero", "torch-ps-sync", "tf-mirrored", "tf-central", "tf-multiworker", "jax-data",
                            "torch-sandblaster", "jax-fsdp", "keras-model-parallel", "tf-dtensor", "torch-ddp"),
            "mnist-small": ("jax-mesh",),
        }.items()
        for name in names
    ] + [
        f"test_loss_{what}[torch-mesh-4-mnist-small]"
        for what in ("follows_one_worker_step_by_step", "aside_the_weights_end_the_same")
    ],
    "contract/test_jax_placement.py": [
        "test_a_process_for_each_worker_trains_as_one_process_does",
        "test_every_optimizer_means_what_it_means_in_pytorch",
        "test_what_is_wrong_with_a_plan_for_a_pair_is_said",
        "test_what_is_wrong_with_a_pair_is_said_before_anything_starts",
        "test_a_pair_of_functions_may_bring_an_optimizer_whose_state_is_divided_too",
        "test_several_steps_in_one_call_are_the_same_steps[jax-single]",
        "test_half_precision_stays_near_single_precision",
        "test_jax_tensor_leaves_convolutions_whole_when_asked", "test_the_footprint_holds_what_the_devices_hold",
        "test_jax_tensor_refuses_a_pair_without_a_plan", "test_each_device_of_jax_data_has_the_whole_model",
        "test_a_pair_of_functions_is_split_as_its_plan_says",
        "test_each_device_of_jax_fsdp_has_its_share_of_every_array",
        "test_a_pair_of_functions_trains_the_same_under_every_jax_strategy",
    ],
    "contract/test_traced_steps.py": [
        "test_the_breakdown_of_every_rank_adds_up_to_its_step", "test_the_breakdown_of_two_workers_has_communication",
        "test_the_breakdown_of_one_worker_has_no_communication", "test_a_breakdown_is_of_the_same_training",
    ],
    "contract/test_torch_data_parallel_knobs.py": [
        "test_a_model_of_ones_own_follows_one_worker", "test_divided_state_is_counted_for_other_optimizers_too",
        "test_plain_memory_order_gives_the_same_losses", "test_a_model_that_leaves_out_a_layer_is_taken_too",
        "test_what_fsdp_gathers_and_when_does_not_change_the_result",
        "test_a_model_with_running_statistics_trains_and_leaves_one_model",
        "test_fsdp_takes_a_model_that_changes_a_layers_output_in_place",
        "test_powersgd_takes_a_model_whose_convolutions", "test_zero_divides_the_optimizer_state_as_the_footprint_says",
        "test_local_sgd_brings_the_loss_down_and_holds_what_it_says", "test_fsdp_on_three_workers",
    ],
    "contract/test_torch_model_parallel.py": [
        "test_it_gives_the_same_in_the_contiguous_memory_format",
        "test_a_model_of_the_users_is_cut_by_itself_or_as_its_file_says",
        "test_momentum_is_kept_for_each_part", "test_wrong_stages_are_named", "test_wrong_plans_are_named",
        "test_split_convolutions_in_a_row_gather_channels_in_between",
        "test_four_workers_hold_exactly_what_the_footprint_says",
    ],
    "contract/test_keras_placement.py": [
        "test_an_own_keras_model_is_divided_as_its_plan_says_or_by_columns",
        "test_a_plan_that_matches_nothing_is_an_error_and_not_silence",
        "test_a_mesh_with_one_model_side_is_data_parallelism",
        "test_an_own_keras_model_trains_the_same_on_two_workers", "test_variables_lie_in_halves_along_the_model_side",
    ],
    "contract/test_tf_data_parallel_knobs.py": [
        "test_no_setting_changes_what_is_learned", "test_an_optimizer_means_what_it_means_in_torch",
        "test_a_model_of_ones_own_learns_the_same", "test_compiling_does_not_change_what_is_learned",
    ],
    "contract/test_tf_model_parallel.py": [
        "test_every_shape_of_the_mesh_gives_the_same", "test_every_optimizer_is_kept_in_the_same_parts",
        "test_a_model_of_the_users_is_cut_by_itself_or_as_its_file_says", "test_wrong_stages_are_named",
        "test_micro_batches_and_several_steps_per_call_change_nothing",
        "test_a_watched_mesh_sends_the_bytes_of_its_footprint", "test_each_device_has_its_shard_of_every_split_array",
        "test_micro_batches_of_a_users_model_count_its_penalties_once",
        "test_forward_and_backward_of_each_stage_run_on_its_own_device", "test_a_keras_model_is_refused_by_the_mesh",
    ],
    "browser/test_web_app.py": [
        f"{name}[phone"
        for name in (
            "test_a_study_is_started_watched_and_found_among_the_results", "test_a_figure_is_looked_at_and_explored",
            "test_a_long_study_is_stopped_by_its_button", "test_a_page_of_another_site_can_start_nothing",
            "test_two_configurations_are_ticked_and_stand_side_by_side",
            "test_wrong_input_is_shown_where_the_study_would_be", "test_the_advisor_runs_the_best_here_and_ranks_again",
            "test_results_are_filtered_without_leaving_the_page_and_the_address_keeps_it",
            "test_a_table_is_sorted_by_its_headings",
        )
    ] + [
        "test_every_page_loads_within_the_width_of_the_screen", "test_a_table_is_sorted_by_its_headings",
        "test_two_configurations_are_ticked_and_stand_side_by_side", "test_a_figure_is_looked_at_and_explored",
    ],
    "browser/test_report_in_browser.py": [
        "test_every_figure_comes_alive_without_an_error", "test_the_page_is_no_wider_than_the_screen_and_figures_fit",
        "test_a_click_on_a_heading_sorts_the_ranking", "test_it_prints",
        "test_a_setting_is_chosen_from_a_list_and_the_figure_follows",
    ],
    "contract/test_torch_servers.py": [
        "test_more_servers_give_the_same_losses_and_weights",
        "test_smaller_pieces_do_not_change_what_is_held_beyond_their_counters",
        "test_a_slow_worker_gets_help_and_the_result_stays_the_same", "test_servers_run_the_optimizer_of_the_run",
    ],
    "integration/test_examples.py": ["test_a_notebook_runs_from_top_to_bottom"],
    "integration/test_clean_exits.py": ["test_many_runs_in_a_row_end_clean"],
    "integration/test_interrupts.py": [
        "test_an_interrupted_study_keeps_what_is_finished_exits_with_130_and_goes_on_later[15]",
        "test_an_interrupted_study_keeps_what_is_finished_exits_with_130_and_goes_on_later[3]",
    ],
    "integration/test_any_process_may_die.py": ["test_a_killed_process_ends_the_run_and_is_named"],
    "integration/test_shared_imports.py": [
        "test_a_shared_import_is_made_once_and_the_record_says_so", "test_nothing_passes_from_a_run_to_the_next",
        "test_fsdp_does_not_import_optimizers_that_only_zero_uses",
    ],
    "contract/test_tf_placement.py": ["test_replicas_compute_at_the_same_time_each_on_its_share"],
    "contract/test_tf_ps.py": [
        "test_a_share_that_is_taken_apart_trains_as_a_whole_one", "test_blocks_are_dealt_over_servers_as_counted",
        "test_several_steps_in_one_call_use_each_share_once_too", "test_staleness_is_recorded_for_every_update",
        "test_a_model_of_the_users_is_served",
    ],
    "contract/test_frameworks_agree.py": [
        "test_accuracy_after_two_epochs_is_that_of_torch", "test_loss_is_that_of_torch_step_by_step",
    ],
    "contract/test_torch_mesh.py": [
        *(f"test_a_layout_trains_as_one_worker_does[{case}]" for case in (
            "tensor=4 classes 33", "pipeline=4 gpipe", "replicate=2,tensor=2 accumulation 2", "shard=2,pipeline=2 zbv",
            "pipeline=2 interleaved", "tensor=2 recompute selective clip 0.2", "replicate=2,shard=2 clip 0.2",
            "shard=2,tensor=2 recompute full accumulation 2 clip 0.2", "shard=2", "tensor=2",
            # The same schedules are run with clipping, with copies or with all settings at once.
            "pipeline=2 1f1b", "pipeline=2 1f1b clip 0.2", "pipeline=2 zbv", "pipeline=2 dualpipev",
            # What eight processes do at once.
            "shard=2,pipeline=2 1f1b accumulation 2 clip 0.2",
            # Compiled, as split layers of a real model are among the usual tests.
            "tensor=2,pipeline=2 1f1b execution compiled recompute selective clip 0.2",
        )),
    ],
    "integration/test_own_model.py": [
        "test_the_text_of_the_file_is_its_identity", "test_a_numbers_model_has_a_test_loss",
    ],
    "contract/test_asynchronous_strategies_learn.py": ["test_loss_falls_below_what_the_strategy_states[tf-ps]"],
    "contract/test_tf_fields.py": ["test_a_run_trains_as_one_worker_does[tf-multiworker"],
    "integration/test_scripts_you_have.py": ["test_a_breakdown_finds_the_parts_of_a_script_that_says_nothing[True]"],
    "integration/test_machines.py": ["test_two_machines_train_as_one_does[jax-data]"],
    "integration/test_links.py": ["test_nothing_is_left_when_the_tool_is_ended[2]"],
    "integration/test_turns.py": ["test_tools_that_share_a_study_make_each_run_once_and_one_at_a_time[3]"],
    "integration/test_gauge.py": ["test_nothing_of_a_gauge_is_left_when_it_ends"],
    "integration/test_serve.py": ["test_ending_the_server_stops_its_study_and_stores_that[15]"],
    "integration/test_python.py": ["test_figures_display_themselves_as_pictures_without_any_script"],
    "golden/test_report_page.py": ["test_every_figure_that_applies_can_be_written_as_files"],
    "contract/test_jax_mesh.py": [
        "test_a_run_trains_as_one_worker_does[jax-data workers 2 accumulation 4 recompute selective]",
    ],
}  # fmt: skip

KEPT = {
    # Of runs that other tests make anyway.
    "contract/test_usual_runs.py": ["test_it_ends_without_a_word_of_what_broke_after_its_work[torch-"],
    "integration/test_wrong_model.py": [
        "test_a_model_that_is_wrong_when_built_is_refused_before_any_run[raises when built]",
        "test_a_model_that_is_wrong_when_built_is_refused_before_any_run[an update that fails]",
        "test_a_model_that_is_wrong_when_built_is_refused_before_any_run[a loss of each sample]",
        "test_a_model_that_is_wrong_when_built_is_refused_before_any_run[test data of another shape]",
    ],
    "integration/test_emitted_scripts.py": [
        *(f"test_a_script_loses_what_pacelines_run_of_a_built_in_model_loses[{name}]"
          for name in ("torch-ddp", "tf-single", "jax-data")),
    ],
    "contract/test_jax_placement.py": [
        "test_a_process_for_each_worker_trains_as_one_process_does[mnist-small-jax-fsdp]",
        "test_every_optimizer_means_what_it_means_in_pytorch[momentum]",
        "test_the_footprint_holds_what_the_devices_hold[transformer-jax-data]",
    ],
    "contract/test_traced_steps.py": [
        f"test_{what}[{name}"
        for what in (
            "the_breakdown_of_every_rank_adds_up_to_its_step", "the_breakdown_of_two_workers_has_communication",
            "a_breakdown_is_of_the_same_training",
        )
        for name in ("torch-ddp-2", "torch-pipeline-2", "torch-ps-sync", "tf-mirrored-2", "jax-data-2")
    ],
    "contract/test_torch_data_parallel_knobs.py": [
        "test_a_model_of_ones_own_follows_one_worker[own optimizer-torch-ddp",
    ],
    "contract/test_tf_data_parallel_knobs.py": [
        "test_no_setting_changes_what_is_learned[mnist-small-tf-mirrored-2-{'loop': 'fit'}]",
    ],
    "browser/test_web_app.py": [
        "test_every_page_loads_within_the_width_of_the_screen[desktop-light]",
    ],
    "browser/test_report_in_browser.py": ["test_every_figure_comes_alive_without_an_error[light-390]"],
    "contract/test_torch_servers.py": ["test_more_servers_give_the_same_losses_and_weights[2-torch-sandblaster]"],
    "integration/test_any_process_may_die.py": [
        f"test_a_killed_process_ends_the_run_and_is_named[{name}"
        for name in ("torch-ddp", "torch-ps-sync", "tf-ps", "jax-data", "torch-pipeline")
    ],
    "integration/test_shared_imports.py": [
        "test_a_shared_import_is_made_once_and_the_record_says_so[torch-single]",
    ],
}  # fmt: skip


def is_soak(file: str, test: str) -> bool:
    """Whether a test of that file belongs to `make soak`."""
    return _begins(test, SOAK.get(file, [])) and not _begins(test, KEPT.get(file, []))


def _begins(test: str, beginnings: list[str]) -> bool:
    return any(test.startswith(beginning) for beginning in beginnings)


def stale(tests: dict[str, list[str]]) -> list[str]:
    """Lines that match no test of their file, which were forgotten when it changed."""
    return [
        f"{file}::{beginning}"
        for table in (SOAK, KEPT)
        for file, beginnings in table.items()
        if file in tests
        for beginning in beginnings
        if not any(test.startswith(beginning) for test in tests[file])
    ]
