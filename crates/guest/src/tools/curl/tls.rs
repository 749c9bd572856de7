//! TLS for `https`: the server is checked by the machine's authorities, by those of `--cacert`, or with `-k` not at all.

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned};

use super::Failure;
use super::options::Options;

/// A connection with TLS.
pub(super) type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Where the machine's authorities are: in a container under Wine by Wine's own name for files that are on no drive.
const AUTHORITIES: &str = if cfg!(windows) { r"\\?\unix\etc\ssl\certs\ca-certificates.crt" } else { "/etc/ssl/certs/ca-certificates.crt" };

/// Makes a connection one with TLS. The stream's own time limits hold.
pub(super) fn secure(mut stream: TcpStream, host: &str, options: &Options) -> Result<Stream, Failure> {
    let failed = |error: rustls::Error| Failure::new(35, format!("TLS connect error: {error}"));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().map_err(failed)?;
    let config = if options.insecure {
        config.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked(provider))).with_no_client_auth()
    } else {
        config.with_root_certificates(authorities(options)?).with_no_client_auth()
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|_| Failure::new(3, "URL rejected: Bad hostname"))?;
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(failed)?;
    connection.complete_io(&mut stream).map_err(|error| match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(reason)) => {
            Failure::new(60, format!("SSL certificate problem: {reason}\nMore details here: https://curl.se/docs/sslcerts.html"))
        }
        _ => Failure::new(35, format!("TLS connect error: {error}")),
    })?;
    Ok(StreamOwned::new(connection, stream))
}

fn authorities(options: &Options) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    let given = options.authorities.as_deref();
    let certificates = CertificateDer::pem_file_iter(Path::new(given.unwrap_or(AUTHORITIES)));
    match (certificates, given) {
        (Ok(certificates), _) => _ = roots.add_parsable_certificates(certificates.flatten()),
        (Err(error), Some(file)) => return Err(Failure::new(77, format!("error adding trust anchors from file: {file}: {error}"))),
        // The machine has none: no server is trusted.
        (Err(_), None) => {}
    }
    if given.is_some() && roots.is_empty() {
        return Err(Failure::new(77, format!("error adding trust anchors from file: {}", given.unwrap_or_default())));
    }
    Ok(roots)
}

/// Takes any certificate of which the server has the key.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::super::tests::curl;
    use super::*;

    /// Answers `count` requests over TLS with a certificate for `localhost`, which it returns as PEM.
    fn serve(count: usize) -> (u16, String) {
        let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for _ in 0..count {
                let mut stream = StreamOwned::new(rustls::ServerConnection::new(config.clone()).unwrap(), listener.accept().unwrap().0);
                let mut request = [0; 4096];
                // A client that does not trust the server breaks off here.
                if stream.read(&mut request).is_ok() {
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret").unwrap();
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                }
            }
        });
        (port, cert.pem())
    }

    #[test]
    fn servers_are_checked_unless_k_says_otherwise() {
        let (port, pem) = serve(6);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.crt");
        std::fs::write(&file, pem).unwrap();
        let (url, file) = (format!("https://localhost:{port}/x"), file.to_str().unwrap());
        let (code, _, err) = curl(&["-sS", &url]);
        assert!(code == 60 && err.starts_with("curl: (60) SSL certificate problem: "), "{code} {err}");
        assert_eq!(curl(&["-s", "-k", &url]), (0, "secret".into(), String::new()));
        assert_eq!(curl(&["-sk", "-w", " %{url_effective}", &url]).1, format!("secret {url}"));
        assert_eq!(curl(&["-s", "--cacert", file, &url]).1, "secret");
        // The certificate is another server's.
        assert_eq!(curl(&["-s", "--cacert", file, &url.replace("localhost", "127.0.0.1")]).0, 60);
        assert_eq!(curl(&["-s", "--cacert", "/no/such", &url]).0, 77);
    }
}
