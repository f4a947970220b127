"""Which kinds of failure there are, and the tests that would fail if one of them came about here.

A kind is told by how such systems have failed, not by what we do. ``later`` names what of a kind waits for a part of
the library that does not exist yet; `test_table.py` makes sure of that, so that the table is taken up again then.
"""

from __future__ import annotations

from typing import NamedTuple


class Later(NamedTuple):
    """What of a kind is not tested, and the public name whose absence is the reason: see ``test_table.exists``."""

    what: str
    needs: str


class Case(NamedTuple):
    """A kind of failure, the tests of it, and what of it is for later."""

    kind: str
    tests: tuple[str, ...]
    later: tuple[Later, ...] = ()


CASES: dict[str, Case] = {}


def case(id: str, kind: str, *tests: str, later: tuple[Later, ...] = ()) -> None:
    """Put a kind into the table."""
    if id in CASES:
        raise ValueError(f"{id} is in the table already")
    CASES[id] = Case(kind, tests, later)


MATRIX = "tests/crash/test_matrix.py::test_stopped_anywhere_it_goes_on"
RECOVERY = "tests/crash/test_recovery.py"
TRANSCRIPT = "tests/crash/test_transcript.py"
CLOSE = "tests/crash/test_close.py"
ANTHROPIC = "tests/wire/test_anthropic_lane.py"
PYDANTIC_AI = "tests/wire/test_pydantic_ai_lanes.py"
STORMS = "tests/races/test_concurrency.py::test_storms"
INTERRUPTED = "tests/cases/test_interrupted.py"
ANSWERS = "tests/cases/test_answers.py"
LANES = "tests/cases/test_lanes.py"
RETRYING = "tests/driver/test_retrying.py"
GROUND = "tests/cases/test_ground.py"
SIGNALS = "tests/kills/test_signals.py"

WIRE = "tests/wire"

WATCH = "tests/watch/test_watch.py"
STREAM = "tests/watch/test_stream.py"
FORKING = "tests/session/test_forking.py"
STORAGE = "tests/cases/test_storage.py"
GROWTH = "tests/cases/test_growth.py"
STORED = "tests/cases/test_stored_data.py"
PATHS = "tests/cases/test_paths.py"
LARGE = "tests/cases/test_large_results.py"
MUCH = "tests/cases/test_large_inbox.py"
POISONED = "tests/cases/test_poisoned.py"
ODD = "tests/session/test_odd_text.py"
MANUAL = "tests/driver/test_compaction_manual.py"
THRESHOLD = "tests/driver/test_compaction_threshold.py"
LEAVING = "tests/driver/test_navigating_with_summary.py"
SUMMARIES_REOPENED = "tests/session/test_compaction_reopened.py"
SUMMARY_RACES = "tests/races/test_compaction.py"

# The conversation stays whole.

case(
    "R01",
    "a run that is stopped inside a tool leaves a call without a result, and no provider takes the session any more",
    f"{INTERRUPTED}::test_the_next_message_is_taken",
    f"{SIGNALS}::test_each_end_has_its_code_and_holds_nobody_up",
    "tests/acceptance/test_kill9.py::test_keyboard_interrupt_is_no_abort",
)
case(
    "R03",
    "what was mended at opening is forgotten again, so that each opening mends anew",
    f"{RECOVERY}::test_repair_is_made_once",
)
case(
    "R04",
    "after an abort a result is stored under an entry that is not on the path of the answer that asked for it",
    f"{INTERRUPTED}::test_a_result_stands_behind_the_answer_with_its_call_after_an_abort",
    "tests/session/test_branches.py::test_a_result_without_its_call_is_refused",
    "tests/testing/test_invariants.py::test_a_broken_session_is_seen",
)
case(
    "R06",
    "a result that was kept in two places is sent twice after a reopen",
    f"{RECOVERY}::test_history_is_written_once",
)
case(
    "R07",
    "a call that was refused leaves its result behind and not itself",
    f"{ANSWERS}::test_a_result_for_a_tool_that_is_not_there_keeps_its_call",
    f"{ANSWERS}::test_a_call_that_a_hook_blocks_keeps_its_result",
)
case(
    "R08",
    "a tool has run, its outcome could not be written, and the run goes on as if it had been",
    f"{INTERRUPTED}::test_an_outcome_whose_commit_fails_is_told_and_its_effect_is_not_repeated",
    f"{TRANSCRIPT}::test_nothing_goes_on_past_a_commit_that_failed",
)
case(
    "R09",
    "one of several ways to go on writes results whose calls, or children whose parents, are not stored",
    MATRIX,
    STORMS,
    "tests/storage/test_conformance.py::test_conformance",
)
case(
    "R10",
    "what is old is written again with each run, or with each recovery",
    f"{RECOVERY}::test_history_is_written_once",
    f"{RECOVERY}::test_repair_is_made_once",
)
case(
    "R12",
    "a call that the provider carries out itself is run here, or is sent back half",
    f"{ANSWERS}::test_a_call_that_the_provider_runs_itself_is_never_run_here",
    "tests/wire/test_anthropic_stream.py::test_what_the_provider_ran_itself_and_what_it_cites_go_back_as_they_came",
    "tests/wire/test_anthropic_requests.py::test_a_call_that_the_provider_runs_goes_back_with_its_result_and_never_dangling",
    "tests/wire/test_pydantic_ai_round_trips.py::test_what_the_provider_ran_goes_back_whole_or_not_at_all",
    "tests/machine/test_context.py::test_only_what_the_rules_name_is_left_out",
    f"{WIRE}/test_openai_input.py::test_what_the_providers_own_tools_did_goes_back_only_where_it_is_complete",
)
case(
    "R13",
    "answers without content pile up, each a reason for the provider to refuse the next request",
    f"{TRANSCRIPT}::test_failures_do_not_poison_what_comes_after",
    "tests/races/test_abort.py::test_an_abort_keeps_what_was_shown",
    f"{TRANSCRIPT}::test_an_abort_shows_in_the_record_while_a_model_hangs",
    "tests/machine/test_context.py::test_answers_without_content_and_entries_of_applications_are_left_out",
    f"{WIRE}/test_openai_lanes.py::test_failures_are_kept_and_never_sent",
    f"{ANTHROPIC}::test_five_failures_poison_nothing",
    f"{PYDANTIC_AI}::test_five_failures_poison_nothing",
)
case(
    "R15",
    "an interrupted call is taken out of the conversation, and the model goes on as if it had never asked",
    f"{RECOVERY}::test_an_interruption_tells_the_last_saved_progress",
    f"{INTERRUPTED}::test_the_next_message_is_taken",
    f"{INTERRUPTED}::test_a_call_that_was_aborted_says_that_it_may_have_run",
)

