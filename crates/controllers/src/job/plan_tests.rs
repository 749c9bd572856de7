use k8s_openapi::api::{
    batch::v1::{
        JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
        SuccessPolicy, SuccessPolicyRule, UncountedTerminatedPods,
    },
    core::v1::{Pod, PodSpec},
};

use super::*;
use crate::job::rows::Exit;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(name: &str, change: impl FnOnce(&mut JobPod)) -> Arc<JobPod> {
    let mut row = JobPod::new(&Pod::default()).unwrap();
    (row.name, row.uid) = (name.to_owned(), name.to_owned());
    (row.phase, row.tracked, row.ended) = ("Running".to_owned(), true, at(1000));
    change(&mut row);
    Arc::new(row)
}

fn in_phase(name: &str, phase: &str) -> Arc<JobPod> {
    pod(name, |row| row.phase = phase.to_owned())
}

/// A pod called `INDEX-PHASE`.
fn indexed(index: i32, phase: &str) -> Arc<JobPod> {
    pod(&format!("{index}-{phase}"), |row| (row.index, row.phase) = (Some(index), phase.to_owned()))
}

fn view(change: impl FnOnce(&mut JobView)) -> JobView {
    let spec = JobSpec { parallelism: Some(2), completions: Some(4), backoff_limit: Some(2), ..Default::default() };
    let status = JobStatus { start_time: Some(Time(at(900))), ..Default::default() };
    let mut view = JobView { ns: "a".into(), deleting: false, spec, status };
    change(&mut view);
    view
}

fn indexed_view(change: impl FnOnce(&mut JobView)) -> JobView {
    view(|view| {
        view.spec.completion_mode = Some("Indexed".into());
        change(view);
    })
}

/// Steps, and what they make of the status: the way to the end, released pods, numbers.
fn pass(view: &JobView, pods: &[Arc<JobPod>], settled: bool) -> (String, String) {
    let input = Input { job: view, pods, released: &BTreeSet::new(), coming: 0, settled, record: Record::default(), now: at(1100) };
    let mut work = Work::begin(&input);
    let steps = work.steps();
    work.carried_out(&steps, true);
    let released = work.track();
    let names: Vec<&str> = released.iter().map(|pod| pod.name.as_str()).collect();
    work.settle(&released.iter().map(|pod| pod.uid.clone()).collect());
    let status = &work.status;
    let ends = status.conditions.iter().flatten().map(|one| format!("{}={} ", one.type_, one.reason.as_deref().unwrap_or_default()));
    let numbers = [status.active, status.succeeded, status.failed].map(|number| number.unwrap_or_default().to_string()).join("/");
    (steps.to_string(), format!("{}{numbers} released {}", ends.collect::<String>(), names.join(" ")))
}

#[test]
fn pods_of_a_job() {
    let two = || vec![in_phase("a", "Running"), in_phase("b", "Running")];
    for (what, view, pods, settled, steps, status) in [
        ("new", view(|_| {}), vec![], true, "create 2", "2/0/0 released "),
        ("not all is shown", view(|_| {}), vec![], false, "nothing", "0/0/0 released "),
        ("as many as may run", view(|_| {}), two(), true, "nothing", "2/0/0 released "),
        ("one has succeeded", view(|_| {}), vec![in_phase("a", "Running"), in_phase("b", "Succeeded")], true, "create 1", "2/1/0 released b"),
        ("the last ones", view(|v| v.status.succeeded = Some(3)), vec![in_phase("a", "Running")], true, "nothing", "1/3/0 released "),
        (
            "complete",
            view(|v| v.status.succeeded = Some(3)),
            vec![in_phase("a", "Succeeded")],
            true,
            "nothing",
            "SuccessCriteriaMet=CompletionsReached Complete=CompletionsReached 0/4/0 released a",
        ),
        ("too many run", view(|v| v.spec.parallelism = Some(1)), two(), true, "remove a", "1/0/0 released "),
        (
            "without completions a success is the end",
            view(|v| v.spec.completions = None),
            vec![in_phase("a", "Running"), in_phase("b", "Succeeded")],
            true,
            "nothing",
            "1/1/0 released b",
        ),
        ("suspended", view(|v| v.spec.suspend = Some(true)), two(), true, "remove a b", "Suspended=JobSuspended 0/0/0 released "),
        ("being deleted", view(|v| v.deleting = true), two(), true, "nothing", "2/0/0 released a b"),
        (
            "a deleted pod has failed",
            view(|_| {}),
            vec![pod("a", |row| row.deleting = true), in_phase("b", "Running")],
            true,
            "look again in 10s",
            "1/0/1 released a",
        ),
        (
            "it is not replaced before its end",
            view(|v| v.spec.pod_replacement_policy = Some("Failed".into())),
            vec![pod("a", |row| row.deleting = true), in_phase("b", "Running")],
            true,
            "nothing",
            "1/0/0 released ",
        ),
        ("after a failure", view(|_| {}), vec![in_phase("a", "Failed")], true, "create 2", "2/0/1 released a"),
        (
            "too many failures",
            view(|v| v.status.failed = Some(2)),
            vec![in_phase("a", "Failed"), in_phase("b", "Running")],
            true,
            "kill b",
            "FailureTarget=BackoffLimitExceeded 0/0/4 released a b",
        ),
        (
            "too much time",
            view(|v| v.spec.active_deadline_seconds = Some(200)),
            two(),
            true,
            "kill a b",
            "FailureTarget=DeadlineExceeded 0/0/2 released a b",
        ),
        ("enough time", view(|v| v.spec.active_deadline_seconds = Some(230)), two(), true, "look again in 30s", "2/0/0 released "),
    ] {
        // A pod that was deleted a moment ago rests; the others ended 100 s before.
        let pods: Vec<_> =
            pods.into_iter().map(|row| if row.deleting { Arc::new(JobPod { ended: at(1100), ..(*row).clone() }) } else { row }).collect();
        assert_eq!(pass(&view, &pods, settled), (steps.to_owned(), status.to_owned()), "{what}");
    }
}

