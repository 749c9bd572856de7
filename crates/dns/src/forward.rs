//! Forwarding of questions about names outside the cluster to an upstream server, unchanged.

use std::{io, net::SocketAddr, time::Duration};

use hickory_proto::op::{Message, ResponseCode};
use tokio::net::{TcpStream, UdpSocket};

use crate::server;

/// Asks over UDP.
pub(crate) async fn udp(upstream: SocketAddr, question: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
    let local: SocketAddr = if upstream.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    // A port of its own for each question makes answers hard to forge.
    let socket = UdpSocket::bind(local).await?;
    socket.connect(upstream).await?;
    socket.send(question).await?;
    let mut buffer = vec![0; 4096];
    in_time(patience, async {
        loop {
            let length = socket.recv(&mut buffer).await?;
            if buffer.get(..2) == question.get(..2) {
                buffer.truncate(length);
                return Ok(());
            }
        }
    })
    .await?;
    Ok(buffer)
}

/// Asks over TCP.
pub(crate) async fn tcp(upstream: SocketAddr, question: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
    in_time(patience, async {
        let mut stream = TcpStream::connect(upstream).await?;
        server::write(&mut stream, question).await?;
        server::read(&mut stream).await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    })
    .await
}

async fn in_time<T>(patience: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(patience, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The answer when the other server gave none.
pub(crate) fn failure(refusal: &Message, error: &io::Error) -> Vec<u8> {
    tracing::debug!(%error, "the upstream DNS server did not answer");
    let mut reply = refusal.clone();
    reply.metadata.response_code = ResponseCode::ServFail;
    reply.to_vec().unwrap_or_default()
}
