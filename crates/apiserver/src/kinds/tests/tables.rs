//! Each kind's columns and cells, as kubectl shows them.

use crate::kinds::{builtin, by_resource};
use crate::table::render;
use crate::table::text::human_duration;
use serde_json::{Value, json};

const NOW: &str = "2026-01-02T00:00:00Z";

fn cells(group: &str, plural: &str, mut object: Value) -> Vec<String> {
    object["metadata"]["name"] = "x".into();
    object["metadata"]["creationTimestamp"] = "2026-01-01T23:57:30Z".into();
    let info = by_resource(group, "v1", plural).unwrap();
    let table = render(info, &info.printer, &[object], NOW.parse().unwrap());
    let row = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(row.len(), table["columnDefinitions"].as_array().unwrap().len());
    row.iter().map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_string)).collect()
}

#[test]
fn every_kind_has_its_columns() {
    let mut lines = Vec::new();
    for info in builtin().all().filter(|kind| kind.is_stored()) {
        let table = render(info, &info.printer, &[], NOW.parse().unwrap());
        let columns: Vec<String> = table["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|column| format!("{}{}", column["name"].as_str().unwrap(), if column["priority"] == 1 { "*" } else { "" }))
            .collect();
        lines.push(format!("{}: {}", info.plural, columns.join(", ")));
    }
    let expected = "\
configmaps: Name, Data, Age
endpoints: Name, Endpoints, Age
events: Last Seen, Type, Reason, Object, Subobject*, Source*, Message, First Seen*, Count*, Name*
limitranges: Name, Created At
namespaces: Name, Status, Age
nodes: Name, Status, Roles, Age, Version, Internal-IP*, External-IP*, OS-Image*, Kernel-Version*, Container-Runtime*
persistentvolumeclaims: Name, Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age, VolumeMode*
persistentvolumes: Name, Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, VolumeAttributesClass, Reason, Age, VolumeMode*
pods: Name, Ready, Status, Restarts, Age, IP*, Node*, Nominated Node*, Readiness Gates*
podtemplates: Name, Containers, Images, Pod Labels
replicationcontrollers: Name, Desired, Current, Ready, Age, Containers*, Images*, Selector*
resourcequotas: Name, Request, Limit, Age
secrets: Name, Type, Data, Age
serviceaccounts: Name, Secrets, Age
services: Name, Type, Cluster-IP, External-IP, Port(s), Age, Selector*
mutatingadmissionpolicies: Name, Mutations, ParamKind, Age
mutatingadmissionpolicybindings: Name, PolicyName, ParamRef, Age
mutatingwebhookconfigurations: Name, Webhooks, Age
validatingadmissionpolicies: Name, Validations, ParamKind, Age
validatingadmissionpolicybindings: Name, PolicyName, ParamRef, Age
validatingwebhookconfigurations: Name, Webhooks, Age
customresourcedefinitions: Name, Created At
controllerrevisions: Name, Controller, Revision, Age
daemonsets: Name, Desired, Current, Ready, Up-to-date, Available, Node Selector, Age, Containers*, Images*, Selector*
deployments: Name, Ready, Up-to-date, Available, Age, Containers*, Images*, Selector*
replicasets: Name, Desired, Current, Ready, Age, Containers*, Images*, Selector*
statefulsets: Name, Ready, Age, Containers*, Images*
horizontalpodautoscalers: Name, Reference, Targets, MinPods, MaxPods, Replicas, Age
horizontalpodautoscalers: Name, Reference, Targets, MinPods, MaxPods, Replicas, Age
cronjobs: Name, Schedule, Timezone, Suspend, Active, Last Schedule, Age, Containers*, Images*, Selector*
jobs: Name, Status, Completions, Duration, Age, Containers*, Images*, Selector*
certificatesigningrequests: Name, Age, SignerName, Requestor, RequestedDuration, Condition
clustertrustbundles: Name, SignerName
leases: Name, Holder, Age
endpointslices: Name, AddressType, Ports, Endpoints, Age
events: Last Seen, Type, Reason, Object, Subobject*, Source*, Message, First Seen*, Count*, Name*
ingressclasses: Name, Controller, Parameters, Age
ingresses: Name, Class, Hosts, Address, Ports, Age
ipaddresses: Name, ParentRef
networkpolicies: Name, Pod-Selector, Age
servicecidrs: Name, CIDRs, Age
runtimeclasses: Name, Handler, Age
poddisruptionbudgets: Name, Min Available, Max Unavailable, Allowed Disruptions, Age
clusterrolebindings: Name, Role, Age, Users*, Groups*, ServiceAccounts*
clusterroles: Name, Created At
rolebindings: Name, Role, Age, Users*, Groups*, ServiceAccounts*
roles: Name, Created At
priorityclasses: Name, Value, Global-Default, Age, PreemptionPolicy
csidrivers: Name, AttachRequired, PodInfoOnMount, StorageCapacity, TokenRequests, RequiresRepublish, Modes, Age
csinodes: Name, Drivers, Age
csistoragecapacities: Name, StorageClassName, Capacity
storageclasses: Name, Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age
volumeattachments: Name, Attacher, PV, Node, Attached, Age
volumeattributesclasses: Name, DriverName, Age";
    assert_eq!(lines.join("\n"), expected);
}

#[test]
fn durations_are_human() {
    let (minute, hour, day) = (60, 3600, 86400);
    for (seconds, text) in [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (2 * minute, "2m"),
        (2 * minute + 30, "2m30s"),
        (10 * minute + 30, "10m"),
        (179 * minute, "179m"),
        (3 * hour, "3h"),
        (3 * hour + 5 * minute, "3h5m"),
        (8 * hour + 5 * minute, "8h"),
        (47 * hour, "47h"),
        (2 * day, "2d"),
        (2 * day + 3 * hour, "2d3h"),
        (8 * day + 3 * hour, "8d"),
        (729 * day, "729d"),
        (730 * day, "2y"),
        (800 * day, "2y70d"),
        (3000 * day, "8y"),
    ] {
        assert_eq!(human_duration(seconds), text);
    }
}

fn pod(status: Value) -> Vec<String> {
    let spec = json!({"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]});
    let mut row = cells("", "pods", json!({"spec": spec, "status": status}));
    row.truncate(4);
    row
}

#[test]
fn pod_status_sums_up_the_containers() {
    let running = json!({"ready": true, "restartCount": 0, "state": {"running": {}}});
    let crash = json!({"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"finishedAt": "2026-01-01T23:59:00Z"}}});
    let ended = |terminated: Value| json!({"restartCount": 0, "state": {"terminated": terminated}});
    let cases = [
        (json!({"phase": "Pending"}), ["0/3", "Pending", "0"]),
        (json!({"phase": "Running", "containerStatuses": [running, running]}), ["2/3", "Running", "0"]),
        (json!({"phase": "Running", "containerStatuses": [running, crash]}), ["1/3", "CrashLoopBackOff", "3 (60s ago)"]),
        (json!({"phase": "Failed", "reason": "Evicted"}), ["0/3", "Evicted", "0"]),
        (json!({"phase": "Failed", "containerStatuses": [ended(json!({"exitCode": 3}))]}), ["0/3", "ExitCode:3", "0"]),
        (json!({"phase": "Failed", "containerStatuses": [ended(json!({"exitCode": 137, "signal": 9}))]}), ["0/3", "Signal:9", "0"]),
        (json!({"phase": "Succeeded", "containerStatuses": [ended(json!({"exitCode": 0, "reason": "Completed"}))]}), ["0/3", "Completed", "0"]),
        (json!({"phase": "Running", "containerStatuses": [ended(json!({"exitCode": 0, "reason": "Completed"})), running]}), ["1/3", "NotReady", "0"]),
        (
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [ended(json!({"exitCode": 0, "reason": "Completed"})), running]}),
            ["1/3", "Running", "0"],
        ),
        (json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}), ["0/3", "Init:0/2", "0"]),
        (
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 2, "state": {"waiting": {"reason": "ErrImagePull"}}}]}),
            ["0/3", "Init:ErrImagePull", "2"],
        ),
        (
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}),
            ["0/3", "Init:Error", "0"],
        ),
        (
            json!({"phase": "Running", "containerStatuses": [running, running], "initContainerStatuses": [
                {"name": "i", "restartCount": 1, "state": {"terminated": {"exitCode": 0}}},
                {"name": "s", "started": true, "ready": true, "restartCount": 4, "state": {"running": {}}},
            ]}),
            ["3/3", "Running", "4"],
        ),
        (
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}),
            ["0/3", "SchedulingGated", "0"],
        ),
    ];
    for (status, expected) in cases {
        assert_eq!(pod(status.clone())[1..], expected, "{status}");
    }
}

