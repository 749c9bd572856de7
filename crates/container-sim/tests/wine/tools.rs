//! The command-line tools of Windows, `cmd`'s blocks, and the environment.

use std::path::PathBuf;
use std::time::Duration;

use cri::v1;
use test_lab::{LIMIT, until_async};

use crate::support::{Node, container, describe, windows_sandbox};
use crate::{NANOSERVER, log, node, second, waiting};

pub async fn all(dir: PathBuf) {
    let node = node(&dir, 20348).await;
    let dns = v1::DnsConfig { servers: vec!["10.96.0.10".into()], searches: vec!["default.svc.cluster.local".into()], options: Vec::new() };
    let pod = node.run(v1::PodSandboxConfig { dns_config: Some(dns), ..windows_sandbox("tools") }).await;
    // The documented ways to keep a container going, the usual one first.
    let id = node.start(&pod, container("ping", NANOSERVER, &["cmd", "/c", "ping -t localhost > nul"])).await;
    let other = node.start(&pod, container("waitfor", NANOSERVER, &["waitfor", "stop"])).await;
    let loops = "for /l %i in (1,0,2) do @(echo ready && ping -n 2 127.0.0.1 > nul)";
    let third = node.start(&pod, container("loop", NANOSERVER, &["cmd", "/c", loops])).await;

    let (code, text) = second(&node, &id, &["ping", "-n", "2", "-w", "1000", "-4", "127.0.0.1"]).await;
    println!("  {}", text.trim());
    assert!(text.contains("Pinging 127.0.0.1 with 32 bytes of data:") && text.contains("Packets: Sent = 2, Received = "), "{code} {text}");
    let (code, text) = second(&node, &id, &["ping", "-n", "1", "no-such-host.invalid"]).await;
    assert_eq!((code, text.trim()), (1, "Ping request could not find host no-such-host.invalid. Please check the name and try again."));
    // As on Windows: there is no console.
    let (code, text) = second(&node, &id, &["timeout", "/t", "30", "/nobreak"]).await;
    assert_eq!((code, text.trim()), (1, "ERROR: Input redirection is not supported, exiting the process immediately."));
    let (code, text) = second(&node, &id, &["waitfor", "/t", "1", "nothing"]).await;
    assert_eq!((code, text.trim()), (1, "ERROR: Timed out waiting for 'nothing'."));
    let both = async {
        let waits = second(&node, &id, &["waitfor", "/t", "200", "Go"]);
        let sends = async {
            for _ in 0..400 {
                tokio::time::sleep(Duration::from_millis(700)).await;
                assert_eq!(second(&node, &id, &["waitfor", "/si", "go"]).await.1.trim(), "SUCCESS: Signal sent.");
            }
        };
        tokio::select! { heard = waits => heard, () = sends => panic!("no signal arrived") }
    };
    let (code, text) = both.await;
    assert_eq!((code, text.trim()), (0, "SUCCESS: Signal received."));

    let (code, text) = second(&node, &id, &["ipconfig", "/all"]).await;
    // The sandbox is on the network of this lab, which has no adapter: what adapters have is a matter of ipconfig's own tests.
    assert!(code == 0 && text.contains("Host Name . . . . . . . . . . . . : tools"), "{text}");
    assert!(text.contains("DNS Suffix Search List. . . . . . : default.svc.cluster.local"), "{text}");
    let (code, text) = second(&node, &id, &["route", "print", "-4"]).await;
    assert!(code == 0 && text.contains("IPv4 Route Table") && text.contains("127.0.0.1  255.255.255.255"), "{text}");

    // A block behind `do`, with and without `@`: what is in it belongs to the loop.
    for at in ["", "@"] {
        let line = format!("for %i in (1 2) do {at}(echo a%i&& echo b%i)");
        let (code, text) = second(&node, &id, &["cmd", "/c", &line]).await;
        assert_eq!((code, text.as_str()), (0, "a1\nb1\na2\nb2\n"), "{line}");
    }
    until_async("the loop goes round", async || log(&dir, "tools", "loop").iter().filter(|line| line.contains("ready")).count() >= 2).await;
    operators(&node, &id).await;
    for id in [id, other, third] {
        let status = node.status(&id).await;
        assert_eq!(status.state, v1::ContainerState::ContainerRunning as i32, "{}", describe(&status));
        node.client.stop_container(&id, LIMIT).await.unwrap();
        assert_ne!(node.status(&id).await.exit_code, 137, "a shutdown event ends it");
    }
    node.remove(&pod).await;
}

/// `&&` and `||` of command lines, which Wine's `cmd` does not know.
async fn operators(node: &Node, id: &str) {
    for (line, code, output) in [
        ("cmd /c exit 3 && echo b", 3, ""),
        ("cmd /c exit 3 || echo b", 0, "b\n"),
        ("cmd /c exit -3 || (echo b&exit 4)", 4, "b\n"),
        ("ver > nul&& echo (b)& echo c", 0, "(b)\nc\n"),
        ("dir nosuch > nul 2>&1&& echo b || echo (c)&& echo d", 0, "(c)\nd\n"),
        ("(echo a&& echo b|find \"z\") || echo d", 0, "a\nd\n"),
        ("if exist C:\\Windows (cmd /c exit 5 && echo a) else echo b && echo c", 5, ""),
        ("for %i in (0 1) do cmd /c exit %i && echo a%i", 1, "a0\n"),
    ] {
        let (exit, text) = second(node, id, &["cmd", "/c", line]).await;
        assert_eq!((exit, text.as_str()), (code, output), "{line}");
    }
}

pub async fn environment(dir: PathBuf) {
    let node = node(&dir, 20348).await;
    let pod = node.run(windows_sandbox("clean")).await;
    let id = node.start(&pod, container("first", NANOSERVER, &["cmd", "/c", "set&cmd /c set"])).await;
    node.wait_exit(&id).await;
    let first = log(&dir, "clean", "first").iter().map(|line| line.trim_start_matches("stdout F ").to_owned()).collect::<Vec<_>>().join("\n");
    let id = node.start(&pod, waiting("second")).await;
    let (_, second) = second(&node, &id, &["cmd", "/c", "set&cmd /c set"]).await;
    let known = [
        "ALLUSERSPROFILE",
        "APPDATA",
        "COMMONPROGRAMFILES",
        "COMMONPROGRAMFILES(X86)",
        "COMMONPROGRAMW6432",
        "COMPUTERNAME",
        "COMSPEC",
        "LOCALAPPDATA",
        "NUMBER_OF_PROCESSORS",
        "OS",
        "PATH",
        "PATHEXT",
        "PROCESSOR_ARCHITECTURE",
        "PROGRAMDATA",
        "PROGRAMFILES",
        "PROGRAMFILES(X86)",
        "PROGRAMW6432",
        "PROMPT",
        "PUBLIC",
        "SYSTEMDRIVE",
        "SYSTEMROOT",
        "TEMP",
        "TMP",
        "USERDOMAIN",
        "USERNAME",
        "USERPROFILE",
        "WINDIR",
    ];
    for (which, text) in [("the container", first), ("exec", second)] {
        assert!(text.matches("COMPUTERNAME=").count() == 2, "{which}: {text}");
        for line in text.lines() {
            let name = line.split('=').next().unwrap().to_uppercase();
            assert!(known.contains(&name.as_str()), "{which} has {line}");
        }
    }
    node.remove(&pod).await;
}