# Effects happen as often as they may.

case(
    "R16",
    "after a crash in a batch all of its calls run again, those that had ended too",
    f"{RECOVERY}::test_committed_results_survive_the_last_ones_death",
    f"{RETRYING}::test_an_aborted_one_goes_on_and_its_calls_are_not_run_again",
)
case(
    "R17",
    "whether a crash repeats an effect depends on which of two unordered writes came first",
    MATRIX,
    "tests/kills/test_kills.py::test_ended_anyhow_anywhere_it_goes_on",
)
case(
    "R19",
    "a retry of the run repeats tools that had succeeded",
    f"{RECOVERY}::test_a_restart_uses_up_no_retry",
    f"{TRANSCRIPT}::test_only_the_turn_that_failed_is_asked_again",
    f"{RETRYING}::test_a_failed_operation_goes_on_where_it_ended",
)
case(
    "R21",
    "pieces of a stream that broke are joined with those of the next attempt",
    f"{TRANSCRIPT}::test_a_retry_starts_from_nothing",
    f"{WIRE}/test_openai_lanes.py::test_a_retry_begins_anew_and_its_tool_runs_once",
    f"{ANTHROPIC}::test_a_cut_in_an_emoji_and_arguments_in_pieces_do_not_run_twice",
    f"{PYDANTIC_AI}::test_a_cut_in_an_emoji_and_arguments_in_pieces_do_not_run_twice",
)
case(
    "R22",
    "equal work gets equal ids, so that the second piece of it collides with the first",
    f"{RECOVERY}::test_equal_operations_are_two_operations",
    f"{LANES}::test_equal_work_on_two_lanes_is_two_pieces_of_work",
)
case(
    "R24",
    "a hint or a guess is taken for the promise that a call may be repeated",
    f"{RECOVERY}::test_a_call_runs_again_only_if_it_was_and_is_declared_repeatable",
    f"{ANSWERS}::test_nothing_is_repeated_because_it_looks_harmless",
    "tests/mcp/test_calls.py::test_tools_come_as_the_server_declares_them_under_names_that_providers_take",
    "tests/mcp/test_calls.py::test_hints_count_where_the_application_trusts_the_server_and_its_own_word_counts_more",
    "tests/mcp/test_lifecycle.py::test_killed_in_a_call_our_process_leaves_what_its_policy_says",
)
case(
    "R25",
    "a tool that is gone after a restart ends the run with an exception, or is offered all the same",
    f"{RECOVERY}::test_a_tool_that_is_gone_before_its_call_began_gets_a_plain_error",
    f"{RECOVERY}::test_a_call_runs_again_only_if_it_was_and_is_declared_repeatable",
    f"{ANTHROPIC}::test_tools_that_are_gone_after_a_reopening_leave_a_request_that_is_taken",
    f"{PYDANTIC_AI}::test_tools_that_are_gone_after_a_reopening_leave_a_request_that_is_taken",
)
case(
    "R26",
    "the answer to a request is lost, it is sent again, and runs twice",
    f"{RECOVERY}::test_the_reply_of_accept_may_be_lost",
    "tests/races/test_steps.py::test_the_same_accept_twice_is_one_operation",
    "tests/session/test_operations.py::test_ten_first_accepts_at_once_make_one_operation",
    "tests/session/test_operations.py::test_an_id_that_was_used_for_something_else_is_a_conflict",
)
case(
    "R27",
    "work that was accepted is gone after a crash, or is there in half",
    f"{RECOVERY}::test_the_reply_of_accept_may_be_lost",
    f"{RECOVERY}::test_inside_accept_it_is_there_whole_or_not_at_all",
)

# Tools that run together.

