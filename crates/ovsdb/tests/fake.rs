//! The client against a server in this process that ends connections when a test wants it to.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ovsdb::session::Wants;
use ovsdb::wire::{Framer, Message};
use ovsdb::{AtomType, Client, ColumnUse, Config, Error, Operation, Remote, State, TableUse, TlsFiles, Transaction, client_config};
use serde_json::{Value, json};
use test_lab::until_async;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;

const USES: &[TableUse] = &[TableUse { name: "T", required: true, columns: &[ColumnUse::required("name", AtomType::String)] }];
const LIMIT: Duration = Duration::from_secs(20);

/// What the server does, and what it has seen.
struct Server {
    rows: Mutex<BTreeMap<u128, String>>,
    transactions: AtomicUsize,
    connections: AtomicUsize,
    /// Counted up, it ends all connections.
    cut: watch::Sender<u32>,
    /// Whether transactions are answered.
    answers: bool,
    /// Whether anything is answered after the monitor.
    mute: bool,
}

impl Server {
    fn new() -> Self {
        Self {
            rows: Mutex::default(),
            transactions: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            cut: watch::channel(0).0,
            answers: true,
            mute: false,
        }
    }

    fn set(&self, rows: &[(u128, &str)]) {
        *self.rows.lock().unwrap() = rows.iter().map(|(id, name)| (*id, (*name).to_owned())).collect();
    }

    fn initial(&self) -> Value {
        let row = |(id, name): (&u128, &String)| (uuid(*id), json!({"initial": {"name": name}}));
        json!({"T": self.rows.lock().unwrap().iter().map(row).collect::<serde_json::Map<_, _>>()})
    }

    fn answer(&self, method: &str) -> Option<Result<Value, Value>> {
        match method {
            "get_schema" => Some(Ok(json!({"name": "DB", "version": "1", "tables": {"T": {"columns": {"name": {"type": "string"}}}}}))),
            "monitor_cond_since" => Some(Ok(json!([false, uuid(0), self.initial()]))),
            "transact" => {
                self.transactions.fetch_add(1, Ordering::SeqCst);
                self.answers.then(|| Ok(json!([{}])))
            }
            "echo" if self.mute => None,
            "echo" => Some(Ok(json!([]))),
            _ => Some(Err(json!({"error": "unknown method"}))),
        }
    }

    async fn serve(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let mut cut = self.cut.subscribe();
        let (mut framer, mut buffer) = (Framer::new(1 << 20), vec![0; 4096]);
        loop {
            let read = tokio::select! {
                read = stream.read(&mut buffer) => read.unwrap_or(0),
                _ = cut.changed() => return,
            };
            if read == 0 {
                return;
            }
            framer.push(&buffer[..read]);
            while let Some(message) = framer.next_message().unwrap() {
                let Message::Request { method, id, .. } = message else { continue };
                if let Some(result) = self.answer(&method) {
                    stream.write_all(&Message::Reply { id, result }.to_bytes()).await.unwrap();
                }
            }
        }
    }
}

fn uuid(id: u128) -> String {
    ovsdb::Uuid::from_u128(id).to_string()
}

async fn listen(server: Arc<Server>, tls: Option<tokio_rustls::TlsAcceptor>) -> Remote {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let host = "127.0.0.1".to_owned();
    let remote = if tls.is_some() { Remote::Ssl { host, port } } else { Remote::Tcp { host, port } };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (server, tls) = (server.clone(), tls.clone());
            tokio::spawn(async move {
                match tls {
                    None => server.serve(stream).await,
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            server.serve(stream).await;
                        }
                    }
                }
            });
        }
    });
    remote
}

fn config(remotes: Vec<Remote>) -> Config {
    let wants = Wants { database: "DB".into(), uses: USES, lock: None, leader_only: false };
    Config { probe: Duration::from_millis(200), ..Config::new(remotes, wants) }
}

fn names(state: &State) -> Vec<String> {
    state.replica.table("T").rows().map(|(_, row)| row.text("name").to_owned()).collect()
}

fn comment() -> Transaction {
    Transaction { operations: vec![Operation::Comment("a test".into())] }
}

#[tokio::test]
async fn rows_are_neither_lost_nor_doubled_when_the_connection_is() {
    let server = Arc::new(Server::new());
    server.set(&[(1, "a"), (2, "b")]);
    let client = Client::start(config(vec![listen(server.clone(), None).await]));
    assert_eq!(names(&client.ready(LIMIT).await.unwrap()), ["a", "b"]);
    server.set(&[(2, "b"), (3, "c")]);
    server.cut.send_modify(|count| *count += 1);
    // Every state that a reader can see on the way is whole: the old one, then the new one.
    let mut seen = Vec::new();
    let state = client
        .when(LIMIT, |state| {
            seen.push(names(state));
            state.connected && state.connections == 2
        })
        .await
        .unwrap();
    seen.dedup();
    assert_eq!(names(&state), ["b", "c"]);
    assert!(seen.iter().all(|names| names == &["a", "b"] || names == &["b", "c"]), "{seen:?}");
    client.transact(comment()).await.unwrap();
}

