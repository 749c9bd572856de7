//! The functions of the Kubernetes environment: names, overloads, types.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use crate::types::Type;

pub struct Overload {
    pub id: &'static str,
    /// Whether the first argument stands before the dot.
    pub member: bool,
    pub args: Vec<Type>,
    pub result: Type,
    /// How many type parameters it has.
    pub params: u32,
}

pub type Functions = HashMap<&'static str, Vec<Overload>>;

/// All functions; overloads in upstream's order.
pub static FUNCTIONS: LazyLock<Functions> = LazyLock::new(|| {
    let mut functions = Functions::new();
    for row in TABLE.lines().map(str::trim).filter(|row| !row.is_empty()) {
        let (name, overload) = parse_row(row);
        functions.entry(name).or_default().push(overload);
    }
    add_comparisons(&mut functions);
    add_list_functions(&mut functions);
    functions
});

/// Types that can be named in expressions.
pub static TYPE_NAMES: LazyLock<HashMap<&'static str, Type>> = LazyLock::new(|| {
    let mut names: HashMap<&'static str, Type> = [
        ("bool", Type::Bool),
        ("bytes", Type::Bytes),
        ("double", Type::Double),
        ("dyn", Type::Dyn),
        ("int", Type::Int),
        ("uint", Type::Uint),
        ("string", Type::String),
        ("null_type", Type::Null),
        ("type", Type::Type(None)),
        ("list", Type::list(Type::Dyn)),
        ("map", Type::map(Type::Dyn, Type::Dyn)),
        ("optional_type", Type::optional(Type::Dyn)),
        ("google.protobuf.Timestamp", Type::Timestamp),
        ("google.protobuf.Duration", Type::Duration),
    ]
    .into();
    names.extend(NAMED.iter().map(|(_, name)| (*name, Type::named(name))));
    names
});

const NAMED: &[(&str, &str)] = &[
    ("IP", "net.IP"),
    ("CIDR", "net.CIDR"),
    ("URL", "kubernetes.URL"),
    ("Quantity", "kubernetes.Quantity"),
    ("Semver", "kubernetes.Semver"),
    ("Format", "kubernetes.NamedFormat"),
    ("Authorizer", "kubernetes.authorization.Authorizer"),
    ("PathCheck", "kubernetes.authorization.PathCheck"),
    ("GroupCheck", "kubernetes.authorization.GroupCheck"),
    ("ResourceCheck", "kubernetes.authorization.ResourceCheck"),
    ("Decision", "kubernetes.authorization.Decision"),
];

/// `name id receiver.(args) result`, or without the receiver.
fn parse_row(row: &'static str) -> (&'static str, Overload) {
    let mut words = row.splitn(3, ' ');
    let (name, id) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut rest = words.next().unwrap_or_default();
    let mut args = Vec::new();
    let member = !rest.starts_with('(');
    if member {
        args.push(parse_type(&mut rest));
        rest = rest.strip_prefix('.').unwrap_or(rest);
    }
    rest = rest.strip_prefix('(').unwrap_or(rest);
    while !rest.starts_with(')') {
        args.push(parse_type(&mut rest));
        rest = rest.trim_start_matches([',', ' ']);
    }
    rest = rest[1..].trim_start();
    let result = parse_type(&mut rest);
    (name, Overload { id, member, args, result, params: 3 })
}

fn parse_type(rest: &mut &'static str) -> Type {
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    let (word, tail) = rest.split_at(end);
    *rest = tail;
    let mut inner = |count: usize| {
        *rest = rest.strip_prefix('(').unwrap_or(rest);
        let mut found = Vec::new();
        for _ in 0..count {
            *rest = rest.trim_start_matches([',', ' ']);
            found.push(Arc::new(parse_type(rest)));
        }
        *rest = rest.strip_prefix(')').unwrap_or(rest);
        found
    };
    match word {
        "A" => Type::Param(0),
        "B" => Type::Param(1),
        "dyn" => Type::Dyn,
        "list" => Type::List(inner(1).remove(0)),
        "opt" => Type::Optional(inner(1).remove(0)),
        "type" => Type::Type(Some(inner(1).remove(0))),
        "map" => {
            let mut both = inner(2);
            Type::Map(both.remove(0), both.remove(0))
        }
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "duration" => Type::Duration,
        "timestamp" => Type::Timestamp,
        name => Type::named(NAMED.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long)),
    }
}