case(
    "R28",
    "a call that fails before it starts is placed before an earlier one that still runs",
    f"{TRANSCRIPT}::test_a_call_refused_at_once_waits_for_its_place",
    f"{STREAM}::test_a_run_as_it_is_shown",
)
case(
    "R29",
    "one call that hangs costs its siblings the results that they had",
    f"{RECOVERY}::test_a_staged_outcome_is_placed_without_its_tool",
)
case(
    "R30",
    "results stand in another order after a reload than they stood live",
    f"{TRANSCRIPT}::test_results_are_in_call_order_whatever_ends_first",
    f"{RECOVERY}::test_a_staged_outcome_is_placed_without_its_tool",
)
case(
    "R31",
    "of results that come at the same moment one is never written",
    f"{TRANSCRIPT}::test_fifty_at_once",
    "tests/races/test_concurrency.py::test_threads_that_report_at_once",
)
case(
    "R33",
    "a slower sibling is given up although nobody stopped it",
    f"{TRANSCRIPT}::test_results_are_in_call_order_whatever_ends_first",
)
case(
    "R34",
    "one bad call takes the good results of its batch with it",
    f"{TRANSCRIPT}::test_each_failure_is_its_own_result",
    f"{ANSWERS}::test_one_malformed_call_costs_its_siblings_nothing",
)
case(
    "R36",
    "calls that depend on each other run at once, live or in a recovery",
    f"{TRANSCRIPT}::test_a_barrier_runs_alone",
    f"{RECOVERY}::test_replays_of_one_recovery_come_one_after_the_other_and_planned_calls_after_them",
    "tests/driver/test_effects.py::test_a_running_barrier_stays_one_when_its_tool_is_configured_away",
)

# Cancelling and stopping.

case(
    "R37",
    "a cancellation reaches the save itself, and half is stored",
    "tests/races/test_callers.py::test_a_cancelled_caller_changes_nothing_of_the_commit",
    "tests/cancellation/test_every_checkpoint.py::test_every_call_at_every_checkpoint",
)
case(
    "R38",
    "a cancelled statement runs on in its thread, and later work joins a transaction that nobody knows of",
    "tests/storage/test_sqlite_commits.py::test_a_cancelled_commit_leaves_no_transaction_open",
    "tests/cancellation/test_group_commit.py::test_any_of_them_may_be_cancelled",
)
case(
    "R39",
    "after a cancellation inside a tool no new message is taken, and nobody says why",
    f"{INTERRUPTED}::test_a_caller_who_is_cancelled_inside_the_only_tool_may_ask_again",
    f"{INTERRUPTED}::test_the_next_message_is_taken",
)
case(
    "R41",
    "a cancellation that is delivered again and again, and taken back each time, spins the loop",
    f"{GROUND}::test_a_tool_that_takes_cancellation_back_spins_nothing",
    "tests/cancellation/test_catches.py::test_a_wait_that_spins",
)
case(
    "R42",
    "an abort from inside a tool stops that tool, and the batch goes on",
    "tests/races/test_abort.py::test_a_tool_that_aborts_its_own_run_stops_the_rest",
)
case(
    "R43",
    "a tool that does not listen makes an abort, or the end of the program, wait for it",
    f"{TRANSCRIPT}::test_an_abort_does_not_wait_for_a_thread_that_does_not_listen",
    f"{CLOSE}::test_what_does_not_stop_is_left_behind_and_named",
    f"{SIGNALS}::test_each_end_has_its_code_and_holds_nobody_up",
)
case(
    "R45",
    "a restart goes on with a run whose abort was stored",
    f"{RECOVERY}::test_a_committed_abort_is_carried_out_by_the_next_process",
    "tests/races/test_abort_others.py::test_abort_then_close",
)
case(
    "R46",
    "an abort of a run that nobody drives is acknowledged and does nothing",
    f"{RECOVERY}::test_abort_of_an_orphan_is_idempotent",
)
case(
    "R47",
    "the end of a program is taken for somebody's wish to cancel, and what could be resumed is settled",
    f"{SIGNALS}::test_each_end_has_its_code_and_holds_nobody_up",
    f"{CLOSE}::test_leaving_is_closing",
    "tests/races/test_callers.py::test_a_natively_cancelled_pass_goes_on_with_the_next_drive",
)
case(
    "R48",
    "whoever stops looking stops the run, or whoever stops the run only stops looking",
    "tests/races/test_callers.py::test_a_caller_who_leaves_does_not_stop_the_others",
    "tests/races/test_callers.py::test_the_last_caller_who_leaves_does_not_stop_the_run",
    "tests/cancellation/test_joined.py::test_the_pass_goes_on_for_who_joined_it",
    f"{WATCH}::test_a_viewer_that_leaves_or_breaks_stops_nothing",
    f"{STREAM}::test_leaving_a_stream_stops_nothing",
)
case(
    "R50",
    "a thread that cannot be stopped acts later, is run again, or lends its timeout to what it calls",
    f"{LANES}::test_a_plain_tool_that_ends_late_is_not_run_again",
    f"{LANES}::test_a_timeout_is_not_inherited_by_what_the_tool_calls",
)
case(
    "R52",
    "a close shuts the store before the last writes, and their failure is swallowed",
    "tests/races/test_close.py::test_a_callers_commit_then_close",
    "tests/races/test_close.py::test_close_then_a_callers_commit",
    "tests/races/test_close.py::test_close_in_the_middle_of_an_intent",
    f"{CLOSE}::test_an_answer_completed_within_the_grace_is_kept_and_its_calls_are_not_begun",
    "tests/session/test_life.py::test_closed_twice_or_by_many_it_is_closed_once",
)

# What is on disk.

