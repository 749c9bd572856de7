//! Expressions and their results, errors and costs; rows follow upstream's tests of CEL rules and libraries.

use kube_cel::{Env, PER_CALL_LIMIT, Type, Variables, display};
use serde_json::json;

fn env() -> Env {
    Env::new().with("object", Type::Dyn).with("text", Type::String).with("list", Type::list(Type::Int))
}

/// The text of the result, or the error after `!`.
fn outcome(source: &str) -> String {
    let object = json!({
        "a": {"b": 1, "none": null},
        "list": [1, 2, 3],
        "map": {"x": "1", "y": "2"},
        "text": "grüße",
        "half": 0.5,
    });
    let list = json!([3, 1, 2]);
    let program = match env().compile(source) {
        Ok(program) => program,
        Err(error) => return format!("!{}", error.messages().collect::<Vec<_>>().join(" | ")),
    };
    let variables = Variables::new()
        .with("object", kube_cel::Value::json(&object))
        .with("text", kube_cel::Value::str("grüße"))
        .with("list", kube_cel::Value::json(&list));
    match program.evaluate(&variables, PER_CALL_LIMIT).result {
        Ok(value) => display(&value),
        Err(fault) => format!("!{fault}"),
    }
}

fn holds(rows: &[&str]) {
    for source in rows {
        assert_eq!(outcome(source), "true", "{source}");
    }
}

fn gives(rows: &[(&str, &str)]) {
    for (source, expected) in rows {
        assert_eq!(outcome(source), *expected, "{source}");
    }
}

#[test]
fn operators_follow_the_language() {
    holds(&[
        "1 + 2 * 3 == 7",
        "(1 + 2) * 3 == 9",
        "7 / 2 == 3 && -7 / 2 == -3 && 7 % 3 == 1 && -7 % 3 == -1",
        "1.5 * 2.0 == 3.0",
        "dyn(1) == 1.0 && dyn(1u) == 1 && 2 > 1.5 && 1u < 2",
        "!(1 == 2) && !!true && - -1 == 1",
        "'a' + 'b' == 'ab' && b'a' + b'b' == b'ab'",
        "[1] + [2] == [1, 2]",
        "2 in [1, 2] && !('z' in {'x': 1}) && 'x' in {'x': 1}",
        "true ? true : false",
        "false || true && true",
        "true || 1 / 0 == 1",
        "!(1 / 0 == 1 && false)",
        "object.a.b == 1 && object['a']['b'] == 1 && object.list[2] == 3",
        "has(object.a) && has(object.a.b) && !has(object.x) && has(object.a.none)",
        "object.a.none == null",
        "r'\\d' == '\\\\d' && '\\u00fc' == 'ü' && b'\\xff' == b'\\377' && '''a\nb''' == 'a\\nb'",
        "0x10 == 16 && 1e3 == 1000.0 && 5u == uint(5)",
        "type(1) == int && type(object) == map && type('') == string && type(type(1)) == type",
        "{'a': 1, 'b': 2} == {'b': 2, 'a': 1}",
        "dyn(1) != 'a'",
        "// comment\n true",
        "-9223372036854775808 < 0",
    ]);
    gives(&[
        ("1 / 0", "!division by zero"),
        ("1 % 0", "!modulus by zero"),
        ("9223372036854775807 + 1", "!integer overflow"),
        ("0u - 1u", "!unsigned integer overflow"),
        ("-(-9223372036854775808)", "!integer overflow"),
        ("object.x", "!no such key: x"),
        ("object.list[5]", "!index out of bounds: 5"),
        ("{'a': 1, 'a': 2}", "!Failed with repeated key: a"),
        ("dyn(1) + dyn('a')", "!no such overload"),
        ("dyn(1) && true", "!no such overload"),
    ]);
}

