//! In each namespace: the ServiceAccount `default` and the ConfigMap `kube-root-ca.crt`.
//!
//! Inputs: namespaces, those two objects, the authority's certificate. Outputs: those two objects, and the tokens of [`tokens`]. Mirrors
//! `pkg/controller/serviceaccount/serviceaccounts_controller.go` and `pkg/controller/certificates/rootcacertpublisher`.

mod tokens;

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Context as _;
use cluster::{Client, Key, is_conflict};
use k8s_openapi::{
    api::core::v1::{ConfigMap, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    runner::{Next, Queue},
    view::{RootCaRow, Views},
};

const ROOT_CA: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the \
                           internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

struct Context {
    client: Client,
    views: Views,
    root_ca_pem: String,
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, views: Views, root_ca_pem: String, shutdown: CancellationToken) {
    let queue = Queue::<String>::default();
    let keys = queue.clone();
    views.namespaces.subscribe(move |change| keys.add(change.key.name.clone()));
    let keys = queue.clone();
    views.service_accounts.subscribe(move |change| keys.add(change.key.ns.clone()));
    let keys = queue.clone();
    views.root_cas.subscribe(move |change| keys.add(change.key.ns.clone()));
    let context = Arc::new(Context { client: client.clone(), views: views.clone(), root_ca_pem: root_ca_pem.clone() });
    tokio::join!(
        queue.run("serviceaccount", 8, shutdown.clone(), |namespace| sync(context.clone(), namespace)),
        tokens::run(client, views, root_ca_pem, shutdown),
    );
}

/// Objects missing in a namespace.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    CreateAccount,
    CreateRootCa,
    /// Data and description are written anew; these members go.
    CorrectRootCa(Vec<String>),
}

fn plan(has_account: bool, root_ca: Option<&RootCaRow>, wanted: &str) -> Vec<Action> {
    let mut actions = Vec::new();
    if !has_account {
        actions.push(Action::CreateAccount);
    }
    match root_ca {
        None => actions.push(Action::CreateRootCa),
        Some(found) if found.pem.as_deref() == Some(wanted) && found.surplus.is_empty() && found.is_described => {}
        Some(found) => actions.push(Action::CorrectRootCa(found.surplus.clone())),
    }
    actions
}

async fn sync(context: Arc<Context>, namespace: String) -> anyhow::Result<Next> {
    let row = context.views.namespaces.get(Key::cluster(&namespace));
    if row.is_none_or(|row| row.deleting) {
        return Ok(Next::Change);
    }
    let root_ca = context.views.root_cas.get(Key::new(&namespace, ROOT_CA));
    let has_account = context.views.service_accounts.get(Key::new(&namespace, "default")).is_some();
    for action in plan(has_account, root_ca.as_deref(), &context.root_ca_pem) {
        let done = apply(&context, &namespace, &action).await;
        match done {
            Err(error) if is_conflict(&error) || crate::is_namespace_terminating(&error) => {}
            other => other.with_context(|| format!("{action:?} in {namespace}"))?,
        }
    }
    Ok(Next::Change)
}

async fn apply(context: &Context, namespace: &str, action: &Action) -> kube::Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(context.client.clone(), namespace);
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), namespace);
    let data = BTreeMap::from([("ca.crt".to_owned(), context.root_ca_pem.clone())]);
    let annotations = BTreeMap::from([(RootCaRow::DESCRIPTION.to_owned(), DESCRIPTION.to_owned())]);
    match action {
        Action::CreateAccount => {
            let metadata = ObjectMeta { name: Some("default".to_owned()), ..Default::default() };
            accounts.create(&PostParams::default(), &ServiceAccount { metadata, ..Default::default() }).await.map(|_| ())
        }
        Action::CreateRootCa => {
            let metadata = ObjectMeta { name: Some(ROOT_CA.to_owned()), annotations: Some(annotations), ..Default::default() };
            maps.create(&PostParams::default(), &ConfigMap { metadata, data: Some(data), ..Default::default() }).await.map(|_| ())
        }
        Action::CorrectRootCa(surplus) => {
            let mut members: BTreeMap<&str, Option<&str>> = surplus.iter().map(|name| (name.as_str(), None)).collect();
            members.insert("ca.crt", Some(&context.root_ca_pem));
            let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}, "data": members}));
            maps.patch(ROOT_CA, &PatchParams::default(), &patch).await.map(|_| ())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_objects_of_a_namespace_are_planned() {
        let row = |pem: &str, surplus: &[&str], is_described| RootCaRow {
            pem: Some(pem.to_owned()),
            surplus: surplus.iter().map(|name| (*name).to_owned()).collect(),
            is_described,
        };
        let correct = |surplus: &[&str]| vec![Action::CorrectRootCa(surplus.iter().map(|name| (*name).to_owned()).collect())];
        assert_eq!(plan(false, None, "ca"), [Action::CreateAccount, Action::CreateRootCa]);
        for (what, found, expected) in [
            ("right", row("ca", &[], true), vec![]),
            ("another certificate", row("old", &[], true), correct(&[])),
            ("no certificate", RootCaRow { pem: None, ..row("", &[], true) }, correct(&[])),
            ("more than that", row("ca", &["more"], true), correct(&["more"])),
            ("no description", row("ca", &[], false), correct(&[])),
        ] {
            assert_eq!(plan(true, Some(&found), "ca"), expected, "{what}");
        }
    }
}
