//! Credential providers: programs of the node's operator that give credentials for images
//! (upstream pkg/credentialprovider/plugin; KEP-2133, KEP-4412).
//!
//! Which programs there are, and for which images, says `CredentialProviderConfig` (`config`, pure). A program reads a request and writes an
//! answer (`protocol`, pure), which holds for a while (`cache`, pure). Requests for the same image share one process (`call`). A provider
//! that fails gives no credentials: others may, and the image may be public.

pub(crate) mod cache;
mod call;
pub(crate) mod config;
pub(crate) mod protocol;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use host::{FileKind, HostError, HostRoot, PathError, PodPath};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Api;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use sha2::{Digest as _, Sha256};
use thiserror_ext::AsReport as _;

use super::keyring::{Coordinates, Credential, DockerConfig, Keyring, Source, hex};
use crate::error::ApiError;
use crate::tokens::{TokenCache, TokenError};
use cache::{AccountKey, Cache};
use call::{Call, CallError};
use config::{ConfigError, Provider, TokenAttributes};
use protocol::{Account, Answer, AnswerError};

/// Why the agent cannot start with its credential providers.
#[derive(Debug, thiserror::Error)]
pub enum ProvidersError {
    #[error("plugin binary directory {0} did not exist; install the programs there, or give another --image-credential-provider-bin-dir")]
    NoDirectory(PodPath),
    #[error("plugin binary executable {0} did not exist; install it there, or take the provider out of --image-credential-provider-config")]
    NoProgram(PodPath),
    #[error("error inspecting binary executable {0}: it is no file that may be executed")]
    NotExecutable(PodPath),
    #[error("credential provider {name} is the script {path}, and the node agent runs no shell; install an .exe")]
    Script { name: String, path: PodPath },
    #[error("error decoding config {path:?}")]
    File { path: String, source: ConfigError },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Path(#[from] PathError),
}

/// Why a provider gave nothing.
#[derive(Clone, Debug, thiserror::Error)]
enum ProvideError {
    #[error("failed to get service account")]
    Account(#[source] Arc<ApiError>),
    #[error("failed to get service account token")]
    Token(#[source] Arc<TokenError>),
    #[error("failed to get credential from external registry credential provider")]
    Call(#[source] Arc<CallError>),
    #[error("failed to get credential from external registry credential provider")]
    Answer(#[source] Arc<AnswerError>),
    #[error("failed to get credential from external registry credential provider")]
    Program(#[source] Arc<HostError>),
    #[error(
        "credential provider plugin returned the service account token as the password which is not allowed when service account cache type \
         is not set to 'Token'"
    )]
    Echo,
}

/// A process that runs, for all who wait for it.
type Flight = Shared<BoxFuture<'static, Result<Arc<Answer>, ProvideError>>>;

/// Requests with the same answer: image, the token's hash, and annotations.
type FlightKey = (String, String, BTreeMap<String, String>);
/// A call of a program, for all that want its answer.
type OpenFlight = WeakShared<BoxFuture<'static, Result<Arc<Answer>, ProvideError>>>;

struct Plugin {
    provider: Arc<Provider>,
    program: PodPath,
    cache: Mutex<Cache>,
    flights: Mutex<HashMap<FlightKey, OpenFlight>>,
}

/// The providers of a node, in the order of the configuration.
pub(crate) struct Providers {
    root: Arc<HostRoot>,
    client: kube::Client,
    tokens: Arc<TokenCache>,
    plugins: Vec<Plugin>,
    counts: Arc<Counts>,
}

/// What a pod's account adds to a request.
struct Held {
    coordinates: Coordinates,
    account: Account,
    token_hash: String,
    key: AccountKey,
}

impl Providers {
    /// A node without any.
    pub(crate) fn none(root: Arc<HostRoot>, client: kube::Client, tokens: Arc<TokenCache>) -> Self {
        Providers { root, client, tokens, plugins: Vec::new(), counts: Arc::default() }
    }

    /// Those of `config`, a file or a directory of files, with their programs in `dir`.
    ///
    /// # Errors
    /// When the configuration is wrong, or a program is missing.
    pub(crate) fn load(self, config: &PodPath, dir: &PodPath) -> Result<Self, ProvidersError> {
        if self.root.kind(dir)? != Some(FileKind::Directory) {
            return Err(ProvidersError::NoDirectory(dir.clone()));
        }
        let (mut parsed, mut contents) = (Vec::new(), Vec::new());
        for path in files(&self.root, config)? {
            let bytes = self.root.read(&path, config::MAX_FILE + 1)?.ok_or_else(|| ConfigError::Missing(path.to_string()))?;
            parsed.push(config::parse(&bytes).map_err(|source| ProvidersError::File { path: path.to_string(), source })?);
            contents.push(bytes);
        }
        let hash = config::hash(contents.iter().map(Vec::as_slice));
        let plugins = config::merge(parsed)?.into_iter().map(|provider| {
            let program = program(&self.root, dir, &provider.name)?;
            Ok(Plugin { provider: Arc::new(provider), program, cache: Mutex::default(), flights: Mutex::default() })
        });
        let plugins = plugins.collect::<Result<Vec<_>, ProvidersError>>()?;
        Ok(Providers { plugins, counts: Arc::new(Counts { config_hash: Some(hash), ..Counts::default() }), ..self })
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The credentials for a repository such as `docker.io/library/busybox`, for a pod.
    pub(crate) async fn lookup(&self, repository: &str, pod: &Pod) -> Vec<Credential> {
        let mut keyring = Keyring::default();
        for plugin in self.plugins.iter().filter(|plugin| plugin.provider.is_for(repository)) {
            match self.provide(plugin, repository, pod).await {
                Ok((config, account)) => keyring.add(&account.map_or(Source::Node, Source::ServiceAccount), config),
                Err(error) => {
                    let (provider, error) = (&plugin.provider.name, error.as_report());
                    let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
                    tracing::error!(provider, image = repository, namespace, pod = name, %error, "Failed to provide credentials for image");
                }
            }
        }
        keyring.lookup(repository)
    }

    /// What one provider gives, and for which account.
    async fn provide(&self, plugin: &Plugin, image: &str, pod: &Pod) -> Result<(DockerConfig, Option<Coordinates>), ProvideError> {
        let held = match &plugin.provider.tokens {
            None => None,
            Some(attributes) => {
                let name = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref()).unwrap_or_default();
                match (name.is_empty(), attributes.required) {
                    (true, true) => return Ok((DockerConfig::new(), None)),
                    (true, false) => None,
                    // Without an annotation that it needs, the account did not ask for this provider.
                    (false, _) => match self.account(attributes, pod, name).await? {
                        None => return Ok((DockerConfig::new(), None)),
                        held => held,
                    },
                }
            }
        };
        let key = held.as_ref().map(|held| &held.key);
        let coordinates = held.as_ref().map(|held| held.coordinates.clone());
        if let Some(config) = lock(&plugin.cache).get(image, key, Instant::now()) {
            return Ok((config, coordinates));
        }
        let answer = self.fly(plugin, image, held.as_ref()).await?;
        if let (Some(held), Some(attributes)) = (&held, &plugin.provider.tokens)
            && !attributes.by_token
            && answer.auth.values().any(|login| login.password == held.account.token)
        {
            return Err(ProvideError::Echo);
        }
        lock(&plugin.cache).insert(image, key.cloned(), &answer, plugin.provider.default_cache_duration, Instant::now());
        Ok((answer.auth.clone(), coordinates))
    }

    /// Reads a pod's account and gets a token of it; None when an annotation is missing.
    async fn account(&self, attributes: &TokenAttributes, pod: &Pod, name: &str) -> Result<Option<Held>, ProvideError> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &namespace);
        let account = api.get(name).await.map_err(|error| ProvideError::Account(Arc::new(error.into())))?;
        let all = account.metadata.annotations.unwrap_or_default();
        let Some(annotations) = annotations(attributes, &all) else { return Ok(None) };
        let uid = account.metadata.uid.unwrap_or_default();
        let token = self.tokens.of_account(pod, &uid, &attributes.audience, Timestamp::now()).await;
        let token = token.map_err(|error| ProvideError::Token(Arc::new(error)))?;
        let token_hash = format!("sha256:{}", hex(&Sha256::digest(&token)));
        let coordinates = Coordinates { uid, namespace, name: name.to_owned() };
        let key =
            AccountKey { coordinates: coordinates.clone(), annotations: annotations.clone(), token: attributes.by_token.then(|| token_hash.clone()) };
        Ok(Some(Held { coordinates, account: Account { token, annotations }, token_hash, key }))
    }

    /// Waits for the process that answers this request; starts it when there is none.
    async fn fly(&self, plugin: &Plugin, image: &str, held: Option<&Held>) -> Result<Arc<Answer>, ProvideError> {
        let account = held.map(|held| held.account.clone());
        let key = (
            image.to_owned(),
            held.map(|held| held.token_hash.clone()).unwrap_or_default(),
            account.as_ref().map(|account| account.annotations.clone()).unwrap_or_default(),
        );
        let flight: Flight = {
            let mut flights = lock(&plugin.flights);
            flights.retain(|_, flight| flight.upgrade().is_some());
            match flights.get(&key).and_then(WeakShared::upgrade) {
                Some(flight) => flight,
                None => {
                    let program = self.root.resolve(&plugin.program).map_err(|error| ProvideError::Program(Arc::new(error)))?.path;
                    let flight = run(plugin.provider.clone(), program, image.to_owned(), account, self.counts.clone()).boxed().shared();
                    flights.extend(flight.downgrade().map(|weak| (key, weak)));
                    flight
                }
            }
        };
        flight.await
    }
}

/// Runs a program, and reads its answer.
async fn run(
    provider: Arc<Provider>,
    program: PathBuf,
    image: String,
    account: Option<Account>,
    counts: Arc<Counts>,
) -> Result<Arc<Answer>, ProvideError> {
    let request = protocol::request(provider.version, &image, account.as_ref());
    let token = account.as_ref().map_or("", |account| &account.token);
    let begun = Instant::now();
    let written = Call { program, provider: &provider, image: &image, request, token }.run(call::LIMIT).await;
    counts.note(&provider.name, begun.elapsed(), written.is_err());
    let written = written.map_err(|error| ProvideError::Call(Arc::new(error)))?;
    Answer::parse(&written, provider.version).map(Arc::new).map_err(|error| ProvideError::Answer(Arc::new(error)))
}

/// The annotations of an account that a provider is told; None when one that it needs is missing.
fn annotations(attributes: &TokenAttributes, all: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    let pair = |key: &String| all.get(key).map(|value| (key.clone(), value.clone()));
    let required = attributes.required_annotations.iter().map(pair).collect::<Option<BTreeMap<_, _>>>()?;
    Some(required.into_iter().chain(attributes.optional_annotations.iter().filter_map(pair)).collect())
}

/// The files of a configuration, in the order in which they count.
fn files(root: &HostRoot, config: &PodPath) -> Result<Vec<PodPath>, ProvidersError> {
    match root.kind(config)? {
        None => Err(ConfigError::Missing(config.to_string()).into()),
        Some(FileKind::Directory) => {
            let of_config = |name: &str| matches!(name.rsplit_once('.'), Some((_, "json" | "yaml" | "yml")));
            let names = root.read_dir(config)?.into_iter().filter(|(name, kind)| *kind != FileKind::Directory && of_config(name));
            let files = names.map(|(name, _)| config.join(&name)).collect::<Result<Vec<_>, _>>()?;
            if files.is_empty() { Err(ConfigError::NoFiles(config.to_string()).into()) } else { Ok(files) }
        }
        Some(_) => Ok(vec![config.clone()]),
    }
}

/// The program of a provider, where it is and may be executed. On Windows it is an .exe.
fn program(root: &HostRoot, dir: &PodPath, name: &str) -> Result<PodPath, ProvidersError> {
    let windows = root.os().is_windows();
    let is_exe = name.to_ascii_lowercase().ends_with(".exe");
    let path = dir.join(&if windows && !is_exe { format!("{name}.exe") } else { name.to_owned() })?;
    match root.resolve(&path) {
        Ok(found) if found.kind == FileKind::File && is_executable(&found) => return Ok(path),
        Ok(_) => return Err(ProvidersError::NotExecutable(path)),
        Err(error) if !error.is_not_found() => return Err(error.into()),
        Err(_) => {}
    }
    for script in ["", ".cmd", ".bat", ".ps1"].iter().filter(|_| windows && !is_exe) {
        let path = dir.join(&format!("{name}{script}"))?;
        if root.kind(&path)? == Some(FileKind::File) {
            return Err(ProvidersError::Script { name: name.to_owned(), path });
        }
    }
    Err(ProvidersError::NoProgram(path))
}

#[cfg(unix)]
fn is_executable(found: &host::Resolved) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    found.handle.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(windows)]
fn is_executable(_: &host::Resolved) -> bool {
    true
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Labels = [(&'static str, String); 1];

/// Upstream's bounds, in seconds.
const BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// How providers did, under upstream's names.
pub(crate) struct Counts {
    config_hash: Option<String>,
    errors: Family<Labels, Counter>,
    durations: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Default for Counts {
    fn default() -> Self {
        let durations = Family::new_with_constructor((|| Histogram::new(BOUNDS)) as fn() -> Histogram);
        Counts { config_hash: None, errors: Family::default(), durations }
    }
}

impl Counts {
    fn note(&self, name: &str, took: std::time::Duration, failed: bool) {
        let labels = [("plugin_name", name.to_owned())];
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
        if failed {
            self.errors.get_or_create(&labels).inc();
        }
    }

    /// Writes the metrics; none on a node without providers.
    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(hash) = &self.config_hash else { return Ok(()) };
        let help = "Information about the last applied credential provider configuration with hash as label";
        let mut info = encoder.encode_descriptor("kubelet_credential_provider_config_info", help, None, MetricType::Gauge)?;
        info.encode_family(&[("hash", hash.as_str())])?.encode_gauge(&1_u64)?;
        let help = "Number of errors from credential provider plugin";
        self.errors.encode(encoder.encode_descriptor("kubelet_credential_provider_plugin_errors", help, None, MetricType::Counter)?)?;
        let help = "Duration of execution in seconds for credential provider plugin";
        let name = "kubelet_credential_provider_plugin_duration";
        self.durations.encode(encoder.encode_descriptor(name, help, None, MetricType::Histogram)?)
    }
}
