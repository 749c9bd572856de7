//! Options of the audit webhook under upstream's names, and the receiver that a kubeconfig names.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use apiserver::{AuditWebhook, Batch, Post, Throttle, Truncate, WebhookConfig};
use base64::Engine as _;
use bytes::Bytes;
use clap::Args;
use http::Request;
use http::header::{ACCEPT, CONTENT_TYPE};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use lab::dir::Dirs;
use node_config::GoDuration;
use serde::{Deserialize, Serialize};
use thiserror_ext::AsReport as _;

use super::{LogMode, NONE};

/// The copy of the kubeconfig in DIR.
const CONFIG: &str = "audit-webhook.yaml";

/// How long the receiver may take for one list (apiserver/pkg/util/webhook `defaultRequestTimeout`).
const TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of an event, and of a list, where events are truncated and nothing else is asked for.
const MAX_EVENT: usize = 100 << 10;

/// Who else gets the events.
#[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WebhookArgs {
    /// Whether DIR has a receiver.
    #[arg(skip)]
    pub sent: bool,
    /// Send events to the server of this kubeconfig; none ends it [default: what DIR holds, else nobody]
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub audit_webhook_config_file: Option<PathBuf>,
    /// Whether requests wait until their events are sent [default: batch]
    #[arg(long, value_enum, value_name = "MODE")]
    pub audit_webhook_mode: Option<LogMode>,
    /// The pause after the first failure to send a list; each is longer by half, after the fifth the list is lost [default: 10s]
    #[arg(long, value_name = "TIME", alias = "audit-webhook-batch-initial-backoff")]
    pub audit_webhook_initial_backoff: Option<GoDuration>,
    /// Events that may wait to be put into lists [default: 10000]
    #[arg(long, value_name = "EVENTS")]
    pub audit_webhook_batch_buffer_size: Option<usize>,
    /// Events of a list [default: 400]
    #[arg(long, value_name = "EVENTS")]
    pub audit_webhook_batch_max_size: Option<usize>,
    /// How long a list waits for more events [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub audit_webhook_batch_max_wait: Option<GoDuration>,
    /// Whether the number of lists in a second is bounded [default: true]
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub audit_webhook_batch_throttle_enable: Option<bool>,
    /// Lists in a second, on average [default: 10]
    #[arg(long, value_name = "LISTS")]
    pub audit_webhook_batch_throttle_qps: Option<f32>,
    /// Lists at once after a pause [default: 15]
    #[arg(long, value_name = "LISTS")]
    pub audit_webhook_batch_throttle_burst: Option<u32>,
    /// Whether large events lose their objects [default: false]
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub audit_webhook_truncate_enabled: Option<bool>,
    /// Bytes of a list [default: 10485760]
    #[arg(long, value_name = "BYTES")]
    pub audit_webhook_truncate_max_batch_size: Option<usize>,
    /// Bytes of an event [default: 102400]
    #[arg(long, value_name = "BYTES")]
    pub audit_webhook_truncate_max_event_size: Option<usize>,
}

/// Bounds of events where they are asked for.
pub(super) fn truncate(enabled: Option<bool>, max_event: Option<usize>) -> Option<Truncate> {
    enabled.unwrap_or(false).then(|| Truncate { max_event: max_event.unwrap_or(MAX_EVENT) })
}

impl WebhookArgs {
    /// What these options say over those that DIR remembers.
    pub(super) fn over(&self, known: Self) -> Self {
        Self {
            sent: self.audit_webhook_config_file.as_ref().map_or(known.sent, |path| path != Path::new(NONE)),
            audit_webhook_config_file: None,
            audit_webhook_mode: self.audit_webhook_mode.or(known.audit_webhook_mode),
            audit_webhook_initial_backoff: self.audit_webhook_initial_backoff.or(known.audit_webhook_initial_backoff),
            audit_webhook_batch_buffer_size: self.audit_webhook_batch_buffer_size.or(known.audit_webhook_batch_buffer_size),
            audit_webhook_batch_max_size: self.audit_webhook_batch_max_size.or(known.audit_webhook_batch_max_size),
            audit_webhook_batch_max_wait: self.audit_webhook_batch_max_wait.or(known.audit_webhook_batch_max_wait),
            audit_webhook_batch_throttle_enable: self.audit_webhook_batch_throttle_enable.or(known.audit_webhook_batch_throttle_enable),
            audit_webhook_batch_throttle_qps: self.audit_webhook_batch_throttle_qps.or(known.audit_webhook_batch_throttle_qps),
            audit_webhook_batch_throttle_burst: self.audit_webhook_batch_throttle_burst.or(known.audit_webhook_batch_throttle_burst),
            audit_webhook_truncate_enabled: self.audit_webhook_truncate_enabled.or(known.audit_webhook_truncate_enabled),
            audit_webhook_truncate_max_batch_size: self.audit_webhook_truncate_max_batch_size.or(known.audit_webhook_truncate_max_batch_size),
            audit_webhook_truncate_max_event_size: self.audit_webhook_truncate_max_event_size.or(known.audit_webhook_truncate_max_event_size),
        }
    }

