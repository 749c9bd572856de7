//! What the agent's server shows its clients, and whom it believes: a certificate that may be replaced at any time, the authority of client
//! certificates, and the versions and ciphers of TLS.
//!
//! Files are read again every second; content that cannot be used is reported once, and the last that could be stays in use.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use pki::pair_store::{StoreError, read_pair, read_text};
use pki::{Pair, PairStore};
use rustls::SupportedCipherSuite;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, ring};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use thiserror_ext::AsReport as _;
use tokio::sync::watch;

use super::Current;
use crate::tls::{self, TlsError};

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Where the serving certificate comes from.
#[derive(Clone, Debug)]
pub enum ServingCertificate {
    /// Files, PEM, which may change (`tlsCertFile`, `tlsPrivateKeyFile`).
    Files { certificate: PathBuf, key: PathBuf },
    /// The API server: a signing request that an administrator approves (`serverTLSBootstrap`).
    Requested(PairStore),
}

/// A value of `tlsMinVersion`, `tlsCipherSuites` or `tlsCurvePreferences` that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsSettingsError {
    /// Upstream's words.
    #[error("unknown tls version {0:?}: write VersionTLS12 or VersionTLS13 as tlsMinVersion")]
    UnknownVersion(String),
    #[error("cannot use {0} as tlsMinVersion: the server offers TLS 1.2 and TLS 1.3 alone; write VersionTLS12")]
    OldVersion(String),
    /// Upstream's words.
    #[error("Cipher suite {0} not supported or doesn't exist: write names of Go's crypto/tls as tlsCipherSuites")]
    UnknownSuite(String),
    #[error(
        "cannot use tlsCipherSuites {0}: the server has none of them, only suites with forward secrecy and authenticated encryption; add some of {known}",
        known = SUITES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    )]
    NoSuite(String),
    #[error("cannot use tlsCurvePreferences {0:?}: the server has 29 (X25519), 23 (P-256) and 24 (P-384); write some of them")]
    NoCurve(Vec<u16>),
}

/// TLS 1.2's suites that the server has, by the names of Go's crypto/tls.
const SUITES: [(&str, SupportedCipherSuite); 6] = {
    use rustls::crypto::ring::cipher_suite as of;
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", of::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", of::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", of::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", of::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", of::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", of::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ]
};
/// Former names.
const ALIASES: [(&str, &str); 2] = [
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
];
/// TLS 1.3's, which are not chosen: upstream offers all of them, too.
const ALWAYS: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
/// Others that Go has. A list may name them, as those of benchmarks do; the server offers the rest of it.
const OTHERS: [&str; 16] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// Versions, ciphers and key exchanges of the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TlsSettings {
    only_13: bool,
    /// TLS 1.2's; none for all.
    suites: Option<Vec<SupportedCipherSuite>>,
    /// Go's CurveIDs; empty for all.
    curves: Vec<u16>,
}

impl TlsSettings {
    /// By the members of KubeletConfiguration; with the names of suites that the server does not have.
    ///
    /// # Errors
    /// [`TlsSettingsError`].
    pub fn parse(min_version: &str, suites: &[String], curves: &[u16]) -> Result<(Self, Vec<String>), TlsSettingsError> {
        let only_13 = match min_version {
            "" | "VersionTLS12" => false,
            "VersionTLS13" => true,
            old @ ("VersionTLS10" | "VersionTLS11") => return Err(TlsSettingsError::OldVersion(old.to_owned())),
            other => return Err(TlsSettingsError::UnknownVersion(other.to_owned())),
        };
        let (mut found, mut others) = (Vec::new(), Vec::new());
        for name in suites {
            let known = ALIASES.iter().find(|(alias, _)| alias == name).map_or(name.as_str(), |(_, name)| name);
            match SUITES.iter().find(|(suite, _)| *suite == known) {
                Some((_, suite)) => found.push(*suite),
                None if ALWAYS.contains(&known) => {}
                None if OTHERS.contains(&known) => others.push(name.clone()),
                None => return Err(TlsSettingsError::UnknownSuite(name.clone())),
            }
        }
        if found.is_empty() && !others.is_empty() && others.len() == suites.len() && !only_13 {
            return Err(TlsSettingsError::NoSuite(suites.join(",")));
        }
        let settings = Self { only_13, suites: (!suites.is_empty()).then_some(found), curves: curves.to_vec() };
        if settings.groups().is_empty() {
            return Err(TlsSettingsError::NoCurve(curves.to_vec()));
        }
        Ok((settings, others))
    }

