//! Namespaced tests without sudo.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use crate::netlink::Rtnl;
use crate::spawn::{Namespaces, Spawn, Stdio, Step};

const INSIDE: &str = "MULLION_TEST_INSIDE";
const HOLD: &str = "MULLION_TEST_HOLD";
/// A test that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(1200);
const HELD: Duration = Duration::from_secs(86_400);

/// Runs a test in user, mount, network and pid namespaces of its own, as root and as an ordinary
/// user alike: the calling test binary is started once more there, for this test alone, and `f` runs
/// in that copy. The network has a loopback that is up and switches as [`reset_switches`](super::reset_switches) gives them, /proc is
/// the namespace's own, /run is empty. `MULLION_TEST_INHERIT` says what the test's namespaces have inherited before that (see
/// [`inherit_for_tests`](super::inherit_for_tests)).
///
/// `test` is the test's full path in its binary, as `module::tests::name` (what `--exact` takes).
/// A failing test prints how to hold its namespaces and enter them. It is never skipped.
///
/// # Panics
/// When the namespaces cannot be had, and when `f` panics in them.
pub fn in_lab(test: &str, f: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some_and(|t| t == test) {
        return inside(f);
    }
    let hold = std::env::var_os(HOLD).is_some();
    let (read, write) = std::io::pipe().expect("a pipe for the output of the namespaced test");
    let output = OwnedFd::from(write);
    let child = Spawn::new(std::env::current_exe().expect("the path of this test"))
        .args(["--exact", test, "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(INSIDE, test)
        .stdin(Stdio::Null)
        .stdout(Stdio::Fd(output.try_clone().expect("a copy of a pipe")))
        .stderr(Stdio::Fd(output))
        .new_namespaces(Namespaces::USER | Namespaces::MOUNT | Namespaces::NET | Namespaces::PID)
        .map_users()
        .steps([Step::MakePrivate, Step::Proc("/proc".into()), Step::Tmpfs { target: "/run".into(), options: "mode=0755".into() }])
        .spawn()
        .unwrap_or_else(|e| panic!("namespaces for {test}: {e}; tests need user namespaces, see `unshare --user --map-root-user true`"));
    if hold {
        eprintln!("{test}: nsenter --preserve-credentials -U -m -n -p -t {} -- /bin/sh", child.pid());
    }
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = File::from(OwnedFd::from(read)).read_to_string(&mut text);
        text
    });
    let ended = child.pidfd().wait_end(if hold { HELD } else { LIMIT }).expect("wait for the namespaced test");
    if !ended {
        let _ = child.kill(crate::signal::Signal::SIGKILL);
    }
    let status = child.wait().expect("the status of the namespaced test");
    let text = reader.join().unwrap_or_default();
    print!("{text}");
    let hint = format!("to look inside: {HOLD}=1 and run it alone, then nsenter as printed");
    assert!(ended, "{test} did not end within {LIMIT:?}; {hint}");
    assert!(status.success(), "{test} failed in its namespaces ({status}); {hint}");
    assert!(!text.contains("running 0 tests"), "in_lab names no test of this binary: {test}");
}

fn inside(f: impl FnOnce()) {
    super::inherit_for_tests().and_then(|()| super::reset_switches()).expect("the switches of the test's namespace");
    Rtnl::open().and_then(|r| r.set_up(1)).expect("the loopback of the test's namespace");
    if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
        if std::env::var_os(HOLD).is_some() {
            let _ = writeln!(std::io::stderr(), "held for nsenter; end it with Ctrl-C");
            std::thread::sleep(HELD);
        }
        resume_unwind(panic);
    }
}
