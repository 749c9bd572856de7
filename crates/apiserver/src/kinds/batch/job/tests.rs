//! Defaults, generated selectors, checks, columns of Jobs.

use super::*;
use crate::kinds::check::{change, defaulted, problems, row, status_change, table, template, updates, warned, with};

/// A Job as it is stored.
fn job() -> Value {
    let mut job = json!({"metadata": {"name": "j", "namespace": "default", "uid": "u-1"}, "spec": {"template": template("OnFailure")}});
    defaults(job.as_object_mut().unwrap());
    prepare_create(&mut job);
    job
}

fn indexed(completions: i64) -> Value {
    with(&job(), &[("/spec/completionMode", json!("Indexed")), ("/spec/completions", json!(completions)), ("/spec/parallelism", json!(2))])
}

#[test]
fn defaults_depend_on_what_is_said() {
    let made = |spec: Value| defaulted(defaults, json!({"spec": spec}))["spec"].clone();
    let plain = made(json!({}));
    assert_eq!(
        plain,
        json!({"completions": 1, "parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": false,
            "podReplacementPolicy": "TerminatingOrFailed", "manualSelector": false})
    );
    let queue = made(json!({"parallelism": 3}));
    assert_eq!((queue.get("completions"), &queue["parallelism"]), (None, &json!(3)), "a work queue has no completions");
    assert_eq!(made(json!({"completions": 4}))["parallelism"], 1);
    assert_eq!(made(json!({"backoffLimitPerIndex": 1}))["backoffLimit"], i32::MAX);
    let failing = made(json!({"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}}));
    assert_eq!(failing["podReplacementPolicy"], "Failed");
    assert_eq!(failing["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["status"], "True");
    let labelled = defaulted(defaults, json!({"metadata": {}, "spec": {"template": template("Never")}}));
    assert_eq!(labelled["metadata"]["labels"], json!({"a": "b"}));
}

#[test]
fn a_new_job_gets_a_selector_of_its_own() {
    let job = job();
    assert_eq!(job["spec"]["selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u-1"}}));
    let labels = json!({"a": "b", "job-name": "j", "batch.kubernetes.io/job-name": "j", "controller-uid": "u-1",
        "batch.kubernetes.io/controller-uid": "u-1"});
    assert_eq!(job["spec"]["template"]["metadata"]["labels"], labels);
    let mut manual = json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"manualSelector": true, "selector": {"matchLabels": {"a": "b"}}}});
    prepare_create(&mut manual);
    assert_eq!(manual["spec"]["selector"], json!({"matchLabels": {"a": "b"}}));
}

#[test]
fn foreign_selectors_and_labels_are_refused() {
    let mut labels = job()["spec"]["template"]["metadata"]["labels"].clone();
    labels["batch.kubernetes.io/job-name"] = "other".into();
    let wrong = problems(validate, &with(&job(), &[("/spec/template/metadata/labels", labels.clone())]));
    assert_eq!(wrong, format!("spec.template.metadata.labels[batch.kubernetes.io/job-name]: Invalid value: {labels}: must be 'j'"));
    labels.as_object_mut().unwrap().shift_remove("batch.kubernetes.io/job-name");
    let missing = problems(validate, &with(&job(), &[("/spec/template/metadata/labels", labels)]));
    assert_eq!(missing, "spec.template.metadata.labels[batch.kubernetes.io/job-name]: Required value: must be 'j'");
    let selector = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u-1", "x": "y"}});
    assert_eq!(
        problems(validate, &with(&job(), &[("/spec/selector", selector.clone())])),
        format!(
            "spec.selector: Invalid value: {selector}: `selector` not auto-generated\nspec.template.metadata.labels: Invalid value: {}: `selector` \
             does not match template `labels`",
            job()["spec"]["template"]["metadata"]["labels"]
        )
    );
    let manual = with(
        &job(),
        &[("/spec/manualSelector", json!(true)), ("/spec/selector", json!({"matchLabels": {"a": "b"}})), ("/spec/template", template("Never"))],
    );
    assert_eq!(problems(validate, &manual), "");
}

