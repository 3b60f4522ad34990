//! Closures that fail, panic, take too long, or ask too late.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use outrigger::{
    embed::{Context, Emit, Failure},
    model::outcome::FailureKind,
};

use super::{SOON, builder, counts, dead_letters, on, order, record, through, value};

pub(super) async fn what_a_failed_call_asked_for_is_void(url: &str) {
    let router = builder(url)
        .trigger("ship", on("order.*"), |event, ctx| async move {
            ctx.state().set("k", "v").await?;
            ctx.emit(Emit::new("mail", &event.aggregate_id, "mail.due", "{}"))?;
            Err(Failure::reject("no such address"))
        })
        .start()
        .await
        .unwrap();
    record(&router, &order("o-1", "order.placed")).await;
    let store = Arc::clone(router.store());
    through(&*store, 1).await;
    assert_eq!(value(&*store, "ship", "k").await, None);
    let [letter] = dead_letters(&*store).await.try_into().expect("one dead letter");
    assert_eq!((letter.attempts, letter.kind), (1, Some(FailureKind::Reject)));
    assert_eq!(letter.last_error.as_deref(), Some("no such address"));
    let counts = counts(&*store).await;
    assert_eq!((counts.dispatched, counts.pending), (1, 0), "no mail: {counts:?}");
    router.stop(SOON).await;
}

pub(super) async fn failures_end_as_dead_letters(url: &str) {
    let router = builder(url)
        .trigger("ship", on("*"), |event, ctx| async move {
            match &*event.event_name {
                "parse" => drop(event.decode::<Vec<u32>>()?),
                "emit" => drop(ctx.emit(Emit::new("mail", "m", "mail.due", "no JSON"))?),
                _ => return Err(Failure::retry_after("not yet", Duration::from_millis(1))),
            }
            Ok(())
        })
        .start()
        .await
        .unwrap();
    for name in ["parse", "emit", "wait"] {
        record(&router, &order(name, name)).await;
    }
    let store = Arc::clone(router.store());
    through(&*store, 3).await;
    let found: BTreeMap<_, _> = dead_letters(&*store)
        .await
        .into_iter()
        .map(|d| (d.event_name, (d.attempts, d.kind.unwrap(), d.last_error.unwrap())))
        .collect();
    let said = |name: &str| (found[name].0, found[name].1);
    assert_eq!(said("parse"), (3, FailureKind::Retry), "{found:?}");
    assert_eq!(said("emit"), (3, FailureKind::Effects), "{found:?}");
    assert_eq!(said("wait"), (3, FailureKind::Retry), "{found:?}");
    assert!(found["emit"].2.contains("payload is not JSON"), "{found:?}");
    router.stop(SOON).await;
}

pub(super) async fn a_panic_is_an_attempt_and_harms_nobody(url: &str) {
    /// Panics when it is dropped, as a future may.
    struct Sharp;
    impl Drop for Sharp {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "cut off");
        }
    }
    let router = builder(url)
        .trigger("ship", on("*").deadline(Duration::from_millis(200)), |event, _| {
            // Before there is a future, within it, and while it is dropped.
            assert_ne!(event.event_name, "before", "no {} at all", "future");
            async move {
                assert_ne!(event.event_name, "within", "boom");
                if event.event_name == "dropped" {
                    let _sharp = Sharp;
                    std::future::pending::<()>().await;
                }
                Ok(())
            }
        })
        .start()
        .await
        .unwrap();
    let bad = ["before", "within", "dropped"];
    for name in bad {
        record(&router, &order(name, name)).await;
    }
    for n in 0..20 {
        record(&router, &order(&format!("good-{n}"), "good")).await;
    }
    let store = Arc::clone(router.store());
    through(&*store, 23).await;
    let mut dead = dead_letters(&*store).await;
    dead.sort_by_key(|d| bad.iter().position(|name| *name == d.event_name));
    let said = ["no future at all", "boom", "cut off"];
    assert_eq!(dead.len(), 3, "{dead:?}");
    for (letter, said) in dead.iter().zip(said) {
        assert_eq!((letter.attempts, letter.kind), (3, Some(FailureKind::Panic)), "{letter:?}");
        assert!(letter.last_error.as_ref().unwrap().contains(said), "{letter:?}");
    }
    assert_eq!(counts(&*store).await.triggers["ship"].done, 20);
    router.stop(SOON).await;
}

pub(super) async fn a_call_past_its_deadline_is_dropped(url: &str) {
    struct Running(Arc<AtomicU32>);
    impl Drop for Running {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let running = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&running);
    let most = Arc::new(AtomicU32::new(0));
    let peak = Arc::clone(&most);
    let router = builder(url)
        .trigger("ship", on("*").deadline(Duration::from_millis(50)), move |_, ctx| {
            let (count, peak) = (Arc::clone(&count), Arc::clone(&peak));
            async move {
                peak.fetch_max(count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _running = Running(count);
                ctx.state().set("k", "v").await?;
                std::future::pending().await
            }
        })
        .start()
        .await
        .unwrap();
    record(&router, &order("o-1", "x")).await;
    let store = Arc::clone(router.store());
    through(&*store, 1).await;
    let [letter] = dead_letters(&*store).await.try_into().expect("one dead letter");
    assert_eq!((letter.attempts, letter.kind), (3, Some(FailureKind::Deadline)));
    assert_eq!(running.load(Ordering::SeqCst), 0, "each was dropped");
    assert_eq!(most.load(Ordering::SeqCst), 1, "none met the next attempt");
    assert_eq!(value(&*store, "ship", "k").await, None);
    router.stop(SOON).await;
}

pub(super) async fn a_context_outlives_its_call_in_vain(url: &str) {
    let kept = Arc::new(Mutex::new(None::<Context>));
    let keeps = Arc::clone(&kept);
    let router = builder(url)
        .trigger("ship", on("*"), move |_, ctx| {
            let keeps = Arc::clone(&keeps);
            async move {
                keeps.lock().unwrap().replace(ctx);
                Ok(())
            }
        })
        .start()
        .await
        .unwrap();
    record(&router, &order("o-1", "x")).await;
    let store = Arc::clone(router.store());
    through(&*store, 1).await;
    let late = kept.lock().unwrap().take().unwrap();
    let refused = late.emit(Emit::new("mail", "m", "mail.due", "{}")).unwrap_err();
    assert!(refused.to_string().contains("has ended"), "{refused}");
    late.state().set("k", "v").await.unwrap_err();
    assert_eq!(value(&*store, "ship", "k").await, None);
    router.stop(SOON).await;
}