    /// The kubeconfig that `up` is given, with everything in it that it names, checked; none when it is given none.
    pub(super) fn kubeconfig(&self) -> Result<Option<String>> {
        self.check()?;
        let Some(path) = self.audit_webhook_config_file.as_deref().filter(|path| *path != Path::new(NONE)) else { return Ok(None) };
        let whole = embed(read(path)?).with_context(|| format!("cannot read what {} names", path.display()))?;
        // Nothing waits for anything but files here.
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(config_of(whole.clone())).with_context(|| format!("{} cannot be used", path.display()))?;
        Ok(Some(serde_yaml_ng::to_string(&whole)?))
    }

    /// Keeps the kubeconfig in DIR, or removes the one that is there.
    pub(super) fn keep(&self, kubeconfig: Option<&str>, dirs: &Dirs) -> Result<()> {
        super::keep(&dirs.dir.join(CONFIG), kubeconfig, self.audit_webhook_config_file.is_some())
            .context("keeping the audit webhook's kubeconfig failed")
    }

    /// The options of the control plane of DIR: none without a receiver there.
    pub(super) fn options(&self, dirs: &Dirs) -> Vec<(&'static str, String)> {
        if !self.sent {
            return Vec::new();
        }
        fn text<T: Display>(value: &Option<T>) -> Option<String> {
            value.as_ref().map(ToString::to_string)
        }
        let all = [
            ("audit-webhook-config-file", Some(dirs.dir.join(CONFIG).display().to_string())),
            ("audit-webhook-mode", self.audit_webhook_mode.map(|mode| mode.name().to_owned())),
            ("audit-webhook-initial-backoff", text(&self.audit_webhook_initial_backoff)),
            ("audit-webhook-batch-buffer-size", text(&self.audit_webhook_batch_buffer_size)),
            ("audit-webhook-batch-max-size", text(&self.audit_webhook_batch_max_size)),
            ("audit-webhook-batch-max-wait", text(&self.audit_webhook_batch_max_wait)),
            ("audit-webhook-batch-throttle-enable", text(&self.audit_webhook_batch_throttle_enable)),
            ("audit-webhook-batch-throttle-qps", text(&self.audit_webhook_batch_throttle_qps)),
            ("audit-webhook-batch-throttle-burst", text(&self.audit_webhook_batch_throttle_burst)),
            ("audit-webhook-truncate-enabled", text(&self.audit_webhook_truncate_enabled)),
            ("audit-webhook-truncate-max-batch-size", text(&self.audit_webhook_truncate_max_batch_size)),
            ("audit-webhook-truncate-max-event-size", text(&self.audit_webhook_truncate_max_event_size)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// What upstream refuses (apiserver/pkg/server/options/audit.go `validateBackendBatchOptions`, `AuditTruncateOptions.Validate`).
    fn check(&self) -> Result<()> {
        let WebhookConfig { batch, max_list, .. } = self.settings();
        ensure!(batch.buffer_size > 0, "--audit-webhook-batch-buffer-size must be a positive number");
        ensure!(batch.max_size > 0, "--audit-webhook-batch-max-size must be a positive number");
        if let Some(throttle) = batch.throttle {
            ensure!(throttle.qps.is_finite() && throttle.qps > 0.0, "--audit-webhook-batch-throttle-qps must be a positive number");
            ensure!(throttle.burst > 0, "--audit-webhook-batch-throttle-burst must be a positive number");
        }
        let max_event = self.audit_webhook_truncate_max_event_size.unwrap_or(MAX_EVENT);
        ensure!(max_event > 0, "--audit-webhook-truncate-max-event-size must be a positive number");
        ensure!(
            max_list >= max_event,
            "--audit-webhook-truncate-max-batch-size must not be less than --audit-webhook-truncate-max-event-size, {max_event}"
        );
        Ok(())
    }

    fn settings(&self) -> WebhookConfig {
        let usual = WebhookConfig::default();
        let rate = usual.batch.throttle.unwrap_or(Throttle { qps: 0.0, burst: 0 });
        let throttle = Throttle {
            qps: self.audit_webhook_batch_throttle_qps.unwrap_or(rate.qps),
            burst: self.audit_webhook_batch_throttle_burst.unwrap_or(rate.burst),
        };
        let time = |own: Option<GoDuration>, usual: Duration| own.map_or(usual, |own| own.0);
        WebhookConfig {
            mode: self.audit_webhook_mode.map_or(usual.mode, LogMode::mode),
            initial_backoff: time(self.audit_webhook_initial_backoff, usual.initial_backoff),
            batch: Batch {
                buffer_size: self.audit_webhook_batch_buffer_size.unwrap_or(usual.batch.buffer_size),
                max_size: self.audit_webhook_batch_max_size.unwrap_or(usual.batch.max_size),
                max_wait: time(self.audit_webhook_batch_max_wait, usual.batch.max_wait),
                throttle: self.audit_webhook_batch_throttle_enable.unwrap_or(true).then_some(throttle),
            },
            max_list: self.audit_webhook_truncate_max_batch_size.unwrap_or(usual.max_list),
        }
    }

    /// What the API server is told: nothing without a kubeconfig.
    pub(super) async fn config(&self) -> Result<Option<AuditWebhook>> {
        let Some(path) = &self.audit_webhook_config_file else { return Ok(None) };
        self.check()?;
        let post = Receiver::new(read(path)?).await.with_context(|| format!("{} cannot be used", path.display()))?;
        let truncate = truncate(self.audit_webhook_truncate_enabled, self.audit_webhook_truncate_max_event_size);
        Ok(Some(AuditWebhook { config: self.settings(), truncate, post: Arc::new(post) }))
    }
}

fn read(path: &Path) -> Result<Kubeconfig> {
    Kubeconfig::read_from(path).with_context(|| format!("cannot read the audit webhook's kubeconfig {}", path.display()))
}

async fn config_of(kubeconfig: Kubeconfig) -> Result<Config> {
    Ok(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
}

/// Puts the certificates and keys into a kubeconfig that it names. Files of tokens change, and stay where they are.
fn embed(mut kubeconfig: Kubeconfig) -> Result<Kubeconfig> {
    let content = |path: Option<String>| -> Result<Option<String>> {
        let Some(path) = path else { return Ok(None) };
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {path}"))?;
        Ok(Some(base64::engine::general_purpose::STANDARD.encode(bytes)))
    };
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        if let Some(data) = content(cluster.certificate_authority.take())? {
            cluster.certificate_authority_data.get_or_insert(data);
        }
    }
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        if let Some(data) = content(user.client_certificate.take())? {
            user.client_certificate_data.get_or_insert(data);
        }
        if let Some(data) = content(user.client_key.take())? {
            user.client_key_data.get_or_insert(data.into());
        }
    }
    Ok(kubeconfig)
}

/// The server of a kubeconfig.
#[derive(Debug)]
struct Receiver {
    client: Shown,
    /// Path and query of its URL.
    path: String,
}

/// A client, of which nothing is shown: it knows secrets.
struct Shown(Client);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Receiver {
    async fn new(kubeconfig: Kubeconfig) -> Result<Self> {
        let mut config = config_of(kubeconfig).await?;
        let path = config.cluster_url.path().trim_end_matches('/');
        let path = format!("{}?timeout={}", if path.is_empty() { "/" } else { path }, GoDuration(TIMEOUT));
        let mut parts = config.cluster_url.into_parts();
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        config.cluster_url = http::Uri::from_parts(parts).context("the server's URL cannot be used")?;
        // Who posts tries again, and knows when to give up.
        config.default_retry = false;
        Ok(Self { client: Shown(Client::try_from(config)?), path })
    }

    async fn send(&self, list: Bytes) -> Result<(), String> {
        let request = Request::post(&self.path).header(CONTENT_TYPE, "application/json").header(ACCEPT, "application/json, */*");
        let request = request.body(kube::client::Body::from(list.to_vec())).map_err(|error| error.to_report_string())?;
        let answer = self.client.0.send(request).await.map_err(|error| error.to_report_string())?;
        if answer.status().is_success() { Ok(()) } else { Err(format!("the receiver answered {}", answer.status())) }
    }
}

impl Post for Receiver {
    fn post(&self, list: Bytes) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(
            async move { tokio::time::timeout(TIMEOUT, self.send(list)).await.unwrap_or_else(|_| Err("the receiver did not answer in time".into())) },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::dir::Env;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    fn kubeconfig(server: &str, more: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: '{server}'{more}}}}}]\n\
             users: [{{name: u, user: {{token: a-secret}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
        )
    }

    fn given(file: &Path) -> WebhookArgs {
        WebhookArgs { audit_webhook_config_file: Some(file.to_owned()), ..WebhookArgs::default() }
    }

    #[test]
    fn a_cluster_keeps_its_receiver_with_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs::resolve(&dir.path().join("cluster"), &Env::of_process()).unwrap();
        std::fs::create_dir_all(&dirs.dir).unwrap();
        let ca = pki::Ca::generate("audit", Duration::from_secs(3600)).unwrap();
        std::fs::write(dir.path().join("ca.crt"), ca.cert_pem()).unwrap();
        let file = dir.path().join("webhook.yaml");
        std::fs::write(&file, kubeconfig("https://audit.example/sink", ", certificate-authority: ca.crt")).unwrap();
        let first = WebhookArgs { audit_webhook_batch_max_wait: Some(GoDuration(Duration::from_secs(5))), ..given(&file) };
        first.keep(first.kubeconfig().unwrap().as_deref(), &dirs).unwrap();
        std::fs::remove_file(dir.path().join("ca.crt")).unwrap();
        let copy = dirs.dir.join(CONFIG);
        let kept = Kubeconfig::read_from(&copy).unwrap();
        assert!(kept.clusters[0].cluster.as_ref().unwrap().certificate_authority_data.is_some());
        let cluster = first.over(WebhookArgs { audit_webhook_truncate_enabled: Some(true), ..WebhookArgs::default() });
        let expected = [
            ("audit-webhook-config-file", copy.display().to_string()),
            ("audit-webhook-batch-max-wait", "5s".into()),
            ("audit-webhook-truncate-enabled", "true".into()),
        ];
        assert_eq!(cluster.options(&dirs), expected);
        let none = given(Path::new(NONE));
        none.keep(none.kubeconfig().unwrap().as_deref(), &dirs).unwrap();
        assert!(none.over(cluster).options(&dirs).is_empty() && !copy.exists());
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("webhook.yaml");
        let refused = |args: &WebhookArgs| format!("{:#}", args.kubeconfig().unwrap_err());
        assert!(refused(&given(&file)).contains("cannot read the audit webhook's kubeconfig"));
        std::fs::write(&file, kubeconfig("https://audit.example", ", certificate-authority: absent.crt")).unwrap();
        assert!(refused(&given(&file)).contains("absent.crt"));
        std::fs::write(&file, "apiVersion: v1\nkind: Config\n").unwrap();
        assert!(refused(&given(&file)).contains("cannot be used"));
        let with = |change: fn(&mut WebhookArgs)| {
            let mut args = WebhookArgs::default();
            change(&mut args);
            refused(&args)
        };
        assert!(with(|args| args.audit_webhook_batch_max_size = Some(0)).contains("--audit-webhook-batch-max-size must be a positive number"));
        assert!(with(|args| args.audit_webhook_batch_buffer_size = Some(0)).contains("buffer-size"));
        assert!(with(|args| args.audit_webhook_batch_throttle_qps = Some(f32::NAN)).contains("throttle-qps"));
        assert!(with(|args| args.audit_webhook_batch_throttle_burst = Some(0)).contains("throttle-burst"));
        assert!(with(|args| args.audit_webhook_truncate_max_batch_size = Some(1)).contains("max-batch-size must not be less"));
        let off =
            WebhookArgs { audit_webhook_batch_throttle_enable: Some(false), audit_webhook_batch_throttle_burst: Some(0), ..WebhookArgs::default() };
        assert_eq!(off.kubeconfig().unwrap(), None, "what is not used is not looked at");
    }

    #[tokio::test]
    async fn lists_are_posted_to_the_server_s_path_with_its_token() {
        cluster::install_crypto_provider();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/sink/", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            let mut heads = Vec::new();
            while let Some(answer) = ["200 OK", "503 Service Unavailable"].get(heads.len()) {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut seen = Vec::new();
                // A connection that the client makes and does not use ends without a word.
                while !seen.ends_with(b"the list") && stream.read_buf(&mut seen).await.unwrap() > 0 {}
                if !seen.is_empty() {
                    stream.write_all(format!("HTTP/1.1 {answer}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").as_bytes()).await.unwrap();
                    heads.push(String::from_utf8(seen).unwrap().to_lowercase());
                }
            }
            heads
        });
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("webhook.yaml");
        std::fs::write(&file, kubeconfig(&url, "")).unwrap();
        let post = given(&file).config().await.unwrap().unwrap().post;
        assert_eq!(post.post(Bytes::from_static(b"the list")).await, Ok(()));
        assert_eq!(post.post(Bytes::from_static(b"the list")).await, Err("the receiver answered 503 Service Unavailable".into()));
        let heads = serving.await.unwrap();
        assert!(heads[0].starts_with("post /sink?timeout=30s http/1.1\r\n"), "{}", heads[0]);
        assert!(heads[0].contains("authorization: bearer a-secret") && heads[0].contains("content-type: application/json"), "{}", heads[0]);
        assert!(!format!("{post:?}").contains("secret"));
    }
}