#[test]
fn restarts_count_where_containers_restart() {
    let with = |policy: &str, restarts| {
        let view = view(|v| v.spec.template.spec = Some(PodSpec { restart_policy: Some(policy.into()), ..Default::default() }));
        pass(&view, &[pod("a", |row| row.restarts = restarts)], true).1
    };
    assert!(with("OnFailure", 2).starts_with("FailureTarget=BackoffLimitExceeded"));
    assert_eq!(with("OnFailure", 1), "2/0/0 released ");
    assert_eq!(with("Never", 2), "2/0/0 released ");
}

#[test]
fn indexes() {
    let completed = |text: &str| Some(text.to_owned());
    for (what, view, pods, steps, status) in [
        ("new", indexed_view(|_| {}), vec![], "create 0,1", "2/0/0 released "),
        ("the gaps", indexed_view(|v| v.status.completed_indexes = completed("1")), vec![indexed(0, "Running")], "create 2", "2/1/0 released "),
        ("done", indexed_view(|_| {}), vec![indexed(0, "Succeeded"), indexed(1, "Running")], "create 2", "2/1/0 released 0-Succeeded"),
        (
            "twice the same",
            indexed_view(|_| {}),
            vec![indexed(0, "Running"), pod("other", |row| row.index = Some(0)), indexed(1, "Running")],
            "remove 0-Running",
            "2/0/0 released ",
        ),
        (
            "no index, or none of ours",
            indexed_view(|_| {}),
            vec![indexed(7, "Running"), pod("none", |_| {}), indexed(1, "Running")],
            "remove 7-Running none",
            "1/0/0 released ",
        ),
        (
            "grown",
            indexed_view(|v| (v.spec.completions, v.spec.parallelism, v.status.completed_indexes) = (Some(6), Some(6), completed("0-3"))),
            vec![],
            "create 4,5",
            "2/4/0 released ",
        ),
        (
            "shrunk",
            indexed_view(|v| (v.spec.completions, v.spec.parallelism, v.status.completed_indexes) = (Some(2), Some(2), completed("0"))),
            vec![indexed(1, "Running"), indexed(2, "Running"), indexed(3, "Running")],
            "remove 2-Running 3-Running",
            "1/1/0 released ",
        ),
        (
            "shrunk below what has succeeded",
            indexed_view(|v| (v.spec.completions, v.spec.parallelism, v.status.completed_indexes) = (Some(2), Some(2), completed("0-2"))),
            vec![],
            "nothing",
            "SuccessCriteriaMet=CompletionsReached Complete=CompletionsReached 0/2/0 released ",
        ),
        (
            "shrunk to nothing",
            indexed_view(|v| (v.spec.completions, v.spec.parallelism) = (Some(0), Some(0))),
            vec![],
            "nothing",
            "SuccessCriteriaMet=CompletionsReached Complete=CompletionsReached 0/0/0 released ",
        ),
        (
            "all",
            indexed_view(|v| v.status.completed_indexes = completed("0-2")),
            vec![indexed(3, "Succeeded")],
            "nothing",
            "SuccessCriteriaMet=CompletionsReached Complete=CompletionsReached 0/4/0 released 3-Succeeded",
        ),
    ] {
        assert_eq!(pass(&view, &pods, true), (steps.to_owned(), status.to_owned()), "{what}");
    }
}

