//! The three traits, each call to the part that does it.

use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::{LOADING, LONG, LONGEST, Postgres, fault, within};
use crate::{
    model::{
        Lane,
        capability::Allow,
        event::NewEvent,
        plugin::{Plugin, PluginInfo},
        trigger::{Trigger, TriggerSpec},
    },
    store::{
        Aged, ApiKey, AttemptFilter, AttemptRow, Claim, Claimed, ClaimedDelivery, ClaimedEvent,
        Control, ControlVersion, DeadLetterFilter, Definitions, DeliveryFilter, DeliveryRow,
        Destination, EventFilter, EventRow, Held, HostId, HostInfo, Inspect, KeyRow, Operation,
        OperationKind, Page, PageRequest, Project, Queue, Recorded, ReplayBatch, ReplayFilter,
        Replayed, Requeued, SealedSecret, Seam, SecretInfo, SecretPut, Settled, Settlement,
        StateEntry, Status, StoreError, Survey, Trace, TriggerGone,
    },
};

#[async_trait]
impl Queue for Postgres {
    async fn record(&self, events: &[NewEvent]) -> Result<Vec<Recorded>, StoreError> {
        self.in_time(None, Box::pin(self.insert_events(events, None))).await
    }
    async fn record_within(
        &self,
        events: &[NewEvent],
        patience: Duration,
    ) -> Result<Vec<Recorded>, StoreError> {
        self.in_time(None, Box::pin(self.insert_events(events, Some(patience)))).await
    }
    fn lanes(&self) -> Lane {
        self.lanes.get().copied().unwrap_or_default()
    }
    async fn take_lanes(
        &self,
        host: HostId,
        want: usize,
        lease: Duration,
    ) -> Result<Vec<Lane>, StoreError> {
        self.in_time(Some(lease), Box::pin(self.take_over(host, want, lease))).await
    }
    async fn renew_lanes(&self, host: HostId, lease: Duration) -> Result<Vec<Lane>, StoreError> {
        self.in_time(Some(lease), self.extend_lanes(host, lease)).await
    }
    async fn yield_lanes(&self, host: HostId, lanes: &[Lane]) -> Result<(), StoreError> {
        self.in_time(None, self.let_go(host, lanes)).await
    }
    async fn lane_holders(&self) -> Result<Vec<(Lane, Option<HostId>, i64)>, StoreError> {
        self.in_time(None, self.holders()).await
    }
    async fn survey(&self, lanes: &[Lane]) -> Result<Survey, StoreError> {
        self.in_time(None, self.find_work(lanes)).await
    }
    async fn newcomers(
        &self,
        lanes: &[Lane],
        known: &[String],
    ) -> Result<Vec<(Lane, String)>, StoreError> {
        self.in_time(None, self.find_newcomers(lanes, known)).await
    }

    async fn claim_events(
        &self,
        host: HostId,
        seams: &[Seam],
        bytes: u64,
        lease: Duration,
    ) -> Result<Claimed<ClaimedEvent>, StoreError> {
        self.in_time(Some(lease), self.take_events(host, seams, bytes, lease)).await
    }
    async fn claim_scheduled(
        &self,
        host: HostId,
        lanes: &[Lane],
        projects: &[String],
        limit: u32,
        bytes: u64,
        lease: Duration,
    ) -> Result<Claimed<ClaimedEvent>, StoreError> {
        let work = self.take_scheduled(host, lanes, projects, limit, bytes, lease);
        self.in_time(Some(lease), work).await
    }
    async fn claim_deliveries(
        &self,
        host: HostId,
        lanes: &[Lane],
        triggers: &[(String, String, u32)],
        run: u32,
        bytes: u64,
        lease: Duration,
    ) -> Result<Claimed<ClaimedDelivery>, StoreError> {
        let work = self.take_deliveries(host, lanes, triggers, run, bytes, lease);
        self.in_time(Some(lease), Box::pin(work)).await
    }
    async fn renew(&self, claims: &[&Claim], lease: Duration) -> Result<Vec<Held>, StoreError> {
        self.in_time(Some(lease), self.extend(claims, lease)).await
    }
    async fn release(&self, claims: &[&Claim]) -> Result<(), StoreError> {
        self.in_time(None, self.give_back(claims)).await
    }
    async fn run_alone(&self, host: HostId, claim: Option<&Claim>) -> Result<Held, StoreError> {
        self.in_time(None, self.note_alone(host, claim)).await
    }