case(
    "R53",
    "a record that was cut off swallows the one that is written next",
    "tests/storage/test_jsonl.py::test_a_record_torn_at_any_byte_is_cut_off_before_the_first_append",
    "tests/storage/test_jsonl.py::test_a_tail_is_kept_aside_for_the_owner_alone_and_reported",
    "tests/storage/test_sqlite_bytes.py::test_a_log_cut_anywhere_is_a_first_part_of_its_commits",
)
case(
    "R55",
    "what cannot be loaded is shown as empty, or is made anew beside the old",
    "tests/session/test_opening.py::test_an_id_that_is_not_there_is_an_error_and_makes_nothing",
    "tests/session/test_opening.py::test_a_file_of_something_else_is_an_error_and_stays_as_it_is",
    "tests/session/test_opening.py::test_a_folder_in_the_place_of_a_file_is_an_error",
    "tests/session/test_opening.py::test_a_file_that_may_not_be_read_is_an_error",
    "tests/storage/test_jsonl.py::test_corruption_names_file_line_offset_and_reason_and_changes_nothing",
    "tests/storage/test_sqlite_file.py::test_what_is_not_ours_is_told_apart_and_left_alone",
    "tests/storage/test_jsonl.py::test_a_file_without_a_header_is_refused_by_everything",
    "tests/storage/test_sqlite_bytes.py::test_a_database_of_no_bytes_is_refused_also_with_a_log",
)
case(
    "R57",
    "a full disk leaves half a record, or ends all writing without a word",
    "tests/storage/test_jsonl.py::test_a_full_disk_faults_and_leaves_the_last_good_size",
    "tests/storage/test_jsonl.py::test_a_failed_sync_faults_every_commit_on_its_way_in_order",
    "tests/storage/test_sqlite_commits.py::test_a_full_disk_faults_every_session_and_the_file_opens_again",
    f"{TRANSCRIPT}::test_nothing_goes_on_past_a_commit_that_failed",
    "tests/storage/faults/test_fault_loop.py::test_every_call_may_fail",
    "tests/storage/faults/test_lane_faults.py::test_a_lane_outlives_every_fault_of_its_disk",
)
case(
    "R59",
    "records of one session are written to another one that is open in the same process",
    f"{LANES}::test_two_sessions_of_one_process_never_mix",
    "tests/storage/test_jsonl.py::test_a_foreign_record_is_never_taken_in",
    "tests/storage/test_jsonl.py::test_a_file_of_another_session_is_refused",
    "tests/storage/test_sqlite_commits.py::test_a_handle_of_a_deleted_session_never_meets_the_next_one",
)
case(
    "R60",
    "a derived index or counter disagrees with the record, and is believed",
    "tests/storage/test_sqlite_file.py::test_what_can_be_summed_is_not_believed",
    "tests/storage/test_jsonl.py::test_a_whole_record_that_does_not_fit_is_refused",
    "tests/testing/test_invariants.py::test_stats_beside_the_ledger_are_seen",
    f"{STORAGE}::test_what_rows_add_up_to_is_counted_where_the_sum_cannot_be_read",
    f"{STORAGE}::test_a_sum_that_is_wrong_is_found_and_is_right_in_a_repaired_copy",
    "tests/storage/test_search_index.py::test_a_damaged_old_or_foreign_index_is_made_again",
)
case(
    "R62",
    "two connections of one program write and checkpoint at once, and a commit that was made is gone",
    f"{STORAGE}::test_one_connection_writes_and_checkpoints",
    "tests/storage/test_sqlite_file.py::test_stores_on_one_file_share_it_by_whatever_name",
    "tests/storage/test_sqlite_commits.py::test_two_loops_of_one_process_share_the_file",
    f"{STORAGE}::test_who_looks_for_damage_takes_nothing_from_an_owner",
)
case(
    "R64",
    "the file system cannot do what the store needs, and the first one to notice is who reads damaged data",
    "tests/storage/test_sqlite_file.py::test_a_file_system_that_cannot_hold_a_log_is_refused",
    "tests/storage/test_sqlite_file.py::test_a_network_mount_is_refused",
    f"{STORAGE}::test_a_file_system_without_locks_is_told_with_the_way_out",
)
case(
    "R66",
    "files that hold secrets can be read by everybody",
    "tests/storage/test_jsonl.py::test_files_are_for_the_owner_alone",
    "tests/storage/test_sqlite_file.py::test_only_the_owner_can_read_what_is_written",
    "tests/storage/test_lock.py::test_file_and_folders_are_for_the_owner_alone",
    f"{STORAGE}::test_nothing_that_is_made_can_be_read_by_others",
)

# Text and numbers.

case(
    "R67",
    "half a character gets in, and nothing that holds it can be sent or saved any more",
    f"{ANSWERS}::test_broken_text_of_a_person_is_mended_once_for_all_backends",
    "tests/tools/test_adapters.py::test_text_that_is_broken_in_every_place_is_mended_in_every_place",
    "tests/session/test_values.py::test_lone_surrogates_are_replaced_in_values_and_keys_of_them",
    "tests/data/test_border.py::test_surrogate_pairs_are_joined_and_lone_ones_replaced",
    f"{WIRE}/test_openai_lanes.py::test_odd_characters_go_through_and_back",
    "tests/data/test_ground.py::test_a_name_outside_the_pattern_is_refused",
    f"{ODD}::test_copies_of_every_kind_are_the_same_in_every_store",
    "tests/skills/test_accepting.py::test_odd_text_in_arguments_is_stored_by_the_rule_for_all_text",
    f"{ANTHROPIC}::test_parallel_calls_with_every_kind_of_result_and_ids_of_every_kind",
    f"{PYDANTIC_AI}::test_parallel_calls_with_every_kind_of_result_and_ids_of_every_kind",
)
case(
    "R69",
    "a zero byte is taken by one layer and refused by the next",
    "tests/data/test_border.py::test_text_that_other_layers_stumble_over_round_trips",
    "tests/session/test_values.py::test_json_data_round_trips",
    "tests/session/test_alike.py::test_one_life_on_every_backend_is_told_the_same",
    "tests/storage/test_sqlite_commits.py::test_payloads_are_text_and_come_back_byte_for_byte",
    "tests/skills/test_accepting.py::test_odd_text_in_arguments_is_stored_by_the_rule_for_all_text",
    "tests/data/test_ground.py::test_a_name_outside_the_pattern_is_refused",
    f"{ODD}::test_copies_of_every_kind_are_the_same_in_every_store",
    f"{ODD}::test_a_line_of_megabytes_is_a_line",
)
case(
    "R70",
    "numbers that JSON does not have are written, and others cannot read the file",
    f"{TRANSCRIPT}::test_each_failure_is_its_own_result",
    "tests/session/test_values.py::test_a_value_that_could_not_be_read_back_is_refused",
    "tests/data/test_border.py::test_what_is_not_json_is_refused_by_its_path",
    "tests/session/test_values.py::test_an_adjustment_that_cannot_be_kept_is_refused",
    f"{WIRE}/test_openai_lanes.py::test_arguments_that_are_no_json_get_an_error_and_the_next_request_is_good",
)
case(
    "R72",
    "a text is cut in the middle of a character, and the whole record is lost",
    "tests/tools/test_results.py::test_text_is_cut_at_a_code_point_with_a_mark",
)

