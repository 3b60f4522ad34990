//! Servers that must prove who they are.

use std::sync::Arc;

use outrigger::{
    model::attempt::Source,
    sandbox::{Network, Plugin, Resolve, Sandbox},
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use super::{Names, local, send, texts};
use crate::guests;

/// A server with a certificate for `a.example` that only it vouches for.
async fn server() -> (u16, CertificateDer<'static>) {
    let own = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let certificate = own.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.into())
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.read(&mut [0; 4096]).await;
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret";
            let _ = stream.write_all(answer).await;
        }
    });
    (port, certificate)
}

async fn probe(roots: Option<Vec<CertificateDer<'static>>>) -> Arc<Plugin> {
    let resolver = Names::new(&[&["127.0.0.1"]]) as Arc<dyn Resolve>;
    let sandbox = Sandbox::on(local(), Network { resolver, roots }).unwrap();
    sandbox.load(guests::probe()).await.expect("the probe is a plugin")
}

#[tokio::test]
async fn who_can_t_prove_it_is_not_spoken_to() {
    let (port, certificate) = server().await;
    let url = |host: &str| json!({"url": format!("https://{host}:{port}/")});
    let trusting = probe(Some(vec![certificate])).await;
    let (said, _) = send(&trusting, &format!("a.example:{port}"), url("a.example")).await;
    assert_eq!(said, "200 secret");
    for (probe, host) in [
        (&trusting, "b.example"),
        (&trusting, "127.0.0.1"),
        (&self::probe(None).await, "a.example"),
    ] {
        let (said, report) = send(probe, &format!("{host}:{port}"), url(host)).await;
        assert_eq!(said, "http ErrorCode::TlsCertificateError", "{host}");
        let logs = texts(&report.logs, Source::Host).concat();
        assert!(logs.contains("certificate"), "{logs}");
    }
}
