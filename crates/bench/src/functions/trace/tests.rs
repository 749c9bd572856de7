use super::*;

/// Run in a process of its own by the test below.
#[test]
#[ignore = "what the other test traces"]
fn traced_part() {
    std::thread::spawn(called_in_a_thread).join().unwrap();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1).unwrap();
    called_later();
    assert!(Command::new("true").status().unwrap().success());
}

#[inline(never)]
fn called_in_a_thread() {
    std::hint::black_box(1);
}

#[inline(never)]
fn called_later() {
    std::hint::black_box(3);
}

#[inline(never)]
fn never_called() {
    std::hint::black_box(2);
}

#[test]
fn functions_that_a_program_runs_are_named_and_others_are_not() {
    if std::env::args().count() == 0 {
        never_called();
    }
    let this = std::env::current_exe().unwrap();
    let mut child = Command::new("sh")
        .args(["-c", "echo ready; read go && exec \"$0\" functions::trace::tests::traced_part --exact --ignored"])
        .arg(&this)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The start of the shell itself is over: a tracer that comes earlier would take it for the program's.
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
    let leader = Pid::from_raw(child.id().try_into().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let args = TracerArgs { pid: leader.as_raw(), program: this, output: directory.path().join("names") };
    ptrace::seize(leader, OPTIONS).unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"go\n").unwrap();
    until_the_end(leader, &args).unwrap();
    // The tracer has waited for it already.
    assert!(child.wait().is_err());
    let names = std::fs::read_to_string(&args.output).unwrap();
    assert!(names.contains("called_in_a_thread") && names.contains("traced_part"), "{names}");
    assert!(names.contains("called_later") && !names.contains("never_called"), "{names}");
    let later = std::fs::read_to_string(later(&args.output)).unwrap();
    assert!(later.contains("called_later") && !later.contains("called_in_a_thread"), "{later}");
}
