//! A TCP proxy in front of a server, to cut or freeze its connections.

use std::sync::{Arc, Mutex};

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

/// What the connections are told: the last of these is the line of the next one, the others are stranded.
type Lines = Arc<Mutex<Vec<watch::Sender<Line>>>>;

/// The request whose reply is lost next.
type LostReply = Arc<Mutex<Option<&'static [u8]>>>;

/// Forwards connections to a server, until it is told otherwise.
pub struct Proxy {
    port: u16,
    lines: Lines,
    lost_reply: LostReply,
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
        let lines = Lines::new(Mutex::new(vec![watch::Sender::new(Line::Open)]));
        let lost_reply = LostReply::default();
        let accepting = accept(listener, server.to_owned(), Arc::clone(&lines), Arc::clone(&lost_reply));
        let accepting = tokio::spawn(accepting);
        let user = user.map_or(String::new(), |user| format!("{user}@"));
        (Self { port, lines, lost_reply, accepting }, format!("{scheme}://{user}127.0.0.1:{port}/{path}"))
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Closes all connections, and every new one.
    pub fn cut(&self) {
        self.set(Line::Cut);
    }

    /// Stops all bytes, and keeps the connections.
    pub fn freeze(&self) {
        self.set(Line::Frozen);
    }

    /// Lets nothing pass on the connections that there are, ever again, and does not close them either, as when the
    /// server's machine is gone. New ones are not affected.
    pub fn strand(&self) {
        self.freeze();
        self.lines.lock().unwrap().push(watch::Sender::new(Line::Open));
    }

    /// Passes the next request with these bytes on, and closes its connection when the server has replied.
    pub fn lose_reply_to(&self, request: &'static [u8]) {
        *self.lost_reply.lock().unwrap() = Some(request);
    }

    /// Whether that has happened.
    pub fn has_lost_reply(&self) -> bool {
        self.lost_reply.lock().unwrap().is_none()
    }

    /// Lets everything pass again.
    pub fn heal(&self) {
        self.set(Line::Open);
    }

    fn set(&self, line: Line) {
        self.lines.lock().unwrap().last().unwrap().send_replace(line);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        for line in self.lines.lock().unwrap().iter() {
            line.send_replace(Line::Cut);
        }
    }
}

async fn accept(listener: TcpListener, server: String, lines: Lines, lost_reply: LostReply) {
    while let Ok((client, _)) = listener.accept().await {
        let (server, lost_reply) = (server.clone(), Arc::clone(&lost_reply));
        let lines = lines.lock().unwrap().last().unwrap().subscribe();
        tokio::spawn(async move {
            if *lines.borrow() == Line::Cut {
                return;
            }
            if let Ok(server) = TcpStream::connect(server).await {
                forward(client, server, lines, lost_reply).await;
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

async fn forward(client: TcpStream, server: TcpStream, mut lines: watch::Receiver<Line>, lost_reply: LostReply) {
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
            Ok(Woken::Line) => continue,
            Err(()) => None,
        };
        let Some(moved) = moved else { return };
        if is_lost(&lost_reply, &buffer[..moved]) {
            let _ = server.readable().await;
            return;
        }
    }
}

fn is_lost(lost_reply: &LostReply, moved: &[u8]) -> bool {
    let mut lost = lost_reply.lock().unwrap();
    lost.take_if(|request| moved.windows(request.len()).any(|bytes| bytes == *request)).is_some()
}

/// Moves what has arrived and tells how much, or none when a side has closed.
async fn move_once(from: &TcpStream, to: &TcpStream, buffer: &mut [u8]) -> Option<usize> {
    let read = match from.try_read(buffer) {
        Ok(0) => return None,
        Ok(read) => read,
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
        Err(_) => return None,
    };
    let mut unsent = &buffer[..read];
    while !unsent.is_empty() {
        match to.try_write(unsent) {
            Ok(written) => unsent = &unsent[written..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if to.writable().await.is_err() {
                    return None;
                }
            }
            Err(_) => return None,
        }
    }
    Some(read)
}
