//! What is granted and leads to where no plugin may go.

use outrigger::{model::attempt::Source, sandbox::Settings};
use serde_json::json;
use tokio::{io::AsyncWriteExt as _, net::TcpListener};

use super::{Names, granted, local, probe_on, send, texts};
use crate::web::Web;

#[tokio::test]
async fn no_spelling_of_an_address_leads_inside() {
    let web = Web::start().await;
    let probe = probe_on(Settings { slots: 8, ..Settings::default() }, &Names::new(&[])).await;
    for (host, kind) in [
        ("127.0.0.1", "loopback"),
        ("127.1", "loopback"),
        ("2130706433", "loopback"),
        ("0x7f000001", "loopback"),
        ("0x7f.0.0.1", "loopback"),
        ("0177.0.0.1", "loopback"),
        ("127.0.0.1.", "loopback"),
        ("0", "unspecified"),
        ("0.0.0.0", "unspecified"),
        ("10.0.0.1", "private"),
        ("172.16.0.1", "private"),
        ("192.168.0.1", "private"),
        ("100.64.0.1", "shared"),
        ("169.254.169.254", "link-local"),
        ("2852039166", "link-local"),
        ("0xA9FEA9FE", "link-local"),
        ("0251.0376.0251.0376", "link-local"),
        ("169.254.43518", "link-local"),
        ("168.63.129.16", "metadata"),
        ("192.0.2.1", "documentation"),
        ("198.18.0.1", "benchmarking"),
        ("224.0.0.1", "multicast"),
        ("255.255.255.255", "broadcast"),
        ("[::]", "unspecified"),
        ("[::1]", "loopback"),
        ("[0:0:0:0:0:0:0:1]", "loopback"),
        ("[::ffff:127.0.0.1]", "loopback"),
        ("[::ffff:a9fe:a9fe]", "link-local"),
        ("[::127.0.0.1]", "reserved"),
        ("[64:ff9b::7f00:1]", "loopback"),
        ("[2002:7f00:1::]", "loopback"),
        ("[2001:0:4136:e378:8000:63bf:3fff:fdd2]", "reserved"),
        ("[fd00:ec2::254]", "private"),
        ("[fe80::1]", "link-local"),
        ("[fec0::1]", "private"),
        ("[ff02::1]", "multicast"),
    ] {
        let authority = format!("{host}:{}", web.port);
        let url = format!("http://{authority}/hello?token=hush");
        let (said, report) = send(&probe, &authority, json!({"url": url})).await;
        assert_eq!(said, "http ErrorCode::DestinationIpProhibited", "{host}");
        let logs = texts(&report.logs, Source::Host).concat();
        let named = logs.contains(&format!("its address is {kind}")) && !logs.contains("hush");
        assert!(named, "{host}: {logs}");
    }
    assert!(web.seen().is_empty());
}

#[tokio::test]
async fn responses_before_the_response_are_counted_too() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let sent = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let hint = format!("HTTP/1.1 103 Early Hints\r\nlink: {}\r\n\r\n", "x".repeat(30_000));
        let mut sent = 0_usize;
        while stream.write_all(hint.as_bytes()).await.is_ok() {
            sent += hint.len();
        }
        sent
    });
    let probe = probe_on(local(), &Names::new(&[])).await;
    let url = format!("http://{authority}/hello");
    let (said, report) = send(&probe, &authority, json!({"url": url})).await;
    assert!(said.starts_with("http ErrorCode::"), "{said}");
    let logs = texts(&report.logs, Source::Host).concat();
    assert!(logs.contains("this host's `sandbox.response_bytes` is 4MiB"), "{logs}");
    let sent = sent.await.unwrap();
    assert!(sent < 32 << 20, "{sent} bytes were read, or lay in buffers");
}

