//! Bootstrap tokens against the real API server.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use test_lab::until_async;

use crate::common::{Cluster, create, object};

fn token(id: &str, expiration: &str) -> Secret {
    let data = json!({"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true", "expiration": expiration});
    object(json!({"metadata": {"name": format!("bootstrap-token-{id}")}, "type": "bootstrap.kubernetes.io/token", "stringData": data}))
}

#[tokio::test]
async fn cluster_info_is_signed_with_every_token() {
    let cluster = Cluster::start().await;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin(), "kube-public");
    let secrets: Api<Secret> = Api::namespaced(cluster.admin(), "kube-system");
    let signatures = async || {
        let data = maps.get("cluster-info").await.unwrap().data.unwrap_or_default();
        data.into_iter().filter(|(member, _)| member.starts_with("jws-")).collect::<Vec<_>>()
    };
    create(&secrets, &token("abcdef", "2999-01-01T00:00:00Z")).await;
    create(&secrets, &token("ghijkl", "")).await;
    create(&maps, &object(json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "one"}}))).await;
    let first = until_async("both tokens sign", async || Some(signatures().await).filter(|all| all.len() == 2)).await;
    assert_eq!(first.iter().map(|(member, _)| member.as_str()).collect::<Vec<_>>(), ["jws-kubeconfig-abcdef", "jws-kubeconfig-ghijkl"]);

    let patch = Patch::Merge(json!({"data": {"kubeconfig": "two"}}));
    maps.patch("cluster-info", &PatchParams::default(), &patch).await.unwrap();
    until_async("the new content is signed", async || signatures().await.iter().zip(&first).all(|(new, old)| new.1 != old.1)).await;
    secrets.delete("bootstrap-token-abcdef", &DeleteParams::default()).await.unwrap();
    until_async("a signature goes with its token", async || signatures().await.len() == 1).await;
    cluster.stop().await;
}

#[tokio::test]
async fn expired_tokens_go() {
    let cluster = Cluster::start().await;
    let secrets: Api<Secret> = Api::namespaced(cluster.admin(), "kube-system");
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(2);
    for (id, expiration) in [("aaaaaa", "2020-01-01T00:00:00Z"), ("bbbbbb", &soon.to_string()), ("cccccc", "2999-01-01T00:00:00Z")] {
        create(&secrets, &token(id, expiration)).await;
    }
    let is_there = async |id: &str| secrets.get_opt(&format!("bootstrap-token-{id}")).await.unwrap().is_some();
    until_async("the one that was over", async || !is_there("aaaaaa").await).await;
    until_async("the one that ends meanwhile", async || !is_there("bbbbbb").await).await;
    assert!(is_there("cccccc").await);
    cluster.stop().await;
}
