//! Who may do what: every resource, subresource and verb of discovery against roles of each reach, as RBAC's rules say.

mod grants;
mod nodes;

use crate::common::TestServer;
use crate::objects;
use crate::served::{Resource, served};
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tower::ServiceExt;

/// The namespace in which roles hold, and another one.
const HERE: &str = "here";
const THERE: &str = "there";
/// The name that roles with `resourceNames` give, and another one. No object has either.
const MINE: &str = "mine";

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A resource or subresource, and its verbs.
struct Target {
    resource: Resource,
    part: String,
    verbs: Vec<String>,
    /// Roles name every second one.
    granted: bool,
}

/// Whom a role reaches, and how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Cluster,
    Namespace,
    OtherNamespace,
    Names,
    /// A role for the same resources in another API group.
    WrongGroup,
    Nothing,
}

const REACHES: [Reach; 6] = [Reach::Cluster, Reach::Namespace, Reach::OtherNamespace, Reach::Names, Reach::WrongGroup, Reach::Nothing];

impl Reach {
    fn user(self, verb: &str) -> String {
        format!("{self:?}-{verb}").to_lowercase()
    }
}

/// One request for a target.
struct Asked<'a> {
    target: &'a Target,
    verb: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl Asked<'_> {
    /// A Namespace lies in itself.
    fn place(&self) -> &str {
        if self.target.resource.qualified() == "namespaces" { self.name } else { self.namespace }
    }

    /// What RBAC's rules say, written down without them.
    fn is_allowed(&self, reach: Reach, held: &str) -> bool {
        let holds = self.target.granted && held == self.verb;
        holds
            && match reach {
                Reach::Cluster => true,
                Reach::Namespace => self.place() == HERE,
                Reach::OtherNamespace => self.place() == THERE,
                Reach::Names => self.name == MINE,
                Reach::WrongGroup | Reach::Nothing => false,
            }
    }

    fn refusal(&self, user: &str) -> String {
        let (resource, part) = (&self.target.resource, &self.target.part);
        let what = if part.is_empty() { resource.plural.clone() } else { format!("{}/{part}", resource.plural) };
        let place = if self.place().is_empty() { "at the cluster scope".into() } else { format!("in the namespace \"{}\"", self.place()) };
        let object = if self.name.is_empty() { resource.qualified() } else { format!("{} \"{}\"", resource.qualified(), self.name) };
        let verb = self.verb;
        format!("{object} is forbidden: User \"{user}\" cannot {verb} resource \"{what}\" in API group \"{}\" {place}", resource.group)
    }

    /// Nothing is changed by it, allowed or not.
    fn request(&self) -> Request<Full<bytes::Bytes>> {
        let mut path = self.target.resource.collection(self.namespace);
        if !self.name.is_empty() {
            path = format!("{path}/{}", self.name);
        }
        if !self.target.part.is_empty() {
            path = format!("{path}/{}", self.target.part);
        }
        let (method, query, content) = match self.verb {
            "create" => ("POST", "?dryRun=All", "application/json"),
            "update" => ("PUT", "?dryRun=All", "application/json"),
            "patch" => ("PATCH", "?dryRun=All", "application/merge-patch+json"),
            "delete" | "deletecollection" => ("DELETE", "?dryRun=All", "application/json"),
            "watch" => ("GET", "?watch=true", ""),
            _ => ("GET", "", ""),
        };
        let mut body = Value::Null;
        if matches!(self.verb, "create" | "update") && self.target.part.is_empty() {
            body = self.target.resource.object(self.namespace, 0);
            if self.verb == "update" {
                body["metadata"]["name"] = self.name.into();
                // Such an object is not created by its update.
                body["metadata"]["resourceVersion"] = "1".into();
            }
        }
        let body = if body.is_null() && self.verb != "patch" { String::new() } else { body.to_string().replace("null", "{}") };
        let request = Request::builder().method(method).uri(format!("{path}{query}")).header("content-type", content);
        request.body(Full::new(body.into())).unwrap()
    }

    fn review(&self) -> Value {
        let resource = &self.target.resource;
        json!({"spec": {"resourceAttributes": {
            "verb": self.verb, "group": resource.group, "version": resource.version, "resource": resource.plural,
            "subresource": self.target.part, "namespace": self.place(), "name": self.name,
        }}})
    }
}