#[tokio::test]
async fn a_name_is_only_as_good_as_its_addresses() {
    let web = Web::start().await;
    let port = web.port;
    for inside in ["127.0.0.2", "10.0.0.1", "169.254.169.254", "::1", "fd00:ec2::254"] {
        let probe = probe_on(local(), &Names::new(&[&[inside]])).await;
        let url = format!("http://a.example:{port}/hello");
        let (said, report) = send(&probe, &format!("a.example:{port}"), json!({"url": url})).await;
        assert_eq!(said, "http ErrorCode::DestinationIpProhibited", "{inside}");
        let logs = texts(&report.logs, Source::Host).concat();
        assert!(!logs.contains(inside), "an address inside is nobody's business: {logs}");
    }
    assert!(web.seen().is_empty());
    // Where only some are inside, those are left out.
    let names = Names::new(&[&["10.0.0.1", "127.0.0.2", "127.0.0.1"]]);
    let probe = probe_on(local(), &names).await;
    let url = format!("http://a.example:{port}/hello");
    let (said, _) = send(&probe, &format!("a.example:{port}"), json!({"url": url})).await;
    assert_eq!(said, "200 hello");
}

/// The name leads outside when it is asked for first, and inside afterwards.
#[tokio::test]
async fn a_name_that_changes_its_mind_is_checked_again() {
    let web = Web::start().await;
    let names = Names::new(&[&["127.0.0.1"], &["169.254.169.254"]]);
    let probe = probe_on(local(), &names).await;
    let url = format!("http://a.example:{}/hello", web.port);
    let twice = json!([
        {"op": "http", "url": url, "ignore": true}, {"op": "http", "url": url, "ignore": true},
    ]);
    let report = probe.call(granted(&[&format!("a.example:{}", web.port)], &twice)).await;
    let said = texts(&report.logs, Source::Log);
    assert_eq!(said, ["200 hello", "http ErrorCode::DestinationIpProhibited"]);
    assert_eq!(names.asked().len(), 2, "each request asks once");
    assert_eq!(web.seen().len(), 1);
}

#[tokio::test]
async fn a_redirect_is_a_request_like_any_other() {
    let web = Web::start().await;
    let probe = probe_on(local(), &Names::new(&[&["127.0.0.1"]])).await;
    let own = format!("127.0.0.1:{}", web.port);
    for (to, code) in [
        ("http://169.254.169.254/latest/meta-data", "DestinationIpProhibited"),
        ("http://[fd00:ec2::254]/latest", "DestinationIpProhibited"),
        ("http://2852039166/latest", "DestinationIpProhibited"),
        ("http://b.example/hello", "HttpRequestDenied"),
        ("https://169.254.169.254/", "HttpRequestDenied"),
    ] {
        let grants = [&*own, "http://169.254.169.254", "[fd00:ec2::254]"];
        let url = format!("http://{own}/to?url={to}");
        let followed = json!([{"op": "http", "url": url, "follow": true, "ignore": true}]);
        let report = probe.call(granted(&grants, &followed)).await;
        let said = texts(&report.logs, Source::Log).concat();
        assert_eq!(said, format!("http ErrorCode::{code}"), "{to}");
        let (said, _) = send(&probe, &own, json!({"url": url})).await;
        assert!(said.starts_with("302"), "the host follows none: {said}");
    }
}

#[tokio::test]
async fn a_user_in_the_authority_is_no_host() {
    let web = Web::start().await;
    let port = web.port;
    let probe = probe_on(local(), &Names::new(&[&["127.0.0.1"]])).await;
    for authority in [
        format!("a.example@b.example:{port}"),
        format!("user:word@a.example:{port}"),
        format!("b.example:80@a.example:{port}"),
        format!("@a.example:{port}"),
    ] {
        let url = format!("http://{authority}/hello");
        let (said, report) = send(&probe, &format!("a.example:{port}"), json!({"url": url})).await;
        assert!(said.starts_with("http ErrorCode::HttpRequestUriInvalid"), "{authority}: {said}");
        let logs = texts(&report.logs, Source::Host).concat();
        assert!(logs.contains("has a user in it") && !logs.contains("word"), "{logs}");
    }
    for (method, header, code) in [
        ("CONNECT", "x-a", "HttpRequestMethodInvalid"),
        ("GET", "host", "header host"),
        ("GET", "transfer-encoding", "header transfer-encoding"),
        ("GET", "connection", "header connection"),
        ("GET", "upgrade", "header upgrade"),
        ("GET", "proxy-authorization", "header proxy-authorization"),
    ] {
        let url = format!("http://a.example:{port}/hello");
        let step = json!({"url": url, "method": method, "headers": {header: "b.example"}});
        let (said, _) = send(&probe, &format!("a.example:{port}"), step).await;
        assert!(said.contains(code), "{method} {header}: {said}");
    }
    assert!(web.seen().is_empty());
}
