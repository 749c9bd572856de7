//! A question to a health port, over plain HTTP.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Asks `http://HOST:PORT/healthz`; only the status of the answer counts.
///
/// # Errors
/// When there is no answer, or none with status 200.
pub async fn ask(url: &str) -> io::Result<()> {
    let address = url.trim_start_matches("http://").trim_end_matches("/healthz");
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(64).read_to_end(&mut answer).await?;
    let line = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
    if line.split(' ').nth(1) == Some("200") { Ok(()) } else { Err(io::Error::other(format!("it answers {line:?}"))) }
}
