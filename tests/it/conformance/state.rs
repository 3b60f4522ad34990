//! What triggers remember: read, re-checked and written.

use outrigger::{
    model::{
        effect::{Effects, Listing, StateUse, Write},
        event::NewEvent,
    },
    store::{Settled, Settlement},
};

use super::bench::{Adding as _, Bench, LONG, MAIL, SHOP, done, having_read, order, set, writing};

/// Claims as many new events, each of an aggregate of its own.
async fn claimed(bench: &Bench, count: usize) -> Vec<Settlement> {
    bench.hold().await;
    let events: Vec<_> = (0..count).map(|n| order(&n.to_string())).collect();
    bench.record(&events).await;
    bench.claim().await.into_iter().map(done).collect()
}

/// Settles a group, each with one use of the state.
async fn using<const N: usize>(bench: &Bench, uses: [StateUse; N]) -> [Settled; N] {
    let group = claimed(bench, N).await.into_iter().zip(uses);
    let group = group.map(|(settlement, state)| settlement.state(state)).collect();
    bench.settle(group).await.try_into().expect("one answer each")
}

fn conflict() -> Settled {
    Settled::Conflict(vec![MAIL.to_owned()])
}

fn listing(prefix: &str, after: Option<&str>, limit: u32, keys: &[&str]) -> StateUse {
    let listing = Listing {
        prefix: prefix.to_owned(),
        after: after.map(str::to_owned),
        limit,
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
    };
    StateUse { listings: vec![listing], ..StateUse::default() }
}

async fn keys(bench: &Bench, prefix: &str, after: Option<&str>, limit: u32) -> Vec<String> {
    bench.store.state_keys(SHOP, MAIL, prefix, after, limit).await.expect("lists")
}

pub(super) async fn what_is_written_is_read(bench: &Bench) {
    let bytes: Vec<u8> = (0..=255).collect();
    let mut writes = StateUse::default();
    writes.writes.insert("bytes".into(), Write::Set(bytes.clone()));
    writes.writes.insert("empty".into(), Write::Set(Vec::new()));
    writes.writes.insert("\u{1f980} '\"\\".into(), Write::Set(b"x".to_vec()));
    assert_eq!(using(bench, [writes]).await, [Settled::Done]);
    assert_eq!(bench.value("bytes").await, Some(bytes.clone()));
    assert_eq!(bench.value("empty").await, Some(Vec::new()));
    assert_eq!(bench.value("\u{1f980} '\"\\").await, Some(b"x".to_vec()));
    assert_eq!(bench.value("absent").await, None);
    assert_eq!(using(bench, [set("bytes", "new")]).await, [Settled::Done]);
    let entries = bench.store.state(SHOP, MAIL, "", None, 2).await.expect("lists");
    let entries: Vec<_> = entries.iter().map(|e| (&*e.key, &*e.value, e.version)).collect();
    assert_eq!(entries, [("bytes", &b"new"[..], 2), ("empty", b"", 1)]);
    assert_eq!(using(bench, [writing("bytes", Write::Delete)]).await, [Settled::Done]);
    assert_eq!(bench.value("bytes").await, None);
    assert_eq!(using(bench, [writing("bytes", Write::Delete)]).await, [Settled::Done]);
}

pub(super) async fn an_overtaken_read_conflicts(bench: &Bench) {
    let [one, two] = claimed(bench, 2).await.try_into().expect("two");
    bench.write(one.state(set("k", "1"))).await;
    let id = two.event.message_id;
    let mut late = two
        .emit(vec![order("emitted")])
        .state(having_read("k", None, set("k", "2")))
        .attempt(MAIL, None, None);
    assert_eq!(
        bench.store.settle(std::slice::from_ref(&late), LONG).await.expect("settles"),
        [conflict()]
    );
    assert_eq!(bench.value("k").await, Some(b"1".to_vec()));
    let row = bench.store.event(SHOP, id).await.expect("looks").expect("is there");
    assert_eq!(row.dispatched_at, None);
    assert!(bench.claim().await.is_empty(), "the claim stays, nothing was emitted");
    late.effects.clear();
    bench.write(late.state(having_read("k", Some("1"), set("k", "2")))).await;
    assert_eq!(bench.value("k").await, Some(b"2".to_vec()));
}