# Owners.

case(
    "R73",
    "another program holds the file for a moment, and work fails at once or is lost in the middle",
    f"{STORAGE}::test_a_run_whose_file_is_held_for_too_long_can_be_driven_on",
    "tests/storage/test_sqlite_commits.py::test_another_programs_lock_is_waited_for",
    "tests/storage/test_sqlite_commits.py::test_a_lock_held_for_too_long_is_busy_and_changes_nothing",
    "tests/driver/test_saving.py::test_what_a_busy_store_refused_is_saved_with_what_comes_next",
)
case(
    "R75",
    "two processes write one session, and one of them loses what it was told was saved",
    "tests/races/test_ownership.py::test_two_processes_fight_for_a_session",
    "tests/races/test_takeover.py::test_takeover_then_commit",
    "tests/kills/test_owners.py::test_of_two_that_want_it_one_has_it",
    "tests/session/test_opening.py::test_a_session_has_one_writer_and_many_readers",
)
case(
    "R76",
    "the lock of a dead owner locks everybody out",
    "tests/storage/test_lock.py::test_a_killed_holder_is_replaced_at_once",
    "tests/storage/test_lock.py::test_what_a_lock_file_says_is_no_obstacle",
    "tests/acceptance/test_kill9.py::test_a_killed_owner_is_replaced_at_once_and_a_live_one_refuses",
)
case(
    "R77",
    "an answer that takes long, or a loop that is held up, costs the ownership; and long arguments cost their square",
    f"{ANSWERS}::test_a_long_argument_in_small_pieces_costs_what_it_is_long",
    "tests/storage/test_lock.py::test_an_opener_in_another_process_is_refused_at_once_and_told_who",
)
case(
    "R79",
    "an object that was handed in or out is the stored one, and changing it changes history",
    "tests/storage/test_memory.py::test_nothing_live_is_shared",
    "tests/session/test_operations.py::test_a_prompt_that_is_changed_after_it_was_given_changes_nothing",
    "tests/session/test_values.py::test_a_read_value_is_not_live",
    "tests/session/test_branches.py::test_an_appended_entry_that_is_changed_changes_nothing",
    "tests/tools/test_adapters.py::test_a_tool_that_changes_its_arguments_changes_neither_the_next_request_nor_its_key",
    "tests/session/test_alike.py::test_one_life_on_every_backend_is_told_the_same",
)
case(
    "R80",
    "tasks or threads that write at once get rows and structure out of step",
    STORMS,
    "tests/races/test_concurrency.py::test_threads_that_report_at_once",
    f"{LANES}::test_thirty_tasks_on_ten_lanes_have_one_order",
    "tests/session/test_life.py::test_on_another_loop_every_use_is_refused_at_once",
)
case(
    "R81",
    "what is to be written is worked out while the transaction is open, and all others wait for it",
    f"{STORAGE}::test_nothing_is_encoded_while_a_transaction_is_open",
)

# Answers that come in pieces.