#[test]
fn macros_expand() {
    holds(&[
        "[1, 2, 3].all(x, x > 0) && ![1, 2].all(x, x > 1)",
        "[1, 2].exists(x, x == 2) && ![].exists(x, x)",
        "[1, 2].exists_one(x, x == 2) && ![2, 2].existsOne(x, x == 2)",
        "[1, 2].map(x, x * 2) == [2, 4] && [1, 2].map(x, x > 1, x * 2) == [4]",
        "[1, 2, 3].filter(x, x > 1) == [2, 3]",
        "{'a': 1}.all(k, k == 'a') && {'a': 1}.map(k, k) == ['a']",
        "[1, 2].all(i, v, i + 1 == v) && {'a': 1}.exists(k, v, k == 'a' && v == 1)",
        "[1, 2].transformList(i, v, i * v) == [0, 2]",
        "{'a': 1, 'b': 2}.transformMap(k, v, v > 1, v + 1) == {'b': 3}",
        "{'a': 'x'}.transformMapEntry(k, v, {v: k}) == {'x': 'a'}",
        "[[1, 2], [3]].all(l, l.all(x, x > 0))",
        "[1, 2].map(x, [x].map(y, y + x)) == [[2], [4]]",
        "[0, 1].exists(x, 1 / x == 1)",
        "![0, 1].all(x, 1 / x == 2)",
        "['b', 'a'].sortBy(x, x) == ['a', 'b']",
        "object.map.all(k, object.map[k] != '')",
    ]);
    gives(&[
        ("[0].exists(x, 1 / x == 1)", "!division by zero"),
        ("[0].map(x, 1 / x)", "!division by zero"),
        ("{'a': 'x', 'b': 'x'}.transformMapEntry(k, v, {v: k})", "!insert failed: key x already exists"),
        ("has(1)", "!invalid argument to has() macro"),
        ("[1].all(1, true)", "!argument must be a simple name"),
        ("[1].map(1, true)", "!argument is not an identifier"),
        ("[1].all(x, x, true)", "!duplicate variable name: x"),
    ]);
}

#[test]
fn optional_values_hold_and_chain() {
    holds(&[
        "object.?a.b == optional.of(1) && object.?x.y == optional.none()",
        "object.?x.orValue(5) == 5 && object.?a.?b.orValue(0) == 1",
        "!object[?'x'].hasValue() && object.list[?1].value() == 2 && !object.list[?9].hasValue()",
        "optional.of(1).or(optional.of(2)).value() == 1",
        "optional.none().or(optional.of(2)).value() == 2",
        "optional.ofNonZeroValue('') == optional.none()",
        "[1, ?optional.none(), ?optional.of(2)] == [1, 2]",
        "{?'a': optional.none(), 'b': 1} == {'b': 1}",
        "object.?a.optMap(x, x.b + 1).value() == 2 && !object.?x.optMap(x, 1).hasValue()",
        "optional.of(1).optFlatMap(x, optional.of(x + 1)).value() == 2",
        "[1, 2].first().value() == 1 && [1, 2].last() == optional.of(2) && [] .first() == optional.none()",
        "[optional.of(1), optional.none()].unwrapOpt() == [1]",
    ]);
    gives(&[("optional.none().value()", "!optional.none() dereference"), ("[?1]", "!expected type 'optional_type(int)' but found 'int'")]);
}

#[test]
fn string_functions_work_on_characters() {
    holds(&[
        "text.size() == 5 && size(text) == 5 && bytes(text).size() == 7",
        "text.charAt(2) == 'ü' && text.charAt(5) == ''",
        "text.indexOf('ß') == 3 && text.indexOf('x') == -1 && 'aXbX'.indexOf('X', 2) == 3",
        "'aXbX'.lastIndexOf('X') == 3 && 'aXbX'.lastIndexOf('X', 2) == 1",
        "text.substring(2) == 'üße' && text.substring(0, 2) == 'gr' && text.substring(5) == ''",
        "'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'ab'.split('') == ['a', 'b']",
        "'a,b'.split(',', 0) == [] && 'a,b'.split(',', -1) == ['a', 'b']",
        "['a', 'b'].join() == 'ab' && ['a', 'b'].join('-') == 'a-b'",
        "'hello hello'.replace('he', 'we') == 'wello wello' && 'hello hello'.replace('he', 'we', 1) == 'wello hello'",
        "'  x '.trim() == 'x' && 'TacoCat'.lowerAscii() == 'tacocat' && 'aÜ'.upperAscii() == 'AÜ'",
        "'abc'.startsWith('a') && 'abc'.endsWith('c') && 'abc'.contains('b')",
        "strings.quote('a\"b') == '\"a\\\\\"b\"'",
        "'%s %d %.2f %x %o %b %%'.format(['a', 5, 1.5, 255, 8, 5]) == 'a 5 1.50 ff 10 101 %'",
        "'%e'.format([3.14]) == '3.140000×10⁰⁰'",
        "'%s'.format([[1, 'a']]) == '[1, a]' && '%s'.format([{'a': 1}]) == '{a: 1}'",
        "'%f'.format([1234.5]) == '1,234.500000'",
        "'%s'.format([duration('1m')]) == '60s' && '%s'.format([timestamp('2000-01-01T00:00:00Z')]) == '2000-01-01T00:00:00Z'",
        "jsonpatch.escapeKey('a/b~c') == 'a~1b~0c'",
    ]);
    gives(&[
        ("'abc'.charAt(4)", "!index out of range: 4"),
        ("'abc'.substring(2, 1)", "!invalid substring range. start: 2, end: 1"),
        ("'abc'.substring(4)", "!index out of range: 4"),
        ("'%s'.format([])", "!index 0 out of range"),
        ("'%d'.format(['a'])", "!error during formatting: decimal clause can only be used on numbers, was given string"),
    ]);
}

