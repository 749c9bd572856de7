//! Memory limits: several programs, each below the limit and together above it.

use std::path::PathBuf;
use std::time::Duration;

use cri::v1;
use test_lab::{same, until_async};

use crate::support::windows_sandbox;
use crate::{node, processes, second, template, waiting};

pub async fn sum(dir: PathBuf) {
    let node = node(&dir, 20348).await;
    std::fs::create_dir_all(dir.join("host/tools")).unwrap();
    template::compile("allocate.c", &dir.join("host/tools/allocate.exe"));
    let pod = node.run(windows_sandbox("job")).await;
    let limited = |memory: i64| v1::WindowsContainerResources { memory_limit_in_bytes: memory, ..Default::default() };
    let mut request = waiting("main");
    request.windows = Some(v1::WindowsContainerConfig { resources: Some(limited(256 << 20)), security_context: None });
    request.mounts.push(v1::Mount { container_path: r"C:\tools".into(), host_path: r"C:\tools".into(), ..Default::default() });
    let id = node.start(&pod, request).await;
    let tool = r"C:\tools\allocate.exe";

    // Each by itself has room enough, and not more than the limit.
    let (code, text) = second(&node, &id, &[tool, "150", "1"]).await;
    assert_eq!((code, text.as_str()), (0, "committed 150\n"));
    let (code, text) = second(&node, &id, &[tool, "300", "1"]).await;
    assert!(code == 8 && text.starts_with("refused at "), "{code} {text}");
    // The second one meets what the first has left.
    let beside = async {
        until_async("the first one runs", async || !processes("allocate.exe").is_empty()).await;
        // It begins, and commits within less.
        tokio::time::sleep(Duration::from_secs(4)).await;
        second(&node, &id, &["cmd", "/c", &format!("ping -n 2 127.0.0.1 > nul & {tool} 150 1")]).await
    };
    let long = [tool, "150", "40"];
    let ((code, text), (beside_code, beside)) = tokio::join!(second(&node, &id, &long), beside);
    assert_eq!((code, text.as_str()), (0, "committed 150\n"));
    let got: u32 = beside.strip_prefix("refused at ").and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{beside}"));
    println!("  beside 150 MiB of 256 another program got {got}");
    assert!(beside_code == 8 && (50..150).contains(&got), "{beside_code} {beside}");
    // What has ended has given its memory back.
    let (code, text) = second(&node, &id, &[tool, "150", "1"]).await;
    assert_eq!((code, text.as_str()), (0, "committed 150\n"));
    // An update counts for the sum, too.
    let request = v1::UpdateContainerResourcesRequest { container_id: id.clone(), windows: Some(limited(512 << 20)), ..Default::default() };
    node.client.update_container_resources(request).await.unwrap();
    // It arrives a little later.
    until_async("room for 300 MiB", async || same(second(&node, &id, &[tool, "300", "1"]).await, &(0, "committed 300\n".to_owned()))).await;
    node.remove(&pod).await;
}
