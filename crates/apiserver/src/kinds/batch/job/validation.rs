//! The specification of a Job, in a Job or in a CronJob.

use super::failure_policy;
use crate::validation::field::{Errors, Field};
use crate::validation::{meta, pod};

const MOST_INDEXED_PODS: i64 = 100_000;
const MOST_FAILED_INDEXES: i64 = 100_000;
const MANY_COMPLETIONS: i64 = 100_000;
const MOST_OF_MANY: i64 = 10_000;
const LONGEST_MANAGER: usize = 63;

/// A Job's own specification, which has a selector.
pub(super) fn own_spec(spec: &Field, errors: &mut Errors) {
    self::spec(spec, errors);
    let (selector, labels) = (spec.get("selector"), spec.get("template").get("metadata").get("labels"));
    let mut own = Errors::default();
    if selector.is_set() {
        meta::selector(&selector, &mut own);
    } else {
        own.required(&selector, "");
    }
    let comparable = !selector.is_set() || own.is_empty();
    own.into_list().into_iter().for_each(|error| errors.push(error));
    if comparable && !(selector.is_set() && meta::selects(&selector, &labels)) {
        errors.invalid(&labels, "`selector` does not match template `labels`");
    }
}

/// Everything but the selector.
pub(in super::super) fn spec(spec: &Field, errors: &mut Errors) {
    for member in ["parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished", "backoffLimitPerIndex"] {
        errors.not_negative(&spec.get(member));
    }
    let (per_index, most_failed) = (spec.get("backoffLimitPerIndex"), spec.get("maxFailedIndexes"));
    errors.not_negative(&most_failed);
    if most_failed.is_set() && !per_index.is_set() {
        errors.required(&per_index, "when maxFailedIndexes is specified");
    }
    let manager = spec.get("managedBy");
    if manager.is_set() {
        meta::domain_path(&manager, errors);
        if manager.text().len() > LONGEST_MANAGER {
            errors.too_long(&manager, LONGEST_MANAGER);
        }
    }
    let mode = spec.get("completionMode");
    if mode.is_set() && !["NonIndexed", "Indexed"].contains(&mode.text()) {
        errors.not_supported(&mode, &["NonIndexed", "Indexed"]);
    }
    if mode.text() == "Indexed" {
        indexed(spec, errors);
    } else if !mode.is_set() || mode.text() == "NonIndexed" {
        for member in [&per_index, &most_failed].into_iter().filter(|member| member.is_set()) {
            errors.invalid(member, "requires indexed completion mode");
        }
    }
    if spec.get("podFailurePolicy").is_set() {
        failure_policy::failure(spec, errors);
    }
    if spec.get("successPolicy").is_set() {
        failure_policy::success(spec, errors);
    }
    replacement(spec, errors);
    pod::template(&spec.get("template"), errors);
    restart_policy(spec, errors);
}

fn indexed(spec: &Field, errors: &mut Errors) {
    let number = |member: &str| spec.get(member).number();
    let (parallelism, most_failed) = (spec.get("parallelism"), spec.get("maxFailedIndexes"));
    let completions = number("completions");
    if completions.is_none() {
        errors.required(&spec.get("completions"), "when completion mode is Indexed");
    }
    if parallelism.number().is_some_and(|pods| pods > MOST_INDEXED_PODS) {
        errors.invalid(&parallelism, format!("must be less than or equal to {MOST_INDEXED_PODS} when completion mode is Indexed"));
    }
    if completions.zip(most_failed.number()).is_some_and(|(completions, failed)| failed > completions) {
        errors.invalid(&most_failed, "must be less than or equal to completions");
    }
    if most_failed.number().is_some_and(|failed| failed > MOST_FAILED_INDEXES) {
        errors.invalid(&most_failed, format!("must be less than or equal to {MOST_FAILED_INDEXES}"));
    }
    if completions.is_none_or(|completions| completions <= MANY_COMPLETIONS) || number("backoffLimitPerIndex").is_none() {
        return;
    }
    if !most_failed.is_set() {
        errors.required(&most_failed, &format!("must be specified when completions is above {MANY_COMPLETIONS}"));
    }
    for field in [&parallelism, &most_failed] {
        if field.number().is_some_and(|number| number > MOST_OF_MANY) {
            let when = format!("when completions are above {MANY_COMPLETIONS} and used with backoff limit per index");
            errors.invalid(field, format!("must be less than or equal to {MOST_OF_MANY} {when}"));
        }
    }
}

fn replacement(spec: &Field, errors: &mut Errors) {
    let policy = spec.get("podReplacementPolicy");
    let known: &[&str] = if spec.get("podFailurePolicy").is_set() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    if policy.is_set() && !known.contains(&policy.text()) {
        errors.not_supported(&policy, known);
    }
}

fn restart_policy(spec: &Field, errors: &mut Errors) {
    let policy = spec.get("template").get("spec").get("restartPolicy");
    match policy.text() {
        "" | "Always" => errors.required(&policy, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if spec.get("podFailurePolicy").is_set() => {
            errors.invalid(&policy, "only \"Never\" is supported when podFailurePolicy is specified");
        }
        "OnFailure" | "Never" => {}
        _ => errors.not_supported(&policy, &["OnFailure", "Never"]),
    }
}