#[test]
fn list_and_set_functions_work() {
    holds(&[
        "[1, 2, 3].isSorted() && ![2, 1].isSorted() && ['a', 'b'].isSorted()",
        "list.sum() == 6 && [1.5, 2.5].sum() == 4.0 && [duration('1s'), duration('2s')].sum() == duration('3s')",
        "list.min() == 1 && list.max() == 3 && ['b', 'a'].min() == 'a'",
        "[1, 2, 2].indexOf(2) == 1 && [1, 2, 2].lastIndexOf(2) == 2 && [1].indexOf(5) == -1",
        "list.filter(x, x > 5).sum() == 0",
        "sets.contains([1, 2], [2]) && sets.intersects([1, 2], [2, 3]) && sets.equivalent([1, 2], [2, 1, 1])",
        "list.sort() == [1, 2, 3] && list.reverse() == [2, 1, 3] && [1, 1, 2].distinct() == [1, 2]",
        "[1, 2, 3].slice(1, 3) == [2, 3] && [[1], [2, 3]].flatten() == [1, 2, 3] && lists.range(3) == [0, 1, 2]",
    ]);
    gives(&[
        ("[1, 2].slice(2, 1)", "!cannot slice(2, 1), start index must be less than or equal to end index"),
        ("list.filter(x, x > 5).min()", "!min called on empty list"),
    ]);
}

#[test]
fn regular_expressions_are_those_of_go() {
    holds(&[
        "'abc 123'.find('[0-9]+') == '123' && 'abc'.find('[0-9]') == ''",
        "'1 2 3'.findAll('[0-9]') == ['1', '2', '3'] && '1 2 3'.findAll('[0-9]', 2) == ['1', '2']",
        "'k8s.io'.matches('^[a-z0-9]+(\\\\.[a-z]+)*$') && matches('a', 'a')",
        "!'٣'.matches(r'^\\d$') && '3'.matches(r'^\\d$')",
        "'[a&b]'.matches(r'^[[a&&b\\]]+$')",
        "'{{x}}'.matches('^{{x}}$')",
        "'a.b'.matches(r'^\\Qa.b\\E$') && !'axb'.matches(r'^\\Qa.b\\E$')",
    ]);
    gives(&[("'a'.matches('(')", "!invalid matches argument")]);
}

