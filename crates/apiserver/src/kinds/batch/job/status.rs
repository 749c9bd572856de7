//! The status of a Job, which may come from controllers of others: what a change of it must keep.

use super::{has_condition, indexes};
use crate::object;
use crate::validation::field::{Errors, Field};

/// Whether a member of the status differs.
struct Change<'a> {
    new: &'a Field<'a>,
    old: &'a Field<'a>,
}

impl Change<'_> {
    fn of(&self, member: &str) -> bool {
        self.new.get("status").get(member).value != self.old.get("status").get(member).value
    }

    fn now(&self, condition: &str) -> bool {
        has_condition(self.new.value, condition, "True")
    }

    fn before(&self, condition: &str) -> bool {
        has_condition(self.old.value, condition, "True")
    }

    fn of_condition(&self, condition: &str) -> bool {
        self.now(condition) != self.before(condition)
    }

    fn finished(&self) -> bool {
        self.now("Complete") || self.now("Failed")
    }

    fn of_finish(&self) -> bool {
        self.finished() != (self.before("Complete") || self.before("Failed"))
    }
}

pub(super) fn validate(new: &Field, old: &Field, errors: &mut Errors) {
    let change = Change { new, old };
    let status = new.get("status");
    for member in ["active", "succeeded", "failed", "ready", "terminating"] {
        errors.not_negative(&status.get(member));
    }
    uncounted(&status.get("uncountedTerminatedPods"), errors);
    conditions(&change, errors);
    times(&change, errors);
    finished(&change, errors);
    index_sets(&change, errors);
    let ready = status.get("ready");
    let active = status.get("active").number().unwrap_or_default();
    if (change.of("ready") || change.of("active")) && ready.number().is_some_and(|ready| ready > active) {
        errors.invalid(&ready, "cannot set more ready pods than active");
    }
    success(&change, errors);
    course(&change, errors);
}

fn uncounted(pods: &Field, errors: &mut Errors) {
    let mut seen = Vec::new();
    for uid in ["succeeded", "failed"].iter().flat_map(|list| pods.get(list).items()) {
        if uid.is_empty() {
            errors.invalid(&uid, "must not be empty");
        } else if seen.contains(&uid.text()) {
            errors.duplicate(&uid, uid.text());
        } else {
            seen.push(uid.text());
        }
    }
}

/// Conditions that exclude or demand each other.
fn conditions(change: &Change, errors: &mut Errors) {
    let field = change.new.get("status").get("conditions");
    let mut pair = |changed: bool, wrong: bool, message: &str| {
        if changed && wrong {
            errors.invalid_omitted(&field, message);
        }
    };
    let (complete, failed) = (change.now("Complete"), change.now("Failed"));
    let of = |condition: &str| change.of_condition(condition);
    pair(of("Complete") || of("Failed"), complete && failed, "cannot set Complete=True and Failed=true conditions");
    pair(
        of("Complete") || of("FailureTarget"),
        complete && change.now("FailureTarget"),
        "cannot set Complete=True and FailureTarget=true conditions",
    );
}

fn times(change: &Change, errors: &mut Errors) {
    let status = change.new.get("status");
    let (start, completion) = (status.get("startTime"), status.get("completionTime"));
    let complete = change.now("Complete");
    if change.of_condition("Complete") || change.of("completionTime") {
        if completion.is_set() && !complete {
            errors.invalid(&completion, "cannot set completionTime when there is no Complete=True condition");
        }
        if !completion.is_set() && complete {
            errors.required(&completion, "completionTime is required for Complete jobs");
        }
    }
    let time = |field: &Field| field.text().parse::<jiff::Timestamp>().ok();
    if (change.of("startTime") || change.of("completionTime"))
        && time(&completion).zip(time(&start)).is_some_and(|(completion, start)| completion < start)
    {
        errors.invalid(&completion, "must be equal to or after `startTime`");
    }
    let field = status.get("conditions");
    let failed_indexes = change.of("failedIndexes");
    if (change.of_condition("Failed") || failed_indexes) && change.now("Failed") && !change.now("FailureTarget") {
        errors.invalid_omitted(&field, "cannot set Failed=True condition without the FailureTarget=true condition");
    }
    if (change.of_condition("Complete") || change.of_condition("SuccessCriteriaMet")) && complete && !change.now("SuccessCriteriaMet") {
        errors.invalid_omitted(&field, "cannot set Complete=True condition without the SuccessCriteriaMet=true condition");
    }
}

