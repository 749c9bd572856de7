//! The tables and columns that are used, of OVN's northbound database and of Open vSwitch's own.

use ovsdb::{AtomType, ColumnUse, TableUse};

/// OVN's northbound database.
pub const NORTHBOUND: &str = "OVN_Northbound";
/// OVN's southbound database.
pub const SOUTHBOUND: &str = "OVN_Southbound";
/// Open vSwitch's database of one host.
pub const LOCAL: &str = "Open_vSwitch";

const fn text(name: &'static str) -> ColumnUse {
    ColumnUse::required(name, AtomType::String)
}

const fn refs(name: &'static str) -> ColumnUse {
    ColumnUse::required(name, AtomType::Uuid)
}

const fn number(name: &'static str) -> ColumnUse {
    ColumnUse::required(name, AtomType::Integer)
}

const IDS: ColumnUse = ColumnUse::texts("external_ids");

const fn table(name: &'static str, columns: &'static [ColumnUse]) -> TableUse {
    TableUse { name, required: true, columns }
}

/// What is used of the northbound database.
pub const NORTHBOUND_USES: &[TableUse] = &[
    table("Logical_Switch", &[text("name"), refs("ports"), refs("load_balancer"), refs("acls"), ColumnUse::texts("other_config"), IDS]),
    table(
        "Logical_Switch_Port",
        &[
            text("name"),
            text("type"),
            ColumnUse::texts("options"),
            text("addresses"),
            ColumnUse::optional("dynamic_addresses", AtomType::String),
            text("port_security"),
            ColumnUse::optional("enabled", AtomType::Boolean),
            IDS,
        ],
    ),
    table(
        "Logical_Router",
        &[text("name"), refs("ports"), refs("static_routes"), refs("nat"), refs("load_balancer"), ColumnUse::texts("options"), IDS],
    ),
    table("Logical_Router_Port", &[text("name"), text("mac"), text("networks"), IDS]),
    table("Logical_Router_Static_Route", &[text("ip_prefix"), text("nexthop"), text("policy"), text("output_port"), IDS]),
    table("NAT", &[text("type"), text("external_ip"), text("logical_ip"), IDS]),
    table("Port_Group", &[text("name"), refs("ports"), refs("acls"), IDS]),
    table("Address_Set", &[text("name"), text("addresses"), IDS]),
    table(
        "ACL",
        &[number("priority"), text("direction"), text("match"), text("action"), ColumnUse { required: false, ..ColumnUse::texts("options") }, IDS],
    ),
    table("Load_Balancer", &[text("name"), ColumnUse::texts("vips"), text("protocol"), IDS]),
];

/// What is used of the southbound database: which chassis is a host's.
pub const SOUTHBOUND_USES: &[TableUse] = &[
    table("Chassis", &[text("name")]),
    TableUse { name: "Chassis_Private", required: false, columns: &[text("name")] },
    table("Port_Binding", &[text("logical_port"), refs("chassis")]),
];

/// What is used of Open vSwitch's database.
pub const LOCAL_USES: &[TableUse] = &[
    table("Open_vSwitch", &[refs("bridges"), number("next_cfg"), number("cur_cfg"), IDS]),
    table("Bridge", &[text("name"), refs("ports"), text("fail_mode"), text("datapath_type"), ColumnUse::texts("other_config"), IDS]),
    table("Port", &[text("name"), refs("interfaces"), IDS]),
    table(
        "Interface",
        &[
            text("name"),
            text("type"),
            ColumnUse::texts("options"),
            text("mac_in_use"),
            ColumnUse::optional("mtu_request", AtomType::Integer),
            ColumnUse::optional("error", AtomType::String),
            ColumnUse::optional("ofport", AtomType::Integer),
            IDS,
        ],
    ),
];

/// By which columns of which tables rows are held, which vanish without: table, table of the holder, column.
pub(crate) const HELD: &[(&str, &str, &str)] = &[
    ("Logical_Switch_Port", "Logical_Switch", "ports"),
    ("Logical_Router_Port", "Logical_Router", "ports"),
    ("Logical_Router_Static_Route", "Logical_Router", "static_routes"),
    ("NAT", "Logical_Router", "nat"),
    ("ACL", "Port_Group", "acls"),
    ("ACL", "Logical_Switch", "acls"),
    ("Bridge", "Open_vSwitch", "bridges"),
    ("Port", "Bridge", "ports"),
    ("Interface", "Port", "interfaces"),
];