    fn groups(&self) -> Vec<&'static dyn SupportedKxGroup> {
        let all = ring::ALL_KX_GROUPS.iter().copied();
        all.filter(|group| self.curves.is_empty() || self.curves.contains(&u16::from(group.name()))).collect()
    }

    pub(crate) fn provider(&self) -> CryptoProvider {
        let mut provider = ring::default_provider();
        if let Some(chosen) = &self.suites {
            provider.cipher_suites.retain(|suite| suite.tls13().is_some() || chosen.contains(suite));
        }
        provider.kx_groups = self.groups();
        provider
    }

    pub(crate) fn versions(&self) -> &'static [&'static rustls::SupportedProtocolVersion] {
        static BOTH: [&rustls::SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];
        if self.only_13 { &BOTH[..1] } else { &BOTH }
    }
}

/// The certificate of the moment.
#[derive(Debug, Default)]
pub(crate) struct Resolver(RwLock<Option<Shown>>);

#[derive(Debug)]
struct Shown {
    key: Arc<CertifiedKey>,
    /// From then on none is shown. Files are shown whatever they say, as upstream.
    until: Option<SystemTime>,
}

impl Resolver {
    fn show(&self, pair: &Pair, is_requested: bool) {
        let until = is_requested.then_some(pair.leaf().not_after);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Shown { key: pair.certified(), until });
    }

    fn current(&self, now: SystemTime) -> Option<Arc<CertifiedKey>> {
        let shown = self.0.read().unwrap_or_else(PoisonError::into_inner);
        shown.as_ref().filter(|shown| shown.until.is_none_or(|until| now <= until)).map(|shown| shown.key.clone())
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current(SystemTime::now());
        if current.is_none() {
            tracing::debug!("no serving certificate available for the kubelet; a connection is refused");
        }
        current
    }
}

/// What the server shows and believes, as it is now.
pub(crate) type Configuration = watch::Receiver<Arc<rustls::ServerConfig>>;

/// Reads files again, and follows a certificate that is asked for.
pub(crate) struct Follower {
    settings: TlsSettings,
    resolver: Arc<Resolver>,
    client_ca: Option<(PathBuf, String)>,
    files: Option<(PathBuf, PathBuf)>,
    config: watch::Sender<Arc<rustls::ServerConfig>>,
}

impl Follower {
    /// With what there is now.
    ///
    /// # Errors
    /// When a file cannot be read or used.
    pub(crate) fn start(
        settings: TlsSettings,
        certificate: &ServingCertificate,
        client_ca: Option<PathBuf>,
    ) -> Result<(Self, Configuration), TlsError> {
        let resolver = Arc::new(Resolver::default());
        let files = match certificate {
            ServingCertificate::Files { certificate, key } => {
                resolver.show(&read_pair(certificate, key).map_err(Box::new)?, false);
                Some((certificate.clone(), key.clone()))
            }
            ServingCertificate::Requested(_) => None,
        };
        let read = |path: PathBuf| match read_text(&path) {
            Ok(text) => Ok((path, text)),
            Err(source) => Err(Box::new(StoreError::File { operation: "read", path, source })),
        };
        let client_ca = client_ca.map(read).transpose()?;
        let config = tls::server(&settings, resolver.clone(), client_ca.as_ref().map(|(_, text)| text.as_str()))?;
        let (config, current) = watch::channel(config);
        Ok((Self { settings, resolver, client_ca, files, config }, current))
    }

