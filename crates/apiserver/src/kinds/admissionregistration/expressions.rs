//! Expressions of webhooks and policies: that they compile (pkg/apis/admissionregistration/validation).

use crate::validation::field::{Errors, Field};
use crate::validation::names;
use ::admission::cel::{Engine, KubeCel, Purpose, Scope};
use std::sync::LazyLock;

/// Compiles alone: nothing is authorized here.
static ENGINE: LazyLock<KubeCel> = LazyLock::new(|| KubeCel::new(|_, _| Default::default()));

const MAX_CONDITIONS: usize = 64;

/// An expression that is there.
pub fn compiles(field: &Field, expression: &str, purpose: Purpose, scope: Scope<'_>, errors: &mut Errors) {
    if let Err(why) = ENGINE.compile(expression, purpose, scope) {
        errors.invalid_value(field, expression, why);
    }
}

pub fn match_conditions(conditions: &Field, params: bool, errors: &mut Errors) {
    let items = conditions.items();
    if items.len() > MAX_CONDITIONS {
        errors.too_many(conditions, items.len(), MAX_CONDITIONS);
    }
    let mut seen = Vec::new();
    for condition in items {
        let (expression, name) = (condition.get("expression"), condition.get("name"));
        match expression.text().trim() {
            "" => errors.required(&expression, ""),
            text => compiles(&expression, text, Purpose::MatchCondition, Scope { params, variables: None }, errors),
        }
        if name.text().is_empty() {
            errors.required(&name, "");
            continue;
        }
        errors.invalid_each(&name, names::qualified(name.text()));
        if seen.contains(&name.text()) {
            errors.duplicate(&name, name.text());
        }
        seen.push(name.text());
    }
}

/// `^[_a-zA-Z][_a-zA-Z0-9]*$`, and no word of the language.
pub fn is_identifier(name: &str) -> bool {
    let mut characters = name.chars();
    let starts = characters.next().is_some_and(|first| first == '_' || first.is_ascii_alphabetic());
    starts && characters.all(|other| other == '_' || other.is_ascii_alphanumeric()) && !kube_cel::is_reserved(name)
}
