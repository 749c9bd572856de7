//! Second programs, and clients attached to containers. Sessions are opened here as the runtime opens them: on the shim's
//! own socket, whose messages have to stay what they are across updates.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cri::v1;
use serde_json::{Value, json};
use test_lab::{LIMIT, until_async};

use crate::support::{Node, container, image_archive, sandbox};

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn script(text: &str) -> Vec<String> {
    words(&["/bin/sh", "-c", text])
}

async fn node_with_pod(dir: &Path, name: &str) -> (Node, String) {
    let node = Node::linux(dir).await;
    node.store().load(&image_archive(dir), &Default::default()).unwrap();
    let pod = node.run(sandbox(name)).await;
    (node, pod)
}

pub async fn sync(dir: PathBuf) {
    let (node, pod) = node_with_pod(&dir, "execs").await;
    let mut request = container("main", "demo:1", &["/bin/sh", "-c", "echo first > /made; exec sleep 1000"]);
    request.envs.push(v1::KeyValue { key: "GREETING".into(), value: "hello".into() });
    let id = node.start(&pod, request).await;
    let run = async |text: &str| node.client.exec_sync(&id, &script(text), LIMIT).await;
    let answer = run("cat /made; echo err >&2; hostname; pwd; echo $GREETING $HOME; id -u; echo me $$; cat /proc/1/comm; exit 7").await.unwrap();
    assert_eq!(answer.exit_code, 7);
    assert_eq!(String::from_utf8(answer.stderr).unwrap(), "err\n");
    let text = String::from_utf8(answer.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..5], ["first", "execs", "/work", "hello /", "0"], "{text}");
    assert!(lines[5] != "me 1" && lines[6] == "sleep", "it runs beside the container's program: {text}");
    // The same rights, and nothing of the lab in hand.
    let answer = run("grep -E 'CapEff|CapBnd|SigBlk|NoNewPrivs' /proc/self/status; ls /proc/self/fd; echo $PATH; test -t 0 || echo no terminal")
        .await
        .unwrap();
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(text.contains("CapEff:\t00000000a80425fb") && text.contains("CapBnd:\t00000000a80425fb"), "{text}");
    assert!(text.contains("SigBlk:\t0000000000000000") && text.contains("no terminal"), "{text}");
    // 3 is the directory that ls itself reads.
    assert!(text.contains("\n0\n1\n2\n3\n/usr/local/sbin"), "{text}");
    // Its environment holds what the container's does and nothing of the shim's.
    let answer = run("cat /proc/self/environ").await.unwrap();
    assert!(!String::from_utf8(answer.stdout).unwrap().contains("MULLION"));
    let error = node.client.exec_sync(&id, &words(&["no-such-program"]), Duration::ZERO).await.unwrap_err().to_string();
    assert!(error.contains("failed to exec in container") && error.contains("executable file not found in $PATH"), "{error}");
    let error = node.client.exec_sync(&id, &[], Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), cri::Kind::Invalid, "{error}");
    // A lot of output: all of it, up to what fits into one message.
    let answer = run("i=0; while [ $i -lt 2000 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done").await.unwrap();
    assert_eq!(answer.stdout.len(), 41 * 2000);
    let answer = run("cat /dev/zero | head -c 30000000").await.unwrap();
    assert_eq!((answer.exit_code, answer.stdout.len()), (0, 16 * 1024 * 1024 - 64 * 1024));
    node.remove(&pod).await;
}