case(
    "R85",
    "opening reads all there ever was into memory, and takes its square",
    f"{GROWTH}::test_what_was_superseded_is_read_once_and_held_nowhere",
    f"{GROWTH}::test_opening_asks_for_no_history",
    "tests/storage/test_jsonl.py::test_superseded_values_cost_no_memory",
    "tests/storage/test_sqlite_commits.py::test_memory_does_not_grow_with_the_session",
    "tests/storage/test_jsonl_cleanup.py::test_by_itself_when_enough_is_superseded_and_not_before",
)
case(
    "R86",
    "each step writes the whole state, so that a session costs the square of its length",
    f"{GROWTH}::test_a_run_costs_as_many_bytes_late_as_early",
    "tests/driver/test_counts.py::test_bytes_of_a_run_stay_within_the_budget_and_do_not_grow",
    "tests/storage/test_jsonl.py::test_bytes_of_a_commit_do_not_depend_on_the_history",
)
case(
    "R87",
    "each request is stored with all that it was sent with",
    f"{GROWTH}::test_a_request_is_kept_as_what_it_refers_to",
)
case(
    "R88",
    "what is too large to be kept is tried again for ever, or takes with it what would have fitted",
    f"{LARGE}::test_a_result_that_no_store_takes_is_that_calls_error",
    f"{LARGE}::test_what_comes_together_is_kept_in_as_many_commits_as_it_needs",
    f"{LARGE}::test_what_comes_while_the_session_is_closed_is_kept_too",
    f"{LARGE}::test_what_waits_behind_a_delivered_result_is_placed_in_parts",
    f"{MUCH}::test_a_death_between_the_parts_leaves_the_rest_for_the_next_life",
    f"{MUCH}::test_a_prompt_that_is_submitted_comes_behind_all_that_waited",
    f"{MUCH}::test_all_that_waits_is_placed_in_order_in_as_many_commits_as_it_needs",
    f"{MUCH}::test_an_abort_gives_back_what_its_record_holds_and_the_rest_waits_on",
    f"{MUCH}::test_one_at_a_time_stays_one_at_a_time",
    f"{MUCH}::test_submitted_messages_go_to_the_next_operation_in_parts",
    f"{MUCH}::test_what_an_abort_gave_back_and_what_calls_returned_come_in_two_commits",
    f"{MUCH}::test_what_is_taken_back_between_two_parts_is_not_placed_and_what_is_left_is",
    f"{MUCH}::test_what_is_too_large_to_be_placed_is_refused_when_it_is_said",
    f"{MUCH}::test_whoever_is_faster_has_what_waited_before_its_prompt",
)
case(
    "R90",
    "a reader that was left open keeps the log of the database from being copied, and it grows without bound",
    f"{STORAGE}::test_what_is_left_open_by_a_reader_of_ours_does_not_hold_the_log",
    "tests/storage/test_sqlite_upkeep.py::test_the_log_stays_bounded_whatever_is_written",
    "tests/storage/test_sqlite_upkeep.py::test_a_stranger_who_holds_the_log_is_told_of_once",
    "tests/storage/test_sqlite_commits.py::test_the_log_stays_bounded_and_goes_on_close",
)
case(
    "R91",
    "to find the newest of something a whole branch is read, for each lane, at each start",
    f"{GROWTH}::test_opening_asks_for_no_history",
    "tests/storage/test_sqlite_file.py::test_walks_stay_short_however_long_the_session",
    "tests/storage/test_jsonl.py::test_open_operations_are_read_from_the_end_of_the_file",
)
case(
    "R92",
    "a stream that ends without its end is taken for a whole answer",
    f"{TRANSCRIPT}::test_a_stream_that_just_ends_is_an_error",
    f"{WIRE}/test_openai_answers.py::test_an_answer_that_breaks_off_is_a_cut_one",
    f"{ANTHROPIC}::test_failures_of_every_kind_are_tried_again_and_leave_nothing_in_the_next_request",
    f"{PYDANTIC_AI}::test_failures_of_every_kind_are_tried_again_and_leave_nothing_in_the_next_request",
)
case(
    "R94",
    "what people have seen of an answer is gone after an abort, an error or a crash",
    "tests/races/test_abort.py::test_an_abort_keeps_what_was_shown",
    f"{TRANSCRIPT}::test_a_retry_starts_from_nothing",
    f"{RECOVERY}::test_a_committed_prefix_becomes_an_error_answer",
    f"{CLOSE}::test_frames_and_progress_are_flushed",
    f"{STREAM}::test_what_was_shown_is_stored",
)
case(
    "R95",
    "an error late in a run throws away the turns before it",
    f"{TRANSCRIPT}::test_only_the_turn_that_failed_is_asked_again",
)
case(
    "R97",
    "a partial answer without sense is sent back word for word, and the next answer has none either",
    f"{PATHS}::test_an_endless_partial_answer_is_kept_and_not_sent_again",
    "tests/machine/test_context.py::test_only_what_the_rules_name_is_left_out",
    f"{MANUAL}::test_an_endless_partial_answer_is_in_no_summary",
    f"{MANUAL}::test_an_endless_whole_answer_is_bounded_in_a_summary",
    "tests/driver/test_compaction_failures.py::test_one_without_end_is_no_summary",
)

# Copies.

case(
    "R98",
    "a fork leaves entries out, and what is behind them hangs on parents that are not there",
    f"{FORKING}::test_a_fork_is_cut_at_each_entry_of_every_kind",
    "tests/session/test_forks_with_summaries.py::test_a_fork_at_each_entry_of_a_path_with_summaries_shows_the_same",
    f"{FORKING}::test_a_fork_is_the_same_from_and_to_every_store",
)
case(
    "R100",
    "whoever has forked goes on writing to the first session, or the fork does not say what it came from",
    f"{FORKING}::test_the_parent_is_unchanged_to_the_byte_and_the_child_goes_its_own_way",
    f"{FORKING}::test_metadata_says_where_it_is_from_and_never_over_the_caller",
)
case(
    "R101",
    "what was left behind on another branch comes back, or what was before the branching is gone",
    f"{PATHS}::test_a_branch_that_was_left_is_in_no_request_and_no_copy",
    "tests/storage/test_segments.py::test_a_path_by_segments_is_the_path_by_parents",
    "tests/session/test_markdown.py::test_the_path_and_nothing_else_is_exported",
    f"{MANUAL}::test_secret_words_of_another_branch_are_in_no_request",
    f"{MANUAL}::test_a_branch_before_at_and_behind_one_is_shown_its_own_path",
    f"{LEAVING}::test_it_moves_and_leaves_a_summary_there",
    f"{LEAVING}::test_across_to_another_branch",
    f"{LEAVING}::test_where_two_paths_part_is_found_at_any_length",
    f"{SUMMARIES_REOPENED}::test_an_export_and_a_fork_have_what_was_summarized",
)
case(
    "R103",
    "what is said, or is to be run, while a summary is written is lost, or is stored where it does not belong",
    f"{MANUAL}::test_what_is_said_meanwhile_waits_and_stands_behind_the_summary",
    f"{MANUAL}::test_the_same_id_is_the_same_compaction",
    f"{THRESHOLD}::test_what_is_said_meanwhile_is_placed_behind_it_and_answered",
    f"{LEAVING}::test_what_is_said_meanwhile_stands_behind_the_summary",
    f"{SUMMARIES_REOPENED}::test_what_is_said_before_it_goes_on_waits_and_comes_behind",
    f"{SUMMARIES_REOPENED}::test_a_run_goes_on_with_its_summary",
    f"{SUMMARY_RACES}::test_a_submitted_message_is_the_next_prompt",
    f"{SUMMARY_RACES}::test_an_appended_message_comes_behind",
)
case(
    "R105",
    "records of other kinds stand in the chain of the conversation, and going on follows the wrong one",
    f"{GROWTH}::test_records_that_are_no_part_of_the_conversation_never_enter_its_tree",
    "tests/session/test_opening.py::test_opening_an_existing_session_writes_nothing",
)
case(
    "R106",
    "a lane that is moved while an operation runs is written to at the wrong place",
    f"{MANUAL}::test_moves_are_refused_while_it_runs",
    f"{LEAVING}::test_what_is_said_meanwhile_stands_behind_the_summary",
    "tests/races/test_navigation.py::test_accept_then_navigate",
    f"{SUMMARY_RACES}::test_of_two_requests_one_is_told_that_the_lane_is_busy",
)
case(
    "R119",
    "what a summary cost is in no total, or a total falls when a session is compacted, reopened or goes another way",
    f"{SUMMARIES_REOPENED}::test_totals_never_fall",
    f"{MANUAL}::test_its_usage_is_its_own",
    f"{THRESHOLD}::test_limits_count_summaries",
)

