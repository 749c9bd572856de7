//! Tokens of ServiceAccounts in Secrets.

use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewStatus},
    core::v1::{Secret, ServiceAccount},
};
use kube::{Api, ResourceExt, api::DeleteParams};
use serde_json::json;
use test_lab::until_async;

use crate::common::{Cluster, create, object};

fn secret(name: &str, account: &str) -> Secret {
    let annotations = json!({"kubernetes.io/service-account.name": account});
    object(json!({"metadata": {"name": name, "annotations": annotations}, "type": "kubernetes.io/service-account-token"}))
}

async fn review(cluster: &Cluster, token: &str) -> TokenReviewStatus {
    let review: TokenReview = object(json!({"spec": {"token": token}}));
    create(&Api::all(cluster.admin()), &review).await.status.unwrap()
}

#[tokio::test]
async fn a_secret_holds_a_token_of_its_account_as_long_as_both_are_there() {
    let cluster = Cluster::start().await;
    let (accounts, secrets) = (cluster.api::<ServiceAccount>(), cluster.api::<Secret>());
    create(&secrets, &secret("stray", "nobody")).await;
    until_async("a token of nobody goes", async || secrets.get_opt("stray").await.unwrap().is_none()).await;
    let robot = create(&accounts, &object(json!({"metadata": {"name": "robot"}}))).await;
    create(&secrets, &secret("robot-token", "robot")).await;
    let filled = until_async("the token is there", async || {
        let found = secrets.get("robot-token").await.unwrap();
        found.data.as_ref().is_some_and(|data| data.contains_key("token")).then_some(found)
    })
    .await;
    let text = |member: &str| String::from_utf8(filled.data.as_ref().unwrap()[member].0.clone()).unwrap();
    assert_eq!((text("namespace").as_str(), text("ca.crt").as_str()), ("default", "-----BEGIN CERTIFICATE-----\n"));
    assert_eq!(Some(&filled.annotations()["kubernetes.io/service-account.uid"]), robot.metadata.uid.as_ref());
    let status = review(&cluster, &text("token")).await;
    let user = status.user.and_then(|user| user.username);
    assert_eq!((status.authenticated, user.as_deref()), (Some(true), Some("system:serviceaccount:default:robot")));

    accounts.delete("robot", &DeleteParams::default()).await.unwrap();
    until_async("the Secret goes with its account", async || secrets.get_opt("robot-token").await.unwrap().is_none()).await;
    assert_ne!(review(&cluster, &text("token")).await.authenticated, Some(true));
    cluster.stop().await;
}
