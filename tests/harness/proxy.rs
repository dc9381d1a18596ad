//! A TCP proxy in front of a server, to cut or freeze its connections.

use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Line {
    Open,
    /// Bytes stop, connections stay.
    Frozen,
    /// Connections are closed, new ones too.
    Cut,
}

/// Forwards connections to a server, until it is told otherwise.
pub struct Proxy {
    port: u16,
    line: Arc<watch::Sender<Line>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// A proxy before the server of this address, `scheme://user:password@host:port/path`; and the address through it.
    pub async fn before(url: &str) -> (Self, String) {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, server) = authority.rsplit_once('@').map_or((None, authority), |(user, at)| (Some(user), at));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let line = Arc::new(watch::Sender::new(Line::Open));
        let accepting = tokio::spawn(accept(listener, server.to_owned(), Arc::clone(&line)));
        let user = user.map_or(String::new(), |user| format!("{user}@"));
        (Self { port, line, accepting }, format!("{scheme}://{user}127.0.0.1:{port}/{path}"))
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Closes all connections, and every new one.
    pub fn cut(&self) {
        self.line.send_replace(Line::Cut);
    }

    /// Stops all bytes, and keeps the connections.
    pub fn freeze(&self) {
        self.line.send_replace(Line::Frozen);
    }

    /// Lets everything pass again.
    pub fn heal(&self) {
        self.line.send_replace(Line::Open);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, server: String, line: Arc<watch::Sender<Line>>) {
    while let Ok((client, _)) = listener.accept().await {
        let (server, lines) = (server.clone(), line.subscribe());
        tokio::spawn(async move {
            if *lines.borrow() == Line::Cut {
                return;
            }
            if let Ok(server) = TcpStream::connect(server).await {
                forward(client, server, lines).await;
            }
        });
    }
}

/// What woke a forwarder up.
enum Woken {
    Client,
    Server,
    Line,
}

async fn forward(client: TcpStream, server: TcpStream, mut lines: watch::Receiver<Line>) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let line = *lines.borrow_and_update();
        let woken = match line {
            Line::Cut => return,
            Line::Frozen => lines.changed().await.map(|()| Woken::Line).map_err(drop),
            Line::Open => tokio::select! {
                ready = client.readable() => ready.map(|()| Woken::Client).map_err(drop),
                ready = server.readable() => ready.map(|()| Woken::Server).map_err(drop),
                changed = lines.changed() => changed.map(|()| Woken::Line).map_err(drop),
            },
        };
        let moved = match woken {
            Ok(Woken::Client) => move_once(&client, &server, &mut buffer).await,
            Ok(Woken::Server) => move_once(&server, &client, &mut buffer).await,
            Ok(Woken::Line) => true,
            Err(()) => false,
        };
        if !moved {
            return;
        }
    }
}

/// Moves what has arrived; false when a side has closed.
async fn move_once(from: &TcpStream, to: &TcpStream, buffer: &mut [u8]) -> bool {
    let mut unsent = match from.try_read(buffer) {
        Ok(0) => return false,
        Ok(read) => &buffer[..read],
        Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
    };
    while !unsent.is_empty() {
        match to.try_write(unsent) {
            Ok(written) => unsent = &unsent[written..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if to.writable().await.is_err() {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
    true
}