#[test]
fn each_index_has_a_limit() {
    let per_index = |change: fn(&mut JobView)| {
        indexed_view(|v| {
            (v.spec.backoff_limit, v.spec.backoff_limit_per_index) = (None, Some(1));
            change(v);
        })
    };
    let failed =
        |index, failures| pod(&format!("{index}-Failed"), |row| (row.index, row.failures, row.phase) = (Some(index), failures, "Failed".into()));
    let plain = per_index(|_| {});
    let pods = [failed(0, 0), indexed(1, "Running")];
    let input = Input { job: &plain, pods: &pods, released: &BTreeSet::new(), coming: 0, settled: true, record: Record::default(), now: at(1100) };
    let steps = Work::begin(&input).steps();
    assert_eq!(steps.create, [NewPod { index: Some(0), failures: Some((1, 0)) }], "the next pod knows of the failure");
    assert_eq!(pass(&plain, &pods, true), ("create 0".into(), "2/0/0 released ".into()), "until then the failed one is kept");
    let early = Input { now: at(1004), ..input };
    assert_eq!(Work::begin(&early).steps().to_string(), "look again in 6s", "an index rests for itself");

    let replaced = [failed(0, 0), indexed(0, "Running"), indexed(1, "Running")];
    assert_eq!(pass(&plain, &replaced, true).1, "2/0/1 released 0-Failed");
    let lost = [failed(0, 1), indexed(1, "Running")];
    assert_eq!(pass(&plain, &lost, true), ("create 2".into(), "2/0/1 released 0-Failed".into()), "a failed index is given up");
    let end = per_index(|v| v.status.completed_indexes = Some("1-3".into()));
    assert_eq!(pass(&end, &[failed(0, 1)], true).1, "FailureTarget=FailedIndexes Failed=FailedIndexes 0/3/1 released 0-Failed");
    let few = per_index(|v| v.spec.max_failed_indexes = Some(0));
    let (steps, status) = pass(&few, &lost, true);
    assert_eq!((steps.as_str(), status.as_str()), ("kill 1-Running", "FailureTarget=MaxFailedIndexesExceeded 0/0/2 released 0-Failed 1-Running"));
}

fn rule(action: &str, codes: Option<(&str, Vec<i32>)>, condition: Option<&str>) -> PodFailurePolicyRule {
    let pattern = |type_: &str| PodFailurePolicyOnPodConditionsPattern { type_: type_.into(), status: Some("True".into()) };
    PodFailurePolicyRule {
        action: action.into(),
        on_exit_codes: codes.map(|(operator, values)| PodFailurePolicyOnExitCodesRequirement {
            container_name: None,
            operator: operator.into(),
            values,
        }),
        on_pod_conditions: condition.map(|type_| vec![pattern(type_)]),
    }
}

#[test]
fn rules_about_failed_pods() {
    let ended = |code| pod("p", |row| (row.phase, row.exits) = ("Failed".into(), vec![Exit { container: "main".into(), code }]));
    let evicted = pod("p", |row| (row.phase, row.conditions) = ("Failed".into(), vec![("DisruptionTarget".into(), "True".into())]));
    for (rule, pod, expected) in [
        (
            rule("FailJob", Some(("In", vec![42])), None),
            ended(42),
            Failure::FailJob("Container main for pod a/p failed with exit code 42 matching FailJob rule at index 0".into()),
        ),
        (rule("FailJob", Some(("In", vec![42])), None), ended(1), Failure::Count),
        (rule("Ignore", Some(("NotIn", vec![42])), None), ended(1), Failure::Ignore),
        (rule("Ignore", Some(("NotIn", vec![42])), None), ended(0), Failure::Count),
        (rule("FailIndex", Some(("In", vec![1])), None), ended(1), Failure::FailIndex),
        (rule("Ignore", None, Some("DisruptionTarget")), evicted.clone(), Failure::Ignore),
        (
            rule("FailJob", None, Some("DisruptionTarget")),
            evicted,
            Failure::FailJob("Pod a/p has condition DisruptionTarget matching FailJob rule at index 0".into()),
        ),
    ] {
        let view = view(|v| v.spec.pod_failure_policy = Some(PodFailurePolicy { rules: vec![rule.clone()] }));
        assert_eq!(policy::judge(&view, &pod), expected, "{rule:?}");
    }
    let ignoring = view(|v| v.spec.pod_failure_policy = Some(PodFailurePolicy { rules: vec![rule("Ignore", Some(("In", vec![9])), None)] }));
    assert_eq!(pass(&ignoring, &[ended(9)], true), ("create 2".into(), "2/0/0 released p".into()));
    let failing = view(|v| v.spec.pod_failure_policy = Some(PodFailurePolicy { rules: vec![rule("FailJob", Some(("In", vec![9])), None)] }));
    assert_eq!(pass(&failing, &[ended(9)], true).1, "FailureTarget=PodFailurePolicy Failed=PodFailurePolicy 0/0/1 released p");
}

