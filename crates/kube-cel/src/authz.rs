//! The authorizer in expressions: `authorizer.group('').resource('pods').check('get').allowed()`.

use std::sync::Arc;

use crate::formats;
use crate::value::{Result, Value, error, no_overload};

/// What is asked of an authorizer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes {
    /// Namespace and name of the ServiceAccount that is asked about; none for the user of the request.
    pub service_account: Option<(String, String)>,
    pub verb: String,
    /// Set for requests that are not of a resource.
    pub path: Option<String>,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub field_selector: String,
    pub label_selector: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
    pub error: Option<String>,
}

/// Decides about requests; the server's authorizers implement it.
pub trait Authorizer: Send + Sync {
    fn authorize(&self, attributes: &Attributes) -> Decision;
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Authorizer,
    Path,
    Group,
    Resource,
}

/// A check under construction, or its decision.
#[derive(Clone)]
pub enum Check<'a> {
    Open(Open<'a>),
    Decided(Arc<Decision>),
}

#[derive(Clone)]
pub struct Open<'a> {
    authorizer: &'a dyn Authorizer,
    stage: Stage,
    attributes: Arc<Attributes>,
}

impl<'a> Value<'a> {
    /// The variable `authorizer`.
    pub fn authorizer(authorizer: &'a dyn Authorizer) -> Self {
        let attributes = Arc::new(Attributes::default());
        Value::Authz(Check::Open(Open { authorizer, stage: Stage::Authorizer, attributes }))
    }

    /// The variable `authorizer.requestResource`.
    pub fn request_resource(authorizer: &'a dyn Authorizer, attributes: Attributes) -> Self {
        let attributes = Arc::new(attributes);
        Value::Authz(Check::Open(Open { authorizer, stage: Stage::Resource, attributes }))
    }
}

impl Check<'_> {
    pub fn type_name(&self) -> &'static str {
        match self {
            Check::Decided(_) => "kubernetes.authorization.Decision",
            Check::Open(open) => match open.stage {
                Stage::Authorizer => "kubernetes.authorization.Authorizer",
                Stage::Path => "kubernetes.authorization.PathCheck",
                Stage::Group => "kubernetes.authorization.GroupCheck",
                Stage::Resource => "kubernetes.authorization.ResourceCheck",
            },
        }
    }

    pub(crate) fn same(&self, other: &Check) -> bool {
        match (self, other) {
            (Check::Decided(a), Check::Decided(b)) => a == b,
            (Check::Open(a), Check::Open(b)) => a.stage == b.stage && a.attributes == b.attributes,
            _ => false,
        }
    }
}

pub fn call<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::Authz(check), rest @ ..] = args else { return no_overload() };
    let open = match check {
        Check::Decided(decision) => return decided(name, decision),
        Check::Open(open) => open,
    };
    let text = |index: usize| match rest.get(index) {
        Some(Value::String(text)) => text.to_string(),
        _ => String::new(),
    };
    let mut next = open.clone();
    let attributes = Arc::make_mut(&mut next.attributes);
    let first = text(0);
    match (name, open.stage) {
        ("path", Stage::Authorizer) if first.trim().is_empty() => return error("path must not be empty"),
        ("path", Stage::Authorizer) => {
            attributes.path = Some(first);
            next.stage = Stage::Path;
        }
        ("group", Stage::Authorizer) => {
            attributes.group = first;
            next.stage = Stage::Group;
        }
        ("serviceAccount", Stage::Authorizer) => {
            let name = text(1);
            if !formats::dns1123_subdomain(&name).is_empty() {
                return error("Invalid service account name");
            }
            if !formats::dns1123_label(&first).is_empty() {
                return error("Invalid service account namespace");
            }
            attributes.service_account = Some((first, name));
        }
        ("resource", Stage::Group) if first.trim().is_empty() => return error("resource must not be empty"),
        ("resource", Stage::Group) => {
            attributes.resource = first;
            next.stage = Stage::Resource;
        }
        ("subresource", Stage::Resource) => attributes.subresource = first,
        ("namespace", Stage::Resource) => attributes.namespace = first,
        ("name", Stage::Resource) => attributes.name = first,
        ("fieldSelector", Stage::Resource) => attributes.field_selector = first,
        ("labelSelector", Stage::Resource) => attributes.label_selector = first,
        ("check", Stage::Resource | Stage::Path) => {
            attributes.verb = first;
            let decision = next.authorizer.authorize(&next.attributes);
            return Ok(Value::Authz(Check::Decided(Arc::new(decision))));
        }
        _ => return no_overload(),
    }
    Ok(Value::Authz(Check::Open(next)))
}

fn decided<'a>(name: &str, decision: &Decision) -> Result<Value<'a>> {
    Ok(match name {
        "allowed" => Value::Bool(decision.allowed),
        "errored" => Value::Bool(decision.error.is_some()),
        "error" => Value::string(decision.error.as_deref().unwrap_or_default()),
        "reason" => Value::string(decision.reason.as_str()),
        _ => return no_overload(),
    })
}
