//! The language of [`super::Engine`], by crate `kube-cel`.

use super::{Engine, Fault, Input, Purpose, Scope, Variable};
use crate::UserInfo;
use crate::value::text;
use kube_cel::authz::{Attributes, Authorizer, Decision};
use kube_cel::value::{Fields, Map};
use kube_cel::{Env, PER_CALL_LIMIT, Program, Type, Variables};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// So many compiled expressions are kept.
const MAX_PROGRAMS: usize = 4096;

type Authorize = Box<dyn Fn(&UserInfo, &Attributes) -> Decision + Send + Sync>;
type Compiled = Result<Arc<Program>, String>;

/// Compiles each expression once, and asks an authorizer for what `authorizer` checks.
pub struct KubeCel {
    authorize: Authorize,
    programs: Mutex<HashMap<String, Compiled>>,
}

impl KubeCel {
    pub fn new(authorize: impl Fn(&UserInfo, &Attributes) -> Decision + Send + Sync + 'static) -> Self {
        Self { authorize: Box::new(authorize), programs: Mutex::default() }
    }

    fn program(&self, expression: &str, purpose: Purpose, scope: Scope<'_>) -> Compiled {
        let key = format!("{purpose:?} {} {:?} {expression}", scope.params, scope.variables);
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = programs.get(&key) {
            return known.clone();
        }
        let compiled = compile(expression, purpose, scope).map(Arc::new);
        if programs.len() >= MAX_PROGRAMS {
            programs.clear();
        }
        programs.insert(key, compiled.clone());
        compiled
    }
}

fn environment(purpose: Purpose, params: bool) -> Env {
    let mut env = ["object", "oldObject", "request", "namespaceObject"].into_iter().fold(Env::new(), |env, name| env.with(name, Type::Dyn));
    if params {
        env = env.with("params", Type::Dyn);
    }
    if purpose != Purpose::Message {
        env = env.with("authorizer", Type::named("kubernetes.authorization.Authorizer"));
        env = env.with("authorizer.requestResource", Type::named("kubernetes.authorization.ResourceCheck"));
    }
    if matches!(purpose, Purpose::ApplyConfiguration | Purpose::JsonPatch) { env.with_mutation() } else { env }
}

/// Compiles an expression twice: with the types of the variables, to check it, and with variables of any type, which are then read lazily.
fn compile(expression: &str, purpose: Purpose, scope: Scope<'_>) -> Result<Program, String> {
    let failed = |error| format!("compilation failed: {error}");
    let env = environment(purpose, scope.params);
    let typed = typed_variables(env.clone(), scope);
    let checked = typed.compile(expression).map_err(failed)?;
    let found = match checked.result_type() {
        Type::Null => "null_type".to_owned(),
        other => other.to_string(),
    };
    let wanted: &[&str] = match purpose {
        Purpose::MatchCondition | Purpose::Validation => &["bool"],
        Purpose::Message => &["string"],
        Purpose::AuditAnnotation => &["string", "null_type"],
        Purpose::Variable => &[],
        Purpose::ApplyConfiguration => &["Object"],
        Purpose::JsonPatch => &["list(JSONPatch)"],
    };
    match wanted {
        _ if wanted.is_empty() || wanted.contains(&found.as_str()) => {}
        [one] => return Err(format!("must evaluate to {one} but got {found}")),
        several => return Err(format!("must evaluate to one of [{}] but got {found}", several.join(" "))),
    }
    if scope.variables.is_none() {
        return Ok(checked);
    }
    env.with("variables", Type::Dyn).compile(expression).map_err(failed)
}

/// The environment with the types of those variables that compile.
fn typed_variables(mut env: Env, scope: Scope<'_>) -> Env {
    for Variable { name, expression } in scope.variables.into_iter().flatten() {
        let ty = env.compile(expression).map_or(Type::Dyn, |program| program.result_type().clone());
        env = env.with(&format!("variables.{name}"), ty);
    }
    env
}

/// Asks for the user of a request.
struct Asker<'a> {
    engine: &'a KubeCel,
    user: &'a UserInfo,
}

impl Authorizer for Asker<'_> {
    fn authorize(&self, attributes: &Attributes) -> Decision {
        (self.engine.authorize)(self.user, attributes)
    }
}

