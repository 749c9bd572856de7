use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use test_lab::api::{Reply, fake_client};

use super::*;
use crate::jws::tests::{HEADER, SECRET, sign, token};

const SERVER: &str = "https://a:6443";

fn info(data: &Value) -> Reply {
    Reply::json(200, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cluster-info"}, "data": data}))
}

#[tokio::test(start_paused = true)]
async fn a_signature_that_comes_late_is_waited_for() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let client = fake_client(move |seen| {
        assert_eq!(seen.path, "/api/v1/namespaces/kube-public/configmaps/cluster-info");
        match count.fetch_add(1, Ordering::Relaxed) {
            0 => Reply::status(503, "starting"),
            1 => info(&json!({"kubeconfig": "text"})),
            _ => info(&json!({"kubeconfig": "text", "jws-kubeconfig-abcdef": sign(HEADER, "text", SECRET)})),
        }
    });
    assert_eq!(signed_info(&client, SERVER, &token(), Duration::from_secs(300)).await.unwrap(), "text");
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

/// The token has expired, or is another cluster's: nothing signs for it. After half a minute without a signature discovery ends.
#[tokio::test(start_paused = true)]
async fn a_token_that_nothing_signs_for_ends_the_wait() {
    let client = fake_client(|_| info(&json!({"kubeconfig": "text", "jws-kubeconfig-ghijkl": "x"})));
    let start = Instant::now();
    let error = signed_info(&client, SERVER, &token(), Duration::from_secs(300)).await.unwrap_err();
    assert!(matches!(&error, DiscoveryError::Info { source: InfoError::NoSignature { .. }, .. }), "{error}");
    assert!(!error.is_distrust());
    assert!((30..40).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_wrong_signature_is_not_asked_for_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let client = fake_client(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        info(&json!({"kubeconfig": "changed", "jws-kubeconfig-abcdef": sign(HEADER, "text", SECRET)}))
    });
    let error = signed_info(&client, SERVER, &token(), Duration::from_secs(300)).await.unwrap_err();
    assert!(error.is_distrust(), "{error}");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_an_answer_ends_with_the_time() {
    let client = fake_client(|_| Reply::status(403, "no"));
    let start = Instant::now();
    let error = signed_info(&client, SERVER, &token(), Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(&error, DiscoveryError::Unreachable { source: FetchError::Status(StatusCode::FORBIDDEN), .. }), "{error}");
    assert!(start.elapsed() <= Duration::from_secs(60));
}

#[tokio::test]
async fn answers_are_bounded() {
    let client = fake_client(|_| info(&json!({"kubeconfig": "x".repeat(LARGEST)})));
    assert!(matches!(fetch_info(&client).await, Err(FetchError::Body)));
    let client = fake_client(|_| Reply::json(200, json!([1])));
    assert!(matches!(fetch_info(&client).await, Err(FetchError::Document(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_at_a_url_is_read_only_over_tls_that_holds() {
    cluster::install_crypto_provider();
    let (dir, keys) = (tempfile::tempdir().unwrap(), test_lab::server::Keys::new());
    let config = keys.config(dir.path().to_owned());
    let url = format!("https://{}/healthz", std::net::SocketAddr::from(config.advertise));
    let server = apiserver::start(config).await.unwrap();
    assert_eq!(fetch_text(&url, Some(keys.ca.cert_pem())).await.unwrap(), "ok");
    let missing = url.replace("/healthz", "/none?a=b");
    assert!(matches!(fetch_text(&missing, Some(keys.ca.cert_pem())).await, Err(FetchError::Status(_))));
    // The system's authorities, and another one's, do not know this server.
    let other = pki::Ca::generate("other", Duration::from_secs(86_400)).unwrap();
    for authority in [None, Some(other.cert_pem())] {
        assert!(matches!(fetch_text(&url, authority).await, Err(FetchError::Request(_))));
    }
    server.shutdown().await;
}

#[test]
fn a_servers_kubeconfig_names_no_files_of_this_machine() {
    let text = "clusters: [{name: '', cluster: {server: 'https://a', certificate-authority: /etc/shadow}}]";
    assert!(matches!(read_info(text), Err(InfoError::File { .. })));
}

#[tokio::test]
async fn the_clusters_version_is_that_of_kubeadm_else_the_servers() {
    let answer = |configuration: Option<&'static str>| {
        fake_client(move |seen| match (seen.path.as_str(), configuration) {
            ("/api/v1/namespaces/kube-system/configmaps/kubelet-config", _) => info(&json!({"kubelet": "K"})),
            ("/api/v1/namespaces/kube-system/configmaps/kubeadm-config", Some(text)) => info(&json!({"ClusterConfiguration": text})),
            ("/version", _) => Reply::json(
                200,
                json!({"major": "1", "minor": "35", "gitVersion": "v1.35.0", "gitCommit": "", "gitTreeState": "",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
            ),
            _ => Reply::json(
                404,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "none", "reason": "NotFound", "code": 404}),
            ),
        })
    };
    let read = async |configuration| read_cluster(&answer(configuration), "n", Duration::from_secs(5)).await.unwrap();
    let found = read(Some("kubernetesVersion: v1.36.1\n")).await;
    assert_eq!((found.version.to_string().as_str(), found.kubelet.as_str(), found.node_is_ready), ("v1.36.1", "K", false));
    assert_eq!(read(None).await.version.to_string(), "v1.35.0");
    assert_eq!(read(Some("kubernetesVersion: stable-1\n")).await.version.to_string(), "v1.35.0");
    let refused = fake_client(|_| Reply::status(401, "Unauthorized"));
    let error = read_cluster(&refused, "n", Duration::from_secs(5)).await.unwrap_err();
    assert!(error.to_string().contains("the token may have expired"), "{error}");
}