#[tokio::test]
async fn a_transaction_whose_answer_is_lost_is_not_sent_again() {
    let server = Arc::new(Server { answers: false, ..Server::new() });
    let client = Client::start(config(vec![listen(server.clone(), None).await]));
    client.ready(LIMIT).await.unwrap();
    let answer = client.transact(comment());
    let cut = async {
        until_async("the transaction", || std::future::ready((server.transactions.load(Ordering::SeqCst) == 1).then_some(()))).await;
        server.cut.send_modify(|count| *count += 1);
    };
    let (answer, ()) = tokio::join!(answer, cut);
    assert!(matches!(answer, Err(Error::Lost { .. })), "{answer:?}");
    client.when(LIMIT, |state| state.connections == 2).await.unwrap();
    assert_eq!(server.transactions.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let server = Arc::new(Server { mute: true, ..Server::new() });
    let client = Client::start(config(vec![listen(server.clone(), None).await]));
    client.when(LIMIT, |state| state.problem.as_deref().is_some_and(|problem| problem.contains("does not answer"))).await.unwrap();
    client.when(LIMIT, |state| state.connections == 2).await.unwrap();
}

#[tokio::test]
async fn the_next_server_is_tried_and_nothing_is_taken_without_one() {
    let server = Arc::new(Server::new());
    let there = listen(server, None).await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = Remote::Tcp { host: "127.0.0.1".into(), port: nobody.local_addr().unwrap().port() };
    drop(nobody);
    let alone = Client::start(config(vec![gone.clone()]));
    let error = alone.transact(comment()).await.unwrap_err();
    assert!(matches!(error, Error::NotConnected { .. }), "{error}");
    let error = alone.ready(Duration::from_millis(300)).await.unwrap_err().to_string();
    assert!(error.contains(&gone.to_string()), "{error}");
    Client::start(config(vec![gone, there])).ready(LIMIT).await.unwrap();
}

/// An authority, and a certificate of it that names no host of this test.
fn certificates() -> (rcgen::Certificate, rcgen::KeyPair, rcgen::Certificate, rcgen::KeyPair) {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.clone().self_signed(&ca_key).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let issuer = rcgen::Issuer::new(params, &ca_key);
    let leaf = rcgen::CertificateParams::new(vec!["ovn".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    (ca, ca_key, leaf, key)
}

#[tokio::test]
async fn tls_wants_a_certificate_of_the_authority_on_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, _, leaf, key) = certificates();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let clients = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let acceptor = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![leaf.der().clone()], rustls_pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into())
        .unwrap();
    let remote = listen(Arc::new(Server::new()), Some(tokio_rustls::TlsAcceptor::from(Arc::new(acceptor)))).await;
    let files = |ca: &rcgen::Certificate, leaf: &rcgen::Certificate, key: &rcgen::KeyPair, name: &str| {
        let file = |kind: &str| dir.path().join(format!("{name}-{kind}.pem"));
        std::fs::write(file("ca"), ca.pem()).unwrap();
        std::fs::write(file("cert"), leaf.pem()).unwrap();
        std::fs::write(file("key"), key.serialize_pem()).unwrap();
        TlsFiles { private_key: file("key"), certificate: file("cert"), ca_cert: file("ca") }
    };
    let with = |files: &TlsFiles| Config { tls: Some(client_config(files).unwrap()), ..config(vec![remote.clone()]) };
    let ours = files(&ca, &leaf, &key, "ours");
    Client::start(with(&ours)).ready(LIMIT).await.unwrap();
    // Another authority is neither believed nor shown with success.
    let (other_ca, _, other_leaf, other_key) = certificates();
    let strangers = [
        (files(&other_ca, &leaf, &key, "server"), "invalid peer certificate: BadSignature"),
        (files(&ca, &other_leaf, &other_key, "client"), "received fatal alert: DecryptError"),
    ];
    for (wrong, reason) in strangers {
        let error = Client::start(with(&wrong)).ready(Duration::from_millis(500)).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert!(Client::start(config(vec![remote])).ready(Duration::from_millis(300)).await.unwrap_err().to_string().contains("needs a private key"));
    let missing = TlsFiles { private_key: dir.path().join("none"), ..ours };
    assert!(client_config(&missing).unwrap_err().to_string().starts_with("cannot read a private key from "));
}