/// `variables`: each is evaluated when it is first read.
struct Lazy<'a> {
    /// With their programs, or why there is none.
    programs: BTreeMap<String, Compiled>,
    base: Variables<'a>,
    /// The value itself, for variables that read others.
    own: OnceLock<&'a Lazy<'a>>,
    known: Mutex<BTreeMap<String, kube_cel::value::Result<kube_cel::Value<'a>>>>,
    spent: AtomicU64,
}

impl<'a> Lazy<'a> {
    fn scope(&'a self) -> Variables<'a> {
        self.base.clone().with("variables", kube_cel::Value::Map(Map::Lazy(self)))
    }
}

impl<'a> Fields<'a> for Lazy<'a> {
    fn get(&self, name: &str) -> Option<kube_cel::value::Result<kube_cel::Value<'a>>> {
        let compiled = self.programs.get(name)?;
        let known = |this: &Self| this.known.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some(value) = known(self) {
            return Some(value);
        }
        let fail = |why: String| Err(kube_cel::Fault::Error(why));
        let value = match (compiled, self.own.get()) {
            (Err(why), _) => fail(format!("composited variable {name:?} fails to compile: {why}")),
            (Ok(_), None) => fail(format!("unable to get evaluation details of variable {name:?}")),
            (Ok(program), Some(own)) => {
                let evaluated = program.evaluate(&own.scope(), PER_CALL_LIMIT);
                self.spent.fetch_add(evaluated.cost, Ordering::Relaxed);
                evaluated.result.or_else(|fault| fail(format!("composited variable {name:?} fails to evaluate: {fault}")))
            }
        };
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), value.clone());
        Some(value)
    }

    fn names(&self) -> Vec<String> {
        self.programs.keys().cloned().collect()
    }
}

/// What `authorizer.requestResource` asks about.
fn request_resource(request: &Value) -> Attributes {
    Attributes {
        group: text(request, &["requestResource", "group"]).to_owned(),
        resource: text(request, &["requestResource", "resource"]).to_owned(),
        subresource: text(request, &["requestSubResource"]).to_owned(),
        namespace: text(request, &["namespace"]).to_owned(),
        name: text(request, &["name"]).to_owned(),
        ..Attributes::default()
    }
}

impl Engine for KubeCel {
    fn compile(&self, expression: &str, purpose: Purpose, scope: Scope<'_>) -> Result<(), String> {
        compile(expression, purpose, scope).map(|_| ())
    }

    fn evaluate(&self, expression: &str, purpose: Purpose, scope: Scope<'_>, input: &Input<'_>, budget: &mut u64) -> Result<Value, Fault> {
        let program = self.program(expression, purpose, scope).map_err(Fault::Compile)?;
        let asker = Asker { engine: self, user: input.user };
        let mut base = Variables::new()
            .with("object", kube_cel::Value::json(input.object))
            .with("oldObject", kube_cel::Value::json(input.old_object))
            .with("request", kube_cel::Value::json(input.request))
            .with("namespaceObject", kube_cel::Value::json(input.namespace_object))
            .with("authorizer", kube_cel::Value::authorizer(&asker))
            .with("authorizer.requestResource", kube_cel::Value::request_resource(&asker, request_resource(input.request)));
        if scope.params {
            base = base.with("params", kube_cel::Value::json(input.params));
        }
        let mut programs = BTreeMap::new();
        let variables = scope.variables.unwrap_or_default();
        for (index, Variable { name, expression }) in variables.iter().enumerate() {
            let before = Scope { variables: Some(&variables[..index]), ..scope };
            programs.insert(name.clone(), self.program(expression, Purpose::Variable, before));
        }
        let lazy = Lazy { programs, base, own: OnceLock::new(), known: Mutex::default(), spent: AtomicU64::new(0) };
        let _ = lazy.own.set(&lazy);
        let evaluated = program.evaluate(&lazy.scope(), PER_CALL_LIMIT);
        let cost = evaluated.cost.saturating_add(lazy.spent.load(Ordering::Relaxed));
        *budget = budget.checked_sub(cost).ok_or(Fault::OutOfBudget)?;
        let value = evaluated.result.map_err(|fault| Fault::Evaluate(fault.to_string()))?;
        value.to_json().ok_or_else(|| Fault::Evaluate(format!("no JSON can hold a value of type {}", value.type_name())))
    }
}

#[cfg(test)]
mod tests;
