package yamltree

import (
	"strings"
	"testing"
)

// TestCommasInTexts: commas in a text are not entries of a list in flow style.
func TestCommasInTexts(t *testing.T) {
	row := strings.Repeat("1,", 1200) + "[\n"
	table := func(indent string) string { return strings.Repeat(indent+row, 10) }
	for name, text := range map[string]string{
		"literal":                "MESS:\n- request:\n    intent: look\n    context:\n    - |\n" + table("     ") + "    - {a: 1}\n",
		"literal under its key":  "MESS:\n- request:\n    intent:\n      |2-\n" + table("        ") + "    context: [a]\n",
		"literal with a tag":     "MESS:\n- request:\n    intent: look\n    context:\n    - !!str | # a table\n" + table("       "),
		"JSON in a literal":      "MESS:\n- request:\n    intent: >\n      {\"a\": [" + strings.Repeat("1,", 12_000) + "1]}\n",
		"plain":                  "MESS:\n- request:\n    intent: some " + strings.Repeat("1,", 12_000) + "\n",
		"quoted":                 "MESS:\n- request:\n    intent: \"[" + strings.Repeat("1,", 12_000) + "\\\"[\"\n",
		"quoted in flow":         "MESS: [{request: {intent: '[''" + strings.Repeat("1,", 12_000) + "'}}]\n",
		"quoted as JSON writes":  "MESS: [{\"request\":{\"intent\":\"[" + strings.Repeat("1,", 12_000) + "\"}}]\n",
		"a comment":              "MESS: [ # " + strings.Repeat("1,", 12_000) + "\n  {request: {intent: look}}]\n",
		"flow, and then a table": "--- !!map\nMESS:\n- request: {intent: look, context: [{a: []}]}\n- note: |\n" + table("   "),
	} {
		if _, err := Parse([]byte(text), options); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