#[test]
fn specifications_are_checked() {
    let negative = |member: &str| format!("spec.{member}: Invalid value: -1: must be greater than or equal to 0");
    for member in ["parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"] {
        assert_eq!(problems(validate, &with(&job(), &[(&format!("/spec/{member}"), json!(-1))])), negative(member));
    }
    table(
        validate,
        &job(),
        &[
            (
                "/spec/template/spec/restartPolicy",
                json!("Always"),
                "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
            ),
            ("/spec/backoffLimitPerIndex", json!(1), "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode"),
            (
                "/spec/maxFailedIndexes",
                json!(1),
                "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified\n\
                 spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode",
            ),
            (
                "/spec/completionMode",
                json!("Some"),
                "spec.completionMode: Unsupported value: \"Some\": supported values: \"NonIndexed\", \"Indexed\"",
            ),
            ("/spec/managedBy", json!("me"), "spec.managedBy: Invalid value: \"me\": must be a domain-prefixed path (such as \"acme.io/foo\")"),
            ("/spec/managedBy", json!("acme.io/foo"), ""),
            (
                "/spec/podReplacementPolicy",
                json!("Never"),
                "spec.podReplacementPolicy: Unsupported value: \"Never\": supported values: \"Failed\", \"TerminatingOrFailed\"",
            ),
            (
                "/spec/successPolicy",
                json!({"rules": [{"succeededCount": 1}]}),
                "spec.successPolicy: Invalid value: {\"Rules\":[{\"SucceededIndexes\":null,\"SucceededCount\":1}]}: requires indexed completion mode",
            ),
        ],
    );
}

#[test]
fn indexed_jobs_have_limits() {
    table(
        validate,
        &indexed(5),
        &[
            ("/spec/completions", Value::Null, "spec.completions: Required value: when completion mode is Indexed"),
            (
                "/spec/parallelism",
                json!(100_001),
                "spec.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed",
            ),
            ("/spec/successPolicy", json!({"rules": [{"succeededIndexes": "0-2,4", "succeededCount": 4}]}), ""),
            (
                "/spec/successPolicy",
                json!({"rules": [{"succeededIndexes": "0-2", "succeededCount": 4}]}),
                "spec.successPolicy.rules[0].succeededCount: Invalid value: 4: must be less than or equal to 3 (the number of indexes in the specified \
                 succeededIndexes field)",
            ),
            (
                "/spec/successPolicy",
                json!({"rules": [{"succeededIndexes": "0-5"}]}),
                "spec.successPolicy.rules[0].succeededIndexes: Invalid value: \"0-5\": error parsing succeededIndexes: too large index: \"5\"",
            ),
            (
                "/spec/successPolicy",
                json!({"rules": []}),
                "spec.successPolicy.rules: Required value: at least one rules must be specified when the successPolicy is specified",
            ),
            (
                "/spec/successPolicy",
                json!({"rules": [{}]}),
                "spec.successPolicy.rules[0]: Required value: at least one of succeededCount or succeededIndexes must be specified",
            ),
        ],
    );
    let many = with(&indexed(100_001), &[("/spec/backoffLimitPerIndex", json!(1)), ("/spec/parallelism", json!(10_001))]);
    assert_eq!(
        problems(validate, &many),
        "spec.maxFailedIndexes: Required value: must be specified when completions is above 100000\n\
         spec.parallelism: Invalid value: 10001: must be less than or equal to 10000 when completions are above 100000 and used with backoff limit \
         per index"
    );
    let long = with(&indexed(11), &[("/metadata/name", json!("x".repeat(61)))]);
    assert!(problems(validate, &long).contains("will not able to create pod with invalid DNS label: "));
}

#[test]
fn failure_policies_are_checked() {
    let never = with(&job(), &[("/spec/template/spec/restartPolicy", json!("Never")), ("/spec/podReplacementPolicy", json!("Failed"))]);
    let codes = |codes: Value| json!({"rules": [{"action": "FailJob", "onExitCodes": codes}]});
    table(
        validate,
        &never,
        &[
            ("/spec/podFailurePolicy", codes(json!({"containerName": "c", "operator": "In", "values": [1, 2]})), ""),
            (
                "/spec/podFailurePolicy",
                codes(json!({"containerName": "d", "operator": "In", "values": [0, 2, 1, 2]})),
                "spec.podFailurePolicy.rules[0].onExitCodes.containerName: Invalid value: \"d\": must be one of the container or initContainer names \
                 in the pod template\n\
                 spec.podFailurePolicy.rules[0].onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator\n\
                 spec.podFailurePolicy.rules[0].onExitCodes.values[3]: Duplicate value: 2\n\
                 spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [0,2,1,2]: must be ordered",
            ),
            (
                "/spec/podFailurePolicy",
                codes(json!({"values": []})),
                "spec.podFailurePolicy.rules[0].onExitCodes.operator: Required value: valid values: [\"In\" \"NotIn\"]\n\
                 spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: []: at least one value is required",
            ),
            (
                "/spec/podFailurePolicy",
                json!({"rules": [{"action": "Count"}]}),
                "spec.podFailurePolicy.rules[0]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
            ),
            (
                "/spec/podFailurePolicy",
                json!({"rules": [{"action": "FailIndex", "onPodConditions": [{"type": "DisruptionTarget", "status": "Maybe"}]}]}),
                "spec.podFailurePolicy.rules[0].action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set\n\
                 spec.podFailurePolicy.rules[0].onPodConditions[0].status: Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \
                 \"Unknown\"",
            ),
            (
                "/spec/podFailurePolicy",
                json!({"rules": [{"action": "Go", "onPodConditions": [{"type": "X", "status": "True"}]}]}),
                "spec.podFailurePolicy.rules[0].action: Unsupported value: \"Go\": supported values: \"Count\", \"FailIndex\", \"FailJob\", \"Ignore\"",
            ),
        ],
    );
    let restarting = with(&job(), &[("/spec/podFailurePolicy", json!({"rules": []})), ("/spec/podReplacementPolicy", json!("Failed"))]);
    assert_eq!(
        problems(validate, &restarting),
        "spec.template.spec.restartPolicy: Invalid value: \"OnFailure\": only \"Never\" is supported when podFailurePolicy is specified"
    );
}