fn finished(change: &Change, errors: &mut Errors) {
    if !change.finished() {
        return;
    }
    let (status, spec) = (change.new.get("status"), change.new.get("spec"));
    let ended = change.of_finish();
    let (active, start, terminating) = (status.get("active"), status.get("startTime"), status.get("terminating"));
    let pods = status.get("uncountedTerminatedPods");
    if (ended || change.of("active")) && active.number().is_some_and(|count| count > 0) {
        errors.invalid(&active, "active>0 is invalid for finished job");
    }
    let never_started = spec.get("suspend").is_true() && spec.get("completions").number() == Some(0);
    if (ended || change.of("startTime")) && !never_started && !start.is_set() {
        errors.required(&start, "startTime is required for finished job");
    }
    if (ended || change.of("uncountedTerminatedPods")) && ["succeeded", "failed"].iter().any(|list| !pods.get(list).is_empty()) {
        let list = |member: &str| pods.get(member).value.clone();
        let shown = serde_json::json!({"Succeeded": list("succeeded"), "Failed": list("failed")});
        errors.invalid_value(&pods, shown, "must be empty for finished job");
    }
    if (ended || change.of("terminating")) && terminating.number().is_some_and(|count| count > 0) {
        errors.invalid(&terminating, "terminating>0 is invalid for finished job");
    }
}

fn index_sets(change: &Change, errors: &mut Errors) {
    let (status, spec) = (change.new.get("status"), change.new.get("spec"));
    let (completed, failed) = (status.get("completedIndexes"), status.get("failedIndexes"));
    let completions = spec.get("completions").number();
    let per_index = spec.get("backoffLimitPerIndex").is_set();
    if change.of("completedIndexes")
        && let Some(Err(problem)) = completions.map(|count| indexes::count(completed.text(), count))
    {
        errors.invalid(&completed, format!("error parsing completedIndexes: {problem}"));
    }
    if change.of("failedIndexes")
        && per_index
        && failed.is_set()
        && let Some(Err(problem)) = completions.map(|count| indexes::count(failed.text(), count))
    {
        errors.invalid(&failed, format!("error parsing failedIndexes: {problem}"));
    }
    if change.of("completedIndexes") && !completed.is_empty() && spec.get("completionMode").text() != "Indexed" {
        errors.invalid(&completed, "cannot set non-empty completedIndexes when non-indexed completion mode");
    }
    if change.of("failedIndexes") && !per_index && failed.is_set() {
        errors.invalid(&failed, "cannot set non-null failedIndexes when backoffLimitPerIndex is null");
    }
    if (change.of("failedIndexes") || change.of("completedIndexes"))
        && failed.is_set()
        && let Some(index) = completions.and_then(|count| indexes::overlap(completed.text(), failed.text(), count))
    {
        errors.invalid(&failed, format!("failedIndexes and completedIndexes overlap at index: {index}"));
    }
}

fn success(change: &Change, errors: &mut Errors) {
    let field = change.new.get("status").get("conditions");
    let met = change.now("SuccessCriteriaMet");
    for (other, message) in [
        ("Failed", "cannot set SuccessCriteriaMet=True and Failed=true conditions"),
        ("FailureTarget", "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"),
    ] {
        if met && change.now(other) {
            errors.invalid_omitted(&field, message);
        }
    }
    if change.new.get("spec").get("successPolicy").is_set() && !met && change.now("Complete") {
        errors.invalid_omitted(&field, "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True");
    }
}

/// What only goes one way.
fn course(change: &Change, errors: &mut Errors) {
    let (status, spec) = (change.new.get("status"), change.new.get("spec"));
    let before = change.old.get("status");
    let field = status.get("conditions");
    for condition in ["Failed", "Complete", "FailureTarget"] {
        if change.before(condition) && !change.now(condition) {
            errors.invalid_omitted(&field, format!("cannot disable the terminal {condition}=True condition"));
        }
    }
    let count = |status: &Field, member: &str| status.get(member).number().unwrap_or_default();
    let elastic = spec.get("completionMode").text() == "Indexed" && spec.get("completions").value == spec.get("parallelism").value;
    for (member, elastic) in [("failed", false), ("succeeded", elastic)] {
        if count(&status, member) < count(&before, member) && !elastic {
            errors.invalid_value(&status.get(member), count(&status, member), format!("cannot decrease the {member} counter"));
        }
    }
    let (completion, completed) = (status.get("completionTime"), before.get("completionTime"));
    if completion.is_set() && completed.is_set() && completion.value != completed.value {
        errors.invalid(&completion, "field is immutable");
    }
    let resumes = change.before("Suspended") && has_condition(change.new.value, "Suspended", "False");
    let started = object::lookup(change.old.value, &["status", "startTime"]).is_some();
    if change.of("startTime") && !resumes && started && !spec.get("suspend").is_true() {
        errors.invalid(&status.get("startTime"), "field is immutable for unsuspended job once set");
    }
    if change.before("SuccessCriteriaMet") && !change.now("SuccessCriteriaMet") {
        errors.invalid_omitted(&field, "cannot disable the SuccessCriteriaMet=True condition");
    }
    if change.before("Complete") && !change.before("SuccessCriteriaMet") && change.now("SuccessCriteriaMet") {
        errors.invalid_omitted(&field, "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions");
    }
}
