//! Logs, exec, attach, port-forward and ephemeral containers, through the API server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use serde_json::json;

use crate::cluster::{Cluster, container, kubectl, kubectl_command, kubectl_with};
use crate::image::IMAGE;

pub async fn logs_are_read_followed_and_kept_of_the_run_before(cluster: Arc<Cluster>) {
    let script = "if [ -e /run/second ]; then echo second; else echo first; echo error >&2; touch /run/second; exit 1; fi; for i in 1 2 3; do echo line $i; done; while [ ! -e /run/end ]; do sleep 0.1; done; echo last";
    let spec = json!({"restartPolicy": "OnFailure", "containers": [{"name": "c", "command": ["sh", "-c", script], "volumeMounts": [{"name": "run", "mountPath": "/run"}]}],
        "volumes": [{"name": "run", "emptyDir": {}}]});
    cluster.pod("talks", spec).await;
    cluster.until_ready("talks").await;
    let logs = async |args: &[&str]| kubectl(&[&["logs", "talks"], args].concat()).await.unwrap();
    cluster
        .until("all lines", async || match logs(&[]).await {
            text if text == "second\nline 1\nline 2\nline 3\n" => Ok(()),
            text => Err(text),
        })
        .await;
    assert_eq!(logs(&["--tail=2"]).await, "line 2\nline 3\n");
    assert_eq!(logs(&["--limit-bytes=3"]).await, "sec");
    let mut before: Vec<String> = logs(&["--previous"]).await.lines().map(str::to_owned).collect();
    before.sort();
    assert_eq!(before, ["error", "first"]);
    let dated = logs(&["--timestamps", "--tail=1"]).await;
    assert!(dated.starts_with("20") && dated.ends_with("Z line 3\n"), "{dated}");
    // From the beginning: the last line may come before this has begun to read.
    let follower = tokio::spawn(async { kubectl(&["logs", "talks", "-f"]).await });
    cluster.exec("talks", "c", "touch /run/end").await;
    assert_eq!(follower.await.unwrap().unwrap(), "second\nline 1\nline 2\nline 3\nlast\n");
    // Shippers of logs look there.
    let links: Vec<_> = std::fs::read_dir("/var/log/pods").unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(links.iter().any(|name| name.starts_with("default_talks_")), "{links:?}");
}

pub async fn programs_run_inside_and_ports_are_forwarded(cluster: Arc<Cluster>) {
    let serve = "mkdir /tmp/www; echo page > /tmp/www/index.html; httpd -p 8080 -h /tmp/www; cat; echo end of input";
    cluster
        .pod(
            "served",
            json!({"restartPolicy": "Never", "containers": [{"name": "c", "stdin": true, "stdinOnce": true, "command": ["sh", "-c", serve]}]}),
        )
        .await;
    cluster.until_ready("served").await;
    let inside = ["exec", "-i", "served", "--", "sh", "-c", "cat; echo to-stderr >&2; exit 3"];
    let failed = kubectl_with(&inside, "from outside\n").await.unwrap_err();
    assert!(failed.contains("from outside\n") && failed.contains("to-stderr") && failed.contains("exit code 3"), "{failed}");
    let big = kubectl(&["exec", "served", "--", "head", "-c", "3000000", "/dev/zero"]).await.unwrap();
    assert_eq!(big.len(), 3_000_000);
    let missing = kubectl(&["exec", "served", "--", "no-such-program"]).await.unwrap_err();
    assert!(missing.contains("executable file not found"), "{missing}");
    let page = tokio::task::spawn_blocking(|| {
        let mut child = kubectl_command(&["port-forward", "pod/served", ":8080"]).spawn().unwrap();
        let mut line = String::new();
        // It stays open: kubectl ends when it cannot print the line of a connection.
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        printed.read_line(&mut line).unwrap();
        let port: u16 = line.split(':').nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        let mut answers = Vec::new();
        for _ in 0..2 {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            let mut text = String::new();
            if let Err(error) = stream.read_to_string(&mut text) {
                child.kill().unwrap();
                panic!("reading from the pod: {error}; kubectl says: {}", std::io::read_to_string(child.stderr.take().unwrap()).unwrap());
            }
            answers.push(text);
        }
        child.kill().and_then(|()| child.wait()).unwrap();
        drop(printed);
        answers
    });
    let answers = page.await.unwrap();
    assert!(answers.iter().all(|text| text.ends_with("\r\npage\n")), "{answers:?}");
    let attached = kubectl_with(&["attach", "-i", "served"], "typed\n").await.unwrap();
    assert!(attached.contains("typed\n"), "{attached}");
    cluster.until_phase("served", "Succeeded").await;
    assert_eq!(kubectl(&["logs", "served"]).await.unwrap(), "typed\nend of input\n");
}

pub async fn ephemeral_containers_see_their_target(cluster: Arc<Cluster>) {
    cluster.pod("debugged", json!({"containers": [{"name": "c", "command": ["sleep", "123456"]}]})).await;
    cluster.until_ready("debugged").await;
    let debug = [
        "debug",
        "debugged",
        "--image",
        IMAGE,
        "--image-pull-policy=IfNotPresent",
        "--target=c",
        "-c",
        "look",
        "--profile=general",
        "--",
        "sh",
        "-c",
        "ps; sleep 1000",
    ];
    kubectl(&debug).await.unwrap();
    let runs = |status: &serde_json::Value| !container(status, "look")["state"]["running"].is_null();
    let status = cluster.until_status("debugged", "the ephemeral container", runs).await;
    assert_eq!(container(&status, "c")["restartCount"], 0);
    cluster
        .until("the target's processes", async || match kubectl(&["logs", "debugged", "-c", "look"]).await {
            Ok(text) if text.contains("sleep 123456") => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
}
