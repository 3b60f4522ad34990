//! Who claims what, and for how long.

use std::{collections::BTreeSet, time::Duration};

use outrigger::{
    model::event::NewEvent,
    store::{ClaimedDelivery, Held, HostId, Seam, Settled, Spill, SpillCause},
};
use uuid::Uuid;

use super::bench::{
    Adding as _, Bench, Database, LONG, MAIL, SHOP, again, blocked, done, ended, failed, order,
    set, until,
};

/// Runs out before anybody looks.
const SHORT: Duration = Duration::from_millis(1);

fn stranger() -> HostId {
    HostId(Uuid::new_v4())
}

pub(super) async fn nobody_claims_without_the_lane(bench: &Bench) {
    bench.record(&[order("a")]).await;
    assert!(bench.claim().await.is_empty());
    bench.hold().await;
    let seams = bench.seams(0, 10).await;
    let other = bench.store.claim_events(stranger(), &seams, u64::MAX, LONG).await.expect("claims");
    assert!(other.rows.is_empty());
    assert_eq!(bench.claim().await.len(), 1);
}

pub(super) async fn lanes_are_taken_and_given_back(bench: &Bench) {
    let other = stranger();
    assert!(bench.store.take_lanes(other, 0, LONG).await.expect("takes").is_empty());
    bench.hold().await;
    let holders = bench.store.lane_holders().await.expect("tells");
    assert!(holders.iter().all(|(_, host, ms)| *host == Some(bench.host) && *ms > 50_000));
    assert_eq!(bench.store.lane_holder(0).await.expect("tells"), Some(bench.host));
    assert_eq!(bench.store.renew_lanes(bench.host, LONG).await.expect("renews"), bench.lanes());
    assert!(bench.store.renew_lanes(other, LONG).await.expect("renews").is_empty());
    bench.store.yield_lanes(other, &bench.lanes()).await.expect("yields what it hasn't");
    assert_eq!(bench.store.lane_holder(0).await.expect("tells"), Some(bench.host));
    bench.store.yield_lanes(bench.host, &[0]).await.expect("yields");
    assert_eq!(bench.store.lane_holder(0).await.expect("tells"), None);
    assert_eq!(bench.store.take_lanes(other, 1, LONG).await.expect("takes"), [0]);
    assert_eq!(bench.store.lane_holder(0).await.expect("tells"), Some(other));
}

pub(super) async fn a_held_lane_is_not_taken_anew(bench: &Bench) {
    bench.hold().await;
    let claimed = bench.claim_new(order("a")).await;
    assert!(bench.store.take_lanes(bench.host, 9, LONG).await.expect("takes").is_empty());
    if bench.database == Database::Postgres {
        assert!(bench.store.take_lanes(stranger(), 9, LONG).await.expect("takes").is_empty());
    }
    bench.write(done(claimed)).await;
}

pub(super) async fn each_seam_has_its_limit(bench: &Bench) {
    bench.hold().await;
    let of =
        |project: &str, n: usize| NewEvent { project: project.into(), ..order(&n.to_string()) };
    let events: Vec<_> = (0..20).flat_map(|n| [of("p", n), of("q", n)]).collect();
    bench.record(&events).await;
    let mut seams = bench.seams(0, 2).await;
    seams.push(Seam { lane: 0, project: "nobody".into(), above: 0, limit: 5 });
    let claimed =
        bench.store.claim_events(bench.host, &seams, u64::MAX, LONG).await.expect("claims").rows;
    for seam in &seams {
        let mine = |e: &&outrigger::store::ClaimedEvent| {
            e.event.project == seam.project && e.event.lane == seam.lane
        };
        let expected = if seam.project == "nobody" { 0 } else { 2 };
        assert!(claimed.iter().filter(mine).count() <= expected, "{seam:?}");
    }
    let rest = bench.claim().await.len();
    assert_eq!(claimed.len() + rest, 40);
}