const NUMBERS: [(&str, Type); 3] = [("int64", Type::Int), ("uint64", Type::Uint), ("double", Type::Double)];

/// `<`, `<=`, `>`, `>=`: for one type, and for each pair of different numbers.
fn add_comparisons(functions: &mut Functions) {
    const SAME: [(&str, Type); 5] =
        [("bool", Type::Bool), ("string", Type::String), ("bytes", Type::Bytes), ("timestamp", Type::Timestamp), ("duration", Type::Duration)];
    for (name, verb) in [("_<_", "less"), ("_<=_", "less_equals"), ("_>_", "greater"), ("_>=_", "greater_equals")] {
        let mut add = |id: &'static str, a: &Type, b: &Type| {
            let args = vec![a.clone(), b.clone()];
            let overload = Overload { id, member: false, args, result: Type::Bool, params: 0 };
            functions.entry(name).or_default().push(overload);
        };
        for (first, a) in &NUMBERS {
            for (second, b) in &NUMBERS {
                let id = if first == second { format!("{verb}_{first}") } else { format!("{verb}_{first}_{second}") };
                add(id.leak(), a, b);
            }
        }
        for (of, ty) in &SAME {
            add(format!("{verb}_{of}").leak(), ty, ty);
        }
    }
}

/// The functions of lists that exist once for each type of elements.
fn add_list_functions(functions: &mut Functions) {
    let comparable = [
        ("int", Type::Int),
        ("uint", Type::Uint),
        ("double", Type::Double),
        ("bool", Type::Bool),
        ("duration", Type::Duration),
        ("timestamp", Type::Timestamp),
        ("string", Type::String),
        ("bytes", Type::Bytes),
    ];
    for (of, ty) in &comparable {
        let list = Type::list(ty.clone());
        let mut add = |name: &'static str, id: String, args: Vec<Type>, result: Type| {
            let overload = Overload { id: id.leak(), member: true, args, result, params: 1 };
            functions.entry(name).or_default().push(overload);
        };
        add("isSorted", format!("list_{of}_is_sorted_bool"), vec![list.clone()], Type::Bool);
        add("max", format!("list_{of}_max_{of}"), vec![list.clone()], ty.clone());
        add("min", format!("list_{of}_min_{of}"), vec![list.clone()], ty.clone());
        add("sort", format!("list_{of}_sort"), vec![list.clone()], list.clone());
        let any = Type::list(Type::Param(0));
        let id = format!("list_{of}_sortByAssociatedKeys");
        add("@sortByAssociatedKeys", id, vec![any.clone(), list.clone()], any);
        if matches!(ty, Type::Int | Type::Uint | Type::Double | Type::Duration) {
            add("sum", format!("list_{of}_sum_{of}"), vec![list], ty.clone());
        }
    }
}

