// Package threadtest has MESS documents for tests of readers.
package threadtest

import (
	"fmt"
	"strings"
)

// Keys returns a mapping with n keys, one on each line.
func Keys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	return b.String()
}

// billionLaughs returns a list whose 9 levels expand to 10^9 strings.
func billionLaughs() string {
	var text strings.Builder
	text.WriteString("a: &a [lol]\n")
	for i := range 9 {
		name, below := string(rune('b'+i)), string(rune('a'+i))
		fmt.Fprintf(&text, "%s: &%s [%s]\n", name, name, strings.TrimSuffix(strings.Repeat("*"+below+",", 10), ","))
	}
	return text.String()
}

// Hostile returns documents by name. A reader must refuse each of them quickly, in little memory and, except "JSON
// NUL", with a line number (MESS-61).
func Hostile() map[string]string {
	deepYAML := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	return map[string]string{
		"alias bomb":       "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n",
		"billion laughs":   billionLaughs(),
		"merge chain":      "a: {<<: {b: 1}}\n",
		"merge of aliases": "a: &a {x: 1}\nb: {<<: *a}\n",
		"anchor":           "a: &x 1\n",
		"anchored key":     "&x a: 1\n",
		"anchored map":     "a: &x {b: 1}\n",
		"timestamp tag":    "a: !!timestamp 2026-01-01\n",
		"binary tag":       "a: !!binary aGk=\n",
		"own tag":          "a: !foo 1\n",
		"bare tag":         "a: ! 1\n",
		"tag directive":    "%TAG ! tag:example.com,2000:\n---\na: !x 1\n",
		"set tag":          "a: !!set {b: }\n",
		"merge tag":        "a: {!!merge x: {b: 1}}\n",
		"invalid int":      "a: !!int foo\n",
		"complex key":      "? [a]\n: b\n",
		"alias key":        "a: &k x\n*k : 1\n",
		"duplicate key":    "a: 1\nb: 2\na: 3\n",
		"duplicate deep":   "a:\n- b: {c: 1, \"c\": 2}\n",
		"1001 keys":        Keys(1001),
		"26000 keys":       Keys(26000),
		"flow keys":        "{" + strings.Repeat("a,", 45000) + "}",
		"26000 in flow":    "MESS: [{request: {intent: x, z: {" + strings.ReplaceAll(Keys(26000), "\n", ", ") + "}}}]",
		"flow on lines":    "MESS:\n- request: {intent: x, z: {" + strings.ReplaceAll(Keys(19000), "\n", ",\n   ") + "}}\n",
		"flow after text":  "MESS:\n- request:\n    intent: \"a '{\"\n    y: |\n     \"[\n    z: [\"\\\"\", '''', " + strings.Repeat("1,", 38000) + "]\n",
		"10001 nodes":      "a: [" + strings.Repeat("1,", 10001) + "]",
		"depth 29":         deepYAML(29),
		"depth 1000":       deepYAML(1000),
		"block depth":      strings.Repeat("- ", 1000) + "a",
		"map depth":        strings.Repeat("{a: ", 15000),
		"question marks":   strings.Repeat("? ", 20000),
		"tags":             strings.Repeat("!a ", 600000),
		"anchors":          strings.Repeat("&a ", 600000),
		"lines":            strings.Repeat("#\n", 45000),
		"returns":          strings.Repeat("#\r", 45000),
		"line separators":  strings.Repeat("a: b\u2028", 45000),
		"next lines":       strings.Repeat("#\u0085", 45000),
		"directives":       strings.Repeat("%TAG !a! x\n", 101) + "--- a\n",
		"directives by CR": strings.Repeat("%TAG !a! x\r", 39000) + "--- a\n",
		"10 MB":            "a: " + strings.Repeat("x", 10<<20),
		"2 MiB + 1":        "a: " + strings.Repeat("x", 2<<20-2),
		"column 0":         "MESS:\n- request:\n    intent: |\n      see\n---\nthe attached\n",
		"huge integer":     "a: 9007199254740992\n",
		"overflow":         "a: 1e999\n",
		"not UTF-8":        "a: b\nc: \xff\n",
		"byte order mark":  "\ufeffa: 1\n",
		"NUL":              "a: b\nc: \x00\n",
		"escaped NUL":      "a: \"\\0\"\n",
		"proto":            "__proto__: 1\n",
		"unclosed":         "a: [1, 2\n",
		"tab":              "a:\n\t- b\n",
		"long key":         strings.Repeat("k", 600) + ": 1\n",
		"JSON depth":       strings.Repeat(`[`, 29) + strings.Repeat(`]`, 29),
		"JSON duplicate":   "[{\"request\":\n{\"intent\":\"a\",\"intent\":\"b\"}}]",
		"JSON trailing":    "[{\"v\":\"1.0.0\"}]\n[]",
		"JSON NUL":         `[{"request":{"intent":"a\u0000b"}}]`,
		"JSON deep":        strings.Repeat(`{"a":`, 100000),
	}
}
