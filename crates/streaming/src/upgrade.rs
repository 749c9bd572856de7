//! HTTP/1.1 upgrades: requests, answers, and passing an upgraded connection through.

use bytes::Bytes;
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use thiserror_ext::AsReport as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Protocols of the streams inside SPDY, offered and chosen.
pub const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Protocols that would have done.
const ACCEPTED_PROTOCOLS: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");

/// What is passed on of a request, or of the answer to it. Credentials and cookies are not.
const PASSED_ON: [HeaderName; 8] = [
    CONNECTION,
    UPGRADE,
    SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION,
    STREAM_PROTOCOL,
    ACCEPTED_PROTOCOLS,
];

/// Bytes copied at once, each way.
const BUFFER: usize = 32 << 10;

/// What a connection is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// SPDY/3.1.
    Spdy,
    WebSocket,
}

/// Comma-separated values of all headers of a name.
pub fn values(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let all = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(',')).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()).collect()
}

/// What a request wants its connection to become, if anything.
pub fn requested(headers: &HeaderMap) -> Option<Wire> {
    if !values(headers, &CONNECTION).iter().any(|value| value.eq_ignore_ascii_case("upgrade")) {
        return None;
    }
    match headers.get(UPGRADE)?.to_str().ok()? {
        wire if wire.eq_ignore_ascii_case("websocket") => Some(Wire::WebSocket),
        wire if wire.eq_ignore_ascii_case("SPDY/3.1") => Some(Wire::Spdy),
        _ => None,
    }
}

/// The first of the offered protocols that is supported; `default` when none is offered.
fn choose(offered: &[String], supported: &[&'static str], default: Option<&'static str>) -> Option<&'static str> {
    if offered.is_empty() {
        return default;
    }
    offered.iter().find_map(|offer| supported.iter().copied().find(|own| own == offer))
}

fn refuse(status: StatusCode, text: String) -> Box<Response<String>> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Box::new(response)
}

/// Answers a request that asks for no upgrade, with upstream's message.
pub fn no_upgrade() -> Response<String> {
    let text = "unable to upgrade: missing upgrade headers in request";
    *refuse(StatusCode::BAD_REQUEST, text.to_owned())
}

