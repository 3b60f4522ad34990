//! A network between a host and its database that can fail.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{broadcast, watch},
    task::JoinHandle,
};

/// The length of the answer to a ping, which nothing hangs on.
const PONG: usize = 6;

/// What the network does to bytes on their way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Weather {
    /// Nothing.
    Fair,
    /// Holds each piece back for so long.
    Slow(Duration),
    /// Swallows them without a word; a connection that lost some stays silent
    /// when the weather is fair again.
    Hole,
    /// Swallows the answer to every other ping of a connection, which stays
    /// silent from then on, as above.
    Mute,
}

/// What happens to the connections that there are.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// They end.
    Now,
    /// The next answer on each, but for that to a ping, is swallowed, and then
    /// it ends: what was asked has been done.
    BeforeAnswer,
}

/// A TCP proxy in front of a PostgreSQL server.
pub(super) struct Proxy {
    url: String,
    weather: watch::Sender<Weather>,
    cuts: broadcast::Sender<Cut>,
    swallowed: Arc<AtomicU32>,
    listening: JoinHandle<()>,
}

impl Proxy {
    /// In front of the server that a URL names.
    pub(super) async fn start(url: &str) -> Self {
        let (head, rest) = url.split_once("127.0.0.1:").expect("the server is on this machine");
        let (port, name) = rest.split_once('/').expect("the URL names a database");
        let server = format!("127.0.0.1:{port}");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{head}{}/{name}", listener.local_addr().unwrap());
        let weather = watch::Sender::new(Weather::Fair);
        let cuts = broadcast::Sender::new(16);
        let swallowed = Arc::new(AtomicU32::new(0));
        let line = Line {
            weather: weather.subscribe(),
            silent: Arc::default(),
            swallow: Arc::default(),
            swallowed: Arc::clone(&swallowed),
        };
        let sender = cuts.clone();
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let line = Line { silent: Arc::default(), swallow: Arc::default(), ..line.clone() };
                tokio::spawn(line.carry(client, server.clone(), sender.subscribe()));
            }
        });
        Self { url, weather, cuts, swallowed, listening }
    }

    /// The database's URL through the proxy.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Changes the weather.
    pub(super) fn weather(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// Ends all connections, whatever they are at.
    pub(super) fn cut(&self) {
        // Nobody listens if there are none.
        let _ = self.cuts.send(Cut::Now);
    }

    /// Ends each connection when it next has an answer, which is lost.
    pub(super) fn cut_before_answers(&self) {
        let _ = self.cuts.send(Cut::BeforeAnswer);
    }

    /// How many answers were lost so.
    pub(super) fn swallowed(&self) -> u32 {
        self.swallowed.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
        self.cut();
    }
}

/// One connection.
#[derive(Clone)]
struct Line {
    weather: watch::Receiver<Weather>,
    /// It has lost bytes.
    silent: Arc<AtomicBool>,
    swallow: Arc<AtomicBool>,
    swallowed: Arc<AtomicU32>,
}

impl Line {
    async fn carry(self, client: TcpStream, server: String, mut cuts: broadcast::Receiver<Cut>) {
        let both = async {
            let Some(server) = self.reach(&server).await else { return };
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::select! {
                () = self.pump(from_client, to_server, false) => {}
                () = self.pump(from_server, to_client, true) => {}
            }
        };
        tokio::pin!(both);
        loop {
            tokio::select! {
                () = &mut both => return,
                cut = cuts.recv() => match cut {
                    Ok(Cut::BeforeAnswer) => self.swallow.store(true, Ordering::Relaxed),
                    Ok(Cut::Now) | Err(_) => return,
                },
            }
        }
    }

    /// A connection to the server, unless the way there is a hole: then
    /// whoever asks waits in vain.
    async fn reach(&self, server: &str) -> Option<TcpStream> {
        if *self.weather.borrow() == Weather::Hole {
            std::future::pending::<()>().await;
        }
        TcpStream::connect(server).await.ok()
    }

    async fn pump(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, answers: bool) {
        let mut piece = vec![0; 64 << 10];
        let mut pongs = 0_u32;
        loop {
            let read = from.read(&mut piece).await;
            let weather = *self.weather.borrow();
            pongs += u32::from(answers && matches!(read, Ok(PONG)));
            let mute =
                weather == Weather::Mute && matches!(read, Ok(PONG)) && pongs.is_multiple_of(2);
            if weather == Weather::Hole || answers && mute {
                self.silent.store(true, Ordering::Relaxed);
            }
            if self.silent.load(Ordering::Relaxed) {
                // The other end doesn't learn of the end of this one either.
                if matches!(read, Ok(0) | Err(_)) {
                    std::future::pending::<()>().await;
                }
                continue;
            }
            let Ok(size @ 1..) = read else { return };
            if let Weather::Slow(delay) = weather {
                tokio::time::sleep(delay).await;
            }
            if answers && size > PONG && self.swallow.load(Ordering::Relaxed) {
                self.swallowed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            if to.write_all(&piece[..size]).await.is_err() {
                return;
            }
        }
    }
}
