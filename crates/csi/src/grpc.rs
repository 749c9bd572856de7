//! Calls over a plug-in's unix socket.

use std::future::Future;
use std::io;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::transport::Channel;
use tonic::{Response, Status};
use tower::service_fn;

use crate::Error;

/// An open connection to a plug-in.
#[cfg(unix)]
pub type Stream = tokio::net::UnixStream;
/// An open connection to a plug-in. Windows' unix sockets are sockets as those of TCP are.
#[cfg(windows)]
pub type Stream = tokio::net::TcpStream;

/// The answer to a call, or why there is none after `limit`.
///
/// # Errors
/// When the plug-in refuses, fails, is away or is late.
pub async fn within<T>(call: &'static str, limit: Duration, answer: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Error> {
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(Error::of(&status)),
        Err(_) => Err(Error::Late { call, within: limit }),
    }
}

/// A connection that `connect` makes at the first call and again after each loss. Must be called within a tokio runtime.
pub fn channel<C, F>(connect: C) -> Channel
where
    C: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = io::Result<Stream>> + Send + 'static,
{
    // The URI is never resolved; plug-ins see its host as the authority, and upstream's says localhost.
    let builder = tonic::transport::Endpoint::from_static("http://localhost").connect_timeout(Duration::from_secs(10));
    builder.connect_with_connector_lazy(service_fn(move |_| {
        let connection = connect();
        async move { connection.await.map(TokioIo::new) }
    }))
}
