//! As much of HTTP as the tests need for 127.0.0.1.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::cluster::{PATIENCE, until};

/// Status and body.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

/// One request on a connection of its own.
pub fn request(method: &str, port: u16, path: &str, body: &str) -> Result<Answer, String> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let text = |error: std::io::Error| format!("{method} {address}{path}: {error}");
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).map_err(text)?;
    // Longer than the stand-in's own deadline for `/fetch`, so that its reason is seen.
    stream.set_read_timeout(Some(Duration::from_secs(20))).map_err(text)?;
    let head = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).map_err(text)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).map_err(text)?;
    let whole = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = whole.split_once("\r\n\r\n").ok_or_else(|| format!("{method} {address}{path}: no answer: {whole:?}"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| format!("no status: {head}"))?;
    Ok(Answer { status, body: body.to_owned() })
}

/// The body of a page, once it is served with status 200.
#[track_caller]
pub fn page(port: u16, path: &str) -> String {
    until(&format!("page {path} of port {port}"), PATIENCE, || match request("GET", port, path, "")? {
        Answer { status: 200, body } => Ok(body),
        other => Err(format!("{other:?}")),
    })
}

/// What the pod behind `port` gets from `url`: the body of status 200.
#[track_caller]
pub fn fetched(port: u16, url: &str) -> String {
    let path = format!("/fetch?url={url}");
    let answer = until(&format!("{url} from the pod behind port {port}"), PATIENCE, || match request("GET", port, &path, "")? {
        Answer { status: 200, body } if body.starts_with("status: 200\n") => Ok(body),
        other => Err(format!("{other:?}")),
    });
    answer.split_once("\n\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}
