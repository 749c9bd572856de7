//! Watches of the control plane: one per kind, whoever reads it.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use apiserver::InProcess;
use http::{Request, Response};
use http_body::{Body, Frame};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::api::{DeleteParams, ListParams};
use test_lab::until_async;
use tower::Service;

use crate::common::{Cluster, create, deployment};

/// Open watches by path, as the API server sees them.
pub type OpenWatches = Arc<Mutex<BTreeMap<String, usize>>>;

/// A client's connection that counts its open watches.
#[derive(Clone)]
pub struct Counted {
    pub server: InProcess,
    pub open: OpenWatches,
}

impl Service<Request<kube::client::Body>> for Counted {
    type Response = Response<Watched>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let path = request.uri().path().to_owned();
        let guard = watch.then(|| Guard::new(path, self.open.clone()));
        let answer = self.server.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Watched { body: Box::pin(body), _guard: guard })) })
    }
}

/// A watch that is counted until its answer is dropped.
struct Guard(String, OpenWatches);

impl Guard {
    fn new(path: String, open: OpenWatches) -> Self {
        *open.lock().unwrap().entry(path.clone()).or_default() += 1;
        Self(path, open)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut open = self.1.lock().unwrap();
        if let Some(count) = open.get_mut(&self.0) {
            *count -= 1;
        }
        open.retain(|_, count| *count > 0);
    }
}

type ServerBody = <InProcess as Service<Request<kube::client::Body>>>::Response;

/// An answer's body.
pub struct Watched {
    body: Pin<Box<BodyOf<ServerBody>>>,
    _guard: Option<Guard>,
}

type BodyOf<R> = <R as Answer>::Body;

/// The body type of a response.
pub trait Answer {
    type Body;
}

impl<B> Answer for Response<B> {
    type Body = B;
}

impl Body for Watched {
    type Data = <BodyOf<ServerBody> as Body>::Data;
    type Error = <BodyOf<ServerBody> as Body>::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.body.as_mut().poll_frame(context)
    }
}

#[tokio::test]
async fn control_plane_has_one_watch_per_kind() {
    let mut cluster = Cluster::start().await;
    let disks = tempfile::tempdir().unwrap();
    cluster.start_local_volumes(disks.path().to_owned());
    crate::dns::serve_as(cluster.component("system:kube-dns"), cluster.watches()).await;
    // A pod that was placed, and that went with its owner: scheduler, controllers and garbage collector all read.
    cluster.add_node("win01", "windows").await;
    create(&cluster.api(), &deployment("web", 1, "microsoft/iis")).await;
    let pods = async || cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
    until_async("the pod runs", async || pods().await.iter().any(|pod| pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some()))).await;
    cluster.api::<Deployment>().delete("web", &DeleteParams::background()).await.unwrap();
    until_async("the pod is gone", async || pods().await.is_empty()).await;

    let open = || cluster.open_watches().lock().unwrap().clone();
    until_async("watches that were taken over are closed", async || open().values().all(|count| *count == 1)).await;
    let (seen, own) = (open(), cluster.watches().open_watches());
    assert!(seen.keys().all(|path| !path.contains("/namespaces/")), "no second watch of a kind in one namespace: {seen:?}");
    for kind in ["/api/v1/nodes", "/api/v1/pods", "/api/v1/services", "/api/v1/configmaps", "/apis/coordination.k8s.io/v1/leases"] {
        assert_eq!(seen.get(kind), Some(&1), "{kind}: {seen:?}");
        assert!(own.iter().any(|watch| watch == kind), "{kind} is watched whole: {own:?}");
    }
    cluster.stop().await;
}
