//! HTTP connections, upgrades included: HTTP/1.1 in plain, HTTP/1.1 and HTTP/2 over TLS.

use crate::{Limits, Place};
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls_pki_types::CertificateDer;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How long a connection that is asked to end may take, while no request runs.
const GRACE: Duration = Duration::from_secs(5);

/// Serves one connection over TLS, HTTP/1.1 or HTTP/2, until it ends, says nothing for too long, or `shutdown`. `service` is made from the
/// client's verified certificate; each request carries the [`Place`] among its extensions.
///
/// # Errors
/// What broke the connection.
pub async fn serve<S, F, B>(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    limits: &Limits,
    place: Place,
    shutdown: CancellationToken,
    service: impl FnOnce(Option<&CertificateDer<'static>>) -> S,
) -> Result<(), BoxError>
where
    S: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    // Key strokes are small, and wait for nothing.
    stream.set_nodelay(true)?;
    let activity = Activity::new();
    let handshake = tokio::time::timeout(limits.handshake, acceptor.accept(stream));
    let stream = tokio::select! {
        stream = handshake => stream??,
        () = shutdown.cancelled() => return Ok(()),
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let service = service(certificate);
    requests(stream, auto::Builder::new(TokioExecutor::new()), limits, activity, place, shutdown, service).await
}

/// Serves one connection in plain HTTP/1.1 until it ends, says nothing for too long, or `shutdown`. Each request carries the [`Place`] among
/// its extensions.
///
/// # Errors
/// What broke the connection.
pub async fn serve_plain<S, F, B>(stream: TcpStream, limits: &Limits, place: Place, shutdown: CancellationToken, service: S) -> Result<(), BoxError>
where
    S: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    stream.set_nodelay(true)?;
    // As Go's servers: HTTP/2 takes TLS.
    let builder = auto::Builder::new(TokioExecutor::new()).http1_only();
    requests(stream, builder, limits, Activity::new(), place, shutdown, service).await
}

/// Serves the requests of a connection.
async fn requests<I, S, F, B>(
    io: I,
    mut builder: auto::Builder<TokioExecutor>,
    limits: &Limits,
    activity: Arc<Activity>,
    place: Place,
    shutdown: CancellationToken,
    service: S,
) -> Result<(), BoxError>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let running = Arc::clone(&activity);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let run = running.begin();
        request.extensions_mut().insert(place.clone());
        let answer = service(request);
        async move { Ok::<_, Infallible>(answer.await.map(|body| Running { body, _run: run })) }
    });
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.idle);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(limits.idle).max_pending_accept_reset_streams(20);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(io), service);
    tokio::pin!(connection);
    tokio::select! {
        result = connection.as_mut() => return result,
        () = shutdown.cancelled() => {}
        () = activity.silence(limits) => {}
    }
    connection.as_mut().graceful_shutdown();
    loop {
        match tokio::time::timeout(GRACE, connection.as_mut()).await {
            Ok(result) => return result,
            // Half a request, or a peer that does not take the answer.
            Err(_) if activity.is_quiet() => return Ok(()),
            Err(_) => {}
        }
    }
}

/// What runs on a connection.
struct Activity(Mutex<State>);

struct State {
    running: usize,
    any: bool,
    since: Instant,
}

impl Activity {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { running: 0, any: false, since: Instant::now() })))
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn begin(self: &Arc<Self>) -> Run {
        self.change(|state| {
            state.running += 1;
            state.any = true;
        });
        Run(Arc::clone(self))
    }

    fn is_quiet(&self) -> bool {
        self.change(|state| state.running == 0)
    }

    /// Ends when no request has run for too long.
    async fn silence(&self, limits: &Limits) {
        loop {
            let until = self.change(|state| match state {
                State { running: 0, any: false, since } => *since + limits.first_request,
                State { running: 0, since, .. } => *since + limits.idle,
                _ => Instant::now() + limits.idle,
            });
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// A request, until its answer was sent.
struct Run(Arc<Activity>);

impl Drop for Run {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.running -= 1;
            state.since = Instant::now();
        });
    }
}

/// A body that keeps its request running.
struct Running<B> {
    body: B,
    _run: Run,
}

impl<B: Body + Unpin> Body for Running<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_connections_are_closed_after_the_limit() {
        let limits = Limits::new(1, 1);
        let activity = Activity::new();
        let begin = Instant::now();
        activity.silence(&limits).await;
        assert_eq!(begin.elapsed().as_secs(), limits.first_request.as_secs());
        let run = activity.begin();
        let long = tokio::time::timeout(limits.idle * 10, activity.silence(&limits)).await;
        assert!(long.is_err() && !activity.is_quiet(), "a watch lasts");
        drop(run);
        let begin = Instant::now();
        activity.silence(&limits).await;
        assert_eq!(begin.elapsed().as_secs(), limits.idle.as_secs());
    }
}
