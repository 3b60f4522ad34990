//! Events of many requests at once.

use std::sync::Arc;

use futures::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection, SqliteConnection};
use tokio::task::JoinSet;

use super::shop;
use crate::{database::Database, hosts::Host};

on_both! {
    requests_at_once_share_transactions_and_keep_their_answers
    an_event_that_is_refused_fails_alone
}

const EVENTS: &str = "/v1/projects/shop/events";

async fn run(database: &Database, postgres: &'static str, sqlite: &'static str) {
    if database.url.starts_with("sqlite:") {
        SqliteConnection::connect(&database.url).await.unwrap().execute(sqlite).await.unwrap();
    } else {
        PgConnection::connect(&database.url).await.unwrap().execute(postgres).await.unwrap();
    }
}

fn event(name: &str, key: Option<&str>) -> Value {
    json!({
        "resource": "order", "aggregateId": "a", "eventName": name, "payload": {}, "dedupKey": key
    })
}

async fn all_at_once(host: &Host, events: Vec<Value>) -> Vec<(StatusCode, Value)> {
    join_all(events.into_iter().map(|event| host.send(Method::POST, EVENTS, Some(event)))).await
}

async fn requests_at_once_share_transactions_and_keep_their_answers(database: &Database) {
    let host = shop(database).await;
    let mut fewest = u64::MAX;
    for round in 0..20 {
        let before = host.metric("outrigger_record_commits_total").await;
        // Each key comes twice, in requests of their own.
        let events = (0..64).map(|n| event("x", Some(&format!("{round}/{}", n % 32)))).collect();
        let answers = all_at_once(&host, events).await;
        for n in 0..32 {
            let mut pair = [&answers[n], &answers[n + 32]];
            pair.sort_by_key(|(status, _)| *status);
            let [(first, receipt), (second, problem)] = pair;
            assert_eq!((first.as_u16(), second.as_u16()), (201, 409), "{receipt} {problem}");
            assert_eq!(receipt["messageId"], problem["messageId"]);
        }
        fewest = fewest.min(host.metric("outrigger_record_commits_total").await - before);
        if fewest <= 16 {
            break;
        }
    }
    assert!(fewest <= 16, "{fewest} transactions for 64 requests");
    let before = host.metric("outrigger_record_commits_total").await;
    let (status, _) = host.send(Method::POST, EVENTS, Some(event("x", None))).await;
    assert_eq!(status, StatusCode::CREATED);
    assert_eq!(host.metric("outrigger_record_commits_total").await, before + 1);
}

async fn an_event_that_is_refused_fails_alone(database: &Database) {
    let host = shop(database).await;
    run(
        database,
        "ALTER TABLE outrigger_outbox ADD CHECK (event_name <> 'poison')",
        "CREATE TRIGGER poison BEFORE INSERT ON outrigger_outbox WHEN new.event_name = 'poison'
         BEGIN SELECT RAISE(ABORT, 'poison'); END",
    )
    .await;
    for _ in 0..3 {
        let of = |n| event(if n == 40 { "poison" } else { "x" }, None);
        let answers = all_at_once(&host, (0..64).map(of).collect()).await;
        for (n, (status, answer)) in answers.iter().enumerate() {
            let expected = if n == 40 { 500 } else { 201 };
            assert_eq!(status.as_u16(), expected, "{n}: {answer}");
        }
    }
}

/// A key that an application has used and not committed holds up nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_held_holds_up_no_other_request() {
    let database = Database::postgres().await;
    let host = shop(&database).await;
    let mut application = PgConnection::connect(&database.url).await.unwrap();
    let mut held = application.begin().await.unwrap();
    held.execute(
        "INSERT INTO outrigger_outbox
             (project_id, resource, aggregate_id, event_name, payload_json, dedup_key)
         VALUES ('shop', 'order', 'a', 'x', '{}', 'held')",
    )
    .await
    .unwrap();
    let of = |n| event("x", (n % 8 == 0).then_some("held"));
    let (host, mut tasks) = (Arc::new(host), JoinSet::new());
    for n in 0..64 {
        let (host, event) = (Arc::clone(&host), of(n));
        tasks.spawn(async move { (n, host.send(Method::POST, EVENTS, Some(event)).await) });
    }
    for _ in 0..56 {
        let (n, (status, answer)) = tasks.join_next().await.unwrap().unwrap();
        assert_eq!(status, StatusCode::CREATED, "{n}: {answer}");
        assert_ne!(n % 8, 0, "those with the key wait");
    }
    held.rollback().await.unwrap();
    let mut waiting = Vec::new();
    while let Some(done) = tasks.join_next().await {
        let (_, (status, _)) = done.unwrap();
        waiting.push(status.as_u16());
    }
    waiting.sort_unstable();
    assert_eq!(waiting, [201, 409, 409, 409, 409, 409, 409, 409]);
}