/// 101 for a request for SPDY, and the protocol of its streams.
///
/// # Errors
/// The refusal, when none of the offered protocols is supported.
pub fn accept_spdy(headers: &HeaderMap, supported: &[&'static str]) -> Result<(Response<()>, &'static str), Box<Response<String>>> {
    let offered = values(headers, &STREAM_PROTOCOL);
    let Some(protocol) = choose(&offered, supported, Some("")) else {
        let text = format!(
            "unable to upgrade: unable to negotiate protocol: client supports [{}], server accepts [{}]",
            offered.join(" "),
            supported.join(" ")
        );
        let mut response = refuse(StatusCode::FORBIDDEN, text);
        for own in supported {
            response.headers_mut().append(ACCEPTED_PROTOCOLS, HeaderValue::from_static(own));
        }
        return Err(response);
    };
    let mut response = switching("SPDY/3.1");
    if !protocol.is_empty() {
        response.headers_mut().insert(STREAM_PROTOCOL, HeaderValue::from_static(protocol));
    }
    Ok((response, protocol))
}

/// 101 for a request for WebSocket, and the chosen subprotocol; `default` is used where none is offered.
///
/// # Errors
/// The refusal, when the request is not a WebSocket's or none of the offered subprotocols is supported.
pub fn accept_websocket(
    headers: &HeaderMap,
    supported: &[&'static str],
    default: Option<&'static str>,
) -> Result<(Response<()>, &'static str), Box<Response<String>>> {
    let offered = values(headers, &SEC_WEBSOCKET_PROTOCOL);
    let Some(protocol) = choose(&offered, supported, default) else {
        let text = format!("unable to upgrade: client supports [{}], server accepts [{}]", offered.join(" "), supported.join(" "));
        return Err(refuse(StatusCode::FORBIDDEN, text));
    };
    if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        let mut response = refuse(StatusCode::UPGRADE_REQUIRED, "websocket: unsupported version: 13 is needed".to_owned());
        response.headers_mut().insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return Err(response);
    }
    let Some(key) = headers.get(SEC_WEBSOCKET_KEY) else {
        return Err(refuse(StatusCode::BAD_REQUEST, "websocket: no Sec-WebSocket-Key".to_owned()));
    };
    let mut response = switching("websocket");
    response.headers_mut().insert(SEC_WEBSOCKET_ACCEPT, accept_key(key.as_bytes()));
    if !offered.is_empty() {
        response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    Ok((response, protocol))
}

/// RFC 6455 §4.2.2.
fn accept_key(key: &[u8]) -> HeaderValue {
    use base64::Engine as _;
    let whole = [key, b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"].concat();
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &whole);
    let text = base64::engine::general_purpose::STANDARD.encode(digest);
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn switching(wire: &'static str) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(wire));
    response
}

/// A request for SPDY whose streams speak one of `protocols`.
pub fn spdy_request(target: &str, host: &str, protocols: &[&'static str]) -> Result<Request<Full<Bytes>>, http::Error> {
    let mut request = Request::builder().method(Method::POST).uri(target).header(http::header::HOST, host);
    request = request.header(CONNECTION, "Upgrade").header(UPGRADE, "SPDY/3.1").header(http::header::CONTENT_LENGTH, "0");
    for protocol in protocols {
        request = request.header(STREAM_PROTOCOL, *protocol);
    }
    request.body(Full::default())
}

/// The request as it is passed on: its method and what makes it an upgrade.
pub fn passed_on<B>(request: &Request<B>, target: &str, host: &str) -> Result<Request<Full<Bytes>>, http::Error> {
    let mut out = Request::builder().method(request.method()).uri(target).header(http::header::HOST, host);
    if let Some(headers) = out.headers_mut() {
        pass_on(request.headers(), headers);
    }
    out.body(Full::default())
}

fn pass_on(from: &HeaderMap, to: &mut HeaderMap) {
    for name in &PASSED_ON {
        for value in from.get_all(name) {
            to.append(name, value.clone());
        }
    }
}

/// What a server answered.
pub enum Answer {
    /// The connection has become what was asked for.
    Switched(Response<()>, TokioIo<Upgraded>),
    /// Something else.
    Refused(Response<hyper::body::Incoming>),
}

/// Sends a request over a fresh connection. A task of its own drives the connection until the answer's body has ended.
///
/// # Errors
/// When the connection fails.
pub async fn send<I>(io: I, request: Request<Full<Bytes>>) -> Result<Answer, hyper::Error>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(error = %error.as_report(), "a connection to a streaming server ended");
        }
    });
    let mut response = sender.send_request(request).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Answer::Refused(response));
    }
    let upgraded = hyper::upgrade::on(&mut response).await?;
    let (parts, _) = response.into_parts();
    Ok(Answer::Switched(Response::from_parts(parts, ()), TokioIo::new(upgraded)))
}

/// The answer to a client that is being upgraded, as the server's was, and what copies bytes both ways between them.
pub fn join<B>(
    client: &mut Request<B>,
    answer: &Response<()>,
    server: TokioIo<Upgraded>,
) -> (Response<()>, impl Future<Output = ()> + Send + use<B>) {
    let upgrade = hyper::upgrade::on(client);
    let copying = async move {
        match upgrade.await {
            Ok(client) => copy(TokioIo::new(client), server).await,
            Err(error) => tracing::debug!(error = %error.as_report(), "a client did not take up its connection"),
        }
    };
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    pass_on(answer.headers(), response.headers_mut());
    (response, copying)
}