pub(super) async fn rows_up_to_the_mark_are_left_out(bench: &Bench) {
    bench.hold().await;
    bench.record(&[order("a"), order("a"), order("a")]).await;
    let seams = bench.seams(0, 1).await;
    let first =
        bench.store.claim_events(bench.host, &seams, u64::MAX, LONG).await.expect("claims").rows;
    let mark = first[0].event.pk + 1;
    let seams = bench.seams(mark, 9).await;
    let third =
        bench.store.claim_events(bench.host, &seams, u64::MAX, LONG).await.expect("claims").rows;
    assert!(third.len() == 1 && third[0].event.pk > mark, "{third:?}");
    let second = bench.claim().await;
    assert!(second.len() == 1 && second[0].event.pk == mark, "{second:?}");
}

pub(super) async fn rows_come_in_order(bench: &Bench) {
    bench.hold().await;
    let events: Vec<_> = (0..50).map(|n| order(&(n % 7).to_string())).collect();
    bench.record(&events).await;
    let claimed = bench.claim().await;
    assert_eq!(claimed.len(), 50);
    assert!(claimed.iter().map(|e| e.event.pk).is_sorted());
    assert!(claimed.iter().all(|e| e.claims == 1 && e.open.is_empty()));
    assert!(claimed.iter().all(|e| e.claim.lane() == e.event.lane));
}

pub(super) async fn simultaneous_claims_share_the_rows(bench: &Bench) {
    bench.hold().await;
    let events: Vec<_> = (0..60).map(|_| order("a")).collect();
    bench.record(&events).await;
    let seams = bench.seams(0, 10).await;
    let claims = (0..8).map(|_| bench.store.claim_events(bench.host, &seams, u64::MAX, LONG));
    let mut seen = BTreeSet::new();
    for claimed in futures::future::join_all(claims).await {
        let rows = claimed.expect("claims").rows;
        assert!(rows.len() <= 10, "{} rows", rows.len());
        assert!(rows.iter().all(|row| seen.insert(row.event.pk)), "claimed twice");
    }
}

pub(super) async fn a_claim_that_ran_out_is_claimed_again(bench: &Bench) {
    bench.hold().await;
    bench.record(&[order("a")]).await;
    let mut first = bench.claim_for(SHORT).await;
    let mut second = Vec::new();
    until(async || {
        second = bench.claim().await;
        !second.is_empty()
    })
    .await;
    assert_eq!((second[0].claims, second.len()), (2, 1));
    let late = done(first.remove(0)).state(set("k", "late"));
    assert_eq!(bench.settle(vec![late]).await, [Settled::Lost]);
    assert_eq!(bench.value("k").await, None);
    bench.write(done(second.remove(0)).state(set("k", "in time"))).await;
    assert_eq!(bench.value("k").await, Some(b"in time".to_vec()));
}

pub(super) async fn taking_lanes_voids_claims(bench: &Bench) {
    let want = bench.lanes().len();
    let taken = bench.store.take_lanes(bench.host, want, SHORT).await.expect("takes");
    assert_eq!(taken.len(), want);
    bench.record(&[order("a")]).await;
    let first = bench.claim_one().await;
    let other = stranger();
    let mut count = 0;
    until(async || {
        count += bench.store.take_lanes(other, want, LONG).await.expect("takes").len();
        count == want
    })
    .await;
    let late = done(first).state(set("k", "v")).emit(vec![order("b")]).spill(failed());
    assert_eq!(bench.settle(vec![late]).await, [Settled::Lost]);
    assert_eq!(bench.value("k").await, None);
    assert!(bench.claim().await.is_empty(), "the old holder claims nothing");
    let seams = bench.seams(0, 9).await;
    let second =
        bench.store.claim_events(other, &seams, u64::MAX, LONG).await.expect("claims").rows;
    assert_eq!(second.iter().map(|e| e.claims).collect::<Vec<_>>(), [2]);
}