    async fn settle(
        &self,
        group: &[Settlement],
        within: Duration,
    ) -> Result<Vec<Settled>, StoreError> {
        self.write_group(group, within).await
    }
    async fn state_value(
        &self,
        project: &str,
        trigger: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.in_time(None, self.value(project, trigger, key)).await
    }
    async fn state_keys(
        &self,
        project: &str,
        trigger: &str,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let work = async {
            let mut db = self.router.lent().await?;
            self.key_list(&mut db, (project, trigger), prefix, after, limit).await
        };
        self.in_time(None, work).await
    }
    fn longest_sleep(&self, poll: Duration) -> Duration {
        if self.wake.tells() { poll * 2 } else { poll }
    }
    async fn wait_for_events(&self, at_most: Duration) {
        self.wake.wait(at_most).await;
    }
    fn wake(&self) {
        self.wake.ring();
    }
}

#[async_trait]
impl Inspect for Postgres {
    async fn event(&self, project: &str, message_id: Uuid) -> Result<Option<EventRow>, StoreError> {
        within(LONG, self.one_event(project, message_id)).await
    }
    async fn events(
        &self,
        project: &str,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Result<Page<EventRow>, StoreError> {
        within(LONG, self.event_page(project, filter, page)).await
    }
    async fn deliveries(
        &self,
        project: &str,
        filter: &DeliveryFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, StoreError> {
        within(LONG, self.delivery_page(project, filter, page)).await
    }
    async fn dead_letters(
        &self,
        project: &str,
        filter: &DeadLetterFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, StoreError> {
        within(LONG, self.dead_page(project, filter, page)).await
    }
    async fn attempts(
        &self,
        project: &str,
        filter: &AttemptFilter,
        page: &PageRequest,
    ) -> Result<Page<AttemptRow>, StoreError> {
        within(LONG, self.attempt_page(project, filter, page)).await
    }
    async fn newest_attempt(&self) -> Result<i64, StoreError> {
        within(LONG, self.last_attempt()).await
    }
    async fn attempt_ids(
        &self,
        project: &str,
        above: i64,
        limit: u32,
    ) -> Result<Vec<i64>, StoreError> {
        within(LONG, self.last_attempts(project, above, limit)).await
    }
    async fn attempts_by_id(
        &self,
        project: &str,
        ids: &[i64],
    ) -> Result<Vec<AttemptRow>, StoreError> {
        within(LONG, self.these_attempts(project, ids)).await
    }
    async fn requeue(&self, project: &str, id: i64) -> Result<Requeued, StoreError> {
        within(LONG, self.requeue_one(project, id)).await
    }
    async fn purge(&self, project: &str, id: i64) -> Result<bool, StoreError> {
        within(LONG, self.purge_one(project, id)).await
    }
    async fn count_dead(
        &self,
        project: &str,
        filter: &DeadLetterFilter,
    ) -> Result<i64, StoreError> {
        within(LONG, self.dead_count(project, filter)).await
    }
    async fn start(
        &self,
        project: &str,
        kind: OperationKind,
        filter: &DeadLetterFilter,
        limit: Option<i64>,
    ) -> Result<Operation, StoreError> {
        within(LONG, self.start_operation(project, kind, filter, limit)).await
    }
    async fn operation(&self, project: &str, id: Uuid) -> Result<Option<Operation>, StoreError> {
        within(LONG, self.one_operation(project, id)).await
    }
    async fn cancel(&self, project: &str, id: Uuid) -> Result<Option<Operation>, StoreError> {
        within(LONG, self.cancel_operation(project, id)).await
    }
    async fn advance(&self, batch: u32) -> Result<bool, StoreError> {
        within(LONG, self.advance_one(batch)).await
    }
    async fn replay(
        &self,
        project: &str,
        message_id: Uuid,
        to: &[Destination],
    ) -> Result<Replayed, StoreError> {
        within(LONG, self.replay_one(project, message_id, to)).await
    }
    async fn count_events(&self, project: &str, filter: &ReplayFilter) -> Result<i64, StoreError> {
        within(LONG, self.event_count(project, filter)).await
    }
    async fn start_replay(
        &self,
        project: &str,
        filter: &ReplayFilter,
        limit: Option<i64>,
    ) -> Result<Operation, StoreError> {
        within(LONG, self.begin_replay(project, filter, limit)).await
    }
    async fn replay_batch(&self, batch: u32) -> Result<Option<ReplayBatch>, StoreError> {
        within(LONG, self.next_replay(batch)).await
    }
    async fn replay_part(
        &self,
        batch: &ReplayBatch,
        to: &[Vec<Destination>],
    ) -> Result<(), StoreError> {
        within(LONG, self.write_replay(batch, to)).await
    }
    async fn count_deliveries(&self, project: &str, trigger: &str) -> Result<i64, StoreError> {
        within(LONG, self.delivery_count(project, trigger)).await
    }
    async fn end_trigger(
        &self,
        project: &str,
        trigger: &str,
        dead: bool,
    ) -> Result<(), StoreError> {
        within(LONGEST, self.end_all(project, trigger, dead)).await
    }
    async fn state(
        &self,
        project: &str,
        trigger: &str,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<StateEntry>, StoreError> {
        within(LONG, self.entries(project, trigger, prefix, after, limit)).await
    }
    async fn delete_project_data(&self, project: &str) -> Result<(), StoreError> {
        within(LONGEST, self.delete_rows_of(project)).await
    }
    async fn lane_holder(&self, lane: Lane) -> Result<Option<HostId>, StoreError> {
        self.in_time(None, self.holder(lane)).await
    }
    async fn status(&self) -> Result<Status, StoreError> {
        within(LONG, self.tally()).await
    }
    async fn sweep(&self, retention: Duration, batch: u32) -> Result<u64, StoreError> {
        within(LONG, self.delete_old(retention, batch)).await
    }
    async fn aged(
        &self,
        lanes: &[Lane],
        retention: Duration,
        after: i64,
        batch: u32,
    ) -> Result<Aged, StoreError> {
        within(LONG, self.read_old(lanes, retention, after, batch)).await
    }
    async fn forget(&self, traces: &[Trace]) -> Result<u64, StoreError> {
        within(LONG, self.delete_read(traces)).await
    }
}

#[async_trait]
impl Control for Postgres {
    async fn migrate(&self) -> Result<(), StoreError> {
        within(LONGEST, self.bring_up()).await
    }
    async fn ping(&self) -> Result<(), StoreError> {
        let work = async {
            let mut db = self.pool.lent().await?;
            sqlx::query("SELECT 1").execute(&mut *db).await.map(drop).map_err(fault)
        };
        self.in_time(None, work).await
    }
    async fn control_version(&self) -> Result<ControlVersion, StoreError> {
        self.in_time(None, self.version()).await
    }
    async fn definitions(&self) -> Result<Definitions, StoreError> {
        self.in_time(None, Box::pin(self.all_definitions())).await
    }
    async fn put_project(&self, name: &str) -> Result<bool, StoreError> {
        self.in_time(None, self.create_project(name)).await
    }
    async fn enable_project(&self, name: &str, enabled: bool) -> Result<bool, StoreError> {
        self.in_time(None, self.switch_project(name, enabled)).await
    }
    async fn allow(&self, project: &str, allow: &Allow) -> Result<bool, StoreError> {
        self.in_time(None, self.set_allow(project, allow)).await
    }
    async fn project(&self, name: &str) -> Result<Option<Project>, StoreError> {
        Ok(self.in_time(None, self.list_projects(Some(name))).await?.pop())
    }
    async fn projects(&self) -> Result<Vec<Project>, StoreError> {
        self.in_time(None, self.list_projects(None)).await
    }
    async fn delete_project(&self, name: &str) -> Result<bool, StoreError> {
        within(LONGEST, self.drop_project(name)).await
    }
    async fn put_plugin(
        &self,
        project: &str,
        name: &str,
        info: &PluginInfo,
        bytes: &[u8],
        activate: bool,
    ) -> Result<bool, StoreError> {
        within(LONG, self.store_plugin(project, name, info, bytes, activate)).await
    }
    async fn activate_plugin(
        &self,
        project: &str,
        name: &str,
        digest: &str,
    ) -> Result<bool, StoreError> {
        self.in_time(None, self.set_active(project, name, digest)).await
    }
    async fn plugin(&self, project: &str, name: &str) -> Result<Option<Plugin>, StoreError> {
        Ok(within(LONG, self.list_plugins(project, Some(name))).await?.pop())
    }
    async fn plugins(&self, project: &str) -> Result<Vec<Plugin>, StoreError> {
        within(LONG, self.list_plugins(project, None)).await
    }
    async fn plugin_bytes(
        &self,
        project: &str,
        digest: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        within(LOADING, self.component(project, digest)).await
    }
    async fn delete_plugin(
        &self,
        project: &str,
        name: &str,
    ) -> Result<Option<Vec<String>>, StoreError> {
        self.in_time(None, self.drop_plugin(project, name)).await
    }
    async fn put_trigger(
        &self,
        project: &str,
        name: &str,
        spec: &TriggerSpec,
    ) -> Result<Option<bool>, StoreError> {
        self.in_time(None, self.store_trigger(project, name, spec)).await
    }
    async fn trigger(&self, project: &str, name: &str) -> Result<Option<Trigger>, StoreError> {
        Ok(self.in_time(None, self.list_triggers(project, Some(name))).await?.pop())
    }
    async fn triggers(&self, project: &str) -> Result<Vec<Trigger>, StoreError> {
        self.in_time(None, self.list_triggers(project, None)).await
    }
    async fn pause_trigger(
        &self,
        project: &str,
        name: &str,
        reason: Option<&str>,
        revision: Option<i64>,
    ) -> Result<bool, StoreError> {
        self.in_time(None, self.set_paused(project, name, reason, revision)).await
    }
    async fn delete_trigger(&self, project: &str, name: &str) -> Result<TriggerGone, StoreError> {
        within(LONG, self.drop_trigger(project, name)).await
    }
    async fn put_secret(
        &self,
        project: &str,
        name: &str,
        sealed: &[u8],
        most: u32,
    ) -> Result<SecretPut, StoreError> {
        self.in_time(None, self.store_secret(project, name, sealed, most)).await
    }
    async fn secrets(&self, project: &str) -> Result<Vec<SecretInfo>, StoreError> {
        self.in_time(None, self.list_secrets(project)).await
    }
    async fn sealed_secrets(
        &self,
        project: &str,
        names: &[String],
    ) -> Result<Vec<SealedSecret>, StoreError> {
        self.in_time(None, self.sealed_of(project, names)).await
    }
    async fn delete_secret(
        &self,
        project: &str,
        name: &str,
    ) -> Result<Option<Vec<String>>, StoreError> {
        self.in_time(None, self.drop_secret(project, name)).await
    }
    async fn all_sealed(
        &self,
        after: Option<(&str, &str)>,
        limit: u32,
    ) -> Result<Vec<SealedSecret>, StoreError> {
        self.in_time(None, self.sealed_page(after, limit)).await
    }
    async fn reseal(&self, old: &SealedSecret, sealed: &[u8]) -> Result<bool, StoreError> {
        self.in_time(None, self.replace_sealed(old, sealed)).await
    }
    async fn put_key(&self, key: &KeyRow) -> Result<(), StoreError> {
        self.in_time(None, self.store_key(key)).await
    }
    async fn key_by_hash(&self, hash: &[u8; 32]) -> Result<Option<ApiKey>, StoreError> {
        Ok(self.in_time(None, self.list_keys(Some(hash))).await?.pop())
    }
    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.in_time(None, self.list_keys(None)).await
    }
    async fn delete_key(&self, id: Uuid) -> Result<bool, StoreError> {
        self.in_time(None, self.drop_key(id)).await
    }
    async fn heartbeat(
        &self,
        host: HostId,
        name: &str,
        lease: Duration,
    ) -> Result<usize, StoreError> {
        self.in_time(None, self.beat(host, name, lease)).await
    }
    async fn goodbye(&self, host: HostId) -> Result<(), StoreError> {
        self.in_time(None, self.leave(host)).await
    }
    async fn hosts(&self) -> Result<Vec<HostInfo>, StoreError> {
        self.in_time(None, self.list_hosts()).await
    }
}
