//! CEL as admission needs it: where an expression stands, what it sees, what it gives. The language itself comes through [`Engine`].

mod kube;
pub mod typed;

pub use kube::KubeCel;

use crate::UserInfo;
use serde_json::Value;

/// What matchConditions of a webhook or policy may cost together.
pub const MATCH_CONDITIONS_BUDGET: u64 = 2_500_000;
/// What a policy's expressions may cost together for one binding and parameter.
pub const POLICY_BUDGET: u64 = 10_000_000;

/// Where an expression stands, which decides what it must give and which types it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `matchConditions`: a bool.
    MatchCondition,
    /// `validations[*].expression`: a bool.
    Validation,
    /// `validations[*].messageExpression`: a string; no `authorizer`.
    Message,
    /// `auditAnnotations[*].valueExpression`: a string or null.
    AuditAnnotation,
    /// `variables[*].expression`: anything.
    Variable,
    /// `mutations[*].applyConfiguration.expression`: `Object{...}`, given as a JSON object.
    ApplyConfiguration,
    /// `mutations[*].jsonPatch.expression`: a list of `JSONPatch{...}`, given as JSON objects.
    JsonPatch,
}

/// A named expression, visible as `variables.NAME` to those after it. It is evaluated when something reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: String,
    pub expression: String,
}

/// What an expression may name beside `object`, `oldObject`, `request`, `namespaceObject` and the authorizer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scope<'a> {
    /// Whether there is `params`.
    pub params: bool,
    /// Whether there is `variables`, as for policies; the variables themselves.
    pub variables: Option<&'a [Variable]>,
}

/// What the names stand for. Null stands for what there is not.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub object: &'a Value,
    pub old_object: &'a Value,
    /// The `AdmissionRequest` without the objects.
    pub request: &'a Value,
    pub params: &'a Value,
    pub namespace_object: &'a Value,
    /// Whose rights `authorizer` asks for.
    pub user: &'a UserInfo,
}

/// Why an expression has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not compile. The text is upstream's, such as `compilation failed: ERROR: <input>:1:1: ...`.
    Compile(String),
    /// It failed on this input.
    Evaluate(String),
    /// It cost more than the budget had left. No further expression runs.
    OutOfBudget,
}

impl Fault {
    /// Upstream's words about this expression.
    pub fn text(&self, expression: &str) -> String {
        match self {
            Fault::Compile(why) => format!("compilation error: {why}"),
            Fault::Evaluate(why) => format!("expression '{expression}' resulted in error: {why}"),
            Fault::OutOfBudget => "validation failed due to running out of cost budget, no further validation rules will be run".to_owned(),
        }
    }
}

/// Compiles and evaluates expressions.
pub trait Engine: Sync {
    /// What is wrong with an expression; upstream's text for [`Fault::Compile`].
    fn compile(&self, expression: &str, purpose: Purpose, scope: Scope<'_>) -> Result<(), String>;

    /// Evaluates an expression and takes its cost from the budget.
    fn evaluate(&self, expression: &str, purpose: Purpose, scope: Scope<'_>, input: &Input<'_>, budget: &mut u64) -> Result<Value, Fault>;
}