# Versions.

case(
    "R114",
    "data of an earlier version, or with a null where a newer one has a record, does not load any more",
    f"{STORED}::test_a_record_with_a_field_left_out_or_null_is_read",
    f"{STORED}::test_the_walk_finds_places_in_what_is_nested",
    "tests/compat/test_golden.py::test_a_record_of_any_time_is_read",
    "tests/compat/test_golden_files.py::test_a_file_of_any_time_is_read",
)
case(
    "R115",
    "stored data names modules and classes, and moving one of these makes it unreadable",
    f"{STORED}::test_modules_classes_and_functions_may_have_other_names_after_a_deploy",
    "tests/compat/test_golden.py::test_nothing_stored_names_python",
)
case(
    "R116",
    "one file holds records of two versions, and neither version can read it",
    f"{STORED}::test_a_file_says_its_version_once_and_keeps_it",
    f"{STORED}::test_a_file_of_two_shapes_is_refused_and_left_alone",
    "tests/storage/test_jsonl.py::test_unknown_things_in_a_whole_record_are_a_newer_format",
    "tests/storage/test_jsonl.py::test_a_newer_format_is_its_own_error",
    "tests/storage/test_sqlite_file.py::test_what_is_not_ours_is_told_apart_and_left_alone",
)

# The ledger.

case(
    "R117",
    "attempts that failed or were stopped count as nothing, and unknown looks like zero",
    f"{TRANSCRIPT}::test_every_attempt_is_in_the_ledger",
    f"{WIRE}/test_openai_lanes.py::test_a_retry_begins_anew_and_its_tool_runs_once",
    f"{ANSWERS}::test_usage_that_was_seen_before_an_abort_is_kept_and_the_rest_is_unknown",
    f"{RECOVERY}::test_usage_that_was_seen_before_a_death_is_kept",
    "tests/races/test_abort.py::test_request_intent_then_abort",
    f"{ANTHROPIC}::test_failures_of_every_kind_are_tried_again_and_leave_nothing_in_the_next_request",
    f"{PYDANTIC_AI}::test_failures_of_every_kind_are_tried_again_and_leave_nothing_in_the_next_request",
)
case(
    "R118",
    "copies bring their charges along, and the sum over all of them is many times what was paid",
    f"{PATHS}::test_a_charge_is_counted_once_however_often_it_is_copied",
    "tests/session/test_importing.py::test_usage_stays_in_the_answers_and_charges_nothing",
)

# Loops, threads and the end.