#[test]
fn pods_on_their_way_out_say_so() {
    let object = |phase: &str, reason: &str| json!({"metadata": {"deletionTimestamp": NOW}, "spec": {"containers": [{}]}, "status": {"phase": phase, "reason": reason}});
    assert_eq!(cells("", "pods", object("Running", ""))[2], "Terminating");
    assert_eq!(cells("", "pods", object("Running", "NodeLost"))[2], "Unknown");
    assert_eq!(cells("", "pods", object("Succeeded", ""))[2], "Succeeded");
}

#[test]
fn wide_pod_columns_and_row_conditions() {
    let object = json!({
        "spec": {"containers": [{}], "nodeName": "win01", "readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}]},
        "status": {"phase": "Succeeded", "podIP": "192.168.1.5", "conditions": [{"type": "a", "status": "True"}]},
    });
    assert_eq!(cells("", "pods", object.clone())[4..], ["2m30s", "192.168.1.5", "win01", "<none>", "1/2"]);
    let pods = by_resource("", "v1", "pods").unwrap();
    let table = render(pods, &pods.printer, &[object], NOW.parse().unwrap());
    assert_eq!(table["rows"][0]["conditions"][0]["reason"], "Succeeded");
    assert_eq!(cells("", "pods", json!({"spec": {}, "status": {}}))[5..], ["<none>", "<none>", "<none>", "<none>"]);
}

#[test]
fn services_show_addresses_and_ports() {
    let object = json!({"spec": {"type": "NodePort", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "selector": {"b": "2", "a": "1"},
        "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}});
    assert_eq!(cells("", "services", object), ["x", "NodePort", "10.96.0.9", "<none>", "80:30080/TCP,53/UDP", "2m30s", "a=1,b=2"]);
    let external = json!({"spec": {"type": "ExternalName", "externalName": "example.com"}});
    assert_eq!(cells("", "services", external)[1..5], ["ExternalName", "<none>", "example.com", "<none>"]);
    let balanced = |status: Value| cells("", "services", json!({"spec": {"type": "LoadBalancer"}, "status": status}))[3].clone();
    assert_eq!(balanced(json!({})), "<pending>");
    assert_eq!(balanced(json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}, {"hostname": "h"}]}})), "1.2.3.4,h");
}