pub async fn ends(dir: PathBuf) {
    let (node, pod) = node_with_pod(&dir, "ends").await;
    let id = node.start(&pod, container("main", "demo:1", &["/bin/sleep", "1000"])).await;
    let began = Instant::now();
    let error = node.client.exec_sync(&id, &script("echo $$ > /pid; sleep 500 & sleep 600; true"), Duration::from_secs(1)).await.unwrap_err();
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(error.kind(), cri::Kind::Deadline, "{error}");
    assert!(error.to_string().contains("timeout 1s exceeded"), "{error}");
    // Zombies have no command line; they are the container's own first program's to bury.
    let sleeps = async |seconds: u32| {
        let answer = node.client.exec_sync(&id, &script(&format!("grep -l '^sleep.{seconds}' /proc/[0-9]*/cmdline")), Duration::ZERO).await.unwrap();
        answer.exit_code == 0
    };
    assert!(!sleeps(500).await && !sleeps(600).await, "nothing is left of what was killed");
    // What a program leaves behind does not hold the answer up for long, and runs on.
    let answer = node.client.exec_sync(&id, &script("echo said; sleep 700 & exit 3"), LIMIT).await.unwrap();
    assert_eq!((answer.exit_code, answer.stdout.as_slice()), (3, b"said\n".as_slice()));
    assert!(sleeps(700).await);
    // With its container ends everything that runs beside it.
    let session = tokio::spawn({
        let (client, id) = (node.client.clone(), id.clone());
        async move { client.exec_sync(&id, &script("exec sleep 800"), Duration::ZERO).await }
    });
    until_async("the second program", async || sleeps(800).await).await;
    node.client.stop_container(&id, Duration::ZERO).await.unwrap();
    assert_eq!(session.await.unwrap().unwrap().exit_code, 137);
    let error = node.client.exec_sync(&id, &words(&["/bin/true"]), Duration::ZERO).await.unwrap_err().to_string();
    assert!(error.contains("container is in CONTAINER_EXITED state"), "{error}");
    node.remove(&pod).await;
}

/// What runs in a container counts as its own, whoever started it, and stays counted; beside it, where processes are shared, nothing does.
pub async fn usage(dir: PathBuf) {
    let (node, pod) = node_with_pod(&dir, "usage").await;
    let namespaces = v1::NamespaceOption { pid: v1::NamespaceMode::Pod as i32, ..Default::default() };
    let security = v1::LinuxContainerSecurityContext { namespace_options: Some(namespaces), ..Default::default() };
    let linux = Some(v1::LinuxContainerConfig { security_context: Some(security), resources: None });
    let idle = |name: &str| v1::ContainerConfig { linux: linux.clone(), ..container(name, "demo:1", &["/bin/sleep", "1000"]) };
    let (busy, beside) = (node.start(&pod, idle("busy")).await, node.start(&pod, idle("beside")).await);
    let nanos = async |id: &str| {
        let stats = node.client.container_stats(v1::ContainerStatsRequest { container_id: id.to_owned() }).await.unwrap();
        stats.cpu.unwrap().usage_core_nano_seconds.unwrap().value
    };
    // The program ends at once, and what it leaves behind has another parent then: the first process of the pod.
    let answer = node.client.exec_sync(&busy, &script("(while :; do :; done) > /dev/null 2>&1 & echo $! > /pid"), LIMIT).await.unwrap();
    assert_eq!(answer.exit_code, 0);
    until_async("half a second of computing", async || nanos(&busy).await >= 500_000_000).await;
    assert!(nanos(&beside).await < 200_000_000, "the other container does nothing");
    let before = nanos(&busy).await;
    node.client.exec_sync(&busy, &script("kill -9 $(cat /pid)"), LIMIT).await.unwrap();
    until_async("its end", async || node.client.exec_sync(&busy, &script("kill -0 $(cat /pid)"), LIMIT).await.unwrap().exit_code != 0).await;
    assert!(nanos(&busy).await >= before, "processor time never falls");
    node.remove(&pod).await;
}

/// A session on the shim's socket.
struct Session {
    socket: UnixStream,
    fds: Vec<(String, Handed)>,
    rest: Vec<u8>,
}

impl Session {
    fn open(dir: &Path, pod: &str, request: &Value) -> Result<Self, String> {
        // A socket's path may have 108 bytes only.
        let sandbox = File::open(dir.join("state/cri/sandboxes").join(pod)).unwrap();
        let mut socket = UnixStream::connect(format!("/proc/self/fd/{}/shim.sock", sandbox.as_raw_fd())).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        writeln!(socket, "{request}").unwrap();
        let mut buffer = vec![0; 8192];
        let (length, fds) = linux_sys::fdpass::receive(&socket, &mut buffer).unwrap();
        let end = buffer[..length].iter().position(|b| *b == b'\n').expect("one message with its descriptors");
        let answer: Value = serde_json::from_slice(&buffer[..end]).unwrap();
        if let Some(reason) = answer["failed"].as_str() {
            return Err(reason.to_owned());
        }
        let kinds = answer["opened"].as_array().unwrap_or_else(|| panic!("{answer}")).iter().map(|kind| kind.as_str().unwrap().to_owned());
        let fds = kinds.zip(fds.into_iter().map(Handed::new)).collect();
        Ok(Self { socket, fds, rest: buffer[end + 1..length].to_vec() })
    }