/// Code and body of an answer; a watch that begins has no body.
pub(crate) async fn answered(server: &TestServer, user: &str, groups: &[&str], request: Request<Full<bytes::Bytes>>) -> (u16, Value) {
    let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let response = server.service(user, groups).oneshot(request).await.unwrap();
    let code = response.status().as_u16();
    if watches && code == 200 {
        return (code, Value::Null);
    }
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

pub(crate) async fn posted(server: &TestServer, user: &str, groups: &[&str], path: &str, body: &Value) -> (u16, Value) {
    let request = Request::post(path).header("content-type", "application/json").body(Full::new(body.to_string().into())).unwrap();
    answered(server, user, groups, request).await
}

pub(crate) async fn made(server: &TestServer, path: &str, body: &Value) {
    let (code, answer) = posted(server, "admin", &["system:masters"], path, body).await;
    assert_eq!(code, 201, "{path}: {answer}");
}

fn targets(kinds: Vec<Resource>) -> Vec<Target> {
    let mut targets = Vec::new();
    for resource in kinds {
        let main = (String::new(), resource.verbs.clone());
        for (part, verbs) in std::iter::once(main).chain(resource.parts.clone()) {
            let granted = targets.len() % 2 == 0;
            targets.push(Target { resource: resource.clone(), part, verbs, granted });
        }
    }
    // A resource of two versions is one to a role.
    for index in 1..targets.len() {
        let (before, rest) = targets.split_at_mut(index);
        let same = |other: &&Target| other.resource.qualified() == rest[0].resource.qualified() && other.part == rest[0].part;
        if let Some(first) = before.iter().find(same) {
            rest[0].granted = first.granted;
        }
    }
    targets
}

/// A ClusterRole for a verb, and the users whom it reaches in each way.
async fn grant(server: &TestServer, verb: &str, targets: &[Target]) {
    let granted = |target: &&Target| target.granted && target.verbs.iter().any(|own| own == verb);
    let rules = |group: Option<&str>, names: Value| -> Value {
        let rule = |target: &Target| {
            let (resource, part) = (&target.resource, &target.part);
            let what = if part.is_empty() { resource.plural.clone() } else { format!("{}/{part}", resource.plural) };
            json!({"apiGroups": [group.unwrap_or(&resource.group)], "resources": [what], "verbs": [verb], "resourceNames": names})
        };
        targets.iter().filter(granted).map(rule).collect()
    };
    for (kind, rules) in
        [("all", rules(None, json!([]))), ("names", rules(None, json!([MINE]))), ("wrong", rules(Some("wrong.example.com"), json!([])))]
    {
        made(server, &format!("{RBAC}/clusterroles"), &json!({"metadata": {"name": format!("{kind}-{verb}")}, "rules": rules})).await;
    }
    for (reach, role, place) in [
        (Reach::Cluster, "all", "clusterrolebindings".to_string()),
        (Reach::Namespace, "all", format!("namespaces/{HERE}/rolebindings")),
        (Reach::OtherNamespace, "all", format!("namespaces/{THERE}/rolebindings")),
        (Reach::Names, "names", "clusterrolebindings".to_string()),
        (Reach::WrongGroup, "wrong", "clusterrolebindings".to_string()),
    ] {
        let user = reach.user(verb);
        let subject = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user});
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": format!("{role}-{verb}")});
        made(server, &format!("{RBAC}/{place}"), &json!({"metadata": {"name": user}, "roleRef": role, "subjects": [subject]})).await;
    }
}

