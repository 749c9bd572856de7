use super::*;

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: None
  users: [system:kube-proxy]
  verbs: [watch]
  resources: [{group: '', resources: [endpoints, services]}]
- level: None
  userGroups: [system:authenticated]
  nonResourceURLs: [/api*, /version]
- level: Request
  resources: [{group: '', resources: [configmaps], resourceNames: [controller-leader]}]
  namespaces: [kube-system]
- level: Metadata
  resources: [{group: '', resources: [secrets, pods/*, '*/scale']}]
  omitManagedFields: false
- level: RequestResponse
  resources: [{group: '*', resources: ['*']}]
  namespaces: ['']
  omitStages: [ResponseStarted]
- level: Request
  resources: [{group: apps}]
";

fn policy() -> Policy {
    let (policy, unknown) = Policy::read(POLICY).unwrap();
    assert!(unknown.is_empty(), "{unknown:?}");
    policy
}

/// `USER VERB GROUP:RESOURCE[/SUBRESOURCE] NAMESPACE NAME`, or `USER VERB PATH`.
fn level(request: &str) -> Level {
    let words: Vec<&str> = request.split(' ').map(|word| if word == "-" { "" } else { word }).collect();
    let groups = ["system:authenticated".to_owned()];
    let user = if words[0].is_empty() { None } else { Some((words[0], groups.as_slice())) };
    let mut asked =
        Attributes { user, verb: words[1], is_resource: false, group: "", resource: "", subresource: "", namespace: "", name: "", path: words[2] };
    if let Some((group, resource)) = words[2].split_once(':') {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        asked = Attributes { is_resource: true, group, resource, subresource, namespace: words[3], name: words[4], path: "/", ..asked };
    }
    policy().decide(&asked).level
}

#[test]
fn the_first_rule_that_matches_decides() {
    let cases = [
        ("system:kube-proxy watch :services a -", Level::None),
        ("jane watch :services a -", Level::None),
        ("jane watch :services - -", Level::RequestResponse),
        ("jane get /apis/apps", Level::None),
        ("jane get /version", Level::None),
        ("- get /version", Level::None),
        ("jane update :configmaps kube-system controller-leader", Level::Request),
        ("jane update :configmaps kube-system other", Level::None),
        ("jane get :secrets a s", Level::Metadata),
        ("jane get :pods a p", Level::Metadata),
        ("jane get :pods/log a p", Level::Metadata),
        ("jane patch :replicationcontrollers/scale a r", Level::Metadata),
        ("jane patch apps:deployments/scale a r", Level::Request),
        ("jane get :nodes - n", Level::RequestResponse),
        ("jane get batch:jobs a j", Level::None),
    ];
    for (request, expected) in cases {
        assert_eq!(level(request), expected, "{request}");
    }
}

#[test]
fn stages_add_up_and_managed_fields_are_overridden() {
    let of = |resource: &'static str, namespace: &'static str| {
        let asked = Attributes { user: None, verb: "get", is_resource: true, group: "", resource, subresource: "", namespace, name: "", path: "/" };
        policy().decide(&asked)
    };
    let nodes = of("nodes", "");
    assert_eq!((nodes.omit_stages.as_slice(), nodes.omit_managed_fields), ([Stage::RequestReceived, Stage::ResponseStarted].as_slice(), true));
    let secrets = of("secrets", "a");
    assert_eq!((secrets.omit_stages.as_slice(), secrets.omit_managed_fields), ([Stage::RequestReceived].as_slice(), false));
}

fn refused(rules: &str) -> String {
    Policy::read(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap_err().to_string()
}

#[test]
fn what_is_wrong_with_a_policy_is_said() {
    assert!(refused("").ends_with("it has no rules; add one, such as {level: Metadata}"));
    assert!(refused("rules: [{}]").ends_with("rules[0].level: Required value"));
    let level = "rules[0].level: Unsupported value: \"All\": supported values: \"None\", \"Metadata\", \"Request\", \"RequestResponse\"";
    assert!(refused("rules: [{level: All}]").ends_with(level));
    assert!(
        refused("omitStages: [Later]\nrules: [{level: None}]")
            .contains("omitStages[0]: Invalid value: \"Later\": allowed stages are RequestReceived,")
    );
    let both = refused("rules: [{level: None, nonResourceURLs: [x*y], namespaces: [a]}]");
    for part in [
        "rules[0].nonResourceURLs[0]: Invalid value: \"x*y\": non-resource URL rules must begin with a '/' character",
        "non-resource URL wildcards '*' must be the final character of the rule",
        "rules[0].nonResourceURLs: Invalid value: [\"x*y\"]: rules cannot apply to both regular resources and non-resource URLs",
    ] {
        assert!(both.contains(part), "{both}");
    }
    let names = refused("rules: [{level: None, resources: [{group: apps/v1, resourceNames: [a]}]}]");
    assert!(names.contains("rules[0].resources.group: Invalid value: \"apps/v1\": a lowercase RFC 1123 subdomain"), "{names}");
    assert!(names.contains("rules[0].resources.resourceNames: Invalid value: [\"a\"]: using resourceNames requires at least one resource"));
    assert!(matches!(Policy::read("apiVersion: v1\nkind: Policy\nrules: []"), Err(PolicyError::Foreign { .. })));
    assert!(matches!(Policy::read("rules: {"), Err(PolicyError::Malformed(_))));
    assert!(matches!(Policy::read(&" ".repeat(1 << 21)), Err(PolicyError::TooLarge(_))));
}

#[test]
fn unknown_members_are_named() {
    let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nmore: 1\nrules: [{level: None, user: [a], resources: [{groups: []}]}]";
    assert_eq!(Policy::read(text).unwrap().1, ["more", "rules[0].user", "rules[0].resources[0].groups"]);
}