/// Copies bytes both ways. What one end sent before it was gone still reaches the other: a runtime's streaming server writes a program's exit
/// code and closes the connection, which resets it when something that the client sent was not read.
pub async fn copy<A, B>(a: A, b: B)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let ((from_a, to_a), (from_b, to_b)) = (tokio::io::split(a), tokio::io::split(b));
    let (there, back) = (forward(from_a, to_b), forward(from_b, to_a));
    tokio::pin!(there, back);
    let other = tokio::select! {
        end = &mut there => match end {
            Ok(()) => back.await,
            Err(gone) => Err(gone),
        },
        end = &mut back => match end {
            Ok(()) => there.await,
            Err(gone) => Err(gone),
        },
    };
    if let Err(error) = other {
        tracing::debug!(%error, "a passed-through connection ended");
    }
}

/// Copies until `from` ends or `to` takes no more; then `to` is told that nothing follows. That `to` takes no more is no failure: what it sent
/// is read by the other direction, to its end.
///
/// # Errors
/// When `from` cannot be read.
async fn forward(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    let read = loop {
        let length = match from.read(&mut buffer).await {
            Ok(0) => break Ok(()),
            Ok(length) => length,
            Err(error) => break Err(error),
        };
        let written = async {
            to.write_all(&buffer[..length]).await?;
            to.flush().await
        };
        if let Err(error) = written.await {
            tracing::debug!(%error, "one end of a passed-through connection takes no more");
            break Ok(());
        }
    };
    // One that is gone needs not be told.
    let _ = to.shutdown().await;
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[tokio::test]
    async fn what_a_server_sent_before_it_reset_the_connection_arrives() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let mut connection = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        connection.write_all(b"never read").await.unwrap();
        server.readable().await.unwrap();
        server.write_all(b"exit code 3").await.unwrap();
        // What is left unread makes the end a reset.
        drop(server);
        // The client still talks while it waits for the answer.
        let (mut client, near) = tokio::io::duplex(1 << 10);
        client.write_all(b"more").await.unwrap();
        // The first write finds the reset, or causes it: of several one does.
        let talking = async {
            for _ in 0..3 {
                let _ = connection.write(b".").await;
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            copy(near, connection).await;
        };
        let mut answer = Vec::new();
        let (read, ()) = tokio::join!(client.read_to_end(&mut answer), talking);
        read.unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), "exit code 3");
    }

    #[test]
    fn upgrade_requests_are_recognised() {
        assert_eq!(requested(&headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")])), Some(Wire::Spdy));
        assert_eq!(requested(&headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")])), Some(Wire::WebSocket));
        assert_eq!(requested(&headers(&[("upgrade", "websocket")])), None);
        assert_eq!(requested(&headers(&[("connection", "upgrade"), ("upgrade", "h2c")])), None);
    }

    #[test]
    fn websockets_are_accepted_as_the_rfc_says() {
        let request = [
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", "x, v5.channel.k8s.io, v4.channel.k8s.io"),
        ];
        let (response, protocol) = accept_websocket(&headers(&request), &["v4.channel.k8s.io", "v5.channel.k8s.io"], None).unwrap();
        assert_eq!((protocol, &response.headers()[SEC_WEBSOCKET_PROTOCOL]), ("v5.channel.k8s.io", &HeaderValue::from_static(protocol)));
        assert_eq!(response.headers()[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(accept_websocket(&headers(&request), &["v1"], Some("v1")).unwrap_err().status(), 403);
        assert_eq!(accept_websocket(&headers(&request[..1]), &[], Some("")).unwrap_err().status(), 426);
    }

    #[test]
    fn the_clients_first_protocol_is_chosen() {
        let asked = headers(&[("x-stream-protocol-version", "v9, v4.channel.k8s.io")]);
        let (response, protocol) = accept_spdy(&asked, &["v3.channel.k8s.io", "v4.channel.k8s.io"]).unwrap();
        assert_eq!((protocol, response.status().as_u16()), ("v4.channel.k8s.io", 101));
        let refused = accept_spdy(&asked, &["a", "b"]).unwrap_err();
        assert_eq!(refused.body(), "unable to upgrade: unable to negotiate protocol: client supports [v9 v4.channel.k8s.io], server accepts [a b]");
        assert_eq!(refused.headers().get_all(ACCEPTED_PROTOCOLS).iter().count(), 2);
    }
}