    fn take(&mut self, kind: &str) -> Handed {
        let at = self.fds.iter().position(|(known, _)| known == kind).unwrap_or_else(|| panic!("no {kind}"));
        self.fds.remove(at).1
    }

    fn kinds(&self) -> Vec<&str> {
        self.fds.iter().map(|(kind, _)| kind.as_str()).collect()
    }

    fn wait(mut self) -> i64 {
        while !self.rest.contains(&b'\n') {
            let mut buffer = [0; 1024];
            let count = self.socket.read(&mut buffer).unwrap();
            assert!(count > 0, "the shim hung up before it reported the exit");
            self.rest.extend_from_slice(&buffer[..count]);
        }
        serde_json::from_slice::<Value>(&self.rest).unwrap()["exited"]["exit"]["code"].as_i64().unwrap()
    }
}

/// A descriptor that the shim handed over. It does not block, and may share that with the shim's own; here it waits.
struct Handed(File);

impl Handed {
    fn new(fd: OwnedFd) -> Self {
        let flags = rustix::fs::fcntl_getfl(&fd).unwrap();
        assert!(flags.contains(rustix::fs::OFlags::NONBLOCK), "descriptors for the runtime do not block");
        Self(File::from(fd))
    }

    fn write_all(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn rest(&mut self) -> String {
        let mut text = String::new();
        self.read_to_string(&mut text).unwrap();
        text
    }
}

impl std::io::Read for Handed {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut wait = [nix::poll::PollFd::new(self.0.as_fd(), nix::poll::PollFlags::POLLIN)];
        assert!(nix::poll::poll(&mut wait, 20_000u16).unwrap() > 0, "nothing came within 20 s");
        self.0.read(buffer)
    }
}

/// Reads a terminal until `expected` appears.
fn read_until(terminal: &mut Handed, expected: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 1024];
    while !text.contains(expected) {
        let count = terminal.read(&mut buffer).unwrap_or(0);
        assert!(count > 0, "no {expected:?} in {text:?}");
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    text
}

pub async fn sessions(dir: PathBuf) {
    let (node, pod) = node_with_pod(&dir, "sessions").await;
    let id = node.start(&pod, container("main", "demo:1", &["/bin/sleep", "1000"])).await;
    let exec = |argv: &[&str], tty: bool, streams: bool| {
        let request = json!({"exec": {"id": id, "argv": argv, "tty": tty, "stdin": streams, "stdout": streams, "stderr": streams}});
        Session::open(&dir, &pod, &request)
    };
    // Three pipes.
    let mut session = exec(&["/bin/sh", "-c", "cat; echo problem >&2; exit 9"], false, true).unwrap();
    assert_eq!(session.kinds(), ["stdin", "stdout", "stderr"]);
    let (mut stdin, mut stdout, mut stderr) = (session.take("stdin"), session.take("stdout"), session.take("stderr"));
    stdin.write_all(b"through\n");
    drop(stdin);
    assert_eq!((stdout.rest().as_str(), stderr.rest().as_str(), session.wait()), ("through\n", "problem\n", 9));
    // A terminal of the container's own, controlling, with a size that can be changed.
    let mut session = exec(&["/bin/sh"], true, true).unwrap();
    assert_eq!(session.kinds(), ["terminal"]);
    let mut terminal = session.take("terminal");
    linux_sys::terminal::resize(&terminal.0, 91, 17).unwrap();
    terminal.write_all(b"tty; echo $TERM; stty size; echo own < /dev/tty && echo controlling; exit 4\n");
    let text = read_until(&mut terminal, "controlling\r\n");
    assert!(text.contains("/dev/pts/") && text.contains("xterm") && text.contains("17 91"), "{text}");
    assert_eq!(session.wait(), 4);
    // A client that hangs up closes the terminal, and ends what reads it.
    let mut session = exec(&["/bin/sh", "-c", "trap 'echo hung > /hung; exit' HUP; echo up; while :; do sleep 0.05; done"], true, true).unwrap();
    read_until(&mut session.take("terminal"), "up");
    drop(session);
    let hung = async || node.client.exec_sync(&id, &words(&["/bin/cat", "/hung"]), Duration::ZERO).await.unwrap().exit_code == 0;
    until_async("the program to get SIGHUP", hung).await;
    // It is killed on request, with what it started.
    let mut session = exec(&["/bin/sh", "-c", "sleep 900 & echo up; wait"], false, true).unwrap();
    let mut stdout = session.take("stdout");
    read_until(&mut stdout, "up");
    session.socket.write_all(b"\"kill\"\n").unwrap();
    stdout.rest();
    assert_eq!(session.wait(), 137);
    // What cannot be is refused, and a shim that hears nonsense goes on.
    assert!(exec(&["/nothing"], false, true).err().unwrap().contains("no such file or directory"));
    let request = json!({"exec": {"id": "nobody", "argv": ["x"], "tty": false, "stdin": false, "stdout": false, "stderr": false}});
    assert!(Session::open(&dir, &pod, &request).err().unwrap().contains("not running"));
    assert!(Session::open(&dir, &pod, &json!({"dance": 1})).err().unwrap().contains("cannot be read"));
    assert_eq!(exec(&["/bin/true"], false, false).unwrap().wait(), 0);
    node.remove(&pod).await;
}

