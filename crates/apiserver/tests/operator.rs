//! An operator as people write them with kube-rs: a definition from a type, applied server-side; a controller with owned objects, a finalizer
//! and a status; webhooks of its own. It reaches the API server over TLS, with the rights of its role and no others.

mod common;

use base64::Engine;
use common::TestServer;
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, CustomResourceValidation};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::watcher;
use kube::{Client, CustomResourceExt, Resource, ResourceExt};
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use test_lab::{in_time, until_async};

const MANAGER: &str = "site-operator";

/// A web site: the operator keeps a ConfigMap with its page.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize)]
#[kube(group = "operators.example.org", version = "v1", kind = "Site", namespaced, status = "SiteStatus", shortname = "st")]
#[kube(schema = "disabled", scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas"))]
#[kube(printcolumn(name = "Page", type_ = "string", json_path = ".spec.page"))]
struct SiteSpec {
    page: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas: Option<i32>,
    tier: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct SiteStatus {
    observed_generation: Option<i64>,
    #[serde(default)]
    replicas: i32,
}

/// What the type says, and a rule and a default that it cannot say.
fn definition() -> CustomResourceDefinition {
    let mut definition = Site::crd();
    let schema = json!({"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {
        "spec": {"type": "object", "required": ["page"], "properties": {
            "page": {"type": "string", "x-kubernetes-validations": [{"rule": "self.startsWith('<')", "message": "is no page"}]},
            "replicas": {"type": "integer", "default": 1, "minimum": 0},
            "tier": {"type": "string"},
        }},
        "status": {"type": "object", "properties": {"observedGeneration": {"type": "integer"}, "replicas": {"type": "integer"}}},
    }}});
    let schema: CustomResourceValidation = serde_json::from_value(schema).unwrap();
    definition.spec.versions[0].schema = Some(schema);
    definition
}

struct Context {
    client: Client,
    /// Names of sites that were cleaned up.
    cleaned: Mutex<Vec<String>>,
}

fn of_namespace<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(client: &Client) -> Api<K> {
    Api::namespaced(client.clone(), "default")
}

/// As operators do: they own what they apply.
async fn apply<K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned>(api: &Api<K>, object: &K) -> kube::Result<K> {
    api.patch(&object.name_any(), &PatchParams::apply(MANAGER).force(), &Patch::Apply(object)).await
}

fn map_of(site: &Site) -> ConfigMap {
    let mut map = ConfigMap { data: Some([("index.html".to_string(), site.spec.page.clone())].into()), ..ConfigMap::default() };
    map.metadata.name = Some(format!("{}-page", site.name_any()));
    map.metadata.owner_references = Some(vec![site.controller_owner_ref(&()).unwrap()]);
    map
}

async fn reconcile(site: Arc<Site>, context: Arc<Context>) -> Result<Action, kube::runtime::finalizer::Error<kube::Error>> {
    let sites: Api<Site> = of_namespace(&context.client);
    finalizer(&sites, "operators.example.org/pages", site, async |event| match event {
        Event::Apply(site) => {
            apply(&of_namespace(&context.client), &map_of(&site)).await?;
            let status = SiteStatus { observed_generation: site.metadata.generation, replicas: site.spec.replicas.unwrap_or_default() };
            let patch = Patch::Merge(json!({"status": status}));
            of_namespace::<Site>(&context.client).patch_status(&site.name_any(), &PatchParams::default(), &patch).await?;
            Ok(Action::requeue(Duration::from_secs(3600)))
        }
        Event::Cleanup(site) => {
            context.cleaned.lock().unwrap().push(site.name_any());
            Ok(Action::await_change())
        }
    })
    .await
}

/// `/default`: a site without a tier gets one. `/check`: no site has more than five replicas.
fn review(path: &str, request: &Value) -> Value {
    let spec = &request["object"]["spec"];
    if path == "/default" && spec["tier"].is_null() {
        let patch = json!([{"op": "add", "path": "/spec/tier", "value": "plain"}]).to_string();
        return json!({"allowed": true, "patchType": "JSONPatch", "patch": base64::engine::general_purpose::STANDARD.encode(patch)});
    }
    if path == "/check" && spec["replicas"].as_i64() > Some(5) {
        return json!({"allowed": false, "status": {"message": "no more than five replicas"}});
    }
    json!({"allowed": true})
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<bytes::Bytes>>, Infallible> {
    let path = request.uri().path().to_string();
    let body: Value = serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes()).unwrap();
    let mut response = review(&path, &body["request"]);
    response["uid"] = body["request"]["uid"].clone();
    let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    Ok(Response::new(Full::from(answer.to_string())))
}