#[test]
fn kubernetes_types_work() {
    holds(&[
        "url('https://user@example.com:8080/a%20b/c?k=1&k=2&q').getHost() == 'example.com:8080'",
        "url('https://[::1]:80/x').getHostname() == '::1' && url('https://[::1]:80/x').getPort() == '80'",
        "url('https://e.com/a b').getEscapedPath() == '/a%20b' && url('/path').getScheme() == ''",
        "url('https://e.com/?k=1&k=2&q=a%20b').getQuery() == {'k': ['1', '2'], 'q': ['a b']}",
        "isURL('https://e.com') && isURL('/x') && !isURL('e.com') && !isURL('')",
        "ip('192.168.0.1').family() == 4 && ip('::1').family() == 6 && ip('::1').isLoopback()",
        "isIP('127.0.0.1') && !isIP('127.0.0.256') && !isIP('::ffff:1.2.3.4') && !isIP('fe80::1%en0')",
        "ip.isCanonical('::1') && !ip.isCanonical('0:0::1') && string(ip('0:0::1')) == '::1'",
        "ip('8.8.8.8').isGlobalUnicast() && ip('169.254.1.1').isLinkLocalUnicast() && ip('0.0.0.0').isUnspecified()",
        "cidr('192.168.0.0/24').containsIP('192.168.0.9') && cidr('10.0.0.0/8').containsIP(ip('10.1.1.1'))",
        "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8'))",
        "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('10.1.2.3/8').ip() == ip('10.1.2.3')",
        "cidr('10.0.0.0/8').prefixLength() == 8 && isCIDR('::/0') && !isCIDR('10.0.0.0/33')",
        "quantity('200M') == quantity('0.2G') && quantity('50M').isLessThan(quantity('50Mi'))",
        "quantity('50k').add(20).sub(quantity('100k')).asInteger() == -49980 && isQuantity('1.5Gi') && !isQuantity('x')",
        "quantity('50').isInteger() && !quantity('50m').isInteger() && quantity('50.703k').asApproximateFloat() == 50703.0",
        "quantity('-5').sign() == -1 && quantity('5').compareTo(quantity('4')) == 1",
        "semver('1.2.3').major() == 1 && semver('1.2.3').isLessThan(semver('1.10.0')) && !isSemver('v1.0')",
        "isSemver('v1.0', true) && semver('v01.01', true).compareTo(semver('1.1.0')) == 0",
        "semver('1.0.0-alpha').isLessThan(semver('1.0.0'))",
        "!format.dns1123Label().validate('my-name').hasValue() && format.dns1123Label().validate('My').hasValue()",
        "format.named('dns1123Label').value() == format.dns1123Label() && !format.named('nope').hasValue()",
        "format.uuid().validate('x') == optional.of(['does not match the UUID format'])",
        "!format.date().validate('2024-02-29').hasValue() && format.date().validate('2024-02-30').hasValue()",
    ]);
    gives(&[
        ("ip('x')", "!IP Address \"x\" parse error during conversion from string: ParseAddr(\"x\"): unable to parse IP"),
        ("quantity('50m').asInteger()", "!cannot convert value to integer"),
        ("url('e.com').getHost()", "!URL parse error during conversion from string: parse \"e.com\": invalid URI for request"),
        ("format.dns1123Label().validate('a.b')", "optional([must not contain dots])"),
    ]);
}

#[test]
fn times_and_conversions_work() {
    holds(&[
        "duration('1h2m3s4ms').getHours() == 1 && duration('90s').getMinutes() == 1",
        "timestamp('2011-08-18T19:03:37.010+01:00').getHours() == 18",
        "timestamp('2011-08-18T19:03:37.010+01:00').getDate('01:00') == 18",
        "timestamp('2011-08-18T00:00:00Z').getDayOfWeek() == 4 && timestamp('2011-01-01T00:00:00Z').getMonth() == 0",
        "timestamp('2011-08-18T00:00:00Z') + duration('1h') == timestamp('2011-08-18T01:00:00Z')",
        "timestamp('2011-08-18T01:00:00Z') - timestamp('2011-08-18T00:00:00Z') == duration('3600s')",
        "string(duration('1h2m3s4ms')) == '3723.004s' && string(timestamp('2011-08-18T00:00:00Z')) == '2011-08-18T00:00:00Z'",
        "int('10') == 10 && int(3.9) == 3 && double('1.5') == 1.5 && uint(5) == 5u && bool('true') && string(1.5) == '1.5'",
        "string(b'abc') == 'abc' && bytes('abc') == b'abc' && string(true) == 'true' && string(5) == '5'",
        "int(timestamp('1970-01-01T00:01:00Z')) == 60 && timestamp(60) == timestamp('1970-01-01T00:01:00Z')",
        "-0.5 < 0.0 && string(1e100) == '1e+100'",
    ]);
    gives(&[
        ("int('x')", "!type conversion error from 'string' to 'int'"),
        ("int(1e30)", "!integer overflow"),
        ("duration('1x')", "!invalid duration argument"),
        ("timestamp('2011')", "!invalid timestamp argument"),
    ]);
}

