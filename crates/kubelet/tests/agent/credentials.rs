//! Credentials of images: secrets of pods, docker's configuration of the node, credential providers; and who may use an image that is there.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::common::World;
use crate::started;

/// A provider that writes down what it is asked, and answers what stands beside it.
const PROGRAM: &str = "#!/bin/sh\nd=$(dirname \"$0\")\ncat >> \"$d/asked\"\ncat \"$d/answer\"\n";

fn waiting(status: &Value) -> (String, String) {
    let waiting = &status["containerStatuses"][0]["state"]["waiting"];
    let text = |member: &str| waiting[member].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

/// A pod with an image, its pull policy and its pull secrets.
fn spec(image: &str, policy: &str, secrets: &[&str]) -> Value {
    let secrets: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
    json!({"imagePullSecrets": secrets, "containers": [{"name": "c", "image": image, "imagePullPolicy": policy}]})
}

impl World {
    fn is_private(&self, image: &str, name: &str, password: &str) {
        self.runtime.state.lock().unwrap().logins.insert(image.to_owned(), (name.to_owned(), password.to_owned()));
    }

    /// The names of those who asked for an image, in their order.
    fn who_pulled(&self, image: &str) -> Vec<String> {
        let state = self.runtime.state.lock().unwrap();
        let of = state.auths.iter().filter(|(name, _)| name == image);
        of.map(|(_, auth)| auth.as_ref().map_or("nobody".to_owned(), |(name, _)| name.clone())).collect()
    }

    async fn pull_secret(&self, name: &str, registry: &str, user: &str, password: &str) {
        let config = json!({"auths": {registry: {"username": user, "password": password}}}).to_string();
        let object = json!({"metadata": {"name": name}, "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": config}});
        let api: Api<Secret> = Api::namespaced(self.admin(), "default");
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }

    async fn until_refused(&self, pod: &str, reason: &str) -> String {
        waiting(&self.until(pod, reason, |status| waiting(status).0 == reason).await).1
    }

    fn node_file(&self, path: &str) -> PathBuf {
        let path = self.drive().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn record(&self) -> String {
        let dir = self.drive().join("var/lib/kubelet/image_manager/pulled");
        // One that is removed meanwhile says nothing.
        std::fs::read_dir(dir).unwrap().filter_map(|entry| std::fs::read_to_string(entry.unwrap().path()).ok()).collect()
    }

    /// Installs a provider for `reg.io`, with more members of its configuration, for the next agent.
    fn install_provider(&mut self, more: &Value, answer: &Value) {
        let program = self.node_file("providers/bin/cloud.exe");
        std::fs::write(&program, PROGRAM).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut whole = json!({"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1"});
        answer.as_object().unwrap().iter().for_each(|(name, value)| whole[name] = value.clone());
        std::fs::write(self.node_file("providers/bin/answer"), whole.to_string()).unwrap();
        let mut provider = json!({"name": "cloud", "matchImages": ["reg.io"], "defaultCacheDuration": "0s",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1"});
        more.as_object().unwrap().iter().for_each(|(name, value)| provider[name] = value.clone());
        let config = json!({"kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1", "providers": [provider]});
        std::fs::write(self.node_file("providers/config/a.yaml"), config.to_string()).unwrap();
        self.image_credentials.provider_config = r"C:\providers\config".into();
        self.image_credentials.provider_dir = r"C:\providers\bin".into();
    }

    fn asked(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.node_file("providers/bin/asked")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    async fn metric(&self, begin: &str) -> Option<String> {
        let (_, text) = self.get("/metrics", Some(("admin", "system:masters")), None).await;
        text.lines().find_map(|line| line.strip_prefix(begin)).map(|value| value.trim().to_owned())
    }
}

#[tokio::test]
async fn a_private_image_is_for_pods_that_may_pull_it() {
    let mut world = started(World::new().await).await;
    let image = "reg.io/team/app:1";
    world.is_private(image, "ann", "s3cr3t");
    world.pull_secret("own", "reg.io/team", "ann", "s3cr3t").await;
    world.pull_secret("copy", "reg.io", "ann", "s3cr3t").await;
    world.pull_secret("other", "reg.io", "eve", "guess").await;
    world.pod("owner", spec(image, "IfNotPresent", &["gone", "other", "own"])).await;
    world.until_running("owner").await;
    assert_eq!(world.who_pulled(image), ["ann"], "the longest path first");
    world
        .until_event(
            "FailedToRetrieveImagePullSecret: Unable to retrieve some image pull secrets (gone); attempting to pull the image may not succeed.",
        )
        .await;
    let record = world.record();
    assert!(record.contains("\"imageRef\":\"reg.io/team/app:1\",\"credentialMapping\":{\"reg.io/team/app\":{\"kubernetesSecrets\":[{"), "{record}");
    assert!(record.contains("\"namespace\":\"default\",\"name\":\"own\",\"credentialHash\":\"") && !record.contains("s3cr3t"), "{record}");

    world.pod("copies", spec(image, "Never", &["copy"])).await;
    world.until_running("copies").await;
    let present = format!("Pulled: Container image {image:?} already present on machine and can be accessed by the pod");
    world.until_event(&present).await;
    assert_eq!(world.who_pulled(image), ["ann"], "the same login needs no pull");

    for restart in [false, true] {
        if restart {
            world.stop_agent().await;
            world.start_agent();
        }
        let name = |name: &str| format!("{name}-{restart}");
        world.pod(&name("nobody"), spec(image, "IfNotPresent", &[])).await;
        let message = world.until_refused(&name("nobody"), "ErrImagePull").await;
        assert_eq!(message, format!("nobody may not pull {image:?}"));
        world.pod(&name("never"), spec(image, "Never", &["other"])).await;
        let message = world.until_refused(&name("never"), "ErrImageNeverPull").await;
        assert_eq!(message, format!("Container image {image:?} is not present with pull policy of Never"), "as if it were not there");
    }
    // A pod that was refused tells nobody that the image is private: others still may.
    world.pod("late", spec(image, "IfNotPresent", &["own"])).await;
    world.until_running("late").await;
    let counted = |labels: &str| format!("kubelet_imagemanager_image_mustpull_checks_total{{result=\"{labels}\"}}");
    assert_eq!(world.metric(&counted("credentialRecordFound")).await.as_deref(), Some("1"), "of the second agent");
    assert_eq!(world.metric("kubelet_imagemanager_ondisk_pulledrecords ").await.as_deref(), Some("1"));
    // Those who are refused try again now and then.
    let none = async || world.metric("kubelet_imagemanager_ondisk_pullintents ").await.as_deref() == Some("0");
    world.eventually("no pull under way", none).await;
    let request = "kubelet_image_manager_ensure_image_requests_total{pull_policy=\"never\",present_locally=\"true\",pull_required=\"true\"}";
    assert!(world.metric(request).await.is_some());
}

#[tokio::test]
async fn all_credentials_are_tried_those_of_the_pod_then_of_the_node_then_of_providers() {
    let mut world = World::new().await;
    let image = "reg.io/app:1";
    world.is_private(image, "cloud", "token");
    let answer = json!({"cacheKeyType": "Image", "auth": {"reg.io": {"username": "cloud", "password": "token"}}});
    world.install_provider(&json!({}), &answer);
    let of_node = json!({"auths": {"https://reg.io/v2/": {"username": "node", "password": "old"}}});
    std::fs::write(world.node_file("var/lib/kubelet/config.json"), of_node.to_string()).unwrap();
    let world = started(world).await;
    world.pull_secret("own", "reg.io", "ann", "s3cr3t").await;
    world.pod("web", spec(image, "IfNotPresent", &["own"])).await;
    world.until_running("web").await;
    assert_eq!(world.who_pulled(image), ["ann", "node", "cloud"]);
    let asked = world.asked();
    let expected = json!({"kind": "CredentialProviderRequest", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "image": "reg.io/app"});
    assert_eq!(asked, [expected]);
    // What the node's own credentials give is for every pod of it.
    world.pod("second", spec(image, "Never", &[])).await;
    world.until_running("second").await;
    assert!(world.record().contains("{\"reg.io/app\":{\"nodePodsAccessible\":true}}"), "{}", world.record());
    assert_eq!(world.metric("kubelet_credential_provider_plugin_duration_count{plugin_name=\"cloud\"}").await.as_deref(), Some("1"));
    assert!(world.metric("kubelet_credential_provider_config_info{hash=\"sha256:").await.is_some());

    world.is_private("reg.io/closed:1", "x", "y");
    world.pod("refused", spec("reg.io/closed:1", "IfNotPresent", &["own"])).await;
    let message = world.until_refused("refused", "ErrImagePull").await;
    let each = |who: &str| format!("{who} may not pull \"reg.io/closed:1\"");
    assert_eq!(message, format!("[{}, {}, {}]", each("ann"), each("node"), each("cloud")));
}

#[tokio::test]
async fn a_provider_gets_a_token_of_the_pods_account() {
    let mut world = World::new().await;
    let image = "reg.io/app:1";
    world.is_private(image, "cloud", "pw");
    let more = json!({"tokenAttributes": {"serviceAccountTokenAudience": "reg.example", "cacheType": "ServiceAccount", "requireServiceAccount": true,
        "requiredServiceAccountAnnotationKeys": ["cloud.example/role"], "optionalServiceAccountAnnotationKeys": ["cloud.example/zone"]}});
    world.install_provider(&more, &json!({"cacheKeyType": "Image", "auth": {"reg.io": {"username": "cloud", "password": "pw"}}}));
    let world = started(world).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(world.admin(), "default");
    let account = json!({"metadata": {"name": "puller", "annotations": {"cloud.example/role": "reader", "other": "x"}}});
    let account = accounts.create(&PostParams::default(), &serde_json::from_value(account).unwrap()).await.unwrap();
    let mut of_account = spec(image, "IfNotPresent", &[]);
    of_account["serviceAccountName"] = "puller".into();
    // A node gets tokens for audiences that its pods name.
    let token = json!({"serviceAccountToken": {"audience": "reg.example", "path": "token"}});
    of_account["volumes"] = json!([{"name": "v", "projected": {"sources": [token]}}]);
    world.pod("web", of_account.clone()).await;
    world.until_running("web").await;
    let asked = world.asked().remove(0);
    assert_eq!(asked["serviceAccountAnnotations"], json!({"cloud.example/role": "reader"}));
    let token = asked["serviceAccountToken"].as_str().unwrap();
    let claims: Value = {
        use base64::Engine as _;
        let part = token.split('.').nth(1).unwrap();
        serde_json::from_slice(&base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
    };
    assert_eq!(claims["aud"], json!(["reg.example"]));
    assert_eq!(claims["sub"], "system:serviceaccount:default:puller");
    assert_eq!(claims["kubernetes.io"]["pod"]["name"], "web");
    let uid = account.metadata.uid.unwrap();
    let expected =
        format!("{{\"reg.io/app\":{{\"kubernetesServiceAccounts\":[{{\"uid\":\"{uid}\",\"namespace\":\"default\",\"name\":\"puller\"}}]}}}}");
    assert!(world.record().contains(&expected), "{}", world.record());

    world.pod("same", of_account).await;
    world.until_running("same").await;
    assert_eq!(world.who_pulled(image), ["cloud"], "the account has shown that it may");
    // The namespace's default account has no such annotation: the provider is not asked for it.
    let before = world.asked().len();
    world.pod("other", spec(image, "IfNotPresent", &[])).await;
    world.until_refused("other", "ErrImagePull").await;
    assert_eq!((world.who_pulled(image).last().unwrap().as_str(), world.asked().len()), ("nobody", before));
}

#[tokio::test]
async fn records_end_with_their_images() {
    let mut world = World::new().await;
    let soon = Duration::from_millis(100);
    world.images = kubelet::ImageCollection { high_percent: 0, low_percent: 0, min_age: Duration::from_secs(1), interval: soon, ..world.images };
    let world = started(world).await;
    world.pod("web", spec("reg.io/app:1", "IfNotPresent", &[])).await;
    world.until_running("web").await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(world.record().contains("reg.io/app"), "an image in use stays, and its record too");
    world.pods().delete("web", &DeleteParams::default()).await.unwrap();
    world.eventually("the image gone", async || !world.runtime.state.lock().unwrap().images.contains("reg.io/app:1")).await;
    world.eventually("its record gone", async || world.record().is_empty()).await;
}
