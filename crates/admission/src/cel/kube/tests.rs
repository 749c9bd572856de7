//! Tests of expressions of admission: what they see, what they must give, and what they cost.

use super::*;
use serde_json::json;

fn evaluate(purpose: Purpose, variables: &[(&str, &str)], expression: &str) -> Result<Value, String> {
    let variables: Vec<Variable> =
        variables.iter().map(|(name, expression)| Variable { name: (*name).into(), expression: (*expression).into() }).collect();
    let scope = Scope { params: true, variables: Some(&variables) };
    let engine = KubeCel::new(|user, attributes| Decision {
        allowed: user.name == "jane" && attributes.verb == "get" && attributes.resource == "pods",
        ..Decision::default()
    });
    let (object, request) = (json!({"spec": {"replicas": 3}}), json!({"operation": "CREATE", "requestResource": {"group": "", "resource": "pods"}}));
    let (old_object, params, namespace_object) = (Value::Null, json!({"data": {"most": "5"}}), json!({"metadata": {"labels": {"a": "b"}}}));
    let user = UserInfo { name: "jane".into(), ..UserInfo::default() };
    let input =
        Input { object: &object, old_object: &old_object, request: &request, params: &params, namespace_object: &namespace_object, user: &user };
    let mut budget = super::super::POLICY_BUDGET;
    engine.evaluate(expression, purpose, scope, &input, &mut budget).map_err(|fault| fault.text(expression))
}

#[test]
fn expressions_see_the_request() {
    for expression in [
        "object.spec.replicas == 3 && oldObject == null",
        "request.operation == 'CREATE'",
        "object.spec.replicas <= int(params.data.most)",
        "namespaceObject.metadata.labels.a == 'b'",
        "authorizer.group('').resource('pods').check('get').allowed()",
        "!authorizer.group('').resource('pods').check('delete').allowed()",
        "authorizer.requestResource.check('get').allowed()",
    ] {
        assert_eq!(evaluate(Purpose::Validation, &[], expression), Ok(true.into()), "{expression}");
    }
    assert_eq!(evaluate(Purpose::AuditAnnotation, &[], "null"), Ok(Value::Null));
    assert_eq!(evaluate(Purpose::Message, &[], "'has ' + string(object.spec.replicas)"), Ok("has 3".into()));
    let patch = evaluate(Purpose::JsonPatch, &[], "[JSONPatch{op: 'add', path: '/a', value: Object.spec{replicas: 1}}]");
    assert_eq!(patch, Ok(json!([{"op": "add", "path": "/a", "value": {"replicas": 1}}])));
    assert_eq!(evaluate(Purpose::ApplyConfiguration, &[], "Object{spec: Object.spec{replicas: 1}}"), Ok(json!({"spec": {"replicas": 1}})));
}

#[test]
fn variables_are_lazy_typed_and_see_those_before() {
    let variables = [("bad", "object.nothing > 1"), ("count", "object.spec.replicas"), ("many", "variables.count > 2")];
    assert_eq!(evaluate(Purpose::Validation, &variables, "variables.many"), Ok(true.into()));
    assert_eq!(evaluate(Purpose::Validation, &variables, "variables.many || variables.bad"), Ok(true.into()), "nobody needs the bad one");
    let error = evaluate(Purpose::Validation, &variables, "variables.bad").unwrap_err();
    assert!(error.contains(r#"composited variable "bad" fails to evaluate: no such key: nothing"#), "{error}");
    let error = evaluate(Purpose::Validation, &variables, "variables.missing").unwrap_err();
    assert!(error.starts_with("compilation error: compilation failed: ERROR: <input>:1:"), "{error}");
}

#[test]
fn results_have_the_type_of_their_purpose() {
    let error = |purpose, expression| evaluate(purpose, &[], expression).unwrap_err();
    assert_eq!(error(Purpose::Validation, "1"), "compilation error: must evaluate to bool but got int");
    assert_eq!(error(Purpose::Validation, "object.spec.ok"), "compilation error: must evaluate to bool but got dyn");
    assert_eq!(error(Purpose::AuditAnnotation, "1"), "compilation error: must evaluate to one of [string null_type] but got int");
    assert_eq!(error(Purpose::JsonPatch, "1"), "compilation error: must evaluate to list(JSONPatch) but got int");
    assert!(error(Purpose::Message, "authorizer.path('/x').check('get').reason()").contains("undeclared reference to 'authorizer'"));
    assert_eq!(error(Purpose::Validation, "object.x == 1"), "expression 'object.x == 1' resulted in error: no such key: x");
}

#[test]
fn budgets_end_evaluation() {
    let engine = KubeCel::new(|_, _| Decision::default());
    let null = &Value::Null;
    let user = UserInfo::default();
    let input = Input { object: null, old_object: null, request: null, params: null, namespace_object: null, user: &user };
    let mut budget = 3;
    let mut run = || engine.evaluate("[1, 2, 3].all(x, x > 0)", Purpose::Validation, Scope::default(), &input, &mut budget);
    assert_eq!(run(), Err(Fault::OutOfBudget));
}
