"""The advice of the runbook, and the test of each that brings the situation about, does what is said, and sees that it helps."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
RUNBOOK = (TESTS.parent / "docs" / "runbook.md").read_text(encoding="utf-8")

ALARMS = {
    "run_failed": "infra/test_outages.py::test_a_run_whose_cause_is_mended_is_retried",
    "not_started": "infra/test_outages.py::test_a_run_that_did_not_start_begins_once_there_is_a_worker_its_pool_and_its_queue",
    "no_slot": "infra/test_restarts.py::test_a_slot_that_no_run_has_raises_an_alarm_and_is_freed",
    "too_long": "infra/test_outages.py::test_a_run_that_took_too_long_commits_and_resumes",
    "gate_held": "flows/test_gate.py::test_a_night_half_delivered_is_held_back_until_a_person_lets_it_through",
    "champion_old": "flows/test_watch.py::test_after_a_rollback_the_champion_is_old_until_the_next_night",
    "push_failed": "tasks/night/test_push_step.py::test_a_store_that_was_away_catches_up_by_a_push_or_by_the_next_night",
}
ERRORS = {
    "bad_call": "flows/test_cli.py::test_the_help_of_every_command_has_its_options_and_an_example_that_parses",
    "bad_config": "infra/test_stack.py::test_a_night_is_started_from_the_form",
    "bad_input": "tasks/ingest/test_rejects.py::test_a_log_that_comes_late_with_columns_that_the_message_sets",
    "too_many_rejects": "tasks/ingest/test_rejects.py::test_what_was_refused_is_taken_in_once_logs_or_settings_are_mended",
    "damage": "flows/test_doctor_advice.py::test_what_doctor_says_to_do_helps",
    "resources": "trainer/training/test_loop.py::test_a_budget_in_which_users_do_not_fit_ends_as_one_chunk_does",
    "unavailable": "flows/test_registry_moved.py::test_what_was_trained_while_the_server_died_is_registered_once_it_is_back",
    "training": "trainer/training/test_loop.py::test_with_a_lower_alpha_the_last_good_generation_is_followed_by_another",
    "left_elsewhere": "tasks/forgetting/test_forget_shared.py::test_the_other_roots_champion_stays_and_is_named",
    "held_back": "flows/test_gate.py::test_what_was_rolled_back_comes_back_by_no_night",
    "stopped": "flows/test_stopping.py::test_ctrl_c_in_every_state_of_a_run",
    "worker_lost": "tasks/training/test_worker_processes.py::test_workers_who_die_again_and_again_are_lost_and_one_goes_on",
    "failed": "flows/test_error_advice.py::test_a_bug_that_does_not_come_again",
}
OTHERS = {
    "Held by `champion`": "flows/test_gate.py::test_what_was_rolled_back_comes_back_by_no_night",
    "deliver the rest": "flows/test_error_advice.py::test_a_day_delivered_by_half_is_mended_by_the_next_night",
    "`missing_days`": "flows/test_error_advice.py::test_a_day_that_never_comes_holds_every_night_until_a_person_promotes_one",
    "Only the process of the run": "infra/test_stack.py::test_a_night_that_was_killed_goes_on_even_while_mlflow_is_away",
    "Worker and run together": "infra/test_stack.py::test_runs_that_died_or_did_not_start_are_told_and_none_is_lost",
    "Killed before a run began": "infra/test_restarts.py::test_a_run_whose_worker_died_at_pending_ends_and_the_next_begins",
    "The machine restarted": "infra/test_restarts.py::test_after_a_reboot_the_next_nights_run_and_a_person_knows",
    "* The Prefect server": "infra/test_restarts.py::test_a_night_keeps_its_slot_while_the_server_restarts",
    "* MLflow or S3": "infra/test_stack.py::test_a_night_outlasts_s3",
    "`ingest.layouts`": "tasks/ingest/test_access_lines.py::test_a_pattern_of_ones_own",
    "pass the log to `run` again": "tasks/test_damage.py::test_giving_the_log_again_repairs_altered_events",
    "`surf2vec repartition`": "tasks/upkeep/test_repartition.py::test_a_budget_too_small_for_one_micro_partition_fits_more",
    "Disk: `surf2vec gc`": "tasks/upkeep/test_gc.py::test_what_a_full_disk_refused_has_room_after_gc",
    "Refused: `MLFLOW_TRACKING_USERNAME`": "tasks/registry/test_mlflow_runs.py::test_the_right_password_after_a_refusal",
    "delete these versions": "tasks/forgetting/test_forget_shared.py::test_a_version_that_somebody_made_of_ours_keeps_its_files",
    "its data moved to another server": "flows/test_registry_moved.py::test_data_moved_to_another_registry_goes_on_there",
    "* An empty registry": "flows/test_registry_moved.py::test_in_an_empty_registry_the_next_night_is_the_first",
    "* Two roots": "flows/test_registry_moved.py::test_a_copy_of_a_root_without_its_identity_lives_beside_the_first",
    "Keep a copy": "infra/test_passwords.py::test_data_without_passwords_is_refused",
}
"""By words that the runbook has."""


def test_every_row_of_the_tables_has_a_test() -> None:
    alarms, errors = (RUNBOOK.split(f"\n## {title}\n")[1].split("\n## ")[0] for title in ("Alarms", "Errors"))
    for rows, tests in ((alarms, ALARMS), (errors, ERRORS)):
        assert set(re.findall(r"^\| `(\w+)`", rows, re.MULTILINE)) == set(tests)


@pytest.mark.parametrize("words", OTHERS)
def test_the_other_advice_is_in_the_runbook(words: str) -> None:
    assert words in RUNBOOK


@pytest.mark.parametrize("node", sorted({*ALARMS.values(), *ERRORS.values(), *OTHERS.values()}))
def test_there_is_such_a_test(node: str) -> None:
    file, _, name = node.partition("::")
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
