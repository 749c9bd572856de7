//! Watches of Calico's resources, begun when the API server has the kinds.

use std::time::Duration;

use cluster::{ApiServer, Informer, Selection};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use thiserror_ext::AsReport as _;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Configuration, Pool, ResourcePeer, Resources};

const GROUP: &str = "crd.projectcalico.org";
const VERSION: &str = "v1";
const PEERS: &str = "bgppeers";
const CONFIGURATIONS: &str = "bgpconfigurations";
const POOLS: &str = "ippools";
/// The one BGPConfiguration that is about all nodes.
const DEFAULT: &str = "default";

/// One kind.
struct Kind<R> {
    informer: Informer<R>,
    changed: watch::Receiver<u64>,
}

impl<R> Kind<R> {
    /// Its rows by name; none: they have not arrived, and no error says that they will not.
    fn rows(&self) -> Option<Vec<(String, R)>>
    where
        R: Clone,
    {
        let known = self.informer.is_synced() || self.informer.trouble().is_some();
        known.then(|| self.informer.snapshot().into_iter().map(|(key, row)| (key.name, (*row).clone())).collect())
    }

    fn trouble(&self, plural: &str) -> Option<String> {
        let trouble = self.informer.trouble().filter(|_| !self.informer.is_synced())?;
        Some(format!("cannot list {plural}.{GROUP}: {trouble}; let this node's user get, list and watch them"))
    }
}

/// The watches, as far as their kinds exist.
#[derive(Default)]
pub(crate) struct Watch {
    peers: Option<Kind<Result<ResourcePeer, String>>>,
    configurations: Option<Kind<Configuration>>,
    pools: Option<Kind<Result<Pool, String>>>,
    asked: Option<Instant>,
}

fn start<R: PartialEq + Send + Sync + 'static>(
    client: &Client,
    server: &ApiServer,
    (kind, plural): (&str, &str),
    row: impl Fn(&serde_json::Value) -> R + Send + Sync + 'static,
) -> Kind<R> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind), plural);
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    tracing::info!("the API server has {plural}.{GROUP}: watching them");
    let informer = Informer::start(api, Selection::all().of(server), move |object: &DynamicObject| Some(row(&object.data["spec"])));
    Kind { changed: informer.changed(), informer }
}

impl Watch {
    /// Begins to watch kinds that appeared, which the server is asked for once in a period, and returns what is known. None: lists have not arrived yet.
    pub async fn look(&mut self, client: &Client, server: &ApiServer, period: Duration) -> Option<Resources> {
        let due = self.asked.is_none_or(|asked| asked.elapsed() >= period);
        if due && (self.peers.is_none() || self.configurations.is_none() || self.pools.is_none()) {
            self.asked = Some(Instant::now());
            self.discover(client, server).await;
        }
        self.resources()
    }

    async fn discover(&mut self, client: &Client, server: &ApiServer) {
        let listed = match client.list_api_group_resources(&format!("{GROUP}/{VERSION}")).await {
            Ok(listed) => listed.resources,
            Err(kube::Error::Api(status)) if status.code == 404 => return,
            Err(error) => {
                tracing::debug!(error = %error.as_report(), "the API server did not say whether it has Calico's kinds");
                return;
            }
        };
        let has = |plural: &str| listed.iter().any(|resource| resource.name == plural);
        if self.peers.is_none() && has(PEERS) {
            self.peers = Some(start(client, server, ("BGPPeer", PEERS), ResourcePeer::read));
        }
        if self.configurations.is_none() && has(CONFIGURATIONS) {
            self.configurations = Some(start(client, server, ("BGPConfiguration", CONFIGURATIONS), Configuration::read));
        }
        if self.pools.is_none() && has(POOLS) {
            self.pools = Some(start(client, server, ("IPPool", POOLS), Pool::read));
        }
    }

    fn resources(&self) -> Option<Resources> {
        let peers = self.peers.as_ref().map_or_else(|| Some(Vec::new()), Kind::rows)?;
        let configurations = self.configurations.as_ref().map_or_else(|| Some(Vec::new()), Kind::rows)?;
        let pools = self.pools.as_ref().map_or_else(|| Some(Vec::new()), Kind::rows)?;
        let troubles = [
            self.peers.as_ref().and_then(|kind| kind.trouble(PEERS)),
            self.configurations.as_ref().and_then(|kind| kind.trouble(CONFIGURATIONS)),
            self.pools.as_ref().and_then(|kind| kind.trouble(POOLS)),
        ];
        Some(Resources {
            configuration: configurations.into_iter().find(|(name, _)| name == DEFAULT).map(|(_, row)| row).unwrap_or_default(),
            peers: peers.into_iter().collect(),
            pools: pools.into_iter().collect(),
            troubles: troubles.into_iter().flatten().collect(),
        })
    }

    /// Waits until one of the resources changed.
    pub async fn changed(&mut self) {
        tokio::select! {
            () = next(self.peers.as_mut()) => {}
            () = next(self.configurations.as_mut()) => {}
            () = next(self.pools.as_mut()) => {}
        }
    }
}

async fn next<R>(kind: Option<&mut Kind<R>>) {
    let ended = match kind {
        Some(kind) => kind.changed.changed().await.is_err(),
        None => true,
    };
    if ended {
        std::future::pending().await
    }
}