pub(super) async fn equal_values_do_not_conflict(bench: &Bench) {
    assert_eq!(using(bench, [set("k", "1")]).await, [Settled::Done]);
    let [one, two] = claimed(bench, 2).await.try_into().expect("two");
    let both =
        StateUse { reads: having_read("gone", None, StateUse::default()).reads, ..set("k", "1") };
    bench.write(one.state(both)).await;
    let mut read = having_read("k", Some("1"), set("l", "2"));
    read.reads.insert("gone".into(), None);
    bench.write(two.state(read)).await;
    assert_eq!(bench.value("l").await, Some(b"2".to_vec()));
}

pub(super) async fn a_group_sees_its_own_writes(bench: &Bench) {
    let settled = using(
        bench,
        [
            having_read("k", None, set("k", "1")),
            having_read("k", Some("1"), set("k", "2")),
            having_read("k", Some("1"), set("k", "3")),
            having_read("k", Some("2"), writing("k", Write::Delete)),
            having_read("k", None, set("l", "4")),
        ],
    )
    .await;
    assert_eq!(settled, [Settled::Done, Settled::Done, conflict(), Settled::Done, Settled::Done]);
    assert_eq!((bench.value("k").await, bench.value("l").await), (None, Some(b"4".to_vec())));
}

pub(super) async fn a_conflict_leaves_no_trace_in_its_group(bench: &Bench) {
    let [one, two] = claimed(bench, 2).await.try_into().expect("two");
    let of = |state| Effects { state, ..Effects::default() };
    let two_triggers = one
        .effects("good", of(set("k", "good")))
        .effects("bad", of(having_read("k", Some("never"), set("k", "bad"))))
        .effects("worse", of(having_read("l", Some("never"), StateUse::default())));
    let after = two.effects("good", of(having_read("k", None, set("l", "after"))));
    let settled = bench.settle(vec![two_triggers, after]).await;
    let conflict = Settled::Conflict(vec!["bad".into(), "worse".into()]);
    assert_eq!(settled, [conflict, Settled::Done]);
    let value =
        async |trigger, key| bench.store.state_value(SHOP, trigger, key).await.expect("reads");
    assert_eq!((value("good", "k").await, value("bad", "k").await), (None, None));
    assert_eq!(value("good", "l").await, Some(b"after".to_vec()));
}

pub(super) async fn listings_are_checked(bench: &Bench) {
    let mut writes = StateUse::default();
    for key in ["a", "a/1", "a/2", "a/3", "b"] {
        writes.writes.insert(key.into(), Write::Set(b"v".to_vec()));
    }
    assert_eq!(using(bench, [writes]).await, [Settled::Done]);
    assert_eq!(keys(bench, "a/", None, 9).await, ["a/1", "a/2", "a/3"]);
    assert_eq!(keys(bench, "a/", Some("a/1"), 1).await, ["a/2"]);
    assert_eq!(keys(bench, "", Some("a/2"), 9).await, ["a/3", "b"]);
    assert!(
        keys(bench, "c", None, 9).await.is_empty() && keys(bench, "", None, 0).await.is_empty()
    );
    let settled = using(
        bench,
        [
            listing("a/", None, 9, &["a/1", "a/2", "a/3"]),
            listing("a/", None, 9, &["a/1", "a/2"]),
            listing("a/", Some("a/1"), 1, &["a/2"]),
            listing("", None, 2, &["a", "a/1"]),
            listing("x", None, 2, &["x"]),
            listing("x", None, 2, &[]),
        ],
    )
    .await;
    let holds = settled.map(|one| one == Settled::Done);
    assert_eq!(holds, [true, false, true, true, false, true]);
}

pub(super) async fn listings_see_the_groups_writes(bench: &Bench) {
    let mut writes = StateUse::default();
    for key in ["a", "c", "e", "g"] {
        writes.writes.insert(key.into(), Write::Set(b"v".to_vec()));
    }
    assert_eq!(using(bench, [writes]).await, [Settled::Done]);
    let settled = using(
        bench,
        [
            writing("a", Write::Delete),
            writing("c", Write::Delete),
            listing("", None, 2, &["e", "g"]),
            set("f", "new"),
            listing("", Some("e"), 2, &["f", "g"]),
            listing("", None, 2, &["e", "g"]),
            listing("", None, 3, &["e", "f", "g"]),
        ],
    )
    .await;
    let holds = settled.map(|one| one == Settled::Done);
    assert_eq!(holds, [true, true, true, true, true, false, true]);
}