pub(super) async fn a_death_alone_is_a_trial(bench: &Bench) {
    bench.hold().await;
    let suspect = || Spill { cause: SpillCause::Suspect, ..blocked() };
    bench.spilled("a", suspect()).await;
    bench.spilled("b", suspect()).await;
    let (store, lanes) = (&bench.store, bench.lanes());
    let succeed = async |old: HostId, new: HostId| {
        store.renew_lanes(old, SHORT).await.expect("renews");
        let mut count = 0;
        until(async || {
            count += store.take_lanes(new, lanes.len(), LONG).await.expect("takes").len();
            count == lanes.len()
        })
        .await;
        let triggers = [(SHOP.to_owned(), MAIL.to_owned(), 9)];
        store
            .claim_deliveries(new, &lanes, &triggers, 0, u64::MAX, LONG)
            .await
            .expect("claims")
            .rows
    };
    let counts = |claimed: &[ClaimedDelivery]| -> Vec<(u32, u32)> {
        claimed.iter().map(|d| (d.claims, d.trials)).collect()
    };
    let claimed = bench.deliver().await;
    assert_eq!(counts(&claimed), [(2, 1), (2, 1)], "suspects from the start");
    let alone = async |host, delivery: Option<&ClaimedDelivery>| {
        store.run_alone(host, delivery.map(|d| &d.claim)).await.expect("notes")
    };
    let (second, third, fourth) = (stranger(), stranger(), stranger());
    assert_eq!(alone(second, Some(&claimed[0])).await, Held::Lost, "not its lane");
    assert_eq!(alone(bench.host, Some(&claimed[0])).await, Held::Yes);
    assert_eq!(alone(bench.host, Some(&claimed[1])).await, Held::Yes);
    let claimed = succeed(bench.host, second).await;
    assert_eq!(counts(&claimed), [(3, 1), (3, 2)], "one at a time is alone");
    assert_eq!(alone(second, Some(&claimed[1])).await, Held::Yes);
    assert_eq!(alone(second, None).await, Held::Yes);
    let claimed = succeed(second, third).await;
    assert_eq!(counts(&claimed), [(4, 1), (4, 2)], "its host outlived it");
    assert_eq!(alone(third, Some(&claimed[1])).await, Held::Yes);
    let mut claimed = succeed(third, fourth).await;
    assert_eq!(counts(&claimed), [(5, 1), (5, 3)]);
    bench.write(ended(claimed.pop().expect("two"), again(1, 0))).await;
    let claimed = succeed(fourth, stranger()).await;
    assert_eq!(counts(&claimed), [(6, 1), (1, 0)], "a result clears it of suspicion");
}

pub(super) async fn a_death_alone_is_a_trial_of_the_event(bench: &Bench) {
    bench.hold().await;
    bench.record(&[order("a"), order("b")]).await;
    let claimed = bench.claim().await;
    for event in &claimed {
        let noted = bench.store.run_alone(bench.host, Some(&event.claim)).await.expect("notes");
        assert_eq!((noted, event.trials), (Held::Yes, 0));
    }
    bench.store.renew_lanes(bench.host, SHORT).await.expect("renews");
    let (other, want) = (stranger(), bench.lanes().len());
    let mut count = 0;
    until(async || {
        count += bench.store.take_lanes(other, want, LONG).await.expect("takes").len();
        count == want
    })
    .await;
    let seams = bench.seams(0, 9).await;
    let again = bench.store.claim_events(other, &seams, u64::MAX, LONG).await.expect("claims").rows;
    assert_eq!(again.iter().map(|e| (e.claims, e.trials)).collect::<Vec<_>>(), [(2, 0), (2, 1)]);
}

