//! What others decide: webhooks and admission policies (apiserver/pkg/admission/plugin/{webhook,policy}).

use super::call::Http;
use super::{Plugin, adapt};
use crate::authn;
use crate::authz::{Attributes as Asked, Authorizer, Decision};
use crate::fields;
use crate::kind::{Attributes, Cluster, Kind, Operation};
use crate::schema;
use crate::status::ApiError;
use ::admission::cel::KubeCel;
use ::admission::matching::Catalog;
use ::admission::names::{Kind as KindName, Resource};
use ::admission::policy::{self, Policy};
use ::admission::webhook::{self, Hook};
use ::admission::{Notes, Refusal, Reinvocation, UserInfo};
use futures::future::BoxFuture;
use serde_json::Value;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const GROUP: &str = "admissionregistration.k8s.io";

/// What is made of all objects of some resources, until one of them is written.
struct Cache<T>(Mutex<Option<(u64, Arc<Vec<T>>)>>);

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Cache<T> {
    fn get(&self, cluster: &Cluster, resources: &[&str], make: impl FnOnce(Vec<Vec<Arc<Value>>>) -> Vec<T>) -> Arc<Vec<T>> {
        let prefixes: Vec<String> = resources.iter().map(|resource| format!("{GROUP}/{resource}/")).collect();
        let changed = prefixes.iter().map(|prefix| cluster.store.last_change(prefix)).max().unwrap_or_default();
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, made)) = &*cached
            && *at == changed
        {
            return Arc::clone(made);
        }
        let all = |prefix: &String| cluster.store.list(prefix).1.into_iter().map(|(_, entry)| Arc::new(entry.value())).collect();
        let made = Arc::new(make(prefixes.iter().map(all).collect()));
        *cached = Some((changed, Arc::clone(&made)));
        made
    }
}

/// The mutating half is run by the chain, in two rounds where one wants it; the validating half is a plug-in.
#[derive(Default)]
pub struct Outside {
    engine: OnceLock<KubeCel>,
    hooks: [Cache<Hook>; 2],
    policies: [Cache<Policy>; 2],
}

fn hooks_of(objects: Vec<Vec<Arc<Value>>>) -> Vec<Hook> {
    webhook::hooks(&objects.concat())
}

fn policies_of(objects: Vec<Vec<Arc<Value>>>) -> Vec<Policy> {
    match objects.as_slice() {
        [definitions, bindings] => policy::policies(definitions, bindings),
        _ => Vec::new(),
    }
}

/// The request in the version in which it came; objects are stored in another for some kinds.
struct Shown {
    object: Option<Value>,
    old: Option<Value>,
    options: Value,
}

impl Shown {
    async fn of(attributes: &Attributes<'_>, object: &Value) -> Result<Self, ApiError> {
        let kind = attributes.kind;
        let stored = || attributes.cluster.store.get(&kind.key(attributes.namespace, attributes.name)).map(|entry| entry.value());
        let old = match (attributes.old, attributes.operation) {
            (Some(old), _) => Some(old.clone()),
            (None, Operation::Delete) => match stored() {
                Some(stored) => Some(attributes.cluster.read_one(kind, stored).await?),
                None => None,
            },
            (None, _) => None,
        };
        // The body of a subresource has one form.
        let shown = |value: Value| if attributes.is_of_kind() { kind.outgoing(value) } else { value };
        let object = if object.is_null() { None } else { Some(shown(object.clone())) };
        Ok(Self { object, old: old.map(shown), options: adapt::options(attributes) })
    }

    fn request<'b>(&'b self, attributes: &'b Attributes<'_>, user: &'b UserInfo) -> ::admission::Attributes<'b> {
        let request = adapt::request(attributes, user, &Value::Null);
        ::admission::Attributes { object: self.object.as_ref(), old_object: self.old.as_ref(), options: &self.options, ..request }
    }
}

impl Outside {
    fn engine(&self, cluster: &Cluster) -> &KubeCel {
        self.engine.get_or_init(|| {
            let authorizer = Arc::clone(&cluster.authorizer);
            KubeCel::new(move |user, asked| authorize(&authorizer, user, asked))
        })
    }

