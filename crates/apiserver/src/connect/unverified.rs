//! TLS to pods and Services whose certificates nobody checks (upstream's proxy transport).

use rustls_pki_types::ServerName;
use std::net::IpAddr;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// TLS over a connection, whatever certificate the server shows.
pub async fn connect(stream: TcpStream, address: IpAddr) -> std::io::Result<TlsStream<TcpStream>> {
    let config = pki::unverified::client_config().map_err(std::io::Error::other)?;
    tokio_rustls::TlsConnector::from(config).connect(ServerName::IpAddress(address.into()), stream).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::CertifiedKey;
    use rustls::ServerConfig;
    use rustls::crypto::ring;
    use rustls_pki_types::PrivateKeyDer;
    use std::sync::Arc;
    use test_lab::in_time;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_certificate_of_nobody_is_enough() {
        let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(["somebody.example".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions().unwrap();
        let server = server.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            let stream = tokio_rustls::TlsAcceptor::from(Arc::new(server)).accept(listener.accept().await.unwrap().0).await;
            stream.unwrap().write_all(b"hello").await.unwrap();
        });
        let mut stream = in_time("a connection", connect(TcpStream::connect(address).await.unwrap(), address.ip())).await.unwrap();
        let mut answer = [0; 5];
        in_time("an answer", stream.read_exact(&mut answer)).await.unwrap();
        assert_eq!(&answer, b"hello");
        answering.await.unwrap();
    }
}
