//! The types of what expressions of policies see, for the type checker (apiserver/pkg/admission/plugin/cel/compile.go).

use super::Variable;
use kube_cel::shape::{Form, ListKind, Object, Property, Shape};
use kube_cel::{Env, Type};
use std::sync::{Arc, LazyLock};

/// What is known of `params`.
#[derive(Clone, Copy, Debug)]
pub enum Params<'a> {
    /// The policy has none.
    None,
    /// It has some of a kind that nobody knows.
    Unknown,
    Known(&'a Shape),
}

fn shape(form: Form) -> Shape {
    Shape::new(form, u64::MAX, 0)
}

fn text() -> Shape {
    shape(Form::String)
}

fn texts() -> Shape {
    shape(Form::List(Arc::new(text()), ListKind::Atomic))
}

fn object(name: &str, fields: Vec<(&str, Shape)>) -> Shape {
    let fields = fields.into_iter().map(|(name, shape)| (name.to_owned(), Property { name: name.to_owned(), shape: Arc::new(shape) })).collect();
    shape(Form::Object(Arc::new(Object { name: name.to_owned(), fields })))
}

fn of_texts(name: &str, fields: &[&str]) -> Shape {
    object(name, fields.iter().map(|field| (*field, text())).collect())
}

/// `request`: upstream's `BuildRequestType`.
static REQUEST: LazyLock<Shape> = LazyLock::new(|| {
    let kind = || of_texts("kubernetes.GroupVersionKind", &["group", "version", "kind"]);
    let resource = || of_texts("kubernetes.GroupVersionResource", &["group", "version", "resource"]);
    let extra = shape(Form::Map(Arc::new(texts())));
    let user = object("kubernetes.UserInfo", vec![("username", text()), ("uid", text()), ("groups", texts()), ("extra", extra)]);
    let fields = vec![
        ("kind", kind()),
        ("resource", resource()),
        ("subResource", text()),
        ("requestKind", kind()),
        ("requestResource", resource()),
        ("requestSubResource", text()),
        ("name", text()),
        ("namespace", text()),
        ("operation", text()),
        ("userInfo", user),
        ("dryRun", shape(Form::Bool)),
        ("options", shape(Form::Dyn)),
    ];
    object("kubernetes.AdmissionRequest", fields)
});

/// `namespaceObject`: upstream's `BuildNamespaceType`.
static NAMESPACE: LazyLock<Shape> = LazyLock::new(|| {
    let (time, number) = (|| shape(Form::Timestamp), || shape(Form::Int));
    let map = || shape(Form::Map(Arc::new(text())));
    let metadata = vec![
        ("name", text()),
        ("generateName", text()),
        ("namespace", text()),
        ("labels", map()),
        ("annotations", map()),
        ("UID", text()),
        ("creationTimestamp", time()),
        ("deletionGracePeriodSeconds", number()),
        ("deletionTimestamp", time()),
        ("generation", number()),
        ("resourceVersion", text()),
        ("finalizers", texts()),
    ];
    let condition = [("status", text()), ("type", text()), ("lastTransitionTime", time()), ("message", text()), ("reason", text())];
    let conditions = shape(Form::List(Arc::new(object("kubernetes.NamespaceCondition", condition.into())), ListKind::Atomic));
    let status = object("kubernetes.NamespaceStatus", vec![("conditions", conditions), ("phase", text())]);
    let spec = object("kubernetes.NamespaceSpec", vec![("finalizers", texts())]);
    object("kubernetes.Namespace", vec![("metadata", object("kubernetes.NamespaceMetadata", metadata)), ("spec", spec), ("status", status)])
});

/// What is wrong with an expression of a policy when `object` has this form: the compiler's text. What it gives does not matter.
pub fn check(expression: &str, of: &Shape, params: Params<'_>, variables: &[Variable]) -> Result<(), String> {
    let mut env = Env::new()
        .with("object", of.ty())
        .with("oldObject", of.ty())
        .with("request", REQUEST.ty())
        .with("namespaceObject", NAMESPACE.ty())
        .with("authorizer", Type::named("kubernetes.authorization.Authorizer"))
        .with("authorizer.requestResource", Type::named("kubernetes.authorization.ResourceCheck"));
    env = match params {
        Params::None => env,
        Params::Unknown => env.with("params", Type::Dyn),
        Params::Known(of) => env.with("params", of.ty()),
    };
    for Variable { name, expression } in variables {
        let ty = env.compile(expression).map_or(Type::Dyn, |program| program.result_type().clone());
        env = env.with(&format!("variables.{name}"), ty);
    }
    env.compile(expression).map(drop).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Shape {
        let spec = object("Deployment.spec", vec![("replicas", shape(Form::Int)), ("paused", shape(Form::Bool))]);
        object("Deployment", vec![("spec", spec), ("kind", text())])
    }

    fn wrong(expression: &str, params: Params<'_>, variables: &[Variable]) -> String {
        check(expression, &deployment(), params, variables).err().unwrap_or_default()
    }

    #[test]
    fn fields_and_types_are_those_of_the_kind() {
        assert_eq!(wrong("object.spec.replicas <= 5 && !oldObject.spec.paused", Params::None, &[]), "");
        let undefined = "ERROR: <input>:1:12: undefined field 'replica'\n | object.spec.replica > 1\n | ...........^";
        assert_eq!(wrong("object.spec.replica > 1", Params::None, &[]), undefined);
        assert!(wrong("object.spec.replicas > '1'", Params::None, &[]).contains("found no matching overload for '_>_' applied to '(int, string)'"));
        assert_eq!(wrong("object.spec.replicas", Params::None, &[]), "", "what it gives does not matter");
    }

    #[test]
    fn what_else_expressions_see_has_types_too() {
        for good in [
            "request.userInfo.groups.exists(g, g == 'a') && request.dryRun",
            "request.namespace == 'a'",
            "namespaceObject.metadata.labels['a'] == namespaceObject.metadata.name",
            "authorizer.group('').resource('pods').check('get').allowed()",
            "has(request.options.fieldManager)",
        ] {
            assert_eq!(wrong(good, Params::None, &[]), "", "{good}");
        }
        assert!(wrong("request.user == 'a'", Params::None, &[]).contains("undefined field 'user'"));
        assert!(wrong("params.x == 1", Params::None, &[]).contains("undeclared reference to 'params'"));
        assert_eq!(wrong("params.x == 1", Params::Unknown, &[]), "");
        assert!(wrong("params.x == 1", Params::Known(&deployment()), &[]).contains("undefined field 'x'"));
    }

    #[test]
    fn variables_have_the_types_of_their_expressions() {
        let variables = [("count", "object.spec.replicas"), ("twice", "variables.count * 2"), ("broken", "object.nothing")];
        let variables = variables.map(|(name, expression)| Variable { name: name.into(), expression: expression.into() });
        assert_eq!(wrong("variables.twice > 2 && variables.broken == 'any'", Params::None, &variables), "");
        assert!(wrong("variables.twice == 'a'", Params::None, &variables).contains("found no matching overload"));
    }
}