    fn loaded(&self, cluster: &Cluster, mutating: bool) -> (Arc<Vec<Hook>>, Arc<Vec<Policy>>) {
        let [configurations, definitions, bindings] = match mutating {
            true => ["mutatingwebhookconfigurations", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"],
            false => ["validatingwebhookconfigurations", "validatingadmissionpolicies", "validatingadmissionpolicybindings"],
        };
        let half = usize::from(mutating);
        let hooks = self.hooks[half].get(cluster, &[configurations], hooks_of);
        (hooks, self.policies[half].get(cluster, &[definitions, bindings], policies_of))
    }

    /// Lets policies, then webhooks change the object.
    pub async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Value, round: &mut Reinvocation) -> Result<(), ApiError> {
        let (hooks, policies) = self.loaded(attributes.cluster, true);
        if hooks.is_empty() && policies.is_empty() {
            return Ok(());
        }
        let (user, mut notes, mut shown) = (adapt::user(attributes), Notes::default(), Shown::of(attributes, object).await?);
        let before = shown.object.clone();
        let mut changed = shown.object.take();
        let view = View(attributes.cluster);
        let result = async {
            let request = shown.request(attributes, &user);
            let environment = policy::Environment { cluster: &view, engine: self.engine(attributes.cluster) };
            policy::mutate(&environment, &policies, &request, changed.as_mut(), round).await?;
            let (engine, caller) = (self.engine(attributes.cluster), Http(attributes.cluster));
            let environment = webhook::Environment { catalog: &view, engine, caller: &caller };
            webhook::mutate(&environment, &hooks, &request, changed.as_mut(), round, &mut notes).await
        };
        let result: Result<(), Refusal> = result.await;
        adapt::keep(attributes, notes);
        result.map_err(|refusal| adapt::error(attributes, object, refusal))?;
        if let Some(changed) = changed
            && before.as_ref() != Some(&changed)
        {
            *object = if attributes.is_of_kind() { attributes.kind.incoming(changed) } else { changed };
        }
        Ok(())
    }

    async fn check(&self, attributes: &Attributes<'_>, object: &Value) -> Result<(), ApiError> {
        let (hooks, policies) = self.loaded(attributes.cluster, false);
        if hooks.is_empty() && policies.is_empty() {
            return Ok(());
        }
        let (user, mut notes, shown) = (adapt::user(attributes), Notes::default(), Shown::of(attributes, object).await?);
        let (view, request) = (View(attributes.cluster), shown.request(attributes, &user));
        let result = async {
            let environment = policy::Environment { cluster: &view, engine: self.engine(attributes.cluster) };
            policy::validate(&environment, &policies, &request, &mut notes).await?;
            let (engine, caller) = (self.engine(attributes.cluster), Http(attributes.cluster));
            let environment = webhook::Environment { catalog: &view, engine, caller: &caller };
            webhook::validate(&environment, &hooks, &request, &mut notes).await
        };
        let result: Result<(), Refusal> = result.await;
        adapt::keep(attributes, notes);
        result.map_err(|refusal| adapt::error(attributes, object, refusal))
    }
}

/// The validating half, as a plug-in of the chain.
pub struct Validating(pub Arc<Outside>);

impl Plugin for Validating {
    fn handles(&self, _attributes: &Attributes<'_>) -> bool {
        true
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a Value) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(self.0.check(attributes, object))
    }
}

/// The rights that `authorizer` asks about in expressions.
fn authorize(authorizer: &Authorizer, user: &UserInfo, asked: &kube_cel::authz::Attributes) -> kube_cel::authz::Decision {
    let user = match &asked.service_account {
        Some((namespace, name)) => {
            let groups = ["system:serviceaccounts".to_string(), format!("system:serviceaccounts:{namespace}")];
            authn::UserInfo::new(&format!("system:serviceaccount:{namespace}:{name}"), &[&groups[0], &groups[1]])
        }
        None => authn::UserInfo { name: user.name.clone(), uid: user.uid.clone(), groups: user.groups.clone(), ..authn::UserInfo::default() },
    };
    let decision = authorizer.decide(&Asked {
        user,
        verb: asked.verb.clone(),
        is_resource: asked.path.is_none(),
        group: asked.group.clone(),
        resource: asked.resource.clone(),
        subresource: asked.subresource.clone(),
        namespace: asked.namespace.clone(),
        name: asked.name.clone(),
        path: asked.path.clone().unwrap_or_default(),
        field_selector: asked.field_selector.clone(),
    });
    let (allowed, reason) = match decision {
        Decision::Allow(reason) => (true, reason),
        Decision::NoOpinion(reason) => (false, reason),
    };
    kube_cel::authz::Decision { allowed, reason, error: None }
}

/// What webhooks and policies see of the server.
struct View<'a>(&'a Cluster);

impl View<'_> {
    fn find(&self, name: &KindName) -> Option<Arc<Kind>> {
        let is = |kind: &&Arc<Kind>| kind.group == name.group && kind.version == name.version && kind.kind == name.kind;
        self.0.kinds.now().all().find(is).cloned()
    }
}

