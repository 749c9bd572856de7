//! Checks, columns of ServiceCIDRs.

use super::*;
use crate::kinds::check::{change, row, table, with};

fn cidr() -> Value {
    json!({"metadata": {"name": "c"}, "spec": {"cidrs": ["10.0.0.0/16"]}})
}

#[test]
fn one_network_of_each_family() {
    table(
        validate,
        &cidr(),
        &[
            ("/spec/cidrs", json!([]), "spec.cidrs: Required value: at least one CIDR required"),
            ("/spec/cidrs", json!(["10.0.0.0/16", "2001:db8::/64"]), ""),
            (
                "/spec/cidrs",
                json!(["10.0.0.0/16", "10.1.0.0/16"]),
                "spec.cidrs: Invalid value: [\"10.0.0.0/16\",\"10.1.0.0/16\"]: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 \
                 and 2001:db8::/64",
            ),
            ("/spec/cidrs", json!(["a", "b", "c"]), "spec.cidrs: Invalid value: {\"CIDRs\":[\"a\",\"b\",\"c\"]}: may only hold up to 2 values"),
            ("/spec/cidrs", json!(["10.0.0.1/16"]), "spec.cidrs[0]: Invalid value: \"10.0.0.1/16\": must not have bits set beyond the prefix length"),
        ],
    );
}

#[test]
fn a_second_family_may_come_later() {
    let of = |cidrs: Value| change(validate, &cidr(), &with(&cidr(), &[("/spec/cidrs", cidrs)]));
    assert_eq!(of(json!(["10.0.0.0/16", "2001:db8::/64"])), "");
    assert_eq!(of(json!(["10.1.0.0/16"])), "spec.cidrs[0]: Invalid value: \"10.1.0.0/16\": field is immutable");
    assert_eq!(of(json!([])), "spec.cidrs: Invalid value: []: field is immutable");
}

#[test]
fn columns_list_networks() {
    assert_eq!(row(cells, &with(&cidr(), &[("/spec/cidrs", json!(["a", "b"]))])), ["x", "a,b", "2m30s"]);
}