pub(super) async fn claims_are_bounded_by_bytes(bench: &Bench) {
    bench.hold().await;
    let large = |aggregate: &str, due| NewEvent {
        payload: format!("\"{}\"", "x".repeat(100_000)),
        available_at: due,
        ..order(aggregate)
    };
    bench.record(&(0..6).map(|_| large("a", None)).collect::<Vec<_>>()).await;
    let claim = async |bytes| {
        let seams = bench.seams(0, 9).await;
        let claimed = bench.store.claim_events(bench.host, &seams, bytes, LONG).await;
        let claimed = claimed.expect("claims");
        assert!(claimed.rows.iter().map(|row| row.event.pk).is_sorted());
        (claimed.rows, claimed.cut)
    };
    let (mut rows, cut) = claim(1).await;
    assert_eq!((rows.len(), cut), (1, true), "one comes anyway");
    let (more, cut) = claim(250_000).await;
    assert_eq!((more.len(), cut), (2, true));
    assert!(more[0].event.pk > rows[0].event.pk, "the first ones");
    rows.extend(more);
    let (more, cut) = claim(1_000_000).await;
    assert_eq!((more.len(), cut), (3, false));
    rows.extend(more);
    let spill = |event| done(event).spill(Spill { ordered: false, ..failed() });
    let group = rows.into_iter().map(spill).collect();
    assert_eq!(bench.settle(group).await.len(), 6);
    let triggers = [(SHOP.to_owned(), MAIL.to_owned(), 9)];
    let deliver = async |bytes| {
        let lanes = bench.lanes();
        let claimed =
            bench.store.claim_deliveries(bench.host, &lanes, &triggers, 0, bytes, LONG).await;
        claimed.expect("claims").rows.len()
    };
    assert_eq!((deliver(1).await, deliver(250_000).await, deliver(1_000_000).await), (1, 2, 3));
    bench.record(&(0..6).map(|_| large("a", Some(1))).collect::<Vec<_>>()).await;
    let scheduled = async |bytes| {
        let (lanes, projects) = (bench.lanes(), [SHOP.to_owned()]);
        let claimed =
            bench.store.claim_scheduled(bench.host, &lanes, &projects, 9, bytes, LONG).await;
        claimed.expect("claims").rows.len()
    };
    assert_eq!(
        (scheduled(1).await, scheduled(250_000).await, scheduled(1_000_000).await),
        (1, 2, 3)
    );
}

pub(super) async fn newcomers_are_found_between_known_projects(bench: &Bench) {
    bench.hold().await;
    let of = |project: &str| NewEvent { project: project.into(), ..order("a") };
    bench.record(&["b", "d", "d", "f"].map(of)).await;
    let find = async |known: &[&str]| {
        let known: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
        let found = bench.store.newcomers(&bench.lanes(), &known).await.expect("looks");
        found.into_iter().map(|(_, project)| project).collect::<BTreeSet<_>>()
    };
    let set = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
    assert!(find(&[]).await.is_subset(&set(&["b", "d", "f"])) && !find(&[]).await.is_empty());
    assert_eq!(find(&["d"]).await, set(&["b", "f"]));
    assert_eq!(find(&["a", "c", "e", "g"]).await, set(&["b", "d", "f"]));
    assert_eq!(find(&["b", "d", "f"]).await, set(&[]));
    bench.claim().await;
    assert_eq!(find(&["b", "d"]).await, set(&["f"]), "what is claimed counts");
}

pub(super) async fn renewed_claims_hold(bench: &Bench) {
    bench.hold().await;
    bench.record(&[order("a"), order("b")]).await;
    let brief = Duration::from_millis(300);
    let mut claimed = bench.claim_for(brief).await;
    let lost = claimed.pop().expect("two");
    let kept = claimed.pop().expect("two");
    let held = bench.store.renew(&[&kept.claim], LONG).await.expect("renews");
    assert_eq!(held, [Held::Yes]);
    let mut again = Vec::new();
    until(async || {
        again = bench.claim().await;
        !again.is_empty()
    })
    .await;
    assert_eq!(again[0].event.pk, lost.event.pk);
    let held = bench.store.renew(&[&lost.claim, &kept.claim], LONG).await.expect("renews");
    assert_eq!(held, [Held::Lost, Held::Yes]);
    assert!(bench.store.renew(&[], LONG).await.expect("renews").is_empty());
    assert!(bench.claim().await.is_empty());
}

pub(super) async fn released_claims_were_never_made(bench: &Bench) {
    bench.hold().await;
    let claimed = bench.claim_new(order("a")).await;
    bench.store.release(&[&claimed.claim]).await.expect("releases");
    let again = bench.claim_one().await;
    assert_eq!(again.claims, 1);
    bench.store.release(&[&claimed.claim]).await.expect("releases nothing");
    assert_eq!(bench.settle(vec![done(claimed)]).await, [Settled::Lost]);
    bench.write(done(again).spill(failed())).await;
    let delivery = bench.deliver().await.pop().expect("a delivery");
    bench.store.release(&[&delivery.claim]).await.expect("releases");
    assert_eq!(bench.deliver().await.pop().expect("it again").claims, 1);
}

