//! Programs in running pods, files in and out of them, and their ports, through the API server, over both wires.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::busybox;
use crate::cluster::{Cluster, PATIENCE, until};

/// Switches of kubectl's: with them it speaks SPDY, as before 1.31.
const SPDY: [(&str, &str); 2] = [("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false"), ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")];

/// How long a program may go on without its client, and some.
const ALONE: Duration = Duration::from_secs(15);

/// A pod that serves a page at 8080 and has what `kubectl cp` asks for.
fn pod(cluster: &Cluster) {
    busybox::load(cluster);
    let script = "cd /bin; for name in cat ps rm stty tar; do busybox ln -sf busybox $name; done; mkdir -p /tmp /www; echo page > /www/index.html; \
                  httpd -p 8080 -h /www; sleep 100000";
    cluster.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: streams, labels: {{app: streams}}}}
spec:
  nodeSelector: {{kubernetes.io/os: linux}}
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: \"{}\", imagePullPolicy: Never, command: [sh, -c, \"{script}\"]}}
",
        busybox::IMAGE
    ));
    cluster.ready("pod/streams");
    until("the pod's links", PATIENCE, || match cluster.try_kubectl(&["exec", "streams", "--", "cat", "/www/index.html"], "") {
        output if output.out == "page\n" => Ok(()),
        output => Err(output.err),
    });
}

/// kubectl, speaking WebSocket or SPDY.
fn kubectl(cluster: &Cluster, spdy: bool, args: &[&str]) -> Command {
    let mut command = cluster.command(args);
    if spdy {
        command.envs(SPDY);
    }
    command
}

/// Exit codes, both outputs, input of some size.
pub fn exec(cluster: &Cluster) {
    pod(cluster);
    let large: String = (0..200_000).map(|line| format!("{line}\n")).collect();
    for spdy in [false, true] {
        let run =
            |args: &[&str], stdin: &str| crate::cluster::run(&mut kubectl(cluster, spdy, &[&["exec", "-i", "streams", "--"], args].concat()), stdin);
        let output = run(&["sh", "-c", "echo out; echo err >&2; exit 3"], "");
        assert_eq!((output.code, output.out.as_str()), (Some(3), "out\n"), "{}", output.err);
        assert_eq!(output.err, "err\ncommand terminated with exit code 3\n");
        let output = run(&["cat"], &large);
        assert!(output.code == Some(0) && output.out == large, "{} of {} bytes came back: {}", output.out.len(), large.len(), output.err);
        let output = run(&["nosuch"], "");
        assert!(output.code == Some(1) && output.err.contains("executable file not found"), "{}", output.err);
    }
    let output = cluster.try_kubectl(&["exec", "streams", "-c", "other", "--", "true"], "");
    assert!(output.code == Some(1) && output.err.contains("container other is not valid for pod streams"), "{}", output.err);
}

