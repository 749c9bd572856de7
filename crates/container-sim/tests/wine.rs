//! Windows programs in pods of a simulated Windows node, as an ordinary user would run them. Wine is required; the
//! template is built when it is missing.

#[path = "wine/accounts.rs"]
mod accounts;
#[path = "wine/memory.rs"]
mod memory;
#[path = "wine/sockets.rs"]
mod sockets;
#[allow(dead_code, reason = "shared with tests/lab.rs, which uses the rest")]
mod support;
mod template;
#[path = "wine/tools.rs"]
mod tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cri::v1;
use support::{Node, container, describe, get, play, windows_sandbox};
use test_lab::{LIMIT, until_async};

/// The base image for which Wine's own programs stand.
const NANOSERVER: &str = "mcr.microsoft.com/windows/nanoserver:ltsc2022";

fn main() -> ExitCode {
    play(
        &[
            ("a_command_runs_and_its_whole_exit_code_arrives", |dir| Box::pin(command(dir))),
            ("second_programs_share_the_session", |dir| Box::pin(exec(dir))),
            ("programs_get_a_stop_signal_and_are_killed_in_time", |dir| Box::pin(stop(dir))),
            ("volumes_are_mounted_at_their_windows_paths", |dir| Box::pin(volumes(dir))),
            ("programs_find_the_build_of_their_node", |dir| Box::pin(build(dir))),
            ("start_failures_have_windows_messages", |dir| Box::pin(refusals(dir))),
            ("a_terminal_holds_cmd_open", |dir| Box::pin(terminal(dir))),
            ("cmd_runs_in_the_containers_of_stand_ins", |dir| Box::pin(stand_in(dir))),
            ("programs_run_as_the_requested_account", |dir| Box::pin(accounts::all(dir))),
            ("kernel_settings_cannot_be_changed", |dir| Box::pin(kernel(dir))),
            ("usual_tools_are_present", |dir| Box::pin(tools::all(dir))),
            ("environment_hides_wine", |dir| Box::pin(tools::environment(dir))),
            ("go_opens_sockets_for_datagrams", |dir| Box::pin(sockets::datagrams(dir))),
            ("a_memory_limit_binds_the_sum_of_the_programs", |dir| Box::pin(memory::sum(dir))),
            ("pods_start_at_once_and_outlive_the_runtime", |dir| Box::pin(parallel(dir))),
        ],
        template::build,
    )
}

/// A Windows node over the template, with the base image.
async fn node(dir: &Path, build: u32) -> Node {
    template::share(dir);
    let node = Node::windows(dir, build, true).await;
    let tag = if build == 17763 { "mcr.microsoft.com/windows/nanoserver:1809" } else { NANOSERVER };
    node.pull(tag).await.unwrap();
    node
}

fn log(dir: &Path, pod: &str, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join(format!("host/var/log/pods/{pod}/{name}/0.log"))).unwrap();
    text.lines().map(|line| line.split_once(' ').unwrap().1.trim_end_matches('\r').to_owned()).collect()
}

async fn command(dir: PathBuf) {
    let node = node(&dir, 20348).await;
    let pod = node.run(windows_sandbox("hello")).await;
    let mut request = container("main", NANOSERVER, &["cmd", "/c", "echo hello %GREETING%.&echo bad>&2&cd&ver&exit 300"]);
    request.envs.push(v1::KeyValue { key: "greeting".into(), value: "world".into() });
    request.working_dir = r"C:\app\new".into();
    let id = node.start(&pod, request).await;
    let status = node.wait_exit(&id).await;
    let log = log(&dir, "hello", "main");
    assert_eq!((status.exit_code, status.reason.as_str()), (300, "Error"), "{} {log:?}", describe(&status));
    for line in ["stdout F hello world.", "stderr F bad", r"stdout F C:\app\new", "stdout F Microsoft Windows 10.0.20348"] {
        assert!(log.iter().any(|known| known == line), "{line:?} is missing in {log:?}");
    }
    node.remove(&pod).await;
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Runs a second program; its exit code and output, without carriage returns.
async fn second(node: &Node, id: &str, argv: &[&str]) -> (i32, String) {
    let answer = node.client.exec_sync(id, &words(argv), LIMIT).await.unwrap();
    let text = String::from_utf8_lossy(&answer.stdout).replace('\r', "") + &String::from_utf8_lossy(&answer.stderr).replace('\r', "");
    (answer.exit_code, text)
}

/// Processes of the lab whose command line holds `text`.
fn processes(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        if entry.file_name().to_string_lossy().parse::<u32>().is_ok() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains(text) {
                found.push(line);
            }
        }
    }
    found
}

