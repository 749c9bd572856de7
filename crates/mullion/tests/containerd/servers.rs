//! Servers of the test's own.

use std::error::Error;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpListener;

/// Answers at an address of the machine, in HTTP/1 and HTTP/2, until the tests end.
pub async fn serve<B>(at: &str, answer: impl Fn(&Request<Incoming>) -> Response<B> + Clone + Send + 'static)
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let listener = TcpListener::bind(at).await.unwrap_or_else(|error| panic!("listening at {at}: {error}"));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| std::future::ready(Ok::<_, std::convert::Infallible>(answer(&request))));
                // A client that hangs up is done.
                let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
}