impl Catalog for View<'_> {
    fn namespace(&self, name: &str) -> Option<Arc<Value>> {
        self.0.store.get(&format!("core/namespaces//{name}")).map(|entry| Arc::new(entry.value()))
    }

    fn equivalents(&self, resource: &Resource, subresource: &str) -> Vec<(Resource, KindName)> {
        let kinds = self.0.kinds.now();
        let Some(own) = kinds.find(&resource.group, &resource.version, &resource.resource) else { return Vec::new() };
        // Kinds that keep their objects in one place are the same kind.
        let same = kinds.all().filter(|kind| kind.is_stored() && kind.prefix("") == own.prefix(""));
        same.filter_map(|kind| {
            let name = match kind.subresource(subresource) {
                Some(found) => KindName::new(&found.body.group, &found.body.version, &found.body.kind),
                None if subresource.is_empty() => KindName::new(&kind.group, &kind.version, &kind.kind),
                None => return None,
            };
            Some((Resource::new(&kind.group, &kind.version, &kind.plural), name))
        })
        .collect()
    }

    async fn convert(&self, object: &Value, kind: &KindName) -> Result<Value, String> {
        let text = |member: &str| object.get(member).and_then(Value::as_str).unwrap_or_default();
        let from = KindName::of(text("apiVersion"), text("kind"));
        let unknown = |name: &KindName| format!("unable to convert {from} to {kind}: no kind {name} is served");
        let source = self.find(&from).ok_or_else(|| unknown(&from))?;
        let target = self.find(kind).ok_or_else(|| unknown(kind))?;
        let Some(versions) = target.versions().filter(|_| source.prefix("") == target.prefix("")) else {
            return Ok(target.outgoing(source.incoming(object.clone())));
        };
        let converted = versions.convert(self.0, vec![object.clone()], &target.api_version()).await?;
        Ok(converted.into_iter().next().unwrap_or_default())
    }

    fn decode(&self, kind: &KindName, object: Value) -> Result<Value, String> {
        let Some(kind) = self.find(kind) else { return Ok(object) };
        let checked = schema::decode_check(&kind, object).map_err(|error| error.to_string())?;
        let mut stored = kind.incoming(checked.value);
        kind.apply_defaults(&mut stored);
        Ok(kind.outgoing(stored))
    }
}

impl policy::Cluster for View<'_> {
    fn is_namespaced(&self, kind: &KindName) -> Option<bool> {
        self.find(kind).map(|kind| kind.namespaced)
    }

    async fn object(&self, kind: &KindName, namespace: &str, name: &str) -> Result<Option<Arc<Value>>, String> {
        let Some(kind) = self.find(kind) else { return Ok(None) };
        let Some(entry) = self.0.store.get(&kind.key(namespace, name)) else { return Ok(None) };
        let object = self.0.read_one(&kind, entry.value()).await.map_err(|error| error.message)?;
        Ok(Some(Arc::new(kind.outgoing(object))))
    }

    async fn objects(&self, kind: &KindName, namespace: &str) -> Result<Vec<Arc<Value>>, String> {
        let Some(kind) = self.find(kind) else { return Ok(Vec::new()) };
        let (_, rows) = self.0.store.list(&kind.prefix(if kind.namespaced { namespace } else { "" }));
        let stored = rows.into_iter().map(|(_, entry)| entry.value()).collect();
        let objects = self.0.read(&kind, stored).await.map_err(|error| error.message)?;
        Ok(objects.into_iter().map(|object| Arc::new(kind.outgoing(object))).collect())
    }

    fn merge(&self, kind: &KindName, object: &Value, configuration: &Value) -> Result<Value, String> {
        use kube_schema::typed::Duplicates;
        let found = self.find(kind).ok_or_else(|| format!("Resource kind {kind} not found."))?;
        let own = found.own_tree();
        let of = fields::type_of(&found, own.as_deref());
        of.validate(configuration, Duplicates::Refused).map_err(|why| format!("failed to convert patch object to typed object: {why}"))?;
        let atomics = atomics(of.schema, of.at, configuration, String::new());
        if !atomics.is_empty() {
            return Err(format!("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}", atomics.join(", ")));
        }
        Ok(of.merge(object, configuration))
    }
}

/// Paths of what a configuration would replace as a whole, which takes away what it does not repeat.
fn atomics(schema: &kube_schema::schema::Schema, at: kube_schema::schema::TypeRef, value: &Value, path: String) -> Vec<String> {
    use kube_schema::schema::ListMerge;
    let node = schema.type_at(at).node();
    let mut found = Vec::new();
    match (value, &node.object, &node.list) {
        (Value::Object(members), Some(object), _) => {
            if object.atomic {
                found.push(path.clone());
            }
            for (name, value) in members {
                if let Some(field) = object.field(name) {
                    found.extend(atomics(schema, field.value, value, format!("{path}.{name}")));
                }
            }
        }
        (Value::Array(items), _, Some(list)) => {
            if list.merge == ListMerge::Atomic {
                found.push(path.clone());
            }
            for (index, item) in items.iter().enumerate() {
                found.extend(atomics(schema, list.items, item, format!("{path}[{index}]")));
            }
        }
        _ => {}
    }
    found
}