/// A container that waits for input that never comes, as `stdin: true` keeps cmd.exe.
fn waiting(name: &str) -> v1::ContainerConfig {
    v1::ContainerConfig { stdin: true, ..container(name, NANOSERVER, &["cmd"]) }
}

async fn exec(dir: PathBuf) {
    // Something of the machine's own, mounted below a directory that the container sees.
    let below = Path::new("/usr/local");
    rustix::mount::mount("below", below, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    let node = node(&dir, 20348).await;
    let pod = node.run(windows_sandbox("execs")).await;
    let mut request = waiting("main");
    request.envs.push(v1::KeyValue { key: "GREETING".into(), value: "hello".into() });
    request.working_dir = r"C:\app".into();
    let id = node.start(&pod, request).await;
    let (code, text) = second(&node, &id, &["cmd", "/c", "echo %greeting% %COMPUTERNAME% %USERNAME%&cd&echo made>made.txt&exit 259"]).await;
    assert_eq!((code, text.as_str()), (259, "hello EXECS ContainerAdministrator\nC:\\app\n"));
    // Files and programs of the same session.
    let (code, text) = second(&node, &id, &["cmd", "/c", r"type C:\APP\MADE.TXT"]).await;
    assert_eq!((code, text.as_str()), (0, "made\n"));
    assert_eq!(processes("wineserver").len(), 1, "one session");
    let (code, _) = second(&node, &id, &["cmd", "/c", "exit -1073741819"]).await;
    assert_eq!(code, -1_073_741_819);
    let (_, text) = second(&node, &id, &["cmd", "/c", "dir C:\\&hostname&whoami"]).await;
    assert!(text.contains("windows") && text.contains("bytes free"), "{text}");
    let (_, text) = second(&node, &id, &["curl", "--help"]).await;
    assert!(text.contains("curl"), "{text}");
    let error = node.client.exec_sync(&id, &words(&["no-such-program"]), Duration::ZERO).await.unwrap_err().to_string();
    assert!(error.contains("The system cannot find the file specified") && error.contains("no-such-program"), "{error}");
    // Wine itself says nothing, even where a program asks for a desktop.
    let (_, text) = second(&node, &id, &["nslookup", "localhost"]).await;
    assert!(!text.contains("wine:") && !text.contains("explorer"), "{text}");
    // A round trip into a session that runs.
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let began = Instant::now();
        second(&node, &id, &["cmd", "/c", "exit"]).await;
        fastest = fastest.min(began.elapsed());
    }
    println!("  exec round trip {fastest:?}");
    // Nothing of the machine is in sight.
    for path in [r"Z:\", r"\\?\unix\home", r"\\?\unix\root", r"\\?\unix\usr\bin\made"] {
        let (code, text) = second(&node, &id, &["cmd", "/c", &format!("echo x>{path}&dir {path}")]).await;
        assert_ne!(code, 0, "{path}: {text}");
    }
    second(&node, &id, &["cmd", "/c", r"echo x>\\?\unix\usr\local\made"]).await;
    assert!(!below.join("made").exists(), "a mount below /usr is written from a container");
    // Nor does the machine's next mount reach the container.
    rustix::mount::mount("late", below, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    second(&node, &id, &["cmd", "/c", r"echo x>\\?\unix\usr\local\made"]).await;
    assert!(!below.join("made").exists(), "a later mount below /usr is written from a container");
    // Without its first program, Wine ends before there is one; its own words arrive.
    let (code, text) = second(&node, &id, &["cmd", "/c", r"ren C:\windows\system32\mullion-init.exe gone.exe"]).await;
    assert_eq!(code, 0, "{text}");
    let error = node.client.exec_sync(&id, &words(&["hostname"]), Duration::ZERO).await.unwrap_err().to_string();
    assert!(error.contains("Wine ended before the program began (exit ") && error.contains(", 3 times)"), "{error}");
    assert!(error.contains("mullion-init.exe"), "{error}");
    node.remove(&pod).await;
    until_async("nothing is left", async || processes("wineserver").is_empty() && processes("services.exe").is_empty()).await;
}

async fn kernel(dir: PathBuf) {
    let node = node(&dir, 20348).await;
    let pod = node.run(windows_sandbox("kernel")).await;
    let id = node.start(&pod, waiting("main")).await;
    // The pod is on this network: what it writes would be seen here.
    let setting = Path::new("/proc/sys/net/ipv4/ip_default_ttl");
    let before = std::fs::read_to_string(setting).unwrap();
    let (_, text) = second(&node, &id, &["cmd", "/c", r"echo 61>\\?\unix\proc\sys\net\ipv4\ip_default_ttl"]).await;
    assert_eq!(std::fs::read_to_string(setting).unwrap(), before, "a Windows program changes kernel settings: {text}");
    let (_, mounts) = second(&node, &id, &["cmd", "/c", r"type \\?\unix\proc\self\mountinfo"]).await;
    for path in
        ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"]
    {
        if !Path::new(path).exists() {
            continue; // nor is it in the container
        }
        // Mount point, then options of the mount; the device that hides a file is read-only for all but devices' owners.
        let line = mounts.lines().rev().find(|line| line.split(' ').nth(4) == Some(path));
        let line = line.unwrap_or_else(|| panic!("{path} is neither hidden nor protected:\n{mounts}"));
        let is_readonly = line.split(' ').nth(5).is_some_and(|options| options.split(',').any(|option| option == "ro"));
        assert!(is_readonly || line.split(' ').nth(3) == Some("/null"), "{line}");
    }
    node.remove(&pod).await;
}

async fn stop(dir: PathBuf) {
    let node = node(&dir, 20348).await;
    let pod = node.run(windows_sandbox("stops")).await;
    let id = node.start(&pod, waiting("polite")).await;
    node.client.stop_container(&id, LIMIT).await.unwrap();
    assert_eq!(node.status(&id).await.exit_code, 0, "a shutdown event ends cmd: nothing had to kill it");
    let id = node.start(&pod, waiting("killed")).await;
    node.client.stop_container(&id, Duration::ZERO).await.unwrap();
    assert_eq!(node.status(&id).await.exit_code, 137);
    until_async("nothing is left", async || processes("wineserver").is_empty() && processes("mullion-init.exe").is_empty()).await;
    node.remove(&pod).await;
}

async fn volumes(dir: PathBuf) {
    let node = node(&dir, 20348).await;
    for (path, text) in [("host/data/x.txt", "from C"), ("d/y.txt", "from D"), ("host/hosts", "10.0.0.7 elsewhere")] {
        std::fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
        std::fs::write(dir.join(path), format!("{text}\r\n")).unwrap();
    }
    let pod = node.run(windows_sandbox("volumes")).await;
    let mut request = waiting("main");
    for (host_path, container_path, readonly) in [
        (r"C:\data", r"C:\Data\In", false),
        (r"C:\data", "/fixed", true),
        (r"D:\", r"D:\", false),
        (r"C:\hosts", r"C:\Windows\System32\Drivers\etc\hosts", false),
    ] {
        request.mounts.push(v1::Mount { container_path: container_path.into(), host_path: host_path.into(), readonly, ..Default::default() });
    }
    let id = node.start(&pod, request).await;
    let script = r"type c:\data\in\X.TXT&type C:\fixed\x.txt&type D:\y.txt&echo out>D:\out.txt&echo no>C:\fixed\no.txt&type %windir%\system32\drivers\etc\hosts&dir E:\";
    let (code, text) = second(&node, &id, &["cmd", "/c", script]).await;
    assert!(code != 0 && text.starts_with("from C\nfrom C\nfrom D\n") && text.contains("10.0.0.7 elsewhere"), "{code} {text}");
    assert!(text.contains("Access is denied.\n"), "{text}");
    assert!(dir.join("d/out.txt").exists() && !dir.join("host/data/no.txt").exists());
    // Case does not make a second directory.
    let (_, text) = second(&node, &id, &["cmd", "/c", r"dir /b C:\"]).await;
    assert_eq!(text.to_lowercase().matches("windows").count(), 1, "{text}");
    // The machine has no E:, and says so.
    let mut request = waiting("other");
    request.mounts.push(v1::Mount { container_path: r"C:\e".into(), host_path: r"E:\x".into(), ..Default::default() });
    let id = node.create(&pod, request).await.unwrap();
    let error = node.client.start_container(v1::StartContainerRequest { container_id: id }).await.unwrap_err().to_string();
    assert!(error.contains("E:"), "{error}");
    node.remove(&pod).await;
}

async fn build(dir: PathBuf) {
    let node = node(&dir, 17763).await;
    let pod = node.run(windows_sandbox("old")).await;
    let image = "mcr.microsoft.com/windows/nanoserver:1809";
    let id = node.start(&pod, v1::ContainerConfig { stdin: true, ..container("main", image, &["cmd"]) }).await;
    assert!(second(&node, &id, &["cmd", "/c", "ver"]).await.1.contains("Microsoft Windows 10.0.17763"));
    let key = r"HKLM\Software\Microsoft\Windows NT\CurrentVersion";
    let (_, text) = second(&node, &id, &["reg", "query", key, "/v", "ProductName"]).await;
    assert!(text.contains("Windows Server 2019"), "{text}");
    node.remove(&pod).await;
}

async fn refusals(dir: PathBuf) {
    let node = node(&dir, 20348).await;
    let pod = node.run(windows_sandbox("refused")).await;
    let id = node.create(&pod, container("main", NANOSERVER, &[r"C:\none\app.exe", "-x"])).await.unwrap();
    let error = node.client.start_container(v1::StartContainerRequest { container_id: id.clone() }).await.unwrap_err().to_string();
    assert!(error.contains("hcs::System::CreateProcess") && error.contains("The system cannot find the"), "{error}");
    let status = node.status(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"), "{}", describe(&status));
    // What cannot run says why, whoever brings it.
    std::fs::create_dir_all(dir.join("host/app")).unwrap();
    std::fs::write(dir.join("host/app/w3wp.exe"), "MZ").unwrap();
    std::fs::write(dir.join("host/app/linux.exe"), b"\x7fELF").unwrap();
    for (program, reason) in [(r"C:\app\w3wp.exe", "IIS"), (r"C:\app\linux.exe", "not a Windows executable")] {
        let mut request = container(if reason.contains("IIS") { "iis" } else { "elf" }, NANOSERVER, &[program]);
        request.mounts.push(v1::Mount { container_path: r"C:\app".into(), host_path: r"C:\app".into(), ..Default::default() });
        let error = match node.create(&pod, request).await {
            Ok(id) => node.client.start_container(v1::StartContainerRequest { container_id: id }).await.unwrap_err(),
            // What the name alone shows is reported sooner.
            Err(error) => error,
        };
        assert!(error.to_string().contains(reason), "{error}");
    }
    node.remove(&pod).await;
}

async fn terminal(dir: PathBuf) {
    let node = node(&dir, 20348).await;
    let pod = node.run(windows_sandbox("tty")).await;
    let id = node.start(&pod, v1::ContainerConfig { tty: true, ..waiting("main") }).await;
    let (code, text) = second(&node, &id, &["cmd", "/c", "echo beside"]).await;
    assert_eq!((code, text.as_str()), (0, "beside\n"));
    until_async("cmd greets", async || log(&dir, "tty", "main").join("\n").contains("Microsoft Windows")).await;
    assert_eq!(node.status(&id).await.state, v1::ContainerState::ContainerRunning as i32);
    node.remove(&pod).await;
}

async fn stand_in(dir: PathBuf) {
    let node = node(&dir, 20348).await;
    let iis = "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022";
    node.pull(iis).await.unwrap();
    let pod = node.run(windows_sandbox("iis")).await;
    let id = node.start(&pod, container("web", iis, &[])).await;
    until_async("it answers", async || support::http("GET", "/", "").is_some()).await;
    assert!(processes("wineserver").is_empty(), "Wine waits for somebody to want it");
    let (code, text) = second(&node, &id, &["cmd", "/c", r"echo mine>C:\inetpub\wwwroot\mine.txt&ver"]).await;
    assert!(code == 0 && text.contains("10.0.20348"), "{code} {text}");
    assert!(get("/mine.txt").contains("mine"), "the same drive C");
    until_async("Wine ends with its last program", async || processes("wineserver").is_empty()).await;
    // What it computes is the container's.
    let nanos = async || {
        let stats = node.client.container_stats(v1::ContainerStatsRequest { container_id: id.clone() }).await.unwrap();
        stats.cpu.unwrap().usage_core_nano_seconds.unwrap().value
    };
    let before = nanos().await;
    let endless = words(&["cmd", "/c", "for /l %i in (1,0,2) do @rem"]);
    tokio::select! {
        answer = node.client.exec_sync(&id, &endless, LIMIT) => panic!("it ended: {answer:?}"),
        () = async { until_async("a second of computing", async || nanos().await >= before + 1_000_000_000).await } => {}
    }
    node.remove(&pod).await;
}

async fn parallel(dir: PathBuf) {
    let mut node = node(&dir, 20348).await;
    let mut running = Vec::new();
    for number in 0..3 {
        let pod = node.run(windows_sandbox(&format!("pod{number}"))).await;
        running.push((node.create(&pod, waiting("main")).await.unwrap(), pod));
    }
    let starts = running.iter().map(|(id, _)| node.client.start_container(v1::StartContainerRequest { container_id: id.clone() }));
    let began = Instant::now();
    for started in futures::future::join_all(starts).await {
        started.unwrap();
    }
    println!("  three programs at once: {:?}", began.elapsed());
    // Beside each program: Wine's server, its services, the process of its drivers, and what holds the container.
    let parts = || ["wineserver", "services.exe", "winedevice.exe", "mullion-init.exe"].map(proportional);
    let started = async || {
        let parts = parts();
        if parts.iter().all(|part| part.len() == 3) { Ok(()) } else { Err(format!("{parts:?}")) }
    };
    until_async("Wine runs beside each program", started).await;
    // Time in which nothing else must start.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let parts = parts();
    assert!(parts.iter().all(|part| part.len() == 3) && processes("explorer").is_empty() && processes("conhost").is_empty(), "{parts:?}");
    let each = parts.iter().flatten().sum::<u64>() / 3;
    println!("  Wine beside each program: {each} KiB");
    assert!(each < 14_000, "{parts:?}");
    node.stop().await;
    node.restart().await;
    for (id, pod) in running {
        assert_eq!(second(&node, &id, &["cmd", "/c", "exit 5"]).await.0, 5);
        node.remove(&pod).await;
    }
    until_async("nothing is left", async || processes("wineserver").is_empty()).await;
}

/// Proportional memory, in KiB, of processes whose command line holds `text`.
fn proportional(text: &str) -> Vec<u64> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if let (true, Ok(rollup)) = (line.contains(text), std::fs::read_to_string(entry.path().join("smaps_rollup"))) {
            found.extend(rollup.lines().filter_map(|line| line.strip_prefix("Pss:")?.trim().split(' ').next()?.parse::<u64>().ok()));
        }
    }
    found
}
