//! What depends on the operating system: `spec.os`, Windows options, HostProcess pods (pkg/apis/core/validation: validateOS,
//! validateWindows, validateLinux, validateWindowsHostProcessPod).

use super::field::{Errors, Field};

/// Every container of a pod, in upstream's order of visit.
fn containers<'a>(spec: &Field<'a>) -> Vec<Field<'a>> {
    ["initContainers", "containers", "ephemeralContainers"].iter().flat_map(|list| spec.get(list).items()).collect()
}

/// `spec.os`, and the fields that the named system does not have.
pub fn operating_system(spec: &Field, errors: &mut Errors) {
    let os = spec.get("os");
    if !os.is_set() {
        return;
    }
    match os.get("name").text() {
        "" => errors.required(&os.get("name"), "cannot be empty"),
        "linux" => no_windows_options(spec, errors),
        "windows" => no_linux_fields(spec, errors),
        _ => errors.not_supported(&Field { path: os.path.clone(), value: os.get("name").value }, &["linux", "windows"]),
    }
}

fn no_windows_options(spec: &Field, errors: &mut Errors) {
    let mut contexts = vec![spec.get("securityContext")];
    contexts.extend(containers(spec).iter().map(|container| container.get("securityContext")));
    for options in contexts.iter().map(|context| context.get("windowsOptions")) {
        if options.is_set() {
            errors.forbidden(&options, "windows options cannot be set for a linux pod");
        }
    }
}

fn no_linux_fields(spec: &Field, errors: &mut Errors) {
    const WHY: &str = "cannot be set for a windows pod";
    let mut refuse = |field: Field, set: bool| {
        if set {
            errors.forbidden(&field, WHY);
        }
    };
    let context = spec.get("securityContext");
    for field in ["appArmorProfile", "seLinuxOptions"].map(|member| context.get(member)) {
        let set = field.is_set();
        refuse(field, set);
    }
    let host_users = spec.get("hostUsers");
    let set = host_users.is_set();
    refuse(host_users, set);
    for field in ["hostPID", "hostIPC"].map(|member| spec.get(member)) {
        let set = field.is_true();
        refuse(field, set);
    }
    for field in ["seccompProfile", "fsGroup", "fsGroupChangePolicy"].map(|member| context.get(member)) {
        let set = field.is_set();
        refuse(field, set);
    }
    let sysctls = context.get("sysctls");
    let set = !sysctls.is_empty();
    refuse(sysctls, set);
    let share = spec.get("shareProcessNamespace");
    let set = share.is_set();
    refuse(share, set);
    let resources = spec.get("resources");
    let set = resources.is_set();
    refuse(resources, set);
    const OTHERS: [&str; 5] = ["runAsUser", "runAsGroup", "supplementalGroups", "supplementalGroupsPolicy", "seLinuxChangePolicy"];
    for field in OTHERS.map(|member| context.get(member)) {
        let set = field.is_set();
        refuse(field, set);
    }
    const OF_CONTAINERS: [&str; 10] = [
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "capabilities",
        "readOnlyRootFilesystem",
        "privileged",
        "allowPrivilegeEscalation",
        "procMount",
        "runAsUser",
        "runAsGroup",
    ];
    for container in containers(spec) {
        let context = container.get("securityContext");
        for field in OF_CONTAINERS.map(|member| context.get(member)) {
            let set = field.is_set();
            refuse(field, set);
        }
    }
}

/// `windowsOptions` of a pod or container.
pub fn options(field: &Field, errors: &mut Errors) {
    const SPEC_LIMIT: usize = 64 * 1024;
    let spec = field.get("gmsaCredentialSpec");
    if spec.is_set() {
        match spec.text().len() {
            0 => errors.invalid(&spec, "gmsaCredentialSpec cannot be an empty string"),
            length if length > SPEC_LIMIT => errors.invalid(&spec, "gmsaCredentialSpec size must be under 64 KiB"),
            _ => {}
        }
    }
    let name = field.get("gmsaCredentialSpecName");
    if name.is_set() {
        errors.invalid_each(&name, super::names::dns_subdomain(name.text()));
    }
    let user = field.get("runAsUserName");
    if user.is_set() {
        user_name(&user, errors);
    }
}

/// `[DOMAIN\]USER`, as upstream's `validateWindowsSecurityContextOptions` limits them.
fn user_name(field: &Field, errors: &mut Errors) {
    let text = field.text();
    if text.is_empty() {
        return errors.invalid(field, "runAsUserName cannot be an empty string");
    }
    if text.chars().any(|character| character.is_ascii_control()) {
        return errors.invalid(field, "runAsUserName cannot contain control characters");
    }
    let parts: Vec<&str> = text.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        [user] => (None, user),
        [domain, user] => (Some(*domain), user),
        _ => return errors.invalid(field, "runAsUserName cannot contain more than one backslash"),
    };
    if domain.is_some_and(|domain| domain.len() >= 256) {
        errors.invalid(field, "runAsUserName's Domain length must be under 256 characters");
    }
    if domain.is_some_and(|domain| !is_net_bios(domain) && !is_dns(domain)) {
        errors.invalid(field, "runAsUserName's Domain doesn't match the NetBios nor the DNS format");
    }
    if user.is_empty() {
        errors.invalid(field, "runAsUserName's User cannot be empty");
    } else if user.len() > 104 {
        errors.invalid(field, "runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|character| character == '.' || character == ' ') {
        errors.invalid(field, "runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        errors.invalid(field, "runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
}

/// `^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`
fn is_net_bios(domain: &str) -> bool {
    let fits = |character: char| !r#"\/:*?"<>|"#.contains(character);
    (1..=15).contains(&domain.chars().count()) && !domain.starts_with('.') && domain.chars().all(fits)
}

/// Labels of letters, digits and dashes, which neither begin nor end with a dash, between dots.
fn is_dns(domain: &str) -> bool {
    domain.split('.').all(|label| {
        let plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        (1..=63).contains(&label.len()) && plain && !label.starts_with('-') && !label.ends_with('-')
    })
}

fn flag<'a>(holder: &Field<'a>) -> Field<'a> {
    holder.get("securityContext").get("windowsOptions").get("hostProcess")
}

/// HostProcess containers come all or none, on the host's network.
pub fn host_process(spec: &Field, errors: &mut Errors) {
    let of_pod = flag(spec);
    let (mut total, mut hosted) = (0, 0);
    for container in containers(spec) {
        total += 1;
        let own = flag(&container);
        if own.is_set() && of_pod.is_set() && own.value != of_pod.value {
            errors.invalid(&own, format!("pod hostProcess value must be identical if both are specified, was {}", of_pod.value));
        }
        let is_host = if own.is_set() { own.is_true() } else { of_pod.is_true() };
        hosted += usize::from(is_host);
    }
    if hosted == 0 {
        return;
    }
    if hosted != total {
        errors.invalid_value(spec, "", "If pod contains any hostProcess containers then all containers must be HostProcess containers");
    }
    let network = spec.get("hostNetwork");
    if !network.is_true() {
        errors.invalid_value(&network, false, "must be true if pod contains any hostProcess containers");
    }
}
