//! Bodies that are too large, too slow, or unwanted: always an answer, never a
//! connection that breaks while the client still sends.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::server::{ADMIN, Server};

/// Far more than the buffers between client and server hold.
const LARGE: usize = 32 << 20;

struct Raw(TcpStream);

impl Raw {
    async fn connect(server: &Server) -> Self {
        let address = server.url.trim_start_matches("http://");
        Self(TcpStream::connect(address).await.unwrap())
    }

    async fn send(&mut self, head: &str, body: &[u8]) {
        let head = head.replace('\n', "\r\n");
        self.0.write_all(format!("{head}\r\n\r\n").as_bytes()).await.unwrap();
        self.0.write_all(body).await.unwrap();
    }

    /// Reads one answer with a `Content-Length`.
    async fn answer(&mut self) -> (u16, String) {
        let mut bytes = Vec::new();
        let head_end = loop {
            if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            self.read_more(&mut bytes).await;
        };
        let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().unwrap())
        });
        let end = head_end + length.unwrap_or(0);
        while bytes.len() < end {
            self.read_more(&mut bytes).await;
        }
        (status, String::from_utf8(bytes[head_end..end].to_vec()).unwrap())
    }

    async fn read_more(&mut self, bytes: &mut Vec<u8>) {
        let read = tokio::time::timeout(Duration::from_mins(1), self.0.read_buf(bytes));
        assert!(read.await.unwrap().unwrap() > 0, "the connection ended: {bytes:?}");
    }
}

fn head(path: &str, key: &str, rest: &str) -> String {
    format!("POST {path} HTTP/1.1\nHost: test\nAuthorization: Bearer {key}\n{rest}")
}

#[tokio::test]
async fn a_client_that_sends_everything_first_gets_its_answer() {
    let server = Server::with_project("shop").await;
    let body = vec![b' '; LARGE];
    let events = "/v1/projects/shop/events";
    let length = format!("Content-Length: {LARGE}");
    for (path, key, status, problem) in [
        (events, ADMIN, 413, "too-large"),
        (events, "or_wrong", 401, "wrong-key"),
        ("/v1/nope", ADMIN, 404, "unknown-path"),
        ("/v1/projects/shop", ADMIN, 405, "method-not-allowed"),
        ("/v1/projects/shop/triggers/t/try", ADMIN, 501, "not-supported"),
    ] {
        let mut raw = Raw::connect(&server).await;
        raw.send(&head(path, key, &length), &body).await;
        let (got, text) = raw.answer().await;
        assert_eq!(got, status, "{path}: {text}");
        assert!(text.contains(problem), "{path}: {text}");
        // The connection is as good as before.
        raw.send(&head("/v1/projects/shop/enable", ADMIN, "Content-Length: 0"), b"").await;
        assert_eq!(raw.answer().await.0, 200, "{path}");
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_is_limited_too() {
    let server = Server::with_project("shop").await;
    let mut raw = Raw::connect(&server).await;
    raw.send(&head("/v1/projects/shop/events", ADMIN, "Transfer-Encoding: chunked"), b"").await;
    let piece = [b"4000\r\n".as_slice(), &[b' '; 0x4000], b"\r\n"].concat();
    for _ in 0..LARGE / 0x4000 {
        raw.0.write_all(&piece).await.unwrap();
    }
    raw.0.write_all(b"0\r\n\r\n").await.unwrap();
    let (status, text) = raw.answer().await;
    assert_eq!(status, 413, "{text}");
}

#[tokio::test]
async fn who_asks_before_sending_is_told_before_sending() {
    let server = Server::with_project("shop").await;
    let mut raw = Raw::connect(&server).await;
    let rest = format!("Content-Length: {LARGE}\nExpect: 100-continue");
    raw.send(&head("/v1/projects/shop/events", ADMIN, &rest), b"").await;
    let (status, text) = raw.answer().await;
    assert_eq!(status, 413, "{text}");

    let mut raw = Raw::connect(&server).await;
    let body = br#"{"resource":"r","aggregateId":"1","eventName":"n","payload":1}"#;
    let rest = format!("Content-Length: {}\nExpect: 100-continue", body.len());
    raw.send(&head("/v1/projects/shop/events", ADMIN, &rest), b"").await;
    assert_eq!(raw.answer().await.0, 100);
    raw.0.write_all(body).await.unwrap();
    let (status, text) = raw.answer().await;
    assert_eq!(status, 201, "{text}");
}

#[tokio::test]
async fn a_body_that_ends_early_records_nothing() {
    let server = Server::with_project("shop").await;
    let mut raw = Raw::connect(&server).await;
    let body = br#"{"resource":"r","aggregateId":"1","eventName":"n","payload":1}"#;
    raw.send(&head("/v1/projects/shop/events", ADMIN, "Content-Length: 1000"), body).await;
    raw.0.shutdown().await.unwrap();
    let mut rest = Vec::new();
    // Half of a request has no answer that must be had.
    let _ = raw.0.read_to_end(&mut rest).await;
    assert_eq!(server.get("/v1/projects/shop/events").await.body["items"], serde_json::json!([]));
}