pub(super) async fn scheduled_events_wait(bench: &Bench) {
    bench.hold().await;
    let now = bench.store.survey(&bench.lanes()).await.expect("surveys").now;
    let event = NewEvent { available_at: Some(now + 600), ..order("a") };
    let far = NewEvent { available_at: Some(now + 3_600_000), ..order("b") };
    bench.record(&[event, order("a"), far]).await;
    assert_eq!(bench.claim_one().await.event.available_at, None);
    let lanes = bench.lanes();
    let shop = [SHOP.to_owned()];
    let claim = async |projects: &[String]| {
        bench
            .store
            .claim_scheduled(bench.host, &lanes, projects, 9, u64::MAX, LONG)
            .await
            .expect("claims")
    };
    let survey = bench.store.survey(&lanes).await.expect("surveys");
    assert!(survey.scheduled_in.is_some_and(|ms| (0..=600).contains(&ms)), "{survey:?}");
    until(async || bench.store.survey(&lanes).await.expect("surveys").scheduled_in == Some(0))
        .await;
    assert!(claim(&["other".to_owned()]).await.rows.is_empty());
    let claimed = claim(&shop).await;
    assert!(claimed.now >= now + 600);
    let [row] = claimed.rows.try_into().expect("the one that is due");
    assert_eq!(row.event.available_at, Some(now + 600));
    bench.write(done(row)).await;
    let survey = bench.store.survey(&lanes).await.expect("surveys");
    assert!(survey.scheduled_in.is_some_and(|ms| ms > 0), "{survey:?}");
}

pub(super) async fn the_longest_overdue_come_first(bench: &Bench) {
    bench.hold().await;
    let at = |ms| NewEvent { available_at: Some(ms), ..order("a") };
    bench.record(&[at(3000), at(1000), at(2000)]).await;
    let lanes = bench.lanes();
    let shop = [SHOP.to_owned()];
    let claim = async |limit| {
        let claimed =
            bench.store.claim_scheduled(bench.host, &lanes, &shop, limit, u64::MAX, LONG).await;
        claimed.expect("claims").rows.iter().map(|e| e.event.available_at).collect::<Vec<_>>()
    };
    assert_eq!(claim(1).await, [Some(1000)]);
    assert_eq!(claim(9).await, [Some(3000), Some(2000)], "in pk order");
    let other = bench.store.claim_scheduled(stranger(), &lanes, &shop, 9, u64::MAX, LONG).await;
    assert!(other.expect("claims").rows.is_empty());
}

pub(super) async fn a_survey_finds_what_has_work(bench: &Bench) {
    bench.hold().await;
    let lanes = bench.lanes();
    let of = |project: &str| NewEvent { project: project.into(), ..order("a") };
    bench.record(&[of("r"), of("p"), of("p"), of("q")]).await;
    let survey = bench.store.survey(&lanes).await.expect("surveys");
    let mut projects: Vec<_> = survey.seams.iter().map(|seam| &*seam.1).collect();
    projects.sort_unstable();
    assert_eq!(projects, ["p", "q", "r"]);
    assert!(bench.store.survey(&[]).await.expect("surveys").seams.is_empty());
    let claimed = bench.claim().await;
    assert_eq!(bench.store.survey(&lanes).await.expect("surveys").seams, survey.seams);
    let spills = ["b", "a"].map(|name| Spill { trigger: name.into(), ..failed() });
    let group =
        claimed.into_iter().map(|e| spills.iter().fold(done(e), |s, spill| s.spill(spill.clone())));
    bench.settle(group.collect()).await;
    let survey = bench.store.survey(&lanes).await.expect("surveys");
    assert!(survey.seams.is_empty());
    let mut pairs = survey.deliveries;
    pairs.sort_unstable();
    let pairs: Vec<_> = pairs.iter().map(|(p, t)| format!("{p}/{t}")).collect();
    assert_eq!(pairs, ["p/a", "p/b", "q/a", "q/b", "r/a", "r/b"]);
}