pub async fn attach(dir: PathBuf) {
    let (mut node, pod) = node_with_pod(&dir, "attach").await;
    let log = |name: &str| std::fs::read_to_string(dir.join(format!("host/var/log/pods/attach/{name}/0.log"))).unwrap_or_default();
    let open = |id: &str| Session::open(&dir, &pod, &json!({"attach": {"id": id, "stdin": true, "stdout": true, "stderr": true}})).unwrap();
    // Several clients see the same and may all write.
    let echo = ["/bin/sh", "-c", "while read line; do echo got $line; echo seen $line >&2; done; exit 6"];
    let id = node.start(&pod, v1::ContainerConfig { stdin: true, ..container("both", "demo:1", &echo) }).await;
    let (mut one, mut two) = (open(&id), open(&id));
    assert_eq!(one.kinds(), ["stdin", "stdout", "stderr"]);
    one.take("stdin").write_all(b"first\n");
    let mut input = two.take("stdin");
    input.write_all(b"second\n");
    for session in [&mut one, &mut two] {
        let mut stdout = session.take("stdout");
        let text = read_until(&mut stdout, "got second\n");
        assert!(text.contains("got first\n"), "{text}");
        read_until(&mut session.take("stderr"), "seen second\n");
    }
    // The runtime comes and goes; whoever is attached meanwhile is not touched.
    node.stop().await;
    node.restart().await;
    let mut three = open(&id);
    input.write_all(b"third\n");
    read_until(&mut three.take("stdout"), "got third\n");
    // The shim holds the input open whatever clients do.
    drop((input, three.take("stdin")));
    assert_eq!(node.status(&id).await.state, v1::ContainerState::ContainerRunning as i32);
    node.client.stop_container(&id, Duration::ZERO).await.unwrap();
    assert_eq!((one.wait(), two.wait()), (137, 137));
    until_async("the log holds everything", async || log("both").contains("stdout F got third")).await;
    // stdinOnce: the input ends with the first client.
    let once = v1::ContainerConfig { stdin: true, stdin_once: true, ..container("once", "demo:1", &["/bin/cat"]) };
    let once = node.start(&pod, once).await;
    let mut session = open(&once);
    let mut second = open(&once);
    assert_eq!(second.kinds(), ["stdout", "stderr"]);
    session.take("stdin").write_all(b"only\n");
    assert_eq!((second.take("stdout").rest().as_str(), session.wait()), ("only\n", 0));
    // A terminal: one output, a size, an input for everybody.
    let shell = v1::ContainerConfig { stdin: true, tty: true, ..container("shell", "demo:1", &["/bin/sh"]) };
    let shell = node.start(&pod, shell).await;
    let mut session = open(&shell);
    assert_eq!(session.kinds(), ["stdin", "stdout", "terminal"]);
    let (terminal, mut stdin, mut stdout) = (session.take("terminal"), session.take("stdin"), session.take("stdout"));
    linux_sys::terminal::resize(&terminal.0, 77, 11).unwrap();
    stdin.write_all(b"tty; stty size; test -e /dev/console && echo done\n");
    let text = read_until(&mut stdout, "\r\ndone\r\n");
    assert!(text.contains("/dev/pts/0") && text.contains("11 77"), "{text}");
    drop((terminal, stdin, stdout, session));
    assert_eq!(node.status(&shell).await.state, v1::ContainerState::ContainerRunning as i32, "it stays without clients");
    let mut again = open(&shell);
    again.take("stdin").write_all(b"exit 8\n");
    assert_eq!(again.wait(), 8);
    assert!(log("shell").contains("stdout F 11 77\r"), "{}", log("shell"));
    node.remove(&pod).await;
}