#[test]
fn some_successes_are_enough() {
    let rules = |indexes: Option<&str>, count| vec![SuccessPolicyRule { succeeded_indexes: indexes.map(str::to_owned), succeeded_count: count }];
    for (rules, met) in [
        (rules(Some("0,2"), None), true),
        (rules(Some("0,1"), None), false),
        (rules(Some("0-3"), Some(2)), true),
        (rules(Some("1-3"), Some(2)), false),
        (rules(None, Some(2)), true),
        (rules(None, Some(3)), false),
    ] {
        let view = indexed_view(|v| {
            v.spec.success_policy = Some(SuccessPolicy { rules: rules.clone() });
            v.status.completed_indexes = Some("0,2".into());
        });
        let (steps, status) = pass(&view, &[indexed(1, "Running")], true);
        assert_eq!((steps == "kill 1-Running", status.starts_with("SuccessCriteriaMet=SuccessPolicy 0/2/0")), (met, met), "{rules:?} {status}");
    }
}

#[test]
fn an_end_is_counted_once_and_the_job_ends_last() {
    let counted = view(|v| {
        v.status.uncounted_terminated_pods = Some(UncountedTerminatedPods { succeeded: Some(vec!["a".into(), "gone".into()]), failed: None });
    });
    let pods = [in_phase("a", "Succeeded")];
    assert_eq!(pass(&counted, &pods, true), ("create 2".into(), "2/2/0 released a".into()));
    // Its finalizer is gone, though its row does not show it yet.
    let released = BTreeSet::from(["a".to_owned()]);
    let known = view(|v| v.status.succeeded = Some(1));
    let input = Input { job: &known, pods: &pods, released: &released, coming: 0, settled: true, record: Record::default(), now: at(1100) };
    let mut work = Work::begin(&input);
    work.carried_out(&work.steps(), true);
    assert_eq!((work.track().len(), work.status.succeeded), (0, Some(1)));

    let target = new_condition("FailureTarget", "True", "DeadlineExceeded", "Job was active longer than specified deadline", at(1000));
    let failing = view(|v| v.status.conditions = Some(vec![target]));
    let leaving = pod("a", |row| (row.deleting, row.tracked) = (true, false));
    assert_eq!(pass(&failing, &[leaving], true).1, "FailureTarget=DeadlineExceeded 0/0/0 released ", "a pod is still there");
    assert_eq!(pass(&failing, &[], true).1, "FailureTarget=DeadlineExceeded Failed=DeadlineExceeded 0/0/0 released ");
}

#[test]
fn a_resumed_job_starts_anew() {
    let resumed = view(|v| {
        v.status.conditions = Some(vec![new_condition("Suspended", "True", "JobSuspended", "Job suspended", at(950))]);
        v.status.start_time = None;
    });
    let input = Input { job: &resumed, pods: &[], released: &BTreeSet::new(), coming: 0, settled: true, record: Record::default(), now: at(1100) };
    let mut work = Work::begin(&input);
    work.carried_out(&work.steps(), true);
    assert_eq!(work.status.start_time, Some(Time(at(1100))));
    assert_eq!(work.events, [(EventType::Normal, "Resumed".to_owned(), "Job resumed".to_owned())]);
    assert_eq!(work.status.conditions.as_ref().unwrap()[0].status, "False");
}

#[test]
fn pauses_double() {
    let failed = |name: &str, ended| pod(name, |row| (row.phase, row.ended) = ("Failed".into(), at(ended)));
    let (one, two, three) = (failed("1", 1000), failed("2", 1010), failed("3", 1020));
    let seconds = |record: Record, now| record.pause(at(now)).map(|left| left.as_secs());
    let first = Record::default().with(&[], &[&one]);
    assert_eq!((seconds(first, 1004), seconds(first, 1010)), (Some(6), None));
    let third = first.with(&[], &[&two, &three]);
    assert_eq!(seconds(third, 1020), Some(40));
    let long = (0..20).fold(third, |record, _| record.with(&[], &[&three]));
    assert_eq!(seconds(long, 1020), Some(600));
    let success = pod("4", |row| (row.phase, row.ended) = ("Succeeded".into(), at(1015)));
    assert_eq!(seconds(third.with(&[&success], &[&two, &three]), 1020), Some(10), "only failures after the last success");
    assert_eq!(third.with(&[&success], &[&two]), Record::default());
}
