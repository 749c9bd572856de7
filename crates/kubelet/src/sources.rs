//! Secrets and ConfigMaps that pods name: one watch per object, shared by its users, dropped
//! with the last of them, so that a change reaches its pods at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster::{Informer, Key, Selection};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;

use crate::error::ApiError;

/// How long a first read may wait for its watch before it asks directly.
const FIRST_READ: Duration = Duration::from_secs(2);

/// Called with a pod's UID when something it uses changed.
pub(crate) type Waker = Arc<dyn Fn(&str) + Send + Sync>;

/// Kind of a source object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    ConfigMap,
    Secret,
}

impl Kind {
    /// As messages write it.
    pub(crate) fn lower(self) -> &'static str {
        match self {
            Kind::ConfigMap => "configmap",
            Kind::Secret => "secret",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::ConfigMap => "ConfigMap",
            Kind::Secret => "Secret",
        }
    }
}

/// A Secret or ConfigMap that the API server did not give.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {} {name:?}", kind.lower())]
pub(crate) struct SourceError {
    kind: Kind,
    name: String,
    source: ApiError,
}

/// Keys and values of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Data {
    pub uid: String,
    /// Of a Secret.
    pub type_: String,
    pub items: BTreeMap<String, Vec<u8>>,
    /// Keys of a ConfigMap's `binaryData`, which volumes show and variables do not.
    pub binary: BTreeSet<String>,
}

/// Objects of one pod's namespace by kind and name; None where there is no such object.
pub(crate) type Fetched = BTreeMap<(Kind, String), Option<Arc<Data>>>;

type Users = Arc<Mutex<BTreeSet<String>>>;

struct Watch {
    informer: Informer<Data>,
    users: Users,
}

pub(crate) struct Sources {
    client: kube::Client,
    api: cluster::ApiServer,
    waker: Waker,
    watches: Mutex<HashMap<(Kind, Key), Watch>>,
}

impl Sources {
    pub(crate) fn new(client: kube::Client, api: cluster::ApiServer, waker: Waker) -> Self {
        Sources { client, api, waker, watches: Mutex::default() }
    }

    /// The object, as the pod with `uid` sees it; from now on that pod is woken by its changes.
    pub(crate) async fn get(&self, uid: &str, kind: Kind, ns: &str, name: &str) -> Result<Option<Arc<Data>>, SourceError> {
        let informer = self.watch(uid, kind, ns, name);
        if tokio::time::timeout(FIRST_READ, informer.synced()).await.is_ok()
            && let Some(data) = informer.get(Key::new(ns, name))
        {
            return Ok(Some(data));
        }
        // Absent or not answered: ask, so that the answer (or the refusal) is the API's own.
        let answer = self.ask(kind, ns, name).await;
        answer.map_err(|error| SourceError { kind, name: name.to_owned(), source: error.into() })
    }

    async fn ask(&self, kind: Kind, ns: &str, name: &str) -> kube::Result<Option<Arc<Data>>> {
        match kind {
            Kind::ConfigMap => {
                let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), ns);
                Ok(api.get_opt(name).await?.map(|o| Arc::new(of_config_map(&o))))
            }
            Kind::Secret => {
                let api: Api<Secret> = Api::namespaced(self.client.clone(), ns);
                Ok(api.get_opt(name).await?.map(|o| Arc::new(of_secret(&o))))
            }
        }
    }

    /// The pod is gone: its watches end unless others share them.
    pub(crate) fn release(&self, uid: &str) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|_, w| {
            let mut users = w.users.lock().unwrap_or_else(PoisonError::into_inner);
            users.remove(uid);
            !users.is_empty()
        });
    }

    fn watch(&self, uid: &str, kind: Kind, ns: &str, name: &str) -> Informer<Data> {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = watches.entry((kind, Key::new(ns, name))).or_insert_with(|| {
            let users: Users = Arc::default();
            let (for_handler, waker) = (users.clone(), self.waker.clone());
            let wake = move |_: cluster::Change<'_, Data>| {
                let users = for_handler.lock().unwrap_or_else(PoisonError::into_inner).clone();
                users.iter().for_each(|uid| waker(uid));
            };
            let only = Selection::fields(format!("metadata.name={name}")).of(&self.api);
            let client = self.client.clone();
            let informer = match kind {
                Kind::ConfigMap => Informer::start_with_handler(Api::<ConfigMap>::namespaced(client, ns), only, |o| Some(of_config_map(o)), wake),
                Kind::Secret => Informer::start_with_handler(Api::<Secret>::namespaced(client, ns), only, |o| Some(of_secret(o)), wake),
            };
            Watch { informer, users }
        });
        watch.users.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned());
        watch.informer.clone()
    }
}

fn of_config_map(o: &ConfigMap) -> Data {
    let text = o.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
    let binary = o.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()));
    Data {
        uid: o.metadata.uid.clone().unwrap_or_default(),
        type_: String::new(),
        binary: o.binary_data.iter().flatten().map(|(key, _)| key.clone()).collect(),
        items: text.chain(binary).collect(),
    }
}

fn of_secret(o: &Secret) -> Data {
    Data {
        uid: o.metadata.uid.clone().unwrap_or_default(),
        type_: o.type_.clone().unwrap_or_default(),
        items: o.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect(),
        binary: BTreeSet::new(),
    }
}
