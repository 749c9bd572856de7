//! Starting processes in namespaces.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;

use linux_sys::ns::{NetNs, in_lab};
use linux_sys::signal::Signal;
use linux_sys::spawn::{Child, Namespaces, PidFd, Spawn, Stdio, Step};

/// Runs and returns (standard output and error, exit code).
fn output(spawn: Spawn) -> (String, Option<i32>) {
    let (read, write) = std::io::pipe().unwrap();
    let write = OwnedFd::from(write);
    let child: Child = spawn.stdout(Stdio::Fd(write.try_clone().unwrap())).stderr(Stdio::Fd(write)).spawn().unwrap();
    let mut text = String::new();
    fs::File::from(OwnedFd::from(read)).read_to_string(&mut text).unwrap();
    (text, child.wait().unwrap().code())
}

fn sh(script: &str) -> Spawn {
    Spawn::new("/bin/sh").args(["-c", script])
}

#[test]
fn a_child_gets_arguments_environment_and_directory() {
    let spawn = sh("echo $0 $1 $A $(pwd); exit 7").args(["zero", "one"]).env("A", "b c").cwd("/usr").stdin(Stdio::Null);
    assert_eq!(output(spawn), ("zero one b c /usr\n".into(), Some(7)));
    let found = Spawn::new("sh").args(["-c", "echo $PATH"]).env_clear().env("PATH", "/nowhere:/bin");
    assert_eq!(output(found), ("/nowhere:/bin\n".into(), Some(0)));
    let file = OwnedFd::from(fs::File::open("/bin/sh").unwrap());
    assert_eq!(output(Spawn::from_file(file).arg0("shell").args(["-c", "echo $0"])), ("shell\n".into(), Some(0)));
}

