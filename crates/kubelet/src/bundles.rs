//! ClusterTrustBundles that pods project: one watch of all of them, from the first time that a pod wants one (upstream:
//! pkg/kubelet/clustertrustbundle).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster::{Informer, Selection};
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Api;
use kube::api::ListParams;
use kube_rules::{Selector, pem};
use tokio::sync::OnceCell;

use crate::error::ApiError;
use crate::sources::Waker;

/// How long the first list may take before the API server is asked why.
const FIRST_LIST: Duration = Duration::from_secs(2);

/// Why a pod gets no certificates of authorities.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    #[error("cannot read ClusterTrustBundles: the API server does not serve them; switch its feature gate ClusterTrustBundle on")]
    NotServed,
    #[error("cannot read ClusterTrustBundles")]
    Read(#[source] ApiError),
    #[error("ClusterTrustBundle informer has not yet synced")]
    NotSynced,
    #[error("while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found")]
    Missing { name: String },
    #[error("combination of signerName and labelSelector matched zero ClusterTrustBundles")]
    NoMatch,
}

/// What of a bundle pods may see.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    signer: String,
    labels: BTreeMap<String, String>,
    /// Certificates in DER.
    anchors: Vec<Vec<u8>>,
}

impl Row {
    pub(crate) fn of(bundle: &ClusterTrustBundle) -> Self {
        Row {
            signer: bundle.spec.signer_name.clone().unwrap_or_default(),
            labels: bundle.metadata.labels.clone().unwrap_or_default(),
            anchors: pem::blocks(&bundle.spec.trust_bundle).into_iter().map(|block| block.bytes).collect(),
        }
    }
}

/// The bundles of a moment.
#[derive(Clone, Default)]
pub(crate) struct Trusted {
    rows: BTreeMap<String, Arc<Row>>,
    order: RandomState,
}

impl Trusted {
    #[cfg(test)]
    pub(crate) fn new(bundles: impl IntoIterator<Item = ClusterTrustBundle>) -> Self {
        let row = |bundle: ClusterTrustBundle| (bundle.metadata.name.clone().unwrap_or_default(), Arc::new(Row::of(&bundle)));
        Trusted { rows: bundles.into_iter().map(row).collect(), order: RandomState::new() }
    }

    /// The authorities of one bundle, in PEM; none of one that may be missing and is.
    ///
    /// # Errors
    /// When the bundle is missing and must not be.
    pub(crate) fn named(&self, name: &str, optional: bool) -> Result<String, BundleError> {
        match self.rows.get(name) {
            Some(row) => Ok(self.text([row])),
            None if optional => Ok(String::new()),
            None => Err(BundleError::Missing { name: name.to_owned() }),
        }
    }

    /// The authorities of a signer's bundles with these labels, in PEM: no selector selects none, an empty one all.
    ///
    /// # Errors
    /// When there is no such bundle and there must be one.
    pub(crate) fn of_signer(&self, signer: &str, labels: Option<&LabelSelector>, optional: bool) -> Result<String, BundleError> {
        let selector = Selector::optional(labels);
        let mut rows = self.rows.values().filter(|row| row.signer == signer && selector.matches(&row.labels)).peekable();
        match rows.peek() {
            None if !optional => Err(BundleError::NoMatch),
            _ => Ok(self.text(rows)),
        }
    }

    /// Each authority once, in an order that means nothing: it is the same as long as the agent runs, and another one after that, so that
    /// no program comes to depend on it.
    fn text<'a>(&self, rows: impl IntoIterator<Item = &'a Arc<Row>>) -> String {
        let anchors: BTreeSet<(u64, &[u8])> =
            rows.into_iter().flat_map(|row| &row.anchors).map(|anchor| (self.order.hash_one(anchor), anchor.as_slice())).collect();
        anchors.into_iter().map(|(_, anchor)| pem::encode("CERTIFICATE", anchor)).collect()
    }
}

/// The bundles, watched from the first time they are asked for.
pub(crate) struct Bundles {
    client: kube::Client,
    api: cluster::ApiServer,
    waker: Waker,
    informer: OnceCell<Informer<Row>>,
    /// The pods that use them.
    users: Arc<Mutex<BTreeSet<String>>>,
    order: RandomState,
}