const TABLE: &str = "
    _?_:_ conditional (bool, A, A) A
    _&&_ logical_and (bool, bool) bool
    _||_ logical_or (bool, bool) bool
    !_ logical_not (bool) bool
    @not_strictly_false not_strictly_false (bool) bool
    _==_ equals (A, A) bool
    _!=_ not_equals (A, A) bool
    _+_ add_bytes (bytes, bytes) bytes
    _+_ add_double (double, double) double
    _+_ add_duration_duration (duration, duration) duration
    _+_ add_duration_timestamp (duration, timestamp) timestamp
    _+_ add_timestamp_duration (timestamp, duration) timestamp
    _+_ add_int64 (int, int) int
    _+_ add_list (list(A), list(A)) list(A)
    _+_ add_string (string, string) string
    _+_ add_uint64 (uint, uint) uint
    _/_ divide_double (double, double) double
    _/_ divide_int64 (int, int) int
    _/_ divide_uint64 (uint, uint) uint
    _%_ modulo_int64 (int, int) int
    _%_ modulo_uint64 (uint, uint) uint
    _*_ multiply_double (double, double) double
    _*_ multiply_int64 (int, int) int
    _*_ multiply_uint64 (uint, uint) uint
    -_ negate_double (double) double
    -_ negate_int64 (int) int
    _-_ subtract_double (double, double) double
    _-_ subtract_duration_duration (duration, duration) duration
    _-_ subtract_int64 (int, int) int
    _-_ subtract_timestamp_duration (timestamp, duration) timestamp
    _-_ subtract_timestamp_timestamp (timestamp, timestamp) duration
    _-_ subtract_uint64 (uint, uint) uint
    _[_] index_list (list(A), int) A
    _[_] index_map (map(A, B), A) B
    _[_] optional_list_index_int (opt(list(A)), int) opt(A)
    _[_] optional_map_index_value (opt(map(A, B)), A) opt(B)
    _[?_] list_optindex_optional_int (list(A), int) opt(A)
    _[?_] optional_list_optindex_optional_int (opt(list(A)), int) opt(A)
    _[?_] map_optindex_optional_value (map(A, B), A) opt(B)
    _[?_] optional_map_optindex_optional_value (opt(map(A, B)), A) opt(B)
    @in in_list (A, list(A)) bool
    @in in_map (A, map(A, B)) bool
    size size_bytes (bytes) int
    size bytes_size bytes.() int
    size size_list (list(A)) int
    size list_size list(A).() int
    size size_map (map(A, B)) int
    size map_size map(A, B).() int
    size size_string (string) int
    size string_size string.() int
    type type (A) type(A)
    bool bool_to_bool (bool) bool
    bool string_to_bool (string) bool
    bytes bytes_to_bytes (bytes) bytes
    bytes string_to_bytes (string) bytes
    double double_to_double (double) double
    double int64_to_double (int) double
    double string_to_double (string) double
    double uint64_to_double (uint) double
    duration duration_to_duration (duration) duration
    duration int64_to_duration (int) duration
    duration string_to_duration (string) duration
    dyn to_dyn (A) dyn
    int int64_to_int64 (int) int
    int double_to_int64 (double) int
    int duration_to_int64 (duration) int
    int string_to_int64 (string) int
    int timestamp_to_int64 (timestamp) int
    int uint64_to_int64 (uint) int
    string string_to_string (string) string
    string bool_to_string (bool) string
    string bytes_to_string (bytes) string
    string double_to_string (double) string
    string duration_to_string (duration) string
    string int64_to_string (int) string
    string timestamp_to_string (timestamp) string
    string uint64_to_string (uint) string
    string ip_to_string (IP) string
    string cidr_to_string (CIDR) string
    timestamp timestamp_to_timestamp (timestamp) timestamp
    timestamp int64_to_timestamp (int) timestamp
    timestamp string_to_timestamp (string) timestamp
    uint uint64_to_uint64 (uint) uint
    uint double_to_uint64 (double) uint
    uint int64_to_uint64 (int) uint
    uint string_to_uint64 (string) uint
    contains contains_string string.(string) bool
    endsWith ends_with_string string.(string) bool
    startsWith starts_with_string string.(string) bool
    matches matches (string, string) bool
    matches matches_string string.(string) bool
    getFullYear timestamp_to_year timestamp.() int
    getFullYear timestamp_to_year_with_tz timestamp.(string) int
    getMonth timestamp_to_month timestamp.() int
    getMonth timestamp_to_month_with_tz timestamp.(string) int
    getDayOfYear timestamp_to_day_of_year timestamp.() int
    getDayOfYear timestamp_to_day_of_year_with_tz timestamp.(string) int
    getDayOfMonth timestamp_to_day_of_month timestamp.() int
    getDayOfMonth timestamp_to_day_of_month_with_tz timestamp.(string) int
    getDate timestamp_to_day_of_month_1_based timestamp.() int
    getDate timestamp_to_day_of_month_1_based_with_tz timestamp.(string) int
    getDayOfWeek timestamp_to_day_of_week timestamp.() int
    getDayOfWeek timestamp_to_day_of_week_with_tz timestamp.(string) int
    getHours timestamp_to_hours timestamp.() int
    getHours timestamp_to_hours_with_tz timestamp.(string) int
    getHours duration_to_hours duration.() int
    getMinutes timestamp_to_minutes timestamp.() int
    getMinutes timestamp_to_minutes_with_tz timestamp.(string) int
    getMinutes duration_to_minutes duration.() int
    getSeconds timestamp_to_seconds timestamp.() int
    getSeconds timestamp_to_seconds_tz timestamp.(string) int
    getSeconds duration_to_seconds duration.() int
    getMilliseconds timestamp_to_milliseconds timestamp.() int
    getMilliseconds timestamp_to_milliseconds_with_tz timestamp.(string) int
    getMilliseconds duration_to_milliseconds duration.() int
    optional.of optional_of (A) opt(A)
    optional.ofNonZeroValue optional_ofNonZeroValue (A) opt(A)
    optional.none optional_none () opt(A)
    value optional_value opt(A).() A
    hasValue optional_hasValue opt(A).() bool
    or optional_or_optional opt(A).(opt(A)) opt(A)
    orValue optional_orValue_value opt(A).(A) A
    first list_first list(A).() opt(A)
    last list_last list(A).() opt(A)
    optional.unwrap optional_unwrap (list(opt(A))) list(A)
    unwrapOpt optional_unwrapOpt list(opt(A)).() list(A)
    charAt string_char_at_int string.(int) string
    indexOf string_index_of_string string.(string) int
    indexOf string_index_of_string_int string.(string, int) int
    indexOf list_a_index_of_int list(A).(A) int
    lastIndexOf string_last_index_of_string string.(string) int
    lastIndexOf string_last_index_of_string_int string.(string, int) int
    lastIndexOf list_a_last_index_of_int list(A).(A) int
    lowerAscii string_lower_ascii string.() string
    upperAscii string_upper_ascii string.() string
    replace string_replace_string_string string.(string, string) string
    replace string_replace_string_string_int string.(string, string, int) string
    split string_split_string string.(string) list(string)
    split string_split_string_int string.(string, int) list(string)
    substring string_substring_int string.(int) string
    substring string_substring_int_int string.(int, int) string
    trim string_trim string.() string
    format string_format string.(list(dyn)) string
    strings.quote strings_quote (string) string
    join list_join list(string).() string
    join list_join_string list(string).(string) string
    slice list_slice list(A).(int, int) list(A)
    flatten list_flatten list(list(A)).() list(A)
    flatten list_flatten_int list(dyn).(int) list(dyn)
    lists.range lists_range (int) list(int)
    reverse list_reverse list(A).() list(A)
    distinct list_distinct list(A).() list(A)
    sets.contains list_sets_contains_list (list(A), list(A)) bool
    sets.equivalent list_sets_equivalent_list (list(A), list(A)) bool
    sets.intersects list_sets_intersects_list (list(A), list(A)) bool
    cel.@mapInsert map_insert_key_value (map(A, B), A, B) map(A, B)
    cel.@mapInsert map_insert_map (map(A, B), map(A, B)) map(A, B)
    find string_find_string string.(string) string
    findAll string_find_all_string string.(string) list(string)
    findAll string_find_all_string_int string.(string, int) list(string)
    url string_to_url (string) URL
    isURL is_url_string (string) bool
    getScheme url_get_scheme URL.() string
    getHost url_get_host URL.() string
    getHostname url_get_hostname URL.() string
    getPort url_get_port URL.() string
    getEscapedPath url_get_escaped_path URL.() string
    getQuery url_get_query URL.() map(string, list(string))
    ip string_to_ip (string) IP
    ip cidr_ip CIDR.() IP
    isIP is_ip (string) bool
    ip.isCanonical ip_is_canonical (string) bool
    family ip_family IP.() int
    isUnspecified ip_is_unspecified IP.() bool
    isLoopback ip_is_loopback IP.() bool
    isLinkLocalMulticast ip_is_link_local_multicast IP.() bool
    isLinkLocalUnicast ip_is_link_local_unicast IP.() bool
    isGlobalUnicast ip_is_global_unicast IP.() bool
    cidr string_to_cidr (string) CIDR
    isCIDR is_cidr (string) bool
    containsIP cidr_contains_ip_string CIDR.(string) bool
    containsIP cidr_contains_ip_ip CIDR.(IP) bool
    containsCIDR cidr_contains_cidr_string CIDR.(string) bool
    containsCIDR cidr_contains_cidr CIDR.(CIDR) bool
    prefixLength cidr_prefix_length CIDR.() int
    masked cidr_masked CIDR.() CIDR
    quantity string_to_quantity (string) Quantity
    isQuantity is_quantity_string (string) bool
    sign quantity_sign Quantity.() int
    isGreaterThan quantity_is_greater_than Quantity.(Quantity) bool
    isLessThan quantity_is_less_than Quantity.(Quantity) bool
    compareTo quantity_compare_to Quantity.(Quantity) int
    asApproximateFloat quantity_get_float Quantity.() double
    asInteger quantity_get_int Quantity.() int
    isInteger quantity_is_integer Quantity.() bool
    add quantity_add Quantity.(Quantity) Quantity
    add quantity_add_int Quantity.(int) Quantity
    sub quantity_sub Quantity.(Quantity) Quantity
    sub quantity_sub_int Quantity.(int) Quantity
    semver string_to_semver (string) Semver
    semver string_bool_to_semver (string, bool) Semver
    isSemver is_semver_string (string) bool
    isSemver is_semver_string_bool (string, bool) bool
    isGreaterThan semver_is_greater_than Semver.(Semver) bool
    isLessThan semver_is_less_than Semver.(Semver) bool
    compareTo semver_compare_to Semver.(Semver) int
    major semver_major Semver.() int
    minor semver_minor Semver.() int
    patch semver_patch Semver.() int
    validate format-validate Format.(string) opt(list(string))
    format.named format-named (string) opt(Format)
    format.dns1123Label format.dns1123Label () Format
    format.dns1123Subdomain format.dns1123Subdomain () Format
    format.dns1035Label format.dns1035Label () Format
    format.qualifiedName format.qualifiedName () Format
    format.dns1123LabelPrefix format.dns1123LabelPrefix () Format
    format.dns1123SubdomainPrefix format.dns1123SubdomainPrefix () Format
    format.dns1035LabelPrefix format.dns1035LabelPrefix () Format
    format.labelValue format.labelValue () Format
    format.uri format.uri () Format
    format.uuid format.uuid () Format
    format.byte format.byte () Format
    format.date format.date () Format
    format.datetime format.datetime () Format
    path authorizer_path Authorizer.(string) PathCheck
    group authorizer_group Authorizer.(string) GroupCheck
    serviceAccount authorizer_serviceaccount Authorizer.(string, string) Authorizer
    resource groupcheck_resource GroupCheck.(string) ResourceCheck
    subresource resourcecheck_subresource ResourceCheck.(string) ResourceCheck
    namespace resourcecheck_namespace ResourceCheck.(string) ResourceCheck
    name resourcecheck_name ResourceCheck.(string) ResourceCheck
    fieldSelector authorizer_fieldselector ResourceCheck.(string) ResourceCheck
    labelSelector authorizer_labelselector ResourceCheck.(string) ResourceCheck
    check pathcheck_check PathCheck.(string) Decision
    check resourcecheck_check ResourceCheck.(string) Decision
    allowed decision_allowed Decision.() bool
    errored decision_errored Decision.() bool
    error decision_error Decision.() string
    reason decision_reason Decision.() string
    jsonpatch.escapeKey string_jsonpatch_escapeKey_string (string) string
";
