//! Environment of a program: variables of the system, then of the image, then of the pod.

use wine::Account;

/// Name and value.
pub type Variable = (String, String);

const LINUX_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment of a Linux program.
pub(crate) fn linux(hostname: &str, image: &[String], pod: &[Variable]) -> Vec<Variable> {
    merge(pairs(&[("PATH", LINUX_PATH), ("HOSTNAME", hostname)]), |one, other| one == other, image, pod)
}

/// The environment of a Windows program: names have no case.
pub(crate) fn windows(hostname: &str, account: Account, image: &[String], pod: &[Variable]) -> Vec<Variable> {
    let mut env = merge(server_core(hostname, account), str::eq_ignore_ascii_case, image, pod);
    // An environment block is sorted by upper-cased name (CreateProcess).
    env.sort_by_key(|(name, _)| name.to_uppercase());
    env
}

fn merge(mut env: Vec<Variable>, is_same: fn(&str, &str) -> bool, image: &[String], pod: &[Variable]) -> Vec<Variable> {
    let image = image.iter().map(|entry| {
        // Windows keeps the current directory of each drive in variables like `=C:`.
        let at = entry.char_indices().skip(1).find(|(_, c)| *c == '=').map_or(entry.len(), |(at, _)| at);
        (entry[..at].to_owned(), entry.get(at + 1..).unwrap_or("").to_owned())
    });
    for (name, value) in image.chain(pod.iter().cloned()) {
        match env.iter_mut().find(|(known, _)| is_same(known, &name)) {
            // The name keeps the spelling under which it was first set, as with SetEnvironmentVariable.
            Some((_, known)) => *known = value,
            None => env.push((name, value)),
        }
    }
    env
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<Variable> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// What a process in a Server Core container finds.
fn server_core(hostname: &str, account: Account) -> Vec<Variable> {
    let upper = hostname.to_uppercase();
    let (domain, user) = account.names(&upper);
    let profile = format!(r"C:\{}", capitalized(account.profile()));
    let temp = if account == Account::System { r"C:\Windows\TEMP".to_owned() } else { format!(r"{profile}\AppData\Local\Temp") };
    let mut env = pairs(&[
        ("ALLUSERSPROFILE", r"C:\ProgramData"),
        ("APPDATA", &format!(r"{profile}\AppData\Roaming")),
        ("CommonProgramFiles", r"C:\Program Files\Common Files"),
        ("CommonProgramFiles(x86)", r"C:\Program Files (x86)\Common Files"),
        ("CommonProgramW6432", r"C:\Program Files\Common Files"),
        ("COMPUTERNAME", &upper),
        ("ComSpec", r"C:\Windows\system32\cmd.exe"),
        ("LOCALAPPDATA", &format!(r"{profile}\AppData\Local")),
        ("OS", "Windows_NT"),
        ("Path", r"C:\Windows\system32;C:\Windows;C:\Windows\System32\Wbem;C:\Windows\System32\WindowsPowerShell\v1.0\"),
        ("PATHEXT", ".COM;.EXE;.BAT;.CMD;.VBS;.VBE;.JS;.JSE;.WSF;.WSH;.MSC"),
        ("PROCESSOR_ARCHITECTURE", "AMD64"),
        ("ProgramData", r"C:\ProgramData"),
        ("ProgramFiles", r"C:\Program Files"),
        ("ProgramFiles(x86)", r"C:\Program Files (x86)"),
        ("ProgramW6432", r"C:\Program Files"),
        ("PUBLIC", r"C:\Users\Public"),
        ("SystemDrive", "C:"),
        ("SystemRoot", r"C:\Windows"),
        ("TEMP", &temp),
        ("TMP", &temp),
        ("USERDOMAIN", domain),
        ("USERNAME", &user),
        ("USERPROFILE", &profile),
        ("windir", r"C:\Windows"),
    ]);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    env.push(("NUMBER_OF_PROCESSORS".to_owned(), processors.to_string()));
    env
}

/// Windows writes its own directories so.
fn capitalized(path: &str) -> String {
    path.replacen("users", "Users", 1).replacen("windows", "Windows", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(env: &'a [Variable], name: &str) -> Vec<&'a str> {
        env.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str()).collect()
    }

    #[test]
    fn windows_names_have_no_case() {
        let pod = pairs(&[("PATH", r"C:\mine"), ("b", "2"), ("HOW_SPECIAL", "very")]);
        let env = windows("web-1", Account::User, &["path=C:\\image".to_owned(), "B=1".to_owned()], &pod);
        assert_eq!(value(&env, "Path"), [r"C:\mine"]);
        assert!(env.contains(&("Path".to_owned(), r"C:\mine".to_owned())), "the first spelling stays");
        assert_eq!(value(&env, "B"), ["2"]);
        assert_eq!(value(&env, "COMPUTERNAME"), ["WEB-1"]);
        assert_eq!(value(&env, "USERNAME"), ["ContainerUser"]);
        assert_eq!(value(&env, "USERPROFILE"), [r"C:\Users\ContainerUser"]);
        assert_eq!(value(&env, "TEMP"), [r"C:\Users\ContainerUser\AppData\Local\Temp"]);
        let names: Vec<String> = env.iter().map(|(name, _)| name.to_uppercase()).collect();
        assert!(names.is_sorted());
    }

    #[test]
    fn linux_names_have_case() {
        let env = linux("web", &["a=1".to_owned(), "PATH=/x".to_owned(), "E=x=y".to_owned()], &pairs(&[("A", "2")]));
        assert_eq!(value(&env, "a"), ["1", "2"]);
        assert_eq!(value(&env, "PATH"), ["/x"]);
        assert_eq!(value(&env, "E"), ["x=y"]);
        assert_eq!(value(&env, "HOSTNAME"), ["web"]);
    }
}