/// Serves the webhooks over TLS, and registers them by apply.
async fn serve_webhooks(server: &TestServer, client: &Client) {
    let (config, ca) = server.webhook_tls();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let serving = hyper::server::conn::http1::Builder::new();
                let _ = serving.serve_connection(TokioIo::new(stream), hyper::service::service_fn(answer)).await;
            });
        }
    });
    let ca = base64::engine::general_purpose::STANDARD.encode(ca);
    let configuration = |path: &str| {
        json!({"metadata": {"name": format!("sites-{path}")}, "webhooks": [{
            "name": format!("{path}.sites.example.org"), "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
            "clientConfig": {"url": format!("{url}/{path}"), "caBundle": ca},
            "rules": [{"apiGroups": ["operators.example.org"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["sites"]}],
        }]})
    };
    let mutating: MutatingWebhookConfiguration = serde_json::from_value(configuration("default")).unwrap();
    let validating: ValidatingWebhookConfiguration = serde_json::from_value(configuration("check")).unwrap();
    apply(&Api::all(client.clone()), &mutating).await.unwrap();
    apply(&Api::all(client.clone()), &validating).await.unwrap();
}

/// The operator's role: what its manifest would ask for.
async fn grant(server: &TestServer) {
    let all = json!(["get", "list", "watch", "create", "patch", "update"]);
    let rules = json!([
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": all},
        {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["create", "patch"]},
        {"apiGroups": ["operators.example.org"], "resources": ["sites", "sites/status", "sites/finalizers"], "verbs": all},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": all},
    ]);
    let role: ClusterRole = serde_json::from_value(json!({"metadata": {"name": MANAGER}, "rules": rules})).unwrap();
    let binding = json!({"metadata": {"name": MANAGER}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": MANAGER},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": MANAGER}]});
    let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
    Api::all(server.admin()).create(&PostParams::default(), &role).await.unwrap();
    Api::all(server.admin()).create(&PostParams::default(), &binding).await.unwrap();
}

