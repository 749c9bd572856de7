//! Bootstrap tokens: signatures of the ConfigMap `cluster-info`, and the end of expired tokens.
//!
//! Inputs: Secrets of type `bootstrap.kubernetes.io/token` in `kube-system`, the ConfigMap `cluster-info` in `kube-public`. Outputs: its
//! members `jws-kubeconfig-TOKENID`, by which a new node recognises the cluster; deletions of expired tokens. Mirrors
//! `pkg/controller/bootstrap`.
//! Guarantees: a signature goes when its token does; a token of which only the time cannot be read counts as expired.

mod tokens;

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Context as _;
use cluster::{ApiServer, Client, Informer, Key, Selection, is_conflict, is_not_found};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use kube_rules::bootstrap_token::{Expiry, SECRET_TYPE};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::runner::{Next, Queue};
use tokens::{Row, changes};

const TOKEN_NAMESPACE: &str = "kube-system";
const INFO_NAMESPACE: &str = "kube-public";
const INFO: &str = "cluster-info";

/// The ConfigMap with what is signed, and the signatures.
#[derive(Debug, PartialEq, Eq)]
struct Info {
    version: String,
    data: BTreeMap<String, String>,
}

/// What there is to look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Work {
    Sign,
    Token(String),
}

struct Context {
    client: Client,
    tokens: Informer<Row>,
    infos: Informer<Info>,
}

/// Runs the controllers until `shutdown`.
pub(crate) async fn run(client: Client, api: ApiServer, shutdown: CancellationToken) {
    // Selections that the one watch of the kind can serve; a Secret's type is none of them.
    let selection = Selection::fields(format!("metadata.namespace={TOKEN_NAMESPACE}")).of(&api);
    let tokens = Informer::start(Api::<Secret>::all(client.clone()), selection, |secret| {
        (secret.type_.as_deref() == Some(SECRET_TYPE)).then(|| Row::new(secret))
    });
    let selection = Selection::fields(format!("metadata.namespace={INFO_NAMESPACE},metadata.name={INFO}")).of(&api);
    let infos = Informer::start(Api::<ConfigMap>::all(client.clone()), selection, info);
    tokio::select! {
        () = async { tokio::join!(tokens.synced(), infos.synced()); } => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<Work>::default();
    let keys = queue.clone();
    tokens.subscribe(move |change| keys.extend([Work::Sign, Work::Token(change.key.name.to_string())]));
    let keys = queue.clone();
    infos.subscribe(move |_| keys.add(Work::Sign));
    let context = Arc::new(Context { client, tokens, infos });
    queue.run("bootstrap", 4, shutdown, |work| sync(context.clone(), work)).await;
}

fn info(map: &ConfigMap) -> Option<Info> {
    let version = map.metadata.resource_version.clone().unwrap_or_default();
    Some(Info { version, data: map.data.clone().unwrap_or_default() })
}

async fn sync(context: Arc<Context>, work: Work) -> anyhow::Result<Next> {
    match work {
        Work::Sign => sign(&context).await,
        Work::Token(name) => clean(&context, &name).await,
    }
}

async fn sign(context: &Context) -> anyhow::Result<Next> {
    let Some(info) = context.infos.get(Key::new(INFO_NAMESPACE, INFO)) else { return Ok(Next::Change) };
    let now = Timestamp::now();
    let tokens = context.tokens.snapshot();
    let signing = tokens.iter().filter_map(|(key, row)| row.token.for_signing(&key.name, now));
    let changes = changes(&info.data, signing);
    if changes.is_empty() {
        return Ok(Next::Change);
    }
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), INFO_NAMESPACE);
    let patch = json!({"metadata": {"resourceVersion": info.version}, "data": changes});
    match maps.patch(INFO, &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(error) if is_not_found(&error) => Ok(Next::Change),
        Err(error) if is_conflict(&error) => anyhow::bail!("{INFO} changed meanwhile; it will be signed again"),
        other => other.map(|_| Next::Change).context("writing signatures of cluster-info"),
    }
}

/// Deletes an expired token; another is looked at again when it expires.
async fn clean(context: &Context, name: &str) -> anyhow::Result<Next> {
    let Some(row) = context.tokens.get(Key::new(TOKEN_NAMESPACE, name)) else { return Ok(Next::Change) };
    match row.token.expiry(Timestamp::now()) {
        Expiry::Never => return Ok(Next::Change),
        Expiry::Within(left) => return Ok(Next::Within(left)),
        Expiry::Over => {}
    }
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), TOKEN_NAMESPACE);
    let preconditions = Some(Preconditions { uid: Some(row.uid.clone()), resource_version: None });
    match secrets.delete(name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
        Err(error) if !is_not_found(&error) && !is_conflict(&error) => Err(error).with_context(|| format!("deleting the expired token {name}")),
        _ => Ok(Next::Change),
    }
}