/// Places and names to ask for with a verb.
fn asked<'a>(target: &'a Target, verb: &'a str) -> Vec<Asked<'a>> {
    let named = !target.part.is_empty() || matches!(verb, "get" | "update" | "patch" | "delete");
    let mut places = if target.resource.namespaced { vec![HERE, THERE] } else { vec![""] };
    if target.resource.namespaced && matches!(verb, "list" | "watch") {
        places.push("");
    }
    let names: &[&str] = if named { &[MINE, "other"] } else { &[""] };
    places.into_iter().flat_map(|namespace| names.iter().map(move |name| Asked { target, verb, namespace, name })).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_allowed_exactly_where_rules_say_so() {
    let server = TestServer::start().await;
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &objects::definition()).await.unwrap();
    for namespace in [HERE, THERE] {
        made(&server, "/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await;
    }
    let targets = targets(served(&server.admin()).await);
    let verbs: BTreeSet<&str> = targets.iter().flat_map(|target| target.verbs.iter().map(String::as_str)).collect();
    let verbs: Vec<&str> = verbs.into_iter().collect();
    for verb in &verbs {
        grant(&server, verb, &targets).await;
    }
    let mut wrong = Vec::new();
    for (number, target) in targets.iter().enumerate() {
        for verb in &target.verbs {
            // The verb itself, and another one.
            let index = verbs.iter().position(|own| own == verb).unwrap();
            let other = verbs[(index + 1 + number % (verbs.len() - 1)) % verbs.len()];
            for asked in asked(target, verb) {
                for (reach, held) in REACHES.iter().map(|reach| (*reach, verb.as_str())).chain([(Reach::Cluster, other)]) {
                    wrong.extend(disagreement(&server, &asked, reach, held).await);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} answers differ from the rules:\n{}", wrong.len(), wrong.join("\n"));
    for verb in &verbs {
        rules_review_agrees(&server, verb, &targets).await;
    }
    server.stop().await;
}

/// How the answer to a request, or the review of it, differs from the rules.
async fn disagreement(server: &TestServer, asked: &Asked<'_>, reach: Reach, held: &str) -> Option<String> {
    let user = reach.user(held);
    let allowed = asked.is_allowed(reach, held) || is_public(asked);
    let refusal = asked.refusal(&user);
    let (code, answer) = answered(server, &user, &[], asked.request()).await;
    let message = answer["message"].as_str().unwrap_or_default();
    let shape = (&answer["kind"], &answer["reason"], &answer["code"]);
    let refused = code == 403 && message == refusal && shape == (&json!("Status"), &json!("Forbidden"), &json!(403));
    let let_in = !matches!(code, 401 | 403) || code == 403 && !message.contains("\" cannot ");
    if allowed != let_in || allowed == refused {
        return Some(format!("{user}: expected {}: {code} {message}", if allowed { "leave" } else { &refusal }));
    }
    let (_, review) = posted(server, &user, &[], "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &asked.review()).await;
    (review["status"]["allowed"] != allowed).then(|| format!("{user}: the review of {refusal:?} says {}", review["status"]))
}

/// What `system:basic-user` gives to every authenticated user.
fn is_public(asked: &Asked<'_>) -> bool {
    let reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"];
    asked.verb == "create" && reviews.contains(&asked.target.resource.plural.as_str())
}

/// The rules that a user is shown for a namespace allow what the user may do there.
async fn rules_review_agrees(server: &TestServer, verb: &str, targets: &[Target]) {
    for reach in REACHES {
        let user = reach.user(verb);
        let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
        let (code, review) = posted(server, &user, &[], path, &json!({"spec": {"namespace": HERE}})).await;
        assert_eq!((code, &review["status"]["incomplete"]), (201, &json!(false)), "{review}");
        let rules = review["status"]["resourceRules"].as_array().unwrap();
        let has = |rule: &Value, member: &str, text: &str| rule[member].as_array().is_some_and(|texts| texts.iter().any(|own| own == text));
        for target in targets.iter().filter(|target| target.resource.namespaced && target.verbs.iter().any(|own| own == verb)) {
            let (resource, part) = (&target.resource, &target.part);
            let what = if part.is_empty() { resource.plural.clone() } else { format!("{}/{part}", resource.plural) };
            for name in [MINE, "other"] {
                let names = |rule: &Value| rule["resourceNames"].as_array().is_none_or(Vec::is_empty) || has(rule, "resourceNames", name);
                let shown = rules
                    .iter()
                    .any(|rule| has(rule, "verbs", verb) && has(rule, "apiGroups", &resource.group) && has(rule, "resources", &what) && names(rule));
                let asked = Asked { target, verb, namespace: HERE, name };
                assert_eq!(shown, asked.is_allowed(reach, verb) || is_public(&asked), "{user} {verb} {what} {name}: {rules:?}");
            }
        }
    }
}