case(
    "R121",
    "a close that was forgotten keeps the interpreter from ending",
    "tests/acceptance/test_kill9.py::test_a_forgotten_close_never_holds_the_interpreter",
    "tests/storage/test_sqlite_thread.py::test_a_forgotten_close_does_not_hold_up_exit",
    "tests/storage/test_jsonl.py::test_a_forgotten_close_does_not_hold_the_interpreter",
)
case(
    "R122",
    "a thread answers a loop that has ended, and complains aloud",
    "tests/storage/test_sqlite_thread.py::test_a_loop_that_ends_in_the_middle_is_met_with_silence",
    "tests/storage/test_jsonl.py::test_a_loop_that_ends_before_the_report_is_no_error",
    "tests/tools/test_threads.py::test_an_answer_after_the_loop_is_closed_is_silent",
)
case(
    "R123",
    "a close that is cancelled skips the rest of its work, and the lock stays",
    "tests/session/test_life.py::test_a_native_cancellation_inside_close_skips_no_clean_up",
    "tests/session/test_life.py::test_an_anyio_cancellation_inside_close_skips_no_clean_up",
    f"{CLOSE}::test_a_cancelled_close_closes_all_the_same",
    "tests/storage/test_sqlite_file.py::test_cancelled_opens_and_closes_leave_nothing_behind",
)
case(
    "R124",
    "a call that waits for its own loop, or its own lane, hangs instead of saying so",
    f"{GROUND}::test_a_call_that_would_wait_for_itself_is_refused_at_once",
    "tests/session/test_life.py::test_an_effect_never_waits_for_its_own_lane",
    "tests/cancellation/test_surface.py::test_what_gives_something_to_wait_for_is_asynchronous",
)
case(
    "R126",
    "a task that nobody holds is collected while it runs",
    f"{GROUND}::test_every_task_has_an_owner",
    f"{GROUND}::test_nothing_of_a_run_is_collected_while_it_runs",
)
case(
    "R127",
    "an object of one event loop is used on the next, and fails where nobody understands it",
    "tests/session/test_life.py::test_on_another_loop_every_use_is_refused_at_once",
    "tests/session/test_life.py::test_a_session_of_an_ended_loop_says_so",
    "tests/session/test_forgotten.py::test_it_can_be_opened_anew_without_closing_it",
)
case(
    "R128",
    "what was closed keeps its files open, until no more can be opened or the folder cannot be removed",
    "tests/storage/test_sqlite_file.py::test_open_files_and_threads_do_not_pile_up",
    "tests/storage/test_jsonl.py::test_descriptors_and_threads_stay_flat",
    "tests/storage/faults/test_lane_faults.py::test_a_lane_outlives_every_fault_of_its_disk",
)
case(
    "R130",
    "a call that was not awaited has done nothing, and nobody says so",
    f"{STORED}::test_reads_that_need_no_disk_need_no_await",
    "tests/cancellation/test_surface.py::test_what_gives_something_to_wait_for_is_asynchronous",
    "tests/session/test_opening.py::test_an_opener_can_be_awaited_and_does_nothing_until_then",
)
case(
    "R131",
    "data that looks like a message is taken for one, and is ignored or garbled",
    f"{STORED}::test_what_only_looks_like_a_message_is_refused_where_it_is_given",
    "tests/session/test_operations.py::test_what_is_no_request_is_refused_with_its_path_and_commits_nothing",
    "tests/histories/test_repairs.py::test_what_is_no_message_is_refused_with_its_index_and_field",
)
case(
    "R133",
    "nobody can say what is durable when a call has returned",
    "tests/docs/test_durability.py::test_what_returned_survives_a_kill",
    "tests/docs/test_durability.py::test_every_call_of_the_page_is_tried_here",
)
case(
    "R134",
    "there is no way out of a session that cannot be gone on with but to edit its file by hand",
    f"{POISONED}::test_a_history_that_providers_refuse_is_gone_on_with",
    f"{POISONED}::test_what_cannot_be_read_is_named_and_a_copy_goes_on",
)

# People.

ASKED = "tests/cases/test_approvals.py"
QUESTIONS = "tests/approvals/test_questions.py"
BEFORE = "tests/approvals/test_before_a_call.py"

case(
    "R107",
    "a question to a person is lost with its process, or its answer does nothing after a restart",
    f"{ASKED}::test_a_question_outlives_its_process",
    f"{BEFORE}::test_answers_by_id_across_restarts",
    f"{QUESTIONS}::test_answers_by_id_over_restarts",
    MATRIX,
)
case(
    "R109",
    "an answer is taken by another question than the one it was given to",
    f"{ASKED}::test_an_answer_is_for_what_it_names",
    f"{BEFORE}::test_an_answer_is_used_once",
    f"{QUESTIONS}::test_answers_by_id_over_restarts",
    f"{QUESTIONS}::test_an_answer_is_used_once",
)
case(
    "R110",
    "what was approved is asked about again when the context is another one",
    f"{ASKED}::test_an_approved_call_runs_once_with_other_dependencies",
)
case(
    "R111",
    "a yes is used again by a run of its own with equal calls",
    f"{ASKED}::test_a_yes_is_not_used_by_another_run",
    f"{BEFORE}::test_a_yes_for_other_arguments_is_asked_anew",
)
case(
    "R112",
    "a history that ends in an unapproved call is taken as approved",
    f"{ASKED}::test_a_history_that_ends_in_an_unapproved_call_is_not_run",
    "tests/machine/test_exploration.py::test_a_seeded_bug_is_found",
)

# What is rebuilt, gone back to, gone on from.

case(
    "R83",
    "what waits is taken out by what it says: equal texts go together, and an image without a text never goes",
    "tests/cases/test_inbox.py::test_equal_and_empty_messages_are_each_placed_once",
)
case(
    "R132",
    "what is queued interrupts the calls that run, and the rest of them is skipped",
    "tests/cases/test_inbox.py::test_what_is_said_in_a_batch_skips_none_of_its_calls",
)
case(
    "R135",
    "work that was stopped cannot be gone on with, although all of it is stored",
    f"{INTERRUPTED}::test_work_that_was_aborted_is_gone_on_with",
    f"{RETRYING}::test_an_aborted_one_goes_on_and_its_calls_are_not_run_again",
    "tests/session/test_navigation.py::test_a_message_is_said_otherwise",
)

case(
    "R137",
    "an error is built anew after a restart, reads otherwise, and no longer fits its record",
    f"{TRANSCRIPT}::test_each_failure_is_its_own_result",
    "tests/compat/test_golden.py::test_nothing_stored_names_python",
    f"{RECOVERY}::test_repair_is_made_once",
)
case(
    "R138",
    "what is stored depends on whether the answer was streamed",
    f"{ANSWERS}::test_streamed_or_at_once_the_same_is_stored",
    f"{WATCH}::test_a_viewer_that_leaves_or_breaks_stops_nothing",
)
