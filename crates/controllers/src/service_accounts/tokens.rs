//! Secrets of type `kubernetes.io/service-account-token`: their tokens, and their end with their ServiceAccount.
//!
//! Inputs: such Secrets, ServiceAccounts, the authority's certificate. Outputs: the members `token`, `namespace` and `ca.crt` of the Secrets,
//! deletions. Mirrors `pkg/controller/serviceaccount/tokens_controller.go`, but for the tokens themselves: they are asked of the API
//! (TokenRequest), bound to the Secret and valid as long as the API allows, 136 years.

use std::sync::Arc;

use anyhow::Context as _;
use cluster::{Client, Informer, Key, Selection, is_conflict, is_not_found};
use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::{Secret, ServiceAccount},
    },
};
use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions},
};
use tokio_util::sync::CancellationToken;

use crate::{
    runner::{Next, Queue},
    view::Views,
};

const TYPE: &str = "kubernetes.io/service-account-token";
/// Annotations of such a Secret: whose token it holds.
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const TOKEN: &str = "token";
const ROOT_CA: &str = "ca.crt";
const NAMESPACE: &str = "namespace";
/// The longest time for which the API makes a token, in seconds.
const LONGEST: i64 = 1 << 32;

/// What is kept of such a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    uid: String,
    version: String,
    account: String,
    /// Empty until the Secret is filled.
    account_uid: String,
    has_token: bool,
    has_namespace: bool,
    /// It has the authority's certificate, and no other.
    is_current: bool,
}

impl Row {
    fn new(secret: &Secret, root_ca: &str) -> Self {
        let meta = &secret.metadata;
        let annotation = |name: &str| meta.annotations.as_ref().and_then(|all| all.get(name)).cloned().unwrap_or_default();
        let member = |name: &str| secret.data.as_ref().and_then(|data| data.get(name)).map(|value| value.0.as_slice()).unwrap_or_default();
        Self {
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            account: annotation(ACCOUNT),
            account_uid: annotation(ACCOUNT_UID),
            has_token: !member(TOKEN).is_empty(),
            has_namespace: !member(NAMESPACE).is_empty(),
            is_current: member(ROOT_CA) == root_ca.as_bytes(),
        }
    }
}

/// What to do with such a Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Keep,
    /// Its account is gone, or another one has its name.
    Delete,
    Fill,
}

/// `account`: the uid of the ServiceAccount of that name, if there is one.
fn step(row: &Row, account: Option<&str>) -> Step {
    match account {
        Some(uid) if row.account_uid.is_empty() || row.account_uid == uid => {
            if row.has_token && row.has_namespace && row.is_current {
                Step::Keep
            } else {
                Step::Fill
            }
        }
        _ => Step::Delete,
    }
}

struct Context {
    client: Client,
    secrets: Informer<Row>,
    accounts: Informer<String>,
    root_ca: String,
}

/// Runs until `shutdown`.
pub(super) async fn run(client: Client, views: Views, root_ca: String, shutdown: CancellationToken) {
    let all = || Selection::all().of(&views.api);
    let pem = root_ca.clone();
    let secrets = Informer::start(Api::<Secret>::all(client.clone()), all(), move |secret| {
        (secret.type_.as_deref() == Some(TYPE)).then(|| Row::new(secret, &pem))
    });
    let accounts = Informer::start(Api::<ServiceAccount>::all(client.clone()), all(), |account| account.metadata.uid.clone());
    tokio::select! {
        () = async { tokio::join!(secrets.synced(), accounts.synced()); } => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<Key>::default();
    let keys = queue.clone();
    secrets.subscribe(move |change| keys.add(change.key.clone()));
    let (keys, held) = (queue.clone(), secrets.clone());
    accounts.subscribe(move |change| {
        if change.old != change.new {
            let named = held.in_namespace(&change.key.ns).into_iter().filter(|(_, row)| row.account == change.key.name);
            keys.extend(named.map(|(key, _)| key));
        }
    });
    let context = Arc::new(Context { client, secrets, accounts, root_ca });
    queue.run("serviceaccount-tokens", 4, shutdown, |key| sync(context.clone(), key)).await;
}

async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    let Some(row) = context.secrets.get(&key) else { return Ok(Next::Change) };
    let accounts: Api<ServiceAccount> = Api::namespaced(context.client.clone(), &key.ns);
    let mut account = context.accounts.get(Key::new(&key.ns, &row.account)).map(|uid| (*uid).clone());
    if step(&row, account.as_deref()) == Step::Delete {
        // Our view may be late.
        account = accounts.get_metadata_opt(&row.account).await.context("looking for a ServiceAccount")?.and_then(|live| live.metadata.uid);
    }
    match (step(&row, account.as_deref()), account) {
        (Step::Fill, Some(account)) => fill(&context, &key, &row, &account).await,
        (Step::Delete, _) => {
            let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &key.ns);
            let preconditions = Some(Preconditions { uid: Some(row.uid.clone()), resource_version: None });
            match secrets.delete(&key.name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
                Err(error) if !is_not_found(&error) && !is_conflict(&error) => Err(error).with_context(|| format!("deleting the token {key}")),
                _ => Ok(Next::Change),
            }
        }
        _ => Ok(Next::Change),
    }
}

