//! The way out of this host: who may use it at once, where names are looked up,
//! and to which addresses connections are made.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use rustls::{ClientConfig, RootCertStore, pki_types::CertificateDer};
use tokio::{
    net::TcpStream,
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use wasmtime_wasi_http::Error;

use super::{HttpSettings, addresses, session::Session};
use crate::model::http::{Host, Outgoing};

/// Addresses of one name that a connection is tried to.
const TRIED: usize = 8;

/// Lookups at once, of all projects and of one. Each holds a thread for as
/// long as it takes, and can't be called off.
const LOOKUPS: usize = 64;
const LOOKUPS_OF_ONE: usize = 8;

/// Looks names up.
pub trait Resolve: Send + Sync {
    /// The addresses of a name. Called on a thread that may wait.
    ///
    /// # Errors
    /// When the name has none, or nobody knows.
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// Asks this machine, as every program on it does.
struct Machine;

impl Resolve for Machine {
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
    }
}

/// What stands between guests and the network; tests put their own there.
#[derive(Clone)]
pub struct Network {
    /// Looks names up; the address check comes after it.
    pub resolver: Arc<dyn Resolve>,
    /// Who vouches for servers; whoever this machine trusts, if absent.
    pub roots: Option<Vec<CertificateDer<'static>>>,
}

impl Default for Network {
    fn default() -> Self {
        Self { resolver: Arc::new(Machine), roots: None }
    }
}

/// What one project may do at once.
pub(super) struct Share {
    connections: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
}

/// What a request holds until its response has been read.
pub(super) struct Turn {
    _permits: [OwnedSemaphorePermit; 3],
}

/// The way out, for all guests of one sandbox.
pub(in crate::sandbox) struct Client {
    pub(super) settings: HttpSettings,
    network: Network,
    shares: Mutex<HashMap<String, Weak<Share>>>,
    connections: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
    /// Made at the first request that needs it: reading the roots takes time.
    /// `None` where that failed, which is told once.
    tls: OnceCell<Option<Arc<ClientConfig>>>,
}

impl Client {
    pub(in crate::sandbox) fn new(settings: HttpSettings, network: Network) -> Arc<Self> {
        Arc::new(Self {
            connections: Arc::new(Semaphore::new(settings.connections as usize)),
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
            shares: Mutex::default(),
            tls: OnceCell::new(),
            settings,
            network,
        })
    }

    /// What a project may do at once: three of four connections, so that there
    /// is room for others whatever it does.
    pub(super) fn share(&self, project: &str) -> Arc<Share> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(project).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let all = self.settings.connections as usize;
        let share = Arc::new(Share {
            connections: Arc::new(Semaphore::new((all - all / 4).max(1))),
            lookups: Arc::new(Semaphore::new(LOOKUPS_OF_ONE)),
        });
        shares.insert(project.to_owned(), Arc::downgrade(&share));
        share
    }

    /// Waits until the call, its project and this host have room for one more
    /// request.
    pub(super) async fn turn(&self, session: &Session) -> Result<Turn, Error> {
        let limits = [&session.turns, &session.share.connections, &self.connections];
        let [call, project, host] = limits.map(|limit| permit(Arc::clone(limit)));
        Ok(Turn { _permits: [call.await?, project.await?, host.await?] })
    }

    /// Connects to one of a host's addresses, each checked, and to no other.
    pub(super) async fn connect(
        &self,
        request: &Outgoing,
        session: &Session,
        until: Instant,
    ) -> Result<TcpStream, Error> {
        let found = match &request.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.lookup(name, session).await?,
        };
        let checked = found.iter().map(|address| addresses::check(*address, &self.settings.allow));
        let (fit, unfit): (Vec<_>, Vec<_>) = checked.partition(Result::is_ok);
        let fit: Vec<IpAddr> = fit.into_iter().flatten().take(TRIED).collect();
        if fit.is_empty() {
            return Err(match unfit.into_iter().find_map(Result::err) {
                Some(kind) => session.prohibit(request, kind),
                None => no_such_name(),
            });
        }
        let mut last = Error::ConnectionTimeout;
        for (tried, address) in fit.iter().enumerate() {
            // An address that doesn't answer leaves time for the others.
            let left = until.saturating_duration_since(Instant::now());
            let turn = left / u32::try_from(fit.len() - tried).unwrap_or(1);
            let connecting = TcpStream::connect(SocketAddr::new(*address, request.port));
            match tokio::time::timeout(turn, connecting).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = unreachable(&error),
                Err(_) => last = Error::ConnectionTimeout,
            }
        }
        Err(last)
    }

    async fn lookup(&self, name: &str, session: &Session) -> Result<Vec<IpAddr>, Error> {
        let held = [
            permit(Arc::clone(&session.share.lookups)).await?,
            permit(Arc::clone(&self.lookups)).await?,
        ];
        let (resolver, name) = (Arc::clone(&self.network.resolver), name.to_owned());
        let lookup = tokio::task::spawn_blocking(move || {
            // Held until it has ended, even if nobody waits for it any more.
            let _held = held;
            resolver.resolve(&name)
        });
        match lookup.await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(_)) => Err(no_such_name()),
            Err(_) => Err(Error::InternalError(None)),
        }
    }

    /// How servers prove who they are.
    pub(super) async fn tls(&self) -> Result<Arc<ClientConfig>, Error> {
        let make = async || {
            let roots = self.network.roots.clone();
            let made = tokio::task::spawn_blocking(move || tls(roots)).await;
            let made = made.map_err(|error| error.to_string()).flatten();
            made.inspect_err(|error| tracing::warn!(error, "plugins can't send requests over TLS"))
                .ok()
        };
        self.tls.get_or_init(make).await.clone().ok_or(Error::ConfigurationError)
    }
}

async fn permit(semaphore: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Error> {
    // It fails only for a semaphore that was closed, which none is.
    semaphore.acquire_owned().await.map_err(|_| Error::InternalError(None))
}

fn tls(roots: Option<Vec<CertificateDer<'static>>>) -> Result<Arc<ClientConfig>, String> {
    let mut store = RootCertStore::empty();
    let found = roots.unwrap_or_else(|| rustls_native_certs::load_native_certs().certs);
    let (added, _) = store.add_parsable_certificates(found);
    if added == 0 {
        return Err("this machine trusts no certificate authority".into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Tickets are what a server knows its clients again by: projects have
    // nothing in common there.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

fn no_such_name() -> Error {
    Error::DnsError { rcode: Some("the name has no address".into()), info_code: None }
}

fn unreachable(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Error::ConnectionRefused,
        io::ErrorKind::TimedOut => Error::ConnectionTimeout,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            Error::DestinationIpUnroutable
        }
        _ => Error::DestinationUnavailable,
    }
}