#[test]
fn nodes_show_state_roles_and_system() {
    let object = json!({
        "metadata": {"labels": {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/control-plane": "", "kubernetes.io/os": "windows"}},
        "spec": {"unschedulable": true},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "10.240.0.12"}],
            "nodeInfo": {"kubeletVersion": "v1.36.2", "osImage": "Windows Server 2022", "kernelVersion": "10.0.20348", "containerRuntimeVersion": "sim://1"},
        },
    });
    assert_eq!(
        cells("", "nodes", object)[1..],
        [
            "Ready,SchedulingDisabled",
            "control-plane,worker",
            "2m30s",
            "v1.36.2",
            "10.240.0.12",
            "<none>",
            "Windows Server 2022",
            "10.0.20348",
            "sim://1"
        ]
    );
    assert_eq!(cells("", "nodes", json!({}))[1..3], ["Unknown", "<none>"]);
    assert_eq!(cells("", "nodes", json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}))[1], "NotReady");
}

#[test]
fn workloads_show_replicas_images_and_selector() {
    let object = json!({
        "spec": {"replicas": 3, "template": {"spec": {"containers": [{"name": "a", "image": "b:1"}, {"name": "c", "image": "d"}]}},
            "selector": {"matchLabels": {"app": "iis"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["b", "a"]}, {"key": "z", "operator": "DoesNotExist"}]}},
        "status": {"replicas": 3, "readyReplicas": 2, "updatedReplicas": 1, "availableReplicas": 2},
    });
    assert_eq!(cells("apps", "deployments", object.clone())[1..], ["2/3", "1", "2", "2m30s", "a,c", "b:1,d", "app=iis,tier in (a,b),!z"]);
    assert_eq!(cells("apps", "replicasets", object)[1..5], ["3", "3", "2", "2m30s"]);
}

#[test]
fn events_show_when_what_and_whom() {
    let object = json!({
        "type": "Warning", "reason": "Failed", "message": " no \n", "count": 4, "firstTimestamp": "2026-01-01T23:00:00Z",
        "lastTimestamp": "2026-01-01T23:59:50Z", "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{a}"},
        "source": {"component": "kubelet", "host": "win01"},
    });
    assert_eq!(cells("", "events", object), ["10s", "Warning", "Failed", "pod/p", "spec.containers{a}", "kubelet, win01", "no", "60m", "4", "x"]);
    let new = json!({"eventTime": "2026-01-01T23:59:00.000000Z", "reportingComponent": "c", "involvedObject": {"kind": "Node"},
        "series": {"count": 9, "lastObservedTime": "2026-01-01T23:59:59.000000Z"}});
    let row = cells("", "events", new);
    assert_eq!((row[0].as_str(), row[3].as_str(), row[5].as_str(), row[7].as_str(), row[8].as_str()), ("1s", "node", "c", "60s", "9"));
}

