//! What a store promises, on every database from one list.
//!
//! PostgreSQL is wherever `OUTRIGGER_TEST_POSTGRES` says:
//! `postgres://user@host/database`, in which each test makes tables of its own.

mod bench;
mod claiming;
mod control;
mod deliveries;
mod inspecting;
mod model;
mod operations;
mod outside;
mod recording;
mod replay;
mod settling;
mod sqlite;
mod state;

/// Runs each behaviour as a test of its own on one database.
macro_rules! on {
    ($database:ident: $($module:ident { $($behaviour:ident)+ })+) => {
        $(mod $module {
            use crate::conformance::{bench::{Database, run}, $module};
            $(#[tokio::test]
            async fn $behaviour() {
                run(Database::$database, $module::$behaviour).await;
            })+
        })+
    };
}

/// What every store does.
macro_rules! behaviours_on {
    ($database:ident) => {
        on! { $database:
            recording {
                new_events_and_duplicates_are_told_apart
                a_batch_is_recorded_each_on_its_own
                a_batch_keeps_its_order
                a_known_message_id_is_a_duplicate
                text_arrives_to_the_letter
                recording_ends_a_wait
                a_wait_ends_by_itself
            }
            claiming {
                nobody_claims_without_the_lane
                lanes_are_taken_and_given_back
                a_held_lane_is_not_taken_anew
                each_seam_has_its_limit
                rows_up_to_the_mark_are_left_out
                rows_come_in_order
                simultaneous_claims_share_the_rows
                a_claim_that_ran_out_is_claimed_again
                taking_lanes_voids_claims
                a_death_alone_is_a_trial
                claims_are_bounded_by_bytes
                newcomers_are_found_between_known_projects
                a_death_alone_is_a_trial_of_the_event
                renewed_claims_hold
                released_claims_were_never_made
                scheduled_events_wait
                the_longest_overdue_come_first
                a_survey_finds_what_has_work
            }
            settling {
                a_dispatched_event_is_through
                a_claim_is_settled_once
                a_void_claim_gains_nothing_from_a_good_one_beside_it
                emitted_events_are_recorded
                a_used_dedup_key_is_not_recorded_again
                emitted_events_keep_their_order
                the_lost_write_nothing_and_their_neighbours_all
                a_group_that_is_refused_changes_nothing
                attempts_are_kept
                attempts_are_listed
                attempts_are_followed_by_id
                calls_are_counted_once
            }
            state {
                what_is_written_is_read
                an_overtaken_read_conflicts
                equal_values_do_not_conflict
                a_group_sees_its_own_writes
                a_conflict_leaves_no_trace_in_its_group
                listings_are_checked
                listings_see_the_groups_writes
                keys_are_in_byte_order
                increments_add_up
                an_increment_of_a_text_is_unfit
                triggers_and_projects_are_apart
                one_of_many_settles_wins
            }
            deliveries {
                an_ordered_spill_blocks_the_later_ones
                spills_of_one_group_are_in_order
                unordered_spills_run_at_once
                a_dead_spill_blocks_nothing
                a_delivery_that_ends_well_releases_the_next
                a_dead_letter_releases_the_next
                a_retry_waits_and_blocks
                a_head_brings_the_run_behind_it
                each_trigger_has_its_limit
                a_lost_delivery_is_settled_by_another
                a_requeued_letter_blocks_nothing_newer
                requeued_letters_are_in_order
                unordered_letters_stay_so
                only_dead_letters_are_purged
                a_deleted_triggers_deliveries_die
                a_deleted_triggers_deliveries_go
            }
            operations {
                dead_letters_are_requeued_in_bulk
                dead_letters_are_purged_in_batches
                a_limit_is_kept
                bulk_work_is_cancelled
                later_dead_letters_are_left_alone
                filters_mean_what_they_say
            }
            replay {
                a_replay_is_a_delivery_of_its_own
                an_event_that_waits_is_not_replayed
                open_pairs_are_not_replayed
                replays_are_in_order_one_at_a_time
                a_replay_holds_up_nothing_newer
                unordered_replays_run_at_once
                a_generation_never_comes_twice
                a_dead_replay_is_requeued_as_it_was
                a_sweep_keeps_what_is_replayed
                simultaneous_replays_make_one_delivery
                what_joins_is_released_when_its_predecessor_ends
                a_sweep_and_a_replay_see_each_other
                events_are_replayed_in_bulk
                a_replay_s_limit_is_kept
                a_cancelled_replay_goes_no_further
                a_replay_s_filter_means_what_it_says
            }
            model {
                a_store_does_what_its_model_does
            }
            inspecting {
                an_event_shows_where_it_stands
                events_are_listed_by_filter
                events_are_listed_page_by_page
                deliveries_are_listed_by_filter
                status_counts_everything
                a_sweep_keeps_what_is_not_settled
                a_sweep_takes_small_batches
                old_events_are_read_whole_and_forgotten_as_they_were_read
                old_events_are_read_within_bounds
                a_projects_rows_go
            }
            control {
                projects_come_and_go
                every_change_raises_the_version
                a_trigger_needs_its_plugin
                a_replaced_trigger_stays_paused
                the_first_version_is_active
                the_same_bytes_are_one_version
                a_named_plugin_is_not_deleted
                secrets_come_and_go
                a_trigger_needs_its_secrets
                a_secret_is_sealed_anew_only_as_it_was_read
                definitions_are_one_snapshot
                keys_are_found_by_their_hash
                an_expired_key_is_none
                hosts_are_heard_of
                migrating_again_changes_nothing
            }
        }
    };
}

/// What a store does about other connections to the same database.
macro_rules! others_on {
    ($database:ident) => {
        on! { $database:
            outside {
                a_plain_insert_has_every_default
                unusable_rows_are_refused
                a_dedup_key_is_used_once
                an_insert_ends_a_wait
                a_delivery_whose_event_is_gone_dies
                events_of_no_project_are_counted
                hosts_migrate_at_the_same_time
                a_newer_schema_is_refused
                a_missing_schema_is_named
                another_prefix_is_another_store
            }
        }
    };
}

mod on_postgres {
    behaviours_on!(Postgres);
    others_on!(Postgres);
}

mod on_sqlite_file {
    behaviours_on!(SqliteFile);
    others_on!(SqliteFile);
}

mod on_sqlite_memory {
    behaviours_on!(SqliteMemory);
}