#[test]
fn descriptors_arrive_under_their_numbers_and_no_others() {
    // Numbers swapped on purpose: placing one must not overwrite the other.
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str| -> OwnedFd {
        fs::write(dir.path().join(name), name).unwrap();
        fs::File::open(dir.path().join(name)).unwrap().into()
    };
    let (a, b, leak) = (make("a"), make("b"), make("leak"));
    nix::fcntl::fcntl(&leak, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
    use std::os::fd::AsRawFd;
    let (na, nb) = (a.as_raw_fd(), b.as_raw_fd());
    // Shells redirect numbers of one digit alone.
    let script = format!("cat /proc/self/fd/{nb} /proc/self/fd/{na}; ls /proc/self/fd | tr '\\n' ' '");
    let (text, code) = output(sh(&script).keep_fd(a, nb).keep_fd(b, na).stdin(Stdio::Null));
    assert!(text.starts_with("ab") && code == Some(0), "{text}");
    let numbers = text["ab".len()..].split_whitespace().map(|n| n.parse::<i32>().unwrap());
    let others: Vec<i32> = numbers.filter(|n| *n > 2 && *n != na && *n != nb).collect();
    // `ls` itself has the directory open that it lists.
    assert!(others.len() == 1, "{others:?} beside {na} and {nb}; {leak:?} was not to be inherited");
}

#[test]
fn failures_before_exec_are_the_callers_and_name_the_step() {
    let e = Spawn::new("/no/such/program").spawn().unwrap_err();
    assert_eq!((e.kind(), e.to_string().contains("start /no/such/program: execute")), (std::io::ErrorKind::NotFound, true), "{e}");
    let e = sh("true").step(Step::Chdir("/no/such".into())).spawn().unwrap_err();
    assert!(e.to_string().contains("enter directory /no/such"), "{e}");
    assert!(sh("true").keep_fd(fs::File::open("/dev/null").unwrap().into(), 1).spawn().is_err(), "a standard stream");
}

#[test]
fn signals_and_status() {
    let child = sh("kill -STOP $$; sleep 100").stdin(Stdio::Null).spawn().unwrap();
    assert!(!child.pidfd().wait_end(Duration::from_millis(10)).unwrap());
    assert_eq!(child.try_wait().unwrap(), None);
    child.kill(Signal::SIGKILL).unwrap();
    assert!(child.pidfd().wait_end(Duration::from_secs(60)).unwrap());
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    child.kill(Signal::SIGKILL).expect("that it has ended is fine");
    assert!(PidFd::open(child.pid()).is_err());
    // Ignored in Rust programs, so it must be set back for others.
    assert_eq!(sh("kill -PIPE $$").spawn().unwrap().wait().unwrap().signal(), Some(13));
}

#[test]
fn namespaces_roots_and_overlays() {
    in_lab("namespaces_roots_and_overlays", || {
        let root = PathBuf::from("/run/box");
        for dir in ["lower/etc", "upper", "work", "root", "data"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        fs::write(root.join("lower/etc/motd"), "from below\n").unwrap();
        fs::write(root.join("data/file"), "data\n").unwrap();
        let at = |p: &str| root.join("root").join(p);
        let mut steps = vec![
            Step::MakePrivate,
            Step::Overlay { lower: vec![root.join("lower")], upper: root.join("upper"), work: root.join("work"), target: root.join("root") },
        ];
        for dir in ["proc", "tmp", "bin", "lib", "lib64", "usr", "data", "old"] {
            steps.push(Step::Mkdir(at(dir)));
        }
        for dir in ["/bin", "/lib", "/lib64", "/usr"] {
            steps.push(Step::BindMount { src: dir.into(), dst: at(&dir[1..]), readonly: true });
        }
        steps.extend([
            Step::Proc(at("proc")),
            Step::Tmpfs { target: at("tmp"), options: "mode=0755,size=1m".into() },
            Step::BindMount { src: root.join("data"), dst: at("data"), readonly: true },
            Step::Touch(at("touched")),
            Step::Symlink { target: "/data/file".into(), path: at("link") },
            Step::SetHostname("box".into()),
            Step::LoopbackUp,
            Step::PivotRoot(root.join("root")),
            Step::NoNewPrivileges,
            Step::KeepCaps(vec![]),
        ]);
        let all = Namespaces::MOUNT | Namespaces::PID | Namespaces::UTS | Namespaces::NET | Namespaces::IPC;
        let script = "echo pid $$; cat /proc/sys/kernel/hostname /etc/motd /link; echo new > /etc/motd; (echo x > /data/file) 2>&- || echo ro; \
                      ls /; grep CapEff /proc/self/status; grep -c . /proc/net/dev";
        let (text, code) = output(sh(script).env_clear().env("PATH", "/bin:/usr/bin").new_namespaces(all).steps(steps).stdin(Stdio::Null));
        assert_eq!(
            text,
            "pid 1\nbox\nfrom below\ndata\nro\nbin\ndata\netc\nlib\nlib64\nlink\nold\nproc\ntmp\ntouched\nusr\nCapEff:\t0000000000000000\n3\n"
        );
        assert_eq!(code, Some(0));
        assert_eq!(fs::read_to_string(root.join("upper/etc/motd")).unwrap(), "new\n");
        assert_eq!(fs::read_to_string(root.join("lower/etc/motd")).unwrap(), "from below\n");
    });
}

#[test]
fn a_child_starts_in_a_given_network_namespace() {
    in_lab("a_child_starts_in_a_given_network_namespace", || {
        let ns = NetNs::new_anonymous().unwrap();
        linux_sys::netlink::Rtnl::open_in(&ns).unwrap().add_bridge("mark0").unwrap();
        let (text, _) = output(sh("cat /proc/net/dev").enter_net(&ns));
        assert!(text.contains("mark0"), "{text}");
    });
}

#[test]
fn a_user_namespace_makes_root_of_anybody() {
    let all = Namespaces::USER | Namespaces::MOUNT;
    let one = sh("id -u; cat /proc/self/uid_map").new_namespaces(all).map_current_user_to_root();
    let (text, _) = output(one);
    let numbers: Vec<&str> = text.split_whitespace().collect();
    let me = nix::unistd::geteuid().to_string();
    assert_eq!(numbers, ["0", "0", &me, "1"]);
    let (text, _) = output(sh("id -u").new_namespaces(all).map_users());
    assert_eq!(text, "0\n");
}

#[test]
fn the_end_of_pid_1_ends_its_namespace() {
    let (read, write) = std::io::pipe().unwrap();
    let child = sh("sleep 1000 & sleep 1000")
        .stdin(Stdio::Null)
        .stdout(Stdio::Fd(write.into()))
        .new_namespaces(Namespaces::USER | Namespaces::PID)
        .map_users()
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(50));
    child.kill(Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    // The grandchildren hold the pipe open for as long as they live.
    let mut rest = Vec::new();
    fs::File::from(OwnedFd::from(read)).read_to_end(&mut rest).unwrap();
}