/// Writes what a Secret lacks.
async fn fill(context: &Context, key: &Key, row: &Row, account: &str) -> anyhow::Result<Next> {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &key.ns);
    let live = secrets.get_opt(&key.name).await.with_context(|| format!("reading the token {key}"))?;
    // A newer one brings us here again.
    let Some(mut secret) = live.filter(|live| live.metadata.resource_version.as_ref() == Some(&row.version)) else { return Ok(Next::Change) };
    let token = if row.has_token { None } else { Some(token(context, key, row).await?) };
    let data = secret.data.get_or_insert_default();
    data.insert(ROOT_CA.to_owned(), ByteString(context.root_ca.clone().into_bytes()));
    data.entry(NAMESPACE.to_owned()).or_insert_with(|| ByteString(key.ns.clone().into_bytes()));
    if let Some(token) = token {
        data.insert(TOKEN.to_owned(), ByteString(token.into_bytes()));
    }
    let annotations = secret.metadata.annotations.get_or_insert_default();
    annotations.insert(ACCOUNT_UID.to_owned(), account.to_owned());
    match secrets.replace(&key.name, &PostParams::default(), &secret).await {
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(Next::Change),
        other => other.map(|_| Next::Change).with_context(|| format!("writing the token {key}")),
    }
}

/// A token of the Secret's account that lives as long as the Secret.
async fn token(context: &Context, key: &Key, row: &Row) -> anyhow::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(context.client.clone(), &key.ns);
    let bound_object_ref = Some(BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Secret".to_owned()),
        name: Some(key.name.clone()),
        uid: Some(row.uid.clone()),
    });
    let spec = Some(TokenRequestSpec { audiences: None, bound_object_ref, expiration_seconds: Some(LONGEST) });
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let made = accounts.create_token_request(&row.account, &PostParams::default(), &request).await;
    let made = made.with_context(|| format!("asking for a token of ServiceAccount {}/{}", key.ns, row.account))?;
    made.status.and_then(|status| status.token).context("the answer to a TokenRequest has no token")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn tokens_are_filled_kept_or_deleted_with_their_account() {
        let row = |uid: &str, data: Value| {
            let annotations = json!({ACCOUNT: "robot", ACCOUNT_UID: uid});
            Row::new(&serde_json::from_value(json!({"metadata": {"annotations": annotations}, "data": data})).unwrap(), "ca")
        };
        let whole = || json!({"token": "dA==", "namespace": "bg==", "ca.crt": "Y2E="});
        for (what, row, account, expected) in [
            ("new", row("", json!({})), Some("1"), Step::Fill),
            ("filled", row("1", whole()), Some("1"), Step::Keep),
            ("another certificate", row("1", json!({"token": "dA==", "namespace": "bg==", "ca.crt": "b2xk"})), Some("1"), Step::Fill),
            ("no namespace", row("1", json!({"token": "dA==", "ca.crt": "Y2E="})), Some("1"), Step::Fill),
            ("no account", row("", json!({})), None, Step::Delete),
            ("the account went", row("1", whole()), None, Step::Delete),
            ("another account of the name", row("1", whole()), Some("2"), Step::Delete),
        ] {
            assert_eq!(step(&row, account), expected, "{what}");
        }
    }
}
