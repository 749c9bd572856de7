//! Requests, and a small cluster and expression language, for tests.

use crate::cel::{Engine, Fault, Input, Purpose, Scope};
use crate::matching::Catalog;
use crate::names::{Kind, Resource};
use crate::policy::Cluster;
use crate::{Attributes, Operation, UserInfo};
use serde_json::{Value, json};
use std::future::Future;
use std::sync::{Arc, LazyLock};

pub(crate) static USER: LazyLock<UserInfo> = LazyLock::new(|| UserInfo { name: "jane".into(), ..UserInfo::default() });

/// A request on `RESOURCE.GROUP[/SUBRESOURCE]` in the Namespace `test`: a creation, or an update when there is an old object.
pub(crate) fn request<'a>(resource: &'a str, object: &'a Value, old: Option<&'a Value>) -> Attributes<'a> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    Attributes {
        operation,
        group,
        version: "v1",
        resource,
        subresource,
        kind: "Thing",
        kind_group: group,
        kind_version: "v1",
        namespace: "test",
        name: crate::value::name(object),
        object: Some(object),
        old_object: old,
        options: &Value::Null,
        user: &USER,
        dry_run: false,
    }
}

/// An engine whose expressions are JSON, or `fail:WHY`, `compile:WHY`, `costly`, `get:POINTER` and `param:POINTER` into object and parameter,
/// `is:POINTER=JSON` for a comparison in the object.
pub(crate) struct Expressions;

impl Engine for Expressions {
    fn compile(&self, expression: &str, _purpose: Purpose, _scope: Scope<'_>) -> Result<(), String> {
        expression.strip_prefix("compile:").map_or(Ok(()), |why| Err(why.to_owned()))
    }

    fn evaluate(&self, expression: &str, purpose: Purpose, scope: Scope<'_>, input: &Input<'_>, budget: &mut u64) -> Result<Value, Fault> {
        self.compile(expression, purpose, scope).map_err(Fault::Compile)?;
        let at = |value: &Value, pointer: &str| value.pointer(pointer).cloned().unwrap_or_default();
        if expression == "costly" {
            return Err(Fault::OutOfBudget);
        }
        *budget = budget.saturating_sub(1);
        match expression.split_once(':') {
            Some(("fail", why)) => Err(Fault::Evaluate(why.to_owned())),
            Some(("get", pointer)) => Ok(at(input.object, pointer)),
            Some(("param", pointer)) => Ok(at(input.params, pointer)),
            Some(("is", comparison)) => {
                let (pointer, wanted) = comparison.split_once('=').expect("a comparison has an equals sign");
                let wanted: Value = serde_json::from_str(wanted).map_err(|error| Fault::Evaluate(error.to_string()))?;
                Ok((at(input.object, pointer) == wanted).into())
            }
            _ => serde_json::from_str(expression).map_err(|error| Fault::Evaluate(error.to_string())),
        }
    }
}

/// A cluster with the Namespace `test` labelled `team=a`; things.example.com are in two versions; decoding drops `unknown` and refuses `wrong`.
#[derive(Default)]
pub(crate) struct FakeCluster {
    /// Kind, namespaced, object.
    pub(crate) objects: Vec<(Kind, bool, Value)>,
}

impl Catalog for FakeCluster {
    fn namespace(&self, name: &str) -> Option<Arc<Value>> {
        (name == "test").then(|| Arc::new(json!({"metadata": {"name": "test", "labels": {"team": "a"}, "managedFields": []}})))
    }

    fn equivalents(&self, resource: &Resource, _subresource: &str) -> Vec<(Resource, Kind)> {
        let of = |version| (Resource::new("example.com", version, "things"), Kind::new("example.com", version, "Thing"));
        if resource.group == "example.com" { vec![of("v1"), of("v2")] } else { Vec::new() }
    }

    async fn convert(&self, object: &Value, kind: &Kind) -> Result<Value, String> {
        let mut converted = object.clone();
        converted["apiVersion"] = kind.api_version().into();
        Ok(converted)
    }

    fn decode(&self, _kind: &Kind, mut object: Value) -> Result<Value, String> {
        if object.get("wrong").is_some() {
            return Err("json: cannot unmarshal".to_owned());
        }
        object.as_object_mut().map(|members| members.shift_remove("unknown"));
        Ok(object)
    }
}

impl Cluster for FakeCluster {
    fn is_namespaced(&self, kind: &Kind) -> Option<bool> {
        self.objects.iter().find(|(one, ..)| one == kind).map(|(_, namespaced, _)| *namespaced)
    }

    async fn object(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Option<Arc<Value>>, String> {
        Ok(self.objects(kind, namespace).await?.into_iter().find(|object| crate::value::name(object) == name))
    }

    async fn objects(&self, kind: &Kind, namespace: &str) -> Result<Vec<Arc<Value>>, String> {
        let is_there = |object: &Value| crate::value::text(object, &["metadata", "namespace"]) == namespace;
        let mine = self.objects.iter().filter(|(one, _, object)| one == kind && is_there(object));
        Ok(mine.map(|(.., object)| Arc::new(object.clone())).collect())
    }

    fn merge(&self, _kind: &Kind, object: &Value, configuration: &Value) -> Result<Value, String> {
        if configuration.get("atomic").is_some() {
            return Err("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .atomic".to_owned());
        }
        let mut merged = object.clone();
        for (name, value) in configuration.as_object().into_iter().flatten() {
            merged[name] = value.clone();
        }
        Ok(merged)
    }
}

/// The result of a future.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime starts").block_on(future)
}