#[test]
fn the_check_finds_errors_before_evaluation() {
    gives(&[
        ("nope", "!undeclared reference to 'nope' (in container '')"),
        ("nope(1)", "!undeclared reference to 'nope' (in container '')"),
        ("'a'.nope()", "!undeclared reference to 'nope' (in container '')"),
        ("1 + 'a'", "!found no matching overload for '_+_' applied to '(int, string)'"),
        ("'a'.startsWith(1)", "!found no matching overload for 'startsWith' applied to 'string.(int)'"),
        ("1 == 'a'", "!found no matching overload for '_==_' applied to '(int, string)'"),
        ("size(1)", "!found no matching overload for 'size' applied to '(int)'"),
        ("1 && true", "!expected type 'bool' but found 'int'"),
        ("text.field", "!type 'string' does not support field selection"),
        ("1.all(x, true)", "!expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)"),
        ("[1, 'a']", "!expected type 'int' but found 'string'"),
        ("list.map(x, x).all(x, x == 'a')", "!found no matching overload for '_==_' applied to '(int, string)'"),
        // Nothing says what an empty list is of; the first overload that fits decides, and that of `-` is double's.
        ("-[][0] + 1", "!found no matching overload for '_+_' applied to '(double, int)'"),
        ("for", "!reserved identifier: for"),
        ("Foo{a: 1}", "!undeclared reference to 'Foo' (in container '')"),
    ]);
    assert_eq!(env().compile("1 + 1").unwrap().result_type().to_string(), "int");
    assert_eq!(env().compile("list.map(x, x > 1)").unwrap().result_type().to_string(), "list(bool)");
}

#[test]
fn syntax_errors_point_at_their_place() {
    let shown = |source: &str| env().compile(source).err().map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(
        shown("list = 42"),
        "ERROR: <input>:1:6: Syntax error: token recognition error at: '= '\n | list = 42\n | .....^\n\
         ERROR: <input>:1:8: Syntax error: extraneous input '42' expecting <EOF>\n | list = 42\n | .......^"
    );
    assert_eq!(shown("'ü' +\n text.x"), "ERROR: <input>:2:6: type 'string' does not support field selection\n |  text.x\n | .....^");
    assert!(shown("(1").contains("mismatched input '<EOF>' expecting ')'"), "{}", shown("(1"));
    assert!(shown("'a").contains("token recognition error"));
    assert!(shown("99999999999999999999").contains("invalid int literal"));
}

#[test]
fn depth_and_size_are_bounded() {
    let nested = |open: &str, middle: &str, close: &str, depth: usize| format!("{}{middle}{}", open.repeat(depth), close.repeat(depth));
    for (open, middle, close) in [("(", "1", ")"), ("[", "", "]"), ("!(", "true", ")"), ("true ? true : (", "true", ")")] {
        assert!(outcome(&nested(open, middle, close, 5000)).contains("recursion limit exceeded"), "{open}");
        assert!(!outcome(&nested(open, middle, close, 40)).starts_with('!'), "{open}");
    }
    assert!(outcome(&format!("1{}", " + 1".repeat(400))).contains("recursion limit exceeded"));
    assert_eq!(outcome(&format!("true{}", " && true".repeat(400))), "true");
    let chained = format!("optional.of(1){}", ".optMap(x, x)".repeat(40));
    assert!(outcome(&chained).contains("node limit exceeded"));
    let long = format!("'{}'", "a".repeat(100_000));
    assert!(outcome(&long).contains("expression code point size exceeds limit: size: 100002, limit 100000"));
}

#[test]
fn growth_is_bounded_beside_the_cost() {
    let doubled = format!("['aaaaaaaaaa']{}.size()", ".map(s, dyn(s) + dyn(s))".repeat(60));
    assert!(outcome(&doubled).starts_with("!value size exceeds limit"), "{}", outcome(&doubled));
    let listed = format!("[[1, 1]]{}.size()", ".map(l, l + l)".repeat(60));
    assert!(outcome(&listed).starts_with("!value size exceeds limit"), "{}", outcome(&listed));
}

#[test]
fn evaluation_ends_at_the_cost_limit() {
    let numbers = json!(vec![1; 1000]);
    let program = Env::new().with("n", Type::list(Type::Int)).compile("n.all(x, n.all(y, y == x))").unwrap();
    let variables = Variables::new().with("n", kube_cel::Value::json(&numbers));
    let evaluated = program.evaluate(&variables, PER_CALL_LIMIT);
    let fault = evaluated.result.err().unwrap();
    assert_eq!(fault.to_string(), "operation cancelled: actual cost limit exceeded");
    assert!(evaluated.cost > PER_CALL_LIMIT && evaluated.cost < PER_CALL_LIMIT + 100);
}