fn site(name: &str, spec: Value) -> Site {
    let object = json!({"apiVersion": "operators.example.org/v1", "kind": "Site", "metadata": {"name": name}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

/// A site whose status says that its present state was seen.
async fn settled(sites: &Api<Site>, name: &str) -> Site {
    until_async("the operator has seen the site", async || {
        let site = sites.get(name).await.unwrap();
        let seen = site.status.as_ref().and_then(|status| status.observed_generation);
        (seen.is_some() && seen == site.metadata.generation).then_some(site)
    })
    .await
}

#[tokio::test]
async fn an_operator_of_kube_rs_lives_a_whole_life() {
    let server = TestServer::start().await;
    grant(&server).await;
    let client = server.tls_client(MANAGER, "operators").await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    apply(&definitions, &definition()).await.unwrap();
    let established = await_condition(definitions.clone(), "sites.operators.example.org", conditions::is_crd_established());
    in_time("the definition is established", established).await.unwrap();
    serve_webhooks(&server, &client).await;

    let context = Arc::new(Context { client: client.clone(), cleaned: Mutex::default() });
    let running = Controller::new(of_namespace::<Site>(&client), watcher::Config::default())
        .owns(of_namespace::<ConfigMap>(&client), watcher::Config::default())
        // An attempt on a state that the controller's cache has not caught up with fails, and is made again.
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(100)), context.clone())
        .for_each(async |outcome| drop(outcome));
    let running = tokio::spawn(running);

    let (sites, maps): (Api<Site>, Api<ConfigMap>) = (of_namespace(&server.admin()), of_namespace(&server.admin()));
    made_and_changed(&sites, &maps).await;
    refused(&sites).await;
    scaled(&sites).await;

    sites.delete("home", &DeleteParams::default()).await.unwrap();
    until_async("the site is gone", async || sites.get_opt("home").await.unwrap().is_none()).await;
    assert!(context.cleaned.lock().unwrap().iter().all(|name| name == "home"));
    assert!(!context.cleaned.lock().unwrap().is_empty(), "its finalizer ran");
    assert!(client.list_secrets().await.is_err_and(|error| error.to_string().contains("secrets is forbidden")), "it has its role's rights alone");
    running.abort();
    server.stop().await;
}

trait Rights {
    async fn list_secrets(&self) -> kube::Result<usize>;
}

impl Rights for Client {
    async fn list_secrets(&self) -> kube::Result<usize> {
        let secrets: Api<k8s_openapi::api::core::v1::Secret> = of_namespace(self);
        Ok(secrets.list(&ListParams::default()).await?.items.len())
    }
}

/// Defaults of schema and webhook, an owned object that is kept, one generation for each change of the specification.
async fn made_and_changed(sites: &Api<Site>, maps: &Api<ConfigMap>) {
    let made = sites.create(&PostParams::default(), &site("home", json!({"page": "<p>one"}))).await.unwrap();
    assert_eq!((made.spec.replicas, made.spec.tier.as_deref()), (Some(1), Some("plain")), "the schema's default, and the webhook's");
    let seen = settled(sites, "home").await;
    assert_eq!(seen.status.unwrap(), SiteStatus { observed_generation: Some(1), replicas: 1 });
    let map = maps.get("home-page").await.unwrap();
    assert_eq!(map.data.unwrap()["index.html"], "<p>one");
    let owner = &map.metadata.owner_references.unwrap()[0];
    assert_eq!((owner.kind.as_str(), Some(owner.uid.as_str())), ("Site", made.metadata.uid.as_deref()));

    maps.delete("home-page", &DeleteParams::default()).await.unwrap();
    until_async("the owned object comes back", async || maps.get_opt("home-page").await.unwrap()).await;
    let spoilt = Patch::Merge(json!({"data": {"index.html": "spoilt", "extra": "kept"}}));
    maps.patch("home-page", &PatchParams::default(), &spoilt).await.unwrap();
    let mended = until_async("the owned field is mended", async || {
        let data = maps.get("home-page").await.unwrap().data.unwrap();
        (data["index.html"] == "<p>one").then_some(data)
    })
    .await;
    assert_eq!(mended["extra"], "kept", "what another owns stays");

    let page = Patch::Merge(json!({"spec": {"page": "<p>two"}}));
    let changed = sites.patch("home", &PatchParams::default(), &page).await.unwrap();
    assert_eq!(changed.metadata.generation, Some(2));
    settled(sites, "home").await;
    until_async("the new page", async || maps.get("home-page").await.unwrap().data.unwrap()["index.html"] == "<p>two").await;
}

/// By the schema's rule, and by the webhook.
async fn refused(sites: &Api<Site>) {
    let message = async |spec: Value| sites.create(&PostParams::default(), &site("bad", spec)).await.unwrap_err().to_string();
    let rule = message(json!({"page": "hello"})).await;
    assert!(rule.contains("spec.page: Invalid value: ") && rule.contains("is no page"), "{rule}");
    let webhook = message(json!({"page": "<p>", "replicas": 6})).await;
    let expected = "admission webhook \"check.sites.example.org\" denied the request: no more than five replicas";
    assert!(webhook.contains(expected), "{webhook}");
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    assert_eq!(sites.create(&dry, &site("dry", json!({"page": "<p>"}))).await.unwrap().spec.tier.as_deref(), Some("plain"));
    assert!(sites.get_opt("dry").await.unwrap().is_none());
}

/// Through the subresource that the definition declares.
async fn scaled(sites: &Api<Site>) {
    let scale = Patch::Merge(json!({"spec": {"replicas": 3}}));
    let scale = sites.patch_scale("home", &PatchParams::default(), &scale).await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(3));
    assert_eq!(settled(sites, "home").await.spec.replicas, Some(3));
    assert_eq!(sites.get_scale("home").await.unwrap().status.unwrap().replicas, 3, "as the operator's status says");
}