#[test]
fn updates_change_little() {
    updates(
        validate,
        &job(),
        &[
            ("/spec/parallelism", json!(2), ""),
            ("/spec/suspend", json!(true), ""),
            ("/spec/activeDeadlineSeconds", json!(2), ""),
            ("/spec/ttlSecondsAfterFinished", json!(2), ""),
            ("/spec/completions", json!(2), "spec.completions: Invalid value: 2: field is immutable"),
            ("/spec/managedBy", json!("a.io/b"), "spec.managedBy: Invalid value: \"a.io/b\": field is immutable"),
        ],
    );
    let image = ("/spec/template/spec/containers/0/image", json!("other"));
    assert!(change(validate, &job(), &with(&job(), std::slice::from_ref(&image))).ends_with(": field is immutable"));
    let grown = with(&indexed(4), &[("/spec/completions", json!(5))]);
    let tandem = "spec.completions: Invalid value: 5: can only be modified in tandem with spec.parallelism";
    assert_eq!(change(validate, &indexed(4), &grown), tandem);
    assert_eq!(change(validate, &indexed(4), &with(&grown, &[("/spec/parallelism", json!(5))])), "");
    let suspended = with(&job(), &[("/spec/suspend", json!(true))]);
    let place = [
        ("/spec/template/spec/nodeSelector", json!({"x": "y"})),
        ("/spec/template/spec/affinity", json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}})),
        ("/spec/template/spec/containers/0/resources", json!({"limits": {"cpu": "1"}})),
    ];
    for change_of in place {
        assert_eq!(change(validate, &suspended, &with(&suspended, std::slice::from_ref(&change_of))), "", "{}", change_of.0);
        assert!(change(validate, &job(), &with(&job(), &[change_of])).ends_with("field is immutable"), "a running Job's template stays");
    }
    let other = change(validate, &suspended, &with(&suspended, &[image]));
    assert!(other.starts_with("spec.template.spec: Invalid value: ") && other.ends_with("field is immutable"), "{other}");
    let active = with(&suspended, &[("/status", json!({"active": 1}))]);
    assert!(change(validate, &active, &with(&active, &[("/spec/template/spec/nodeSelector", json!({"x": "y"}))])).ends_with("field is immutable"));
}

fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "True"})
}

