//! Sockets as Go's standard library uses them.

use std::path::PathBuf;

use cri::v1;

use crate::support::windows_sandbox;
use crate::{node, second, template, waiting};

pub async fn datagrams(dir: PathBuf) {
    let node = node(&dir, 20348).await;
    std::fs::create_dir_all(dir.join("host/tools")).unwrap();
    template::compile("datagrams.c", &dir.join("host/tools/datagrams.exe"));
    let pod = node.run(windows_sandbox("sockets")).await;
    let mut request = waiting("main");
    request.mounts.push(v1::Mount { container_path: r"C:\tools".into(), host_path: r"C:\tools".into(), ..Default::default() });
    let id = node.start(&pod, request).await;
    let (code, text) = second(&node, &id, &[r"C:\tools\datagrams.exe"]).await;
    assert_eq!((code, text.as_str()), (0, "connreset 0 netreset 0 mode 10045 unknown 10045\nhello\n"));
    node.remove(&pod).await;
}