#[test]
fn endpoints_are_cut_after_three() {
    let slice = json!({"addressType": "IPv4", "ports": [{"name": "", "port": 80}, {"port": 443}],
        "endpoints": [{"addresses": ["1.0.0.1"]}, {"addresses": ["1.0.0.2"]}, {"addresses": ["1.0.0.3"]}, {"addresses": ["1.0.0.4"]}]});
    assert_eq!(cells("discovery.k8s.io", "endpointslices", slice)[1..4], ["IPv4", "80,443", "1.0.0.1,1.0.0.2,1.0.0.3 + 1 more..."]);
    assert_eq!(cells("discovery.k8s.io", "endpointslices", json!({}))[2..4], ["<unset>", "<unset>"]);
    let endpoints = json!({"subsets": [{"addresses": [{"ip": "1.0.0.1"}, {"ip": "fd00::1"}], "ports": [{"port": 80}]}]});
    assert_eq!(cells("", "endpoints", endpoints)[1], "1.0.0.1:80,[fd00::1]:80");
    assert_eq!(cells("", "endpoints", json!({}))[1], "<none>");
}

#[test]
fn the_small_kinds_show_what_counts() {
    assert_eq!(cells("", "secrets", json!({"type": "Opaque", "data": {"a": "", "b": ""}}))[1..3], ["Opaque", "2"]);
    assert_eq!(cells("", "configmaps", json!({"data": {"a": ""}, "binaryData": {"b": ""}}))[1], "2");
    assert_eq!(cells("", "serviceaccounts", json!({}))[1], "0");
    assert_eq!(cells("", "namespaces", json!({"status": {"phase": "Terminating"}}))[1], "Terminating");
    assert_eq!(cells("coordination.k8s.io", "leases", json!({"spec": {"holderIdentity": "me"}}))[1], "me");
    assert_eq!(cells("rbac.authorization.k8s.io", "clusterroles", json!({})), ["x", "2026-01-01T23:57:30Z"]);
    let binding = json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [
        {"kind": "User", "name": "u"}, {"kind": "User", "name": "v"}, {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]});
    assert_eq!(cells("rbac.authorization.k8s.io", "rolebindings", binding)[1..], ["Role/r", "2m30s", "u, v", "", "n/s"]);
}

#[test]
fn storage_shows_what_is_bound_to_what() {
    let volume = json!({"metadata": {}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": "default", "name": "c"}, "storageClassName": "local",
        "volumeMode": "Filesystem"}, "status": {"phase": "Bound"}});
    assert_eq!(
        cells("", "persistentvolumes", volume).join(" | "),
        "x | 1Gi | RWO,RWX | Retain | Bound | default/c | local | <unset> |  | 2m30s | Filesystem"
    );
    let mut claim = json!({"metadata": {}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local"}, "status": {"phase": "Pending"}});
    assert_eq!(cells("", "persistentvolumeclaims", claim.clone()).join(" | "), "x | Pending |  |  |  | local | <unset> | 2m30s | <unset>");
    claim["spec"]["volumeName"] = "v".into();
    claim["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]});
    assert_eq!(cells("", "persistentvolumeclaims", claim).join(" | "), "x | Bound | v | 1Gi | RWO | local | <unset> | 2m30s | <unset>");
    let class = json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "p"});
    assert_eq!(cells("storage.k8s.io", "storageclasses", class).join(" | "), "x (default) | p | Delete | Immediate | false | 2m30s");
}

#[test]
fn daemon_sets_and_what_belongs_to_them() {
    let set = json!({"metadata": {}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"spec": {"nodeSelector": {"kubernetes.io/os": "windows"},
        "containers": [{"name": "c", "image": "i"}]}}}, "status": {"desiredNumberScheduled": 2, "currentNumberScheduled": 2, "numberReady": 1}});
    assert_eq!(cells("apps", "daemonsets", set).join(" | "), "x | 2 | 2 | 1 | 0 | 0 | kubernetes.io/os=windows | 2m30s | c | i | a=b");
    let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "controller": true}]);
    let revision = json!({"metadata": {"ownerReferences": owner}, "revision": 3});
    assert_eq!(cells("apps", "controllerrevisions", revision).join(" | "), "x | daemonset.apps/d | 3 | 2m30s");
    let budget = json!({"metadata": {}, "spec": {"maxUnavailable": "20%"}, "status": {"disruptionsAllowed": 1}});
    assert_eq!(cells("policy", "poddisruptionbudgets", budget).join(" | "), "x | N/A | 20% | 1 | 2m30s");
}