impl Bundles {
    pub(crate) fn new(client: kube::Client, api: cluster::ApiServer, waker: Waker) -> Self {
        Bundles { client, api, waker, informer: OnceCell::new(), users: Arc::default(), order: RandomState::new() }
    }

    /// The bundles as they are. From now on the pod is woken by their changes.
    pub(crate) async fn get(&self, uid: &str) -> Result<Trusted, BundleError> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned());
        let informer = self.informer.get_or_init(async || self.watch()).await;
        if tokio::time::timeout(FIRST_LIST, informer.synced()).await.is_err() {
            let asked = Api::<ClusterTrustBundle>::all(self.client.clone()).list(&ListParams::default().limit(1)).await;
            return Err(match asked {
                Ok(_) => BundleError::NotSynced,
                Err(kube::Error::Api(status)) if status.code == 404 => BundleError::NotServed,
                Err(error) => BundleError::Read(error.into()),
            });
        }
        let rows = informer.snapshot().into_iter().map(|(key, row)| (key.name, row)).collect();
        Ok(Trusted { rows, order: self.order.clone() })
    }

    /// The pod is gone.
    pub(crate) fn release(&self, uid: &str) {
        self.users.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    fn watch(&self) -> Informer<Row> {
        let (users, waker) = (self.users.clone(), self.waker.clone());
        let wake = move |_: cluster::Change<'_, Row>| {
            let users = users.lock().unwrap_or_else(PoisonError::into_inner).clone();
            users.iter().for_each(|uid| waker(uid));
        };
        let api: Api<ClusterTrustBundle> = Api::all(self.client.clone());
        Informer::start_with_handler(api, Selection::all().of(&self.api), |bundle| Some(Row::of(bundle)), wake)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bundle(name: &str, signer: &str, team: &str, anchors: &[u8]) -> ClusterTrustBundle {
        let text: String = anchors.iter().map(|anchor| pem::encode("CERTIFICATE", &[*anchor; 70])).collect();
        let spec = json!({"signerName": signer, "trustBundle": format!("# authorities\n{text}")});
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"team": team}}, "spec": spec})).unwrap()
    }

    fn anchors(text: &str) -> Vec<u8> {
        let mut found: Vec<u8> = pem::blocks(text).iter().map(|block| block.bytes[0]).collect();
        found.sort_unstable();
        found
    }

    fn all() -> Trusted {
        Trusted::new([bundle("x:s:a", "x/s", "a", &[1, 2, 1]), bundle("x:s:b", "x/s", "b", &[2, 3]), bundle("free", "", "a", &[9])])
    }

    #[test]
    fn each_authority_is_shown_once() {
        let all = all();
        assert_eq!(anchors(&all.named("x:s:a", false).unwrap()), [1, 2]);
        let every = LabelSelector::default();
        assert_eq!(anchors(&all.of_signer("x/s", Some(&every), false).unwrap()), [1, 2, 3]);
        let some: LabelSelector = serde_json::from_value(json!({"matchLabels": {"team": "b"}})).unwrap();
        assert_eq!(anchors(&all.of_signer("x/s", Some(&some), false).unwrap()), [2, 3]);
        assert_eq!(anchors(&all.of_signer("", Some(&every), false).unwrap()), [9]);
    }

    #[test]
    fn what_is_missing_is_an_error_unless_it_is_optional() {
        let all = all();
        let missing = all.named("none", false).unwrap_err().to_string();
        assert_eq!(missing, "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"none\" not found");
        assert_eq!(all.named("none", true).unwrap(), "");
        for (signer, labels) in [("x/s", None), ("y/s", Some(LabelSelector::default()))] {
            let error = all.of_signer(signer, labels.as_ref(), false).unwrap_err().to_string();
            assert_eq!(error, "combination of signerName and labelSelector matched zero ClusterTrustBundles");
            assert_eq!(all.of_signer(signer, labels.as_ref(), true).unwrap(), "");
        }
    }

    #[test]
    fn the_order_stays_for_one_agent_and_differs_between_agents() {
        let many: Vec<u8> = (0..40).collect();
        let of = |order: &RandomState| Trusted { order: order.clone(), ..Trusted::new([bundle("b", "", "", &many)]) }.named("b", false).unwrap();
        let (one, other) = (RandomState::new(), RandomState::new());
        assert_eq!(of(&one), of(&one));
        assert_ne!(of(&one), of(&other));
        assert_eq!(anchors(&of(&one)), anchors(&of(&other)));
    }
}
