//! Content that the agent writes: certificates of authorities, and Secrets, which end with their pod.

use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::common::World;
use crate::ready_world;

fn showing(sources: Value) -> Value {
    json!({"volumes": [{"name": "v", "projected": {"sources": sources}}],
        "containers": [{"name": "c", "image": "serve:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]})
}

impl World {
    fn bundles(&self) -> Api<ClusterTrustBundle> {
        Api::all(self.admin())
    }

    async fn bundle(&self, name: &str, signer: Option<&str>, authority: &str) {
        let object = json!({"metadata": {"name": name, "labels": {"live": "yes"}}, "spec": {"signerName": signer, "trustBundle": authority}});
        self.bundles().create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }

    /// The text of a file in the volume `v` of a pod.
    async fn shown(&self, pod: &str, kind: &str, file: &str) -> String {
        let uid = self.pods().get(pod).await.unwrap().metadata.uid.unwrap();
        let path = format!("var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~{kind}/v/{file}");
        std::fs::read_to_string(self.drive().join(path)).unwrap_or_default()
    }
}

#[tokio::test]
async fn certificates_of_authorities_are_shown_and_follow_their_bundles() {
    let world = ready_world().await;
    let (one, two) =
        (world.ca.cert_pem().to_owned(), pki::Ca::generate("two", std::time::Duration::from_secs(86_400)).unwrap().cert_pem().to_owned());
    let count = |text: &str| text.matches("BEGIN CERTIFICATE").count();
    world.pod("named", showing(json!([{"clusterTrustBundle": {"name": "b", "path": "ca.pem"}}]))).await;
    let missing = "FailedMount: MountVolume.SetUp failed for volume \"v\" : while getting ClusterTrustBundle: \
                   clustertrustbundle.certificates.k8s.io \"b\" not found";
    world.until_event(missing).await;
    let optional = json!({"signerName": "example.com/s", "labelSelector": {"matchLabels": {"live": "yes"}}, "path": "deep/ca.pem", "optional": true});
    world.pod("selected", showing(json!([{"clusterTrustBundle": optional}]))).await;
    world.until_running("selected").await;
    assert_eq!(world.shown("selected", "projected", "deep/ca.pem").await, "");

    world.bundle("b", None, &one).await;
    world.until_running("named").await;
    assert_eq!(world.shown("named", "projected", "ca.pem").await, one.replace("\r\n", "\n"));
    world.bundle("example.com:s:1", Some("example.com/s"), &one).await;
    world.bundle("example.com:s:2", Some("example.com/s"), &format!("{two}{one}")).await;
    let both = async || count(&world.shown("selected", "projected", "deep/ca.pem").await) == 2;
    world.eventually("both authorities, once each", both).await;
    let dead = Patch::Merge(json!({"metadata": {"labels": {"live": "no"}}}));
    world.bundles().patch("example.com:s:2", &PatchParams::default(), &dead).await.unwrap();
    world.eventually("one authority", async || world.shown("selected", "projected", "deep/ca.pem").await == one).await;
}

#[tokio::test]
async fn secrets_end_with_their_pod_and_those_of_gone_pods_at_the_start() {
    let mut world = ready_world().await;
    world.secret("s", json!({"key": "value"})).await;
    let spec = json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}],
        "containers": [{"name": "c", "image": "serve:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]});
    for pod in ["ends", "forgotten"] {
        world.pod(pod, spec.clone()).await;
        world.until_running(pod).await;
        assert_eq!(world.shown(pod, "secret", "key").await, "value");
    }
    let dir = async |pod: &str| world.drive().join("var/lib/kubelet/pods").join(world.pods().get(pod).await.unwrap().metadata.uid.unwrap());
    let (ends, forgotten) = (dir("ends").await, dir("forgotten").await);
    world.pods().delete("ends", &DeleteParams::default()).await.unwrap();
    world.eventually("the pod's files gone", async || !ends.exists()).await;
    world.stop_agent().await;
    let force = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    world.pods().delete("forgotten", &force).await.unwrap();
    assert!(forgotten.join("volumes").exists());
    world.start_agent();
    world.eventually("what it left gone", async || !forgotten.exists()).await;
}
