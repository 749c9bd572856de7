use k8s_openapi::api::batch::v1::{Job, JobTemplateSpec};

use super::*;

fn at(text: &str) -> Timestamp {
    format!("2026-01-05T{text}Z").parse().unwrap()
}

fn cron(change: impl FnOnce(&mut CronView)) -> CronView {
    let spec = CronJobSpec { schedule: "0 * * * *".into(), job_template: JobTemplateSpec::default(), ..Default::default() };
    let mut view = CronView { name: "tidy".into(), deleting: false, created: at("10:15:00"), spec, status: CronJobStatus::default() };
    change(&mut view);
    view
}

fn active(name: &str) -> ObjectReference {
    ObjectReference { name: Some(name.to_owned()), uid: Some(name.to_owned()), ..Default::default() }
}

fn job(name: &str, change: impl FnOnce(&mut JobRow)) -> NamedJob {
    let mut row = JobRow::new(&Job::default());
    row.uid = name.to_owned();
    change(&mut row);
    (name.to_owned(), Arc::new(row))
}

fn ended(name: &str, complete: bool, time: &str) -> NamedJob {
    job(name, |row| {
        (row.ended, row.started) = (Some(Ended { complete, at: Some(at(time)) }), Some(at(time)));
        row.completed = complete.then(|| at(time));
    })
}

fn wait(minutes: u64) -> Step {
    Step::Wait(Duration::from_secs(minutes * 60) + Duration::from_millis(100))
}

#[test]
fn the_next_job() {
    let eleven = |replace| Step::Start { due: at("11:00:00"), replace };
    let busy = |policy: &'static str| {
        cron(move |c| {
            c.spec.concurrency_policy = Some(policy.into());
            c.status.active = Some(vec![active("tidy-1")]);
        })
    };
    for (what, cron, now, step, event) in [
        ("not yet", cron(|_| {}), "10:30:00", wait(30), ""),
        ("due", cron(|_| {}), "11:00:00", eleven(false), ""),
        (
            "another zone",
            cron(|c| (c.spec.schedule, c.spec.time_zone) = ("0 12 * * *".into(), Some("Europe/Berlin".into()))),
            "11:00:00",
            eleven(false),
            "",
        ),
        ("going", cron(|c| c.deleting = true), "11:00:00", Step::Rest, ""),
        ("suspended", cron(|c| c.spec.suspend = Some(true)), "11:00:00", Step::Rest, ""),
        ("beside another", busy("Allow"), "11:00:00", eleven(false), ""),
        ("not beside another", busy("Forbid"), "11:00:00", wait(60), "JobAlreadyActive"),
        ("instead of another", busy("Replace"), "11:00:00", eleven(true), ""),
        ("done", cron(|c| c.status.last_schedule_time = Some(Time(at("11:00:00")))), "11:30:00", wait(30), ""),
        ("done by name", cron(|c| c.status.active = Some(vec![active("tidy-29460180")])), "11:30:00", wait(30), ""),
        ("no zone", cron(|c| c.spec.time_zone = Some("Mars/North".into())), "11:00:00", Step::Rest, "UnknownTimeZone"),
        ("no schedule", cron(|c| c.spec.schedule = "at noon".into()), "11:00:00", Step::Rest, "UnparseableSchedule"),
        ("never", cron(|c| c.spec.schedule = "0 0 31 2 *".into()), "11:00:00", Step::Rest, "InvalidSchedule"),
        ("the zone in the text", cron(|c| c.spec.schedule = "TZ=UTC 0 * * * *".into()), "11:00:00", eleven(false), "UnsupportedSchedule"),
        (
            "long ago",
            cron(|c| c.spec.schedule = "* * * * *".into()),
            "13:00:00",
            Step::Start { due: at("13:00:00"), replace: false },
            "TooManyMissedTimes",
        ),
    ] {
        let (found, events) = next(&cron, at(now));
        let reasons: Vec<&str> = events.iter().map(|(_, reason, _)| *reason).collect();
        assert_eq!((found, reasons.join(" ").as_str()), (step, event), "{what}");
    }
    let (_, events) = next(&cron(|c| c.spec.schedule = "at noon".into()), at("11:00:00"));
    assert_eq!(events[0].2, "unparseable schedule: \"at noon\" : expected exactly 5 fields, found 2: [at noon]");
}

#[test]
fn the_list_of_active_jobs_follows_the_jobs() {
    let mut view = cron(|c| c.status.active = Some(["a", "b", "c", "d"].map(active).to_vec()));
    let jobs = [job("a", |_| {}), ended("b", true, "10:20:00"), ended("c", false, "10:30:00"), ended("old", true, "10:10:00"), job("new", |_| {})];
    let (events, missing) = review(&mut view, &jobs);
    let texts: Vec<String> = events.iter().map(|(_, reason, message)| format!("{reason}: {message}")).collect();
    assert_eq!(
        texts,
        [
            "SawCompletedJob: Saw completed job: b, condition: Complete",
            "SawCompletedJob: Saw completed job: c, condition: Failed",
            "UnexpectedJob: Saw a job that the controller did not create or forgot: new",
        ]
    );
    assert_eq!(missing, [active("d")]);
    assert_eq!(view.status.active, Some(vec![active("a"), active("d")]));
    assert_eq!(view.status.last_successful_time, Some(Time(at("10:20:00"))));
}

#[test]
fn the_oldest_jobs_leave_the_history() {
    let jobs = [
        ended("s3", true, "10:30:00"),
        ended("s1", true, "10:10:00"),
        ended("s2", true, "10:20:00"),
        ended("f1", false, "10:10:00"),
        ended("f2", false, "10:20:00"),
        job("runs", |_| {}),
    ];
    for (successful, failed, expected) in [(Some(1), Some(1), vec!["s1", "s2", "f1"]), (Some(3), None, vec![]), (None, Some(0), vec!["f1", "f2"])] {
        let spec = CronJobSpec { successful_jobs_history_limit: successful, failed_jobs_history_limit: failed, ..Default::default() };
        let names: Vec<String> = surplus(&spec, &jobs).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, expected);
    }
}
