//! The gRPC health check, `grpc.health.v1.Health/Check`, over plain HTTP/2 (upstream pkg/probe/grpc).

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::{ProbeError, Verdict};

/// Bytes of an answer at most.
const ANSWER: usize = 10 << 10;
/// `ServingStatus.SERVING`.
const SERVING: u64 = 1;

/// Why the server gave no gRPC status.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GrpcError {
    #[error("dial tcp {host}:{port}")]
    Dial { host: String, port: u16, source: io::Error },
    #[error(transparent)]
    Http2(#[from] hyper::Error),
    #[error(transparent)]
    BadRequest(#[from] http::Error),
    #[error(transparent)]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("the server speaks HTTP/2 but not gRPC")]
    NotGrpc,
}

/// Asks the server at `host:port` for the health of `service` (empty: of the whole server).
pub(super) async fn check(host: &str, port: u16, service: &str) -> Verdict {
    match ask(host, port, service).await {
        Ok((0, SERVING)) => Verdict::Success,
        Ok((0, status)) => Verdict::Failure(ProbeError::Unhealthy(status_name(status))),
        Ok((12, _)) => Verdict::Failure(ProbeError::NoHealthService),
        Ok((code, _)) => Verdict::Failure(ProbeError::GrpcStatus(code)),
        Err(error) => Verdict::Failure(error.into()),
    }
}

fn status_name(status: u64) -> &'static str {
    match status {
        0 => "UNKNOWN",
        1 => "SERVING",
        2 => "NOT_SERVING",
        _ => "SERVICE_UNKNOWN",
    }
}

/// The gRPC status code and, with code 0, the health.
async fn ask(host: &str, port: u16, service: &str) -> Result<(u32, u64), GrpcError> {
    let stream = TcpStream::connect((host, port)).await.map_err(|source| GrpcError::Dial { host: host.to_owned(), port, source })?;
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let request = http::Request::post(format!("http://{authority}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "kube-probe/1.36")
        .body(Full::new(message(service)))?;
    let answer = async {
        let answer = sender.send_request(request).await?;
        let early = code(answer.headers());
        let body = Limited::new(answer.into_body(), ANSWER).collect().await.map_err(GrpcError::Body)?;
        let code = body.trailers().and_then(code).or(early).ok_or(GrpcError::NotGrpc)?;
        Ok((code, health(&body.to_bytes())))
    };
    let answer = answer.await;
    driver.abort();
    answer
}

fn code(headers: &http::HeaderMap) -> Option<u32> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// A framed HealthCheckRequest: field 1 is the service.
fn message(service: &str) -> Bytes {
    let mut body = BytesMut::new();
    if !service.is_empty() {
        body.put_u8(0x0a);
        put_varint(&mut body, service.len() as u64);
        body.put_slice(service.as_bytes());
    }
    let mut out = BytesMut::new();
    out.put_u8(0);
    out.put_u32(body.len() as u32);
    out.put_slice(&body);
    out.freeze()
}

fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// The status in a framed HealthCheckResponse: field 1, an enumeration; 0 when it is not there.
fn health(frame: &[u8]) -> u64 {
    match frame.get(5..) {
        Some([0x08, value, ..]) => u64::from(*value),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use thiserror_ext::AsReport as _;

    use super::*;

    #[test]
    fn frames() {
        assert_eq!(&message("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&message("ab")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(message(&"x".repeat(200))[5..8], [0x0a, 0xc8, 1]);
        assert_eq!(health(&[0, 0, 0, 0, 2, 8, 1]), SERVING);
        assert_eq!(health(&[0, 0, 0, 0, 2, 8, 2]), 2);
        assert_eq!((health(&[0, 0, 0, 0, 0]), health(&[])), (0, 0));
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_fails() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        match check("127.0.0.1", free, "").await {
            Verdict::Failure(error) => {
                let text = error.to_report_string();
                assert!(text.starts_with("error: health rpc failed: dial tcp 127.0.0.1:") && text.ends_with("(os error 111)"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }

    /// Serves the health protocol with one status, counting on hyper's HTTP/2.
    async fn server(status: u8) -> u16 {
        use http_body_util::StreamBody;
        use hyper::body::Frame;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| async move {
                assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                let trailers = http::HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), http::HeaderValue::from_static("0"))]);
                let frames = [Frame::data(Bytes::from(vec![0, 0, 0, 0, 2, 8, status])), Frame::trailers(trailers)];
                let body = StreamBody::new(futures::stream::iter(frames.map(Ok::<_, std::convert::Infallible>)));
                Ok::<_, std::convert::Infallible>(http::Response::new(body))
            });
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer).await;
        });
        port
    }

    #[tokio::test]
    async fn the_server_decides() {
        assert!(matches!(check("127.0.0.1", server(1).await, "").await, Verdict::Success));
        let Verdict::Failure(error) = check("127.0.0.1", server(2).await, "db").await else { panic!("a server that does not serve is healthy") };
        assert_eq!(error.to_string(), "service unhealthy (responded with \"NOT_SERVING\")");
    }
}
