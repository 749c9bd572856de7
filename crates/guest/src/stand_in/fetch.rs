//! `/fetch?url=…`: sends a request from inside the pod and returns the answer.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::Resolver;

/// Largest answer that is passed on.
const MAX_BODY: usize = 4 << 20;
const CONNECT: Duration = Duration::from_secs(5);
const WHOLE: Duration = Duration::from_secs(15);

/// What the other side answered.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) status: u16,
    pub(crate) remote: String,
    pub(crate) body: Bytes,
}

/// Gets `http://HOST[:PORT][/PATH]`.
///
/// # Errors
/// When the URL is of another form, the name does not resolve, or nobody answers in time.
pub(crate) async fn fetch(url: &str, resolver: &Resolver) -> Result<Fetched> {
    match tokio::time::timeout(WHOLE, get(url, resolver)).await {
        Ok(result) => result,
        Err(_) => bail!("no answer from {url} within {} s", WHOLE.as_secs()),
    }
}

async fn get(url: &str, resolver: &Resolver) -> Result<Fetched> {
    let uri: http::Uri = url.parse().with_context(|| format!("{url:?} is not a URL"))?;
    if uri.scheme_str() != Some("http") {
        bail!("only http:// URLs can be fetched, not {url:?}");
    }
    let authority = uri.authority().with_context(|| format!("{url:?} names no host"))?;
    let port = authority.port_u16().unwrap_or(80);
    let (resolver, host) = (resolver.clone(), authority.host().to_owned());
    let addresses = tokio::task::spawn_blocking(move || resolver.resolve(&host)).await??;
    let (stream, address) = connect(&addresses, port).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = http::Request::get(path).header("Host", authority.as_str()).header("User-Agent", "Mullion-stand-in").header("Connection", "close");
    let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await.with_context(|| format!("request to {url} failed"))?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
    driver.abort();
    let body = body.map_err(|error| anyhow::anyhow!("reading the answer of {url} failed: {error}"))?.to_bytes();
    Ok(Fetched { status, remote: format!("{address}:{port}"), body })
}

async fn connect(addresses: &[IpAddr], port: u16) -> Result<(TcpStream, IpAddr)> {
    let mut last = None;
    for address in addresses {
        match tokio::time::timeout(CONNECT, TcpStream::connect((*address, port))).await {
            Ok(Ok(stream)) => return Ok((stream, *address)),
            Ok(Err(error)) => last = Some(format!("cannot connect to {address}:{port}: {error}")),
            Err(_) => last = Some(format!("cannot connect to {address}:{port} within {} s", CONNECT.as_secs())),
        }
    }
    bail!(last.unwrap_or_else(|| "the name has no address".to_owned()))
}
