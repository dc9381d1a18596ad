//! A small HTTP server that keeps what it is sent, as the address that CloudFormation wants an answer at.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A request that came in.
#[derive(Clone, Debug)]
pub struct Received {
    /// `PUT /path?query HTTP/1.1`
    pub request_line: String,
    /// The headers, with names in small letters.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Value,
}

/// Answers every request with one status.
pub struct HttpSink {
    port: u16,
    received: Arc<Mutex<Vec<Received>>>,
    serving: JoinHandle<()>,
}

impl HttpSink {
    /// Starts the server.
    pub async fn answering(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&received);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let request = serve(stream, status).await;
                kept.lock().unwrap().push(request);
            }
        });
        Self { port, received, serving }
    }

    /// An address on it, signed as one of S3 is.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/arn%3Aaws%3Acloudformation/answer?Signature=s3cret", self.port)
    }

    /// All requests so far.
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

impl Drop for HttpSink {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut stream: TcpStream, status: u16) -> Received {
    let RawRequest { line, headers, body } = read_request(&mut stream).await;
    answer(&mut stream, status, "").await;
    Received { request_line: line, headers, body: serde_json::from_slice(&body).unwrap() }
}

/// A request as it came in.
pub(crate) struct RawRequest {
    pub(crate) line: String,
    /// With names in small letters.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl RawRequest {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

/// Reads one request.
pub(crate) async fn read_request(stream: &mut TcpStream) -> RawRequest {
    let mut stream = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let line = lines.remove(0);
    let headers: Vec<_> = lines
        .iter()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, n)| n.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    RawRequest { line, headers, body }
}

/// Answers a request and says that the connection ends.
pub(crate) async fn answer(stream: &mut TcpStream, status: u16, body: &str) {
    let length = body.len();
    let answer = format!("HTTP/1.1 {status} Answer\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(answer.as_bytes()).await.unwrap();
}
