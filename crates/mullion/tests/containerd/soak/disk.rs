//! The agent's directory on a small file system of its own, which is filled and freed.

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use super::Soak;

const DIRECTORY: &str = "/var/lib/kubelet";
const FILL: &str = "/var/lib/kubelet/fill";

/// Mounts it; the agent does not run.
pub fn mount() {
    std::fs::create_dir_all(DIRECTORY).unwrap();
    let status = Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m,mode=0755", "tmpfs", DIRECTORY]).status().expect("mount");
    assert!(status.success(), "mounting {DIRECTORY}: {status}");
}

/// Leaves no byte free.
fn fill() {
    let mut file = std::fs::File::options().create(true).append(true).open(FILL).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        let block = vec![0; size];
        while file.write_all(&block).is_ok() {}
    }
}

impl Soak {
    /// A full disk while pods come and go and the agent is killed; then space.
    pub(super) async fn fill_the_disk(&mut self) {
        for round in 1..=5 {
            self.pods.churn(&self.cluster, &mut self.random).await;
            tokio::time::sleep(self.random.ms(0, 1500)).await;
            fill();
            for _ in 0..5 {
                self.pods.churn(&self.cluster, &mut self.random).await;
                tokio::time::sleep(self.random.ms(0, 1500)).await;
                fill();
                self.cluster.node.kill();
                self.cluster.node.start();
                self.watch.verdict(&format!("full disk {round}"));
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
            std::fs::remove_file(FILL).unwrap();
            self.check(&format!("full disk {round}")).await;
        }
        println!("soak: the disk was full five times, with five kills of the agent each");
    }
}
