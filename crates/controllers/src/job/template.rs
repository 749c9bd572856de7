//! Pods of a Job.

use cluster::Key;
use k8s_openapi::{
    api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};

use super::{
    plan::NewPod,
    rows::{FAILURES, FINALIZER, IGNORED_FAILURES, INDEX, JobView},
};
use crate::pods;

/// The environment variable with the index.
const VARIABLE: &str = "JOB_COMPLETION_INDEX";
/// The longest prefix of a generated name.
const LONGEST_PREFIX: usize = 58;

/// A pod of the Job.
pub(super) fn pod(key: &Key, job: &JobView, new: &NewPod, owner: OwnerReference) -> Pod {
    let mut pod = pods::from_template(job.spec.template.clone(), key, owner);
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|one| one == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let Some(index) = new.index else { return pod };
    let number = index.to_string();
    pod.metadata.generate_name = Some(generate_name(&key.name, index));
    pod.metadata.labels.get_or_insert_default().insert(INDEX.to_owned(), number.clone());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX.to_owned(), number);
    if let Some((failures, ignored)) = new.failures {
        annotations.insert(FAILURES.to_owned(), failures.to_string());
        if ignored > 0 {
            annotations.insert(IGNORED_FAILURES.to_owned(), ignored.to_string());
        }
    }
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(format!("{}-{index}", key.name));
    spec.init_containers.iter_mut().flatten().chain(&mut spec.containers).for_each(add_variable);
    pod
}

fn generate_name(job: &str, index: i32) -> String {
    let suffix = format!("-{index}-");
    let kept = job.len().min(LONGEST_PREFIX.saturating_sub(suffix.len()));
    // Names are ASCII.
    format!("{}{suffix}", job.get(..kept).unwrap_or(job))
}

fn add_variable(container: &mut Container) {
    let variables = container.env.get_or_insert_default();
    if variables.iter().any(|one| one.name == VARIABLE) {
        return;
    }
    let field = ObjectFieldSelector { field_path: format!("metadata.labels['{INDEX}']"), ..Default::default() };
    let source = EnvVarSource { field_ref: Some(field), ..Default::default() };
    variables.push(EnvVar { name: VARIABLE.to_owned(), value_from: Some(source), ..Default::default() });
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{
        batch::v1::{JobSpec, JobStatus},
        core::v1::{PodSpec, PodTemplateSpec},
    };

    use super::*;
    use crate::view::controller_reference;

    #[test]
    fn pods_of_an_index_know_it() {
        let container = Container { name: "work".into(), ..Default::default() };
        let template = PodTemplateSpec { metadata: None, spec: Some(PodSpec { containers: vec![container], ..Default::default() }) };
        let spec = JobSpec { template, ..Default::default() };
        let job = JobView { ns: "a".into(), deleting: false, spec, status: JobStatus::default() };
        let owner = controller_reference("batch/v1", "Job", "sum", "u");
        let plain = pod(&Key::new("a", "sum"), &job, &NewPod { index: None, failures: None }, owner.clone());
        assert_eq!(plain.metadata.generate_name.as_deref(), Some("sum-"));
        assert_eq!(plain.metadata.finalizers.unwrap(), [FINALIZER]);
        assert_eq!(plain.spec.unwrap().containers[0].env, None);

        let indexed = pod(&Key::new("a", "sum"), &job, &NewPod { index: Some(3), failures: Some((2, 1)) }, owner);
        assert_eq!(indexed.metadata.generate_name.as_deref(), Some("sum-3-"));
        assert_eq!(indexed.metadata.labels.unwrap()[INDEX], "3");
        let annotations = indexed.metadata.annotations.unwrap();
        assert_eq!([INDEX, FAILURES, IGNORED_FAILURES].map(|name| annotations[name].as_str()), ["3", "2", "1"]);
        let spec = indexed.spec.unwrap();
        assert_eq!(spec.hostname.as_deref(), Some("sum-3"));
        let variable = &spec.containers[0].env.as_ref().unwrap()[0];
        assert_eq!(variable.name, "JOB_COMPLETION_INDEX");
        let field = variable.value_from.as_ref().unwrap().field_ref.as_ref().unwrap();
        assert_eq!(field.field_path, "metadata.labels['batch.kubernetes.io/job-completion-index']");
    }

    #[test]
    fn long_names_leave_room_for_the_index() {
        let name = generate_name(&"x".repeat(63), 12);
        assert_eq!((name.len(), name.ends_with("x-12-")), (58, true));
    }
}