#[test]
fn statuses_only_move_on() {
    let with_status = |job: &Value, status: Value| with(job, &[("/status", status)]);
    let start = "2026-01-01T00:00:00Z";
    let end = "2026-01-01T00:01:00Z";
    let done = json!({"startTime": start, "completionTime": end, "succeeded": 1,
        "conditions": [condition("SuccessCriteriaMet"), condition("Complete")]});
    let running = with_status(&job(), json!({"startTime": start, "active": 1, "ready": 1}));
    let finished = with_status(&job(), done.clone());
    let cases = [
        (&running, done.clone(), ""),
        (&running, json!({"startTime": start, "failed": 1}), ""),
        (
            &running,
            json!({"startTime": end, "active": 1}),
            "status.startTime: Invalid value: \"2026-01-01T00:01:00Z\": field is immutable for unsuspended job once set",
        ),
        (&running, json!({"startTime": start, "active": 1, "ready": 2}), "status.ready: Invalid value: 2: cannot set more ready pods than active"),
        (
            &running,
            json!({"startTime": start, "conditions": [condition("Complete")]}),
            "status.completionTime: Required value: completionTime is required for Complete jobs\n\
             status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        ),
        (
            &running,
            json!({"startTime": start, "conditions": [condition("Failed")]}),
            "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition",
        ),
        (
            &running,
            json!({"startTime": start, "active": 1, "conditions": [condition("FailureTarget"), condition("Failed")]}),
            "status.active: Invalid value: 1: active>0 is invalid for finished job",
        ),
        (
            &running,
            json!({"startTime": start, "completionTime": end}),
            "status.completionTime: Invalid value: \"2026-01-01T00:01:00Z\": cannot set completionTime when there is no Complete=True condition",
        ),
        (
            &running,
            json!({"startTime": start, "completedIndexes": "0"}),
            "status.completedIndexes: Invalid value: \"0\": cannot set non-empty completedIndexes when non-indexed completion mode",
        ),
        (
            &running,
            json!({"startTime": start, "uncountedTerminatedPods": {"succeeded": ["a", ""], "failed": ["a"]}}),
            "status.uncountedTerminatedPods.succeeded[1]: Invalid value: \"\": must not be empty\n\
             status.uncountedTerminatedPods.failed[0]: Duplicate value: \"a\"",
        ),
        (
            &finished,
            json!({"startTime": start}),
            "status.conditions: Invalid value: cannot disable the terminal Complete=True condition\n\
             status.succeeded: Invalid value: 0: cannot decrease the succeeded counter\n\
             status.conditions: Invalid value: cannot disable the SuccessCriteriaMet=True condition",
        ),
    ];
    for (old, new, expected) in cases {
        assert_eq!(status_change(status::validate, old, &with_status(old, new.clone())), expected, "{new}");
    }
}

#[test]
fn indexes_are_read_and_compared() {
    let read = |text: &str| indexes::count(text, 10);
    assert_eq!(read(""), Ok(0));
    assert_eq!(read("0,2-4,9"), Ok(5));
    for (text, problem) in [
        ("1-2-3", "the fragment \"1-2-3\" violates the requirement that an index interval can have at most two parts separated by '-'"),
        ("x", "cannot convert string to integer for index: \"x\""),
        ("10", "too large index: \"10\""),
        ("3-3", "non-increasing order, previous: 3, current: 3"),
        ("3,3", "non-increasing order, previous: 3, current: 3"),
        ("1,", "cannot convert string to integer for index: \"\""),
    ] {
        assert_eq!(read(text), Err(problem.to_string()), "{text}");
    }
    assert_eq!(indexes::overlap("0-3,7", "4,6-8", 10), Some(7));
    assert_eq!(indexes::overlap("0-3,7", "4-6,8", 10), None);
    assert_eq!(indexes::overlap("0,bad,5", "5", 10), Some(5), "what cannot be read is left out");
}

#[test]
fn columns_tell_state_and_duration() {
    let object = with(&job(), &[("/status", json!({"succeeded": 1, "startTime": "2026-01-01T23:58:00Z"}))]);
    let shown = row(cells, &object);
    assert_eq!(&shown[..7], ["x", "Running", "1/1", "2m", "2m30s", "c", "i"]);
    assert_eq!(shown[7], "batch.kubernetes.io/controller-uid=u-1");
    let queue = with(&object, &[("/spec/completions", Value::Null), ("/spec/parallelism", json!(3))]);
    assert_eq!(row(cells, &queue)[2], "1/1 of 3");
    let done = with(&object, &[("/status/completionTime", json!("2026-01-01T23:58:10Z")), ("/status/conditions", json!([condition("Complete")]))]);
    assert_eq!(row(cells, &done)[1..4], ["Complete", "1/1", "10s"]);
    let suspended = with(&job(), &[("/status", json!({"conditions": [condition("Suspended")]}))]);
    assert_eq!(row(cells, &suspended)[1..4], ["Suspended", "0/1", ""]);
}

#[test]
fn large_indexed_jobs_and_odd_names_are_warned_of() {
    assert!(warned(warnings, &job()).is_empty());
    let dotted = with(&job(), &[("/metadata/name", json!("a.b"))]);
    assert!(
        warned(warnings, &dotted)[0].starts_with("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior")
    );
    let large = with(&indexed(100_001), &[("/spec/parallelism", json!(10_001))]);
    assert!(warned(warnings, &large)[0].starts_with("spec: In Indexed Jobs with a number of completions higher than 10^5"));
}