/// kubectl with a terminal, as large as the user's, which `script` gives to it.
fn at_terminal(cluster: &Cluster, spdy: bool, args: &[&str]) -> Command {
    let shown = kubectl(cluster, spdy, args);
    let line: Vec<String> =
        std::iter::once(shown.get_program()).chain(shown.get_args()).map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let mut command = cluster.place.command("script");
    command.args(["-qec", &format!("stty rows 33 cols 77; exec {}", line.join(" ")), "/dev/null"]);
    command.envs(shown.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// The size of the user's terminal, a line typed into it, and the exit code.
pub fn terminal(cluster: &Cluster) {
    pod(cluster);
    // The size comes after the start, as with every runtime; until then no size is known.
    let script = "until size=$(stty size 2>&-); [ -n \"$size\" ]; do sleep 0.1; done; echo $size; read line; echo got $line; exit 5";
    for spdy in [false, true] {
        let mut command = at_terminal(cluster, spdy, &["exec", "-it", "streams", "--", "sh", "-c", script]);
        let output = crate::cluster::run(&mut command, "typed\n");
        assert!(output.out.contains("33 77") && output.out.contains("got typed"), "{output:?}");
        assert_eq!(output.code, Some(5), "{output:?}");
    }
}

/// The prompt of Windows' own shell, in a container where it waits already: commands typed there run there.
pub fn windows_console(cluster: &Cluster) {
    cluster.apply(
        "apiVersion: v1
kind: Pod
metadata: {name: console}
spec:
  nodeSelector: {kubernetes.io/hostname: win01}
  containers:
  - {name: main, image: 'mcr.microsoft.com/windows/nanoserver:ltsc2022', command: [cmd], stdin: true, tty: true}
",
    );
    cluster.ready("pod/console");
    let shown = cluster.place.path().join("console");
    let screen = std::fs::File::create(&shown).expect("a file");
    let mut command = at_terminal(cluster, false, &["exec", "-it", "console", "--", "cmd"]);
    let mut child = command.stdin(Stdio::piped()).stdout(screen).spawn().expect("script");
    let mut keys = child.stdin.take().expect("its input");
    let shows = |what: &str, text: &str| {
        until(what, PATIENCE, || {
            let screen = String::from_utf8_lossy(&std::fs::read(&shown).expect("the screen")).into_owned();
            if screen.contains(text) { Ok(()) } else { Err(screen) }
        });
    };
    // Whoever types sees the prompt first, and the Enter key is a carriage return.
    shows("the prompt", "C:\\>");
    keys.write_all(b"echo typed on %COMPUTERNAME%\r").expect("typed keys");
    shows("what the command says", "typed on CONSOLE");
    keys.write_all(b"exit 7\r").expect("typed keys");
    let status = until("the shell's end", PATIENCE, || child.try_wait().expect("a child").ok_or_else(|| "it runs".to_owned()));
    assert_eq!(status.code(), Some(7), "{status}");
    cluster.kubectl(&["delete", "pod", "console", "--grace-period=0", "--force"]);
}

/// A program whose client is gone ends too.
pub fn interrupted(cluster: &Cluster) {
    pod(cluster);
    let running = |program: &str| cluster.kubectl(&["exec", "streams", "--", "ps"]).contains(program);
    let mut clients = Vec::new();
    for (spdy, seconds) in [(false, "4321"), (true, "4322")] {
        let client = kubectl(cluster, spdy, &["exec", "streams", "--", "sleep", seconds]).stdout(Stdio::null()).spawn().expect("kubectl");
        clients.push((client, format!("sleep {seconds}")));
    }
    for (_, program) in &clients {
        until("a running program", PATIENCE, || if running(program) { Ok(()) } else { Err(format!("no {program}")) });
    }
    for (client, _) in &mut clients {
        client.kill().and_then(|()| client.wait()).expect("an ended kubectl");
    }
    for (_, program) in &clients {
        until("its end", ALONE, || if running(program) { Err(format!("{program} runs")) } else { Ok(()) });
    }
}

/// Files into a pod and back.
pub fn copies(cluster: &Cluster) {
    pod(cluster);
    let (there, back) = (cluster.place.path().join("there"), cluster.place.path().join("back"));
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&there, &content).expect("a written file");
    cluster.kubectl(&["cp", &there.to_string_lossy(), "streams:/tmp/file"]);
    cluster.kubectl(&["cp", "streams:/tmp/file", &back.to_string_lossy()]);
    assert!(std::fs::read(&back).expect("the copy") == content);
}

/// A pod that reads its input until it ends, by `kubectl run`, which attaches.
pub fn attach(cluster: &Cluster) {
    pod(cluster);
    let overrides = r#"{"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}"#;
    let args =
        ["run", "once", "--rm", "-i", "-q", "--restart=Never", "--image-pull-policy=Never", "--image", busybox::IMAGE, "--overrides", overrides];
    let output = cluster.try_kubectl(&[&args[..], &["--", "sh", "-c", "while read line; do echo got $line; done; exit 4"]].concat(), "one\ntwo\n");
    assert_eq!((output.code, output.out.as_str()), (Some(4), "got one\ngot two\n"), "{}", output.err);
}

/// A running `kubectl port-forward`.
struct Forward {
    child: Child,
    /// It says something for each connection, and ends when nobody can hear it.
    _heard: BufReader<ChildStdout>,
    port: u16,
}

impl Forward {
    fn start(cluster: &Cluster, spdy: bool, to: &str) -> Self {
        let mut command = kubectl(cluster, spdy, &["port-forward", to, ":8080"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("kubectl port-forward");
        let mut line = String::new();
        let mut heard = BufReader::new(child.stdout.take().expect("its output"));
        heard.read_line(&mut line).expect("a line");
        let port = line.split(" -> ").next().and_then(|address| address.rsplit(':').next()).and_then(|port| port.parse().ok());
        Self { child, _heard: heard, port: port.unwrap_or_else(|| panic!("kubectl port-forward output {line:?}")) }
    }

    fn page(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// Many connections at once through one forwarding, one that does nothing among them.
pub fn forwards(cluster: &Cluster) {
    pod(cluster);
    for spdy in [false, true] {
        let forward = Forward::start(cluster, spdy, "pod/streams");
        let idle = TcpStream::connect(("127.0.0.1", forward.port)).expect("a connection");
        std::thread::scope(|scope| {
            let all: Vec<_> =
                (0..30).map(|_| scope.spawn(|| (0..5).map(|_| forward.page().expect("a page")).all(|page| page.ends_with("page\n")))).collect();
            assert!(all.into_iter().all(|thread| thread.join().expect("a thread")));
        });
        drop(idle);
    }
}

/// The pod's page through the API server, and a right that is not enough.
pub fn proxies(cluster: &Cluster) {
    pod(cluster);
    let raw = |path: &str| cluster.kubectl(&["get", "--raw", path]);
    assert_eq!(raw("/api/v1/namespaces/default/pods/streams:8080/proxy/index.html"), "page\n");
    assert_eq!(raw("/api/v1/nodes/lin01/proxy/healthz"), "ok");
    cluster.kubectl(&["create", "role", "looks", "--verb=get,list", "--resource=pods,pods/exec,pods/portforward"]);
    cluster.kubectl(&["create", "rolebinding", "looks", "--role=looks", "--user=looker"]);
    let output = cluster.try_kubectl(&["--as=looker", "exec", "streams", "--", "true"], "");
    assert!(output.code == Some(1) && output.err.contains("cannot create resource \"pods/exec\""), "{}", output.err);
    cluster.kubectl(&["delete", "role/looks", "rolebinding/looks", "pod/streams"]);
}