pub(super) async fn keys_are_in_byte_order(bench: &Bench) {
    // U+10000 comes before U+FF5E in UTF-16; in most languages ä before z.
    let order = ["A", "Z", "a", "a b", "a-b", "ab", "z", "\u{e4}", "\u{ff5e}", "\u{10000}"];
    let mut writes = StateUse::default();
    for key in order {
        writes.writes.insert(key.into(), Write::Set(b"v".to_vec()));
    }
    assert_eq!(using(bench, [writes]).await, [Settled::Done]);
    assert_eq!(keys(bench, "", None, 99).await, order);
    assert_eq!(keys(bench, "", Some("z"), 99).await, order[7..]);
    assert_eq!(keys(bench, "\u{10000}", None, 99).await, order[9..]);
}

pub(super) async fn increments_add_up(bench: &Bench) {
    for round in 1..=3 {
        let adds = [(); 10].map(|()| writing("n", Write::Add(2)));
        assert_eq!(using(bench, adds).await, [(); 10].map(|()| Settled::Done));
        assert_eq!(bench.value("n").await, Some((round * 20).to_string().into_bytes()));
    }
    let mixed = using(
        bench,
        [
            writing("n", Write::Add(-70)),
            having_read("n", Some("-10"), set("n", "5")),
            writing("n", Write::Add(1)),
        ],
    );
    assert_eq!(mixed.await, [Settled::Done, Settled::Done, Settled::Done]);
    assert_eq!(bench.value("n").await, Some(b"6".to_vec()));
}

pub(super) async fn an_increment_of_a_text_is_unfit(bench: &Bench) {
    let most = i64::MAX.to_string();
    let settled = using(
        bench,
        [
            set("t", "text"),
            set("n", &most),
            writing("t", Write::Add(1)),
            writing("n", Write::Add(1)),
        ],
    )
    .await;
    let [Settled::Done, Settled::Done, Settled::Unfit { trigger, why }, Settled::Unfit { .. }] =
        settled
    else {
        panic!("{settled:?}")
    };
    assert!(trigger == MAIL && why.contains("`t`"), "{trigger}: {why}");
    assert_eq!(bench.value("t").await, Some(b"text".to_vec()));
    assert_eq!(bench.value("n").await, Some(most.into_bytes()));
}

pub(super) async fn triggers_and_projects_are_apart(bench: &Bench) {
    bench.hold().await;
    let elsewhere = NewEvent { project: "other".into(), ..order("a") };
    bench.record(&[order("a"), elsewhere]).await;
    let [one, two] = bench.claim().await.try_into().expect("two");
    let (here, there) = if one.event.project == SHOP { (one, two) } else { (two, one) };
    let of = |value| Effects { state: set("k", value), ..Effects::default() };
    let here = done(here).effects(MAIL, of("1")).effects("other", of("2"));
    let there = done(there).effects(MAIL, of("3"));
    assert_eq!(bench.settle(vec![here, there]).await, [Settled::Done, Settled::Done]);
    for (project, trigger, value) in [(SHOP, MAIL, "1"), (SHOP, "other", "2"), ("other", MAIL, "3")]
    {
        let found = bench.store.state_value(project, trigger, "k").await.expect("reads");
        assert_eq!(found.as_deref(), Some(value.as_bytes()));
    }
}

pub(super) async fn one_of_many_settles_wins(bench: &Bench) {
    // The first rounds open connections one after another; later ones meet.
    const ROUNDS: usize = 10;
    let mut settlements = claimed(bench, 8 * ROUNDS).await.into_iter();
    for round in 0..ROUNDS {
        let key = format!("k{round}");
        let groups: Vec<_> = settlements
            .by_ref()
            .take(8)
            .map(|settlement| {
                let add = Effects { state: writing("n", Write::Add(1)), ..Effects::default() };
                let swap = having_read(&key, None, set(&key, "mine"));
                [settlement.effects("counter", add).state(swap)]
            })
            .collect();
        let settles = groups.iter().map(|group| bench.store.settle(group, LONG));
        let settled = futures::future::try_join_all(settles).await.expect("settles").concat();
        let won = settled.iter().filter(|one| **one == Settled::Done).count();
        let overtaken = settled.iter().filter(|one| **one == conflict()).count();
        assert_eq!((won, overtaken), (1, 7), "{settled:?}");
    }
    let counted = bench.store.state_value(SHOP, "counter", "n").await.expect("reads");
    assert_eq!(counted, Some(ROUNDS.to_string().into_bytes()));
}