    /// Runs for ever. `requested` is the certificate that is asked for, if one is.
    pub(crate) async fn run(mut self, requested: Option<Current>) {
        let resolver = self.resolver.clone();
        let follow = async {
            let Some(mut current) = requested else { return std::future::pending::<()>().await };
            loop {
                if let Some(pair) = &*current.borrow_and_update() {
                    resolver.show(pair, true);
                }
                if current.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        };
        tokio::join!(follow, self.follow_files());
    }

    async fn follow_files(&mut self) {
        if self.files.is_none() && self.client_ca.is_none() {
            return std::future::pending().await;
        }
        let (mut pair, mut certificate_problem, mut ca_problem) = (None, Problem::default(), Problem::default());
        loop {
            let (files, ca) = (self.files.clone(), self.client_ca.as_ref().map(|(path, _)| path.clone()));
            let read = tokio::task::spawn_blocking(move || {
                let pair = files.map(|(certificate, key)| read_pair(&certificate, &key).map_err(|error| error.to_report_string()));
                (pair, ca.map(|ca| read_text(&ca).map_err(|error| error.to_string())))
            });
            let Ok((read_pair, read_ca)) = read.await else { return };
            match read_pair {
                Some(Ok(new)) => {
                    if pair.as_ref().is_some_and(|old| *old != new) {
                        tracing::info!("the serving certificate has changed");
                        self.resolver.show(&new, false);
                    }
                    pair = Some(new);
                    certificate_problem.clear();
                }
                Some(Err(error)) => certificate_problem.tell("the serving certificate", error),
                None => {}
            }
            match read_ca {
                Some(Ok(text)) => match self.new_authority(text) {
                    Ok(()) => ca_problem.clear(),
                    Err(error) => ca_problem.tell("clientCAFile", error.to_report_string()),
                },
                Some(Err(error)) => ca_problem.tell("clientCAFile", error),
                None => {}
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn new_authority(&mut self, text: String) -> Result<(), TlsError> {
        let Some((path, known)) = self.client_ca.as_mut().filter(|(_, known)| *known != text) else { return Ok(()) };
        let config = tls::server(&self.settings, self.resolver.clone(), Some(&text))?;
        tracing::info!(path = %path.display(), "the authority of client certificates has changed");
        *known = text;
        self.config.send_replace(config);
        Ok(())
    }
}

/// What is wrong with a file; told once.
#[derive(Default)]
struct Problem(Option<String>);

impl Problem {
    fn tell(&mut self, what: &str, error: String) {
        if self.0.as_ref() != Some(&error) {
            tracing::warn!(error, "{what} cannot be read again; the last one stays in use");
            self.0 = Some(error);
        }
    }

    fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use pki::{Ca, CertRequest};

    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn versions_ciphers_and_curves_are_those_of_go() {
        let parse = |version: &str, suites: &[&str], curves: &[u16]| TlsSettings::parse(version, &names(suites), curves);
        let (all, _) = parse("", &[], &[]).unwrap();
        assert_eq!(all, TlsSettings::default());
        assert_eq!((all.provider().cipher_suites.len(), all.versions().len(), all.provider().kx_groups.len()), (9, 2, 3));
        let (some, others) =
            parse("VersionTLS12", &["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_RSA_WITH_AES_256_GCM_SHA384"], &[23, 4588]).unwrap();
        assert_eq!(others, ["TLS_RSA_WITH_AES_256_GCM_SHA384"]);
        let provider = some.provider();
        assert_eq!(provider.cipher_suites.iter().filter(|suite| suite.tls13().is_none()).count(), 1);
        assert_eq!((provider.cipher_suites.len(), provider.kx_groups.len()), (4, 1));
        let (new, _) = parse("VersionTLS13", &["TLS_RSA_WITH_RC4_128_SHA"], &[]).unwrap();
        assert_eq!(new.versions().len(), 1, "ciphers are those of TLS 1.3 then");
        assert_eq!(parse("", &["TLS_AES_128_GCM_SHA256"], &[]).unwrap().0.provider().cipher_suites.len(), 3);
        for (result, begin) in [
            (parse("VersionTLS11", &[], &[]), "cannot use VersionTLS11 as tlsMinVersion: the server offers TLS 1.2 and TLS 1.3 alone"),
            (parse("TLS12", &[], &[]), "unknown tls version \"TLS12\""),
            (parse("", &["TLS_NULL"], &[]), "Cipher suite TLS_NULL not supported or doesn't exist"),
            (parse("", &["TLS_RSA_WITH_RC4_128_SHA"], &[]), "cannot use tlsCipherSuites TLS_RSA_WITH_RC4_128_SHA"),
            (parse("", &[], &[25]), "cannot use tlsCurvePreferences [25]"),
        ] {
            let error = result.unwrap_err().to_string();
            assert!(error.starts_with(begin), "{error}");
        }
    }

    fn pair(days: u32) -> (String, String, Pair) {
        let ca = Ca::generate("kubernetes", Duration::from_secs(86_400)).unwrap();
        let made = ca.issue(&CertRequest { cn: "win01".into(), dns: vec!["win01".into()], server: true, days, ..CertRequest::default() }).unwrap();
        let pair = Pair::parse(&made.cert_pem, &made.key_pem).unwrap();
        (made.cert_pem, made.key_pem, pair)
    }

    #[test]
    fn a_certificate_that_was_asked_for_is_not_shown_after_its_end() {
        let (resolver, now) = (Resolver::default(), SystemTime::now());
        assert!(resolver.current(now).is_none(), "none yet");
        let (.., pair) = pair(1);
        resolver.show(&pair, true);
        let late = now + Duration::from_secs(2 * 86_400);
        assert!(resolver.current(now).is_some() && resolver.current(late).is_none());
        resolver.show(&pair, false);
        assert!(resolver.current(late).is_some(), "of a file");
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_change_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (cert, key, first) = pair(1);
        std::fs::write(path("tls.crt"), &cert).unwrap();
        std::fs::write(path("tls.key"), &key).unwrap();
        std::fs::write(path("ca.crt"), Ca::generate("one", Duration::from_secs(60)).unwrap().cert_pem()).unwrap();
        let files = ServingCertificate::Files { certificate: path("tls.crt"), key: path("tls.key") };
        let (follower, mut config) = Follower::start(TlsSettings::default(), &files, Some(path("ca.crt"))).unwrap();
        let resolver = follower.resolver.clone();
        let shown = |resolver: &Resolver| resolver.current(SystemTime::now()).unwrap().cert.clone();
        assert_eq!(shown(&resolver), first.certified().cert);
        let task = tokio::spawn(follower.run(None));
        tokio::time::sleep(LOOK * 3).await;
        let (cert, key, second) = pair(1);
        // For a moment certificate and key do not fit.
        std::fs::write(path("tls.crt"), &cert).unwrap();
        tokio::time::sleep(LOOK * 3).await;
        assert_eq!(shown(&resolver), first.certified().cert);
        std::fs::write(path("tls.key"), &key).unwrap();
        tokio::time::sleep(LOOK * 3).await;
        assert_eq!(shown(&resolver), second.certified().cert);
        assert!(!config.has_changed().unwrap(), "the authority is the same");
        std::fs::write(path("ca.crt"), "nonsense").unwrap();
        tokio::time::sleep(LOOK * 3).await;
        assert!(!config.has_changed().unwrap(), "the last good one stays");
        std::fs::write(path("ca.crt"), Ca::generate("two", Duration::from_secs(60)).unwrap().cert_pem()).unwrap();
        tokio::time::timeout(LOOK * 60, config.changed()).await.unwrap().unwrap();
        task.abort();
    }

    #[test]
    fn unusable_files_end_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let files = ServingCertificate::Files { certificate: path("tls.crt"), key: path("tls.key") };
        let error = |ca: Option<PathBuf>| Follower::start(TlsSettings::default(), &files, ca).err().unwrap().to_report_string();
        assert!(error(None).contains("cannot read") && error(None).contains("tls.crt"), "{}", error(None));
        let (cert, key, _) = pair(1);
        std::fs::write(path("tls.crt"), &cert).unwrap();
        std::fs::write(path("tls.key"), &key).unwrap();
        assert!(error(Some(path("ca.crt"))).contains("ca.crt"));
        std::fs::write(path("ca.crt"), "").unwrap();
        assert!(Follower::start(TlsSettings::default(), &files, Some(path("ca.crt"))).is_err(), "an authority of nothing");
    }
}
