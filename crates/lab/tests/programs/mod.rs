//! The programs that run in the test's labs.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use lab::protocol::{HostPort, Transport};
use linux_sys::fdpass;
use linux_sys::ns::NetNs;
use linux_sys::spawn::{Spawn, Stdio};

pub fn run(name: &str, args: &[String]) -> ExitCode {
    match name {
        "sleep" => std::thread::sleep(Duration::from_secs(1000)),
        "serve" => serve(&TcpListener::bind(&args[0]).unwrap(), &args[1]),
        "serve-inherited" => {
            let fd = fdpass::inherited(args[0].parse().unwrap()).unwrap();
            serve(&TcpListener::from(fd), &args[1]);
        }
        "fetch" => fetch(&args[0], &args[1]),
        "copy" => copy(&args[0], &args[1..]),
        "echo-udp" => echo_udp(&args[0]),
        "leave-orphan" => {
            let orphan = Spawn::new("/proc/self/exe").args(["program", "beat", &args[0]]).new_session().stdin(Stdio::Null);
            if !std::path::Path::new(&args[0]).exists() {
                orphan.spawn().unwrap();
            }
            return ExitCode::from(5);
        }
        "leave-shim" => {
            if !std::path::Path::new(&args[1]).exists() {
                apart(&["shim", "serve", &args[0], &args[1]]);
            }
            return ExitCode::from(5);
        }
        "keep-apart" => {
            if !std::path::Path::new(&args[0]).exists() {
                apart(&["program", "beat", &args[0]]);
            }
            std::thread::sleep(Duration::from_secs(1000));
        }
        "beat" => loop {
            fs::File::options().create(true).append(true).open(&args[0]).unwrap().write_all(b".").unwrap();
            std::thread::sleep(Duration::from_millis(10));
        },
        "power" => power(std::path::Path::new(&args[0]), &args[1]),
        "look" => look(&args[0], &args[1], &args[2]),
        "kill" => kill(&args[0], &args[1]),
        "relay" => relay(args),
        other => panic!("no program {other}"),
    }
    ExitCode::SUCCESS
}

/// A process in a network namespace of its own, as pods have them.
fn apart(args: &[&str]) {
    let namespace = NetNs::new_anonymous().unwrap();
    Spawn::new("/proc/self/exe").args(args).enter_net(&namespace).new_session().stdin(Stdio::Null).spawn().unwrap();
}

/// Runs as a sandbox's shim does: `shim serve DIR OUT`. The container is its child.
pub fn shim(args: &[String]) -> ExitCode {
    let container = Spawn::new("/proc/self/exe").args(["program", "beat", &args[3]]).stdin(Stdio::Null).spawn().unwrap();
    container.wait().unwrap();
    ExitCode::SUCCESS
}

/// Says goodbye on SIGPWR, after longer than an init waits for processes that got SIGTERM.
fn power(dir: &std::path::Path, how_long: &str) {
    let signals = linux_sys::signal::Signals::catch(&[linux_sys::signal::Signal::SIGPWR]).unwrap();
    lab::notify::ready("waiting").unwrap();
    let mut fds = [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&signals), nix::poll::PollFlags::POLLIN)];
    nix::poll::poll(&mut fds, nix::poll::PollTimeout::NONE).unwrap();
    fs::write(dir.join("told"), "").unwrap();
    std::thread::sleep(Duration::from_millis(if how_long.is_empty() { 1500 } else { 1_000_000 }));
    fs::write(dir.join("said"), "goodbye").unwrap();
}

fn serve(listener: &TcpListener, text: &str) {
    lab::notify::ready("listening").unwrap();
    for stream in listener.incoming() {
        stream.unwrap().write_all(text.as_bytes()).unwrap();
    }
}

/// What this process may do to the machine: `setting` gets the value that it has.
fn look(out: &str, setting: &str, secret: &str) {
    let value = fs::read_to_string(setting).unwrap();
    let written = fs::write(setting, value).map_or("refused", |()| "written");
    let map = fs::read_to_string("/proc/self/uid_map").unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default().trim();
    let secret = fs::read_to_string(secret).unwrap_or_default();
    fs::write(out, format!("{map}own value: {written}\ngroups:{groups}\n{secret}\n")).unwrap();
    lab::notify::ready("looked").unwrap();
    std::thread::sleep(Duration::from_secs(1000));
}

fn fetch(address: &str, out: &str) {
    let mut text = String::new();
    TcpStream::connect(address).unwrap().read_to_string(&mut text).unwrap();
    fs::write(out, text).unwrap();
    std::thread::sleep(Duration::from_secs(1000));
}

/// Copies small files as `PATH=CONTENT` lines into `out`, whole or not at all.
fn copy(out: &str, files: &[String]) {
    let lines: String = files.iter().map(|file| format!("{file}={}", fs::read_to_string(file).unwrap_or("absent\n".into()))).collect();
    fs::write(format!("{out}.new"), lines).unwrap();
    fs::rename(format!("{out}.new"), out).unwrap();
    std::thread::sleep(Duration::from_secs(1000));
}

fn echo_udp(address: &str) {
    let socket = UdpSocket::bind(address).unwrap();
    let mut buffer = [0; 64];
    loop {
        let (n, from) = socket.recv_from(&mut buffer).unwrap();
        socket.send_to(&buffer[..n], from).unwrap();
    }
}

/// Kills process `pid` of the lab whose init is `init` on the real host.
fn kill(init: &str, pid: &str) {
    // The last number of NSpid is that inside the lab.
    let found = fs::read_dir("/proc").unwrap().flatten().find(|e| {
        let status = fs::read_to_string(e.path().join("status")).unwrap_or_default();
        let numbers = status.lines().find_map(|l| l.strip_prefix("NSpid:")).unwrap_or_default().split_whitespace().collect::<Vec<_>>();
        let parent = status.lines().find_map(|l| l.strip_prefix("PPid:")).unwrap_or_default().trim();
        numbers.len() > 1 && numbers.last() == Some(&pid) && parent == init
    });
    let number: i32 = found.expect("the process").file_name().to_str().unwrap().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(number), linux_sys::signal::Signal::SIGKILL).unwrap();
}

/// TCP ports to n1, the UDP port to n2.
fn relay(args: &[String]) {
    let port = |protocol, text: &String| HostPort { protocol, port: text.parse().unwrap() };
    let desired = BTreeSet::from([port(Transport::Tcp, &args[1]), port(Transport::Tcp, &args[2]), port(Transport::Udp, &args[3])]);
    let targets = |port: HostPort| -> Vec<SocketAddr> {
        match port.protocol {
            // The first refuses, so the second is tried.
            Transport::Tcp => vec!["10.240.0.11:81".parse().unwrap(), "10.240.0.11:80".parse().unwrap()],
            Transport::Udp => vec!["10.240.0.12:53".parse().unwrap()],
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (_keep, desired) = tokio::sync::watch::channel(desired);
        let (status, _) = tokio::sync::watch::channel(Vec::new());
        lab::relay::run(std::path::Path::new(&args[0]), desired, Arc::new(targets), status).await;
    });
}
