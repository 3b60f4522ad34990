//! A store with a guest in it, and the calls that are made there.

use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;
use wasmtime::{Store, UpdateDeadline};

use super::{
    Call, Plugin, Report, Settings,
    data::{Data, HANDLES},
    failure::{self, Fault},
    meta::Meta,
    meter::Meter,
    v1,
};
use crate::model::{
    attempt::Usage,
    outcome::{Failure, FailureKind},
};

/// A plugin's store, and its instance from the first call on.
pub(super) struct Live {
    store: Store<Data>,
    meter: Meter,
    instance: Option<v1::Instance>,
    began: Instant,
    calls: u32,
    /// Whether each call so far returned, with nothing refused.
    sound: bool,
    /// Declared last, so that it is given back after the store is gone.
    _slot: Option<OwnedSemaphorePermit>,
}

impl Live {
    /// A store for a call that hasn't begun.
    pub(super) fn new(
        plugin: &Plugin,
        call: &Call,
        meta: &Meta,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let settings = &plugin.sandbox.settings;
        let sandbox = &plugin.sandbox;
        let data = Data::new(call, meta, settings, &sandbox.budget, &sandbox.http);
        let meter = data.meter.clone();
        let mut store = Store::new(&plugin.sandbox.engine, data);
        store.limiter(|data| &mut data.limiter);
        store.set_hostcall_fuel(settings.hostcall_bytes());
        store.set_max_component_handles(HANDLES);
        // At each tick others get their turn, and deadlines are looked at.
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|store| {
            let data = store.data();
            if data.meter.is_used_up(data.caps.cpu.max.get()) {
                return Ok(UpdateDeadline::Interrupt);
            }
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
        });
        let began = Instant::now();
        Self { store, meter, instance: None, began, calls: 0, sound: true, _slot: slot }
    }

    /// Makes ready for another call of the same trigger: all that is the
    /// call's own begins anew, the guest's memory stays.
    pub(super) fn begin(&mut self, call: &Call, meta: &Meta, settings: &Settings) {
        self.store.data_mut().begin(call, meta, settings);
        self.store.set_epoch_deadline(1);
    }

    /// Whether it was made for this call's trigger, at the same revision.
    pub(super) fn is_for(&self, call: &Call) -> bool {
        std::sync::Arc::ptr_eq(&self.store.data().trigger, &call.trigger)
    }

    /// Whether another call may follow.
    pub(super) fn may_go_on(&self, calls_max: u32, age_max: Duration) -> bool {
        self.sound && self.calls < calls_max && self.began.elapsed() < age_max
    }

    /// Handles one event. Whatever happens is in the report.
    pub(super) async fn call(&mut self, plugin: &Plugin, call: &Call, meta: &Meta) -> Report {
        let settings = &plugin.sandbox.settings;
        let began = Instant::now();
        self.calls += 1;
        let meter = self.meter.clone();
        let time = self.store.data().caps.time(call.deadline);
        let run = tokio::time::timeout(time, self.run(plugin, call, meta));
        let result = meter.run(run).await.unwrap_or(Err(Fault::Deadline(time)));
        let duration_us = micros(began.elapsed());

        let data = self.store.data_mut();
        data.http.end();
        let memory_bytes = data.limiter.peak() as u64;
        let (logs, stderr) = data.logs.finish();
        let away = data.state.away().map(str::to_owned);
        self.sound &= result.is_ok() && away.is_none() && data.limiter.refused().is_none();
        let result = match result {
            Ok(Ok(())) => Ok(data.effects()),
            Ok(Err(failure)) => Err(failure::recalled(failure, data)),
            Err(fault) => Err(failure::explain(&fault, data, &stderr, settings)),
        };
        let result = result.map_err(|failure| match away {
            Some(why) => without_state(&why, &failure),
            None => failure,
        });
        let usage = Usage { duration_us, cpu_us: micros(meter.spent()), memory_bytes };
        Report { result, usage, logs }
    }

    async fn run(
        &mut self,
        plugin: &Plugin,
        call: &Call,
        meta: &Meta,
    ) -> Result<Result<(), Failure>, Fault> {
        let instance = match self.instance.take() {
            Some(instance) => instance,
            None => {
                plugin.handler.instantiate(&mut self.store).await.map_err(Fault::Instantiate)?
            }
        };
        let result = instance.handle(&mut self.store, call, meta).await.map_err(Fault::Run);
        self.instance = Some(instance);
        result
    }
}

/// The failure of a call that couldn't read its state: not the plugin's fault,
/// whatever it made of it.
fn without_state(why: &str, failure: &Failure) -> Failure {
    let message = format!("the trigger's state could not be read: {why}; {}", failure.message);
    Failure { kind: FailureKind::HostFault, message, after_ms: failure.after_ms }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
