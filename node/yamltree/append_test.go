package yamltree

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestAppendEscaped: texts with any characters are read back unchanged, and have no marks.
func TestAppendEscaped(t *testing.T) {
	for _, text := range []string{
		"a, b", "[x] {y}", "- a\n- b\n\n? c", " !tag &anchor *alias", "back\\slash \"quoted\" \\x2c", "line\u2028break\u00e4\U0001f600", "in-progress", "%YAML 1.2", "tab\t\r\n",
	} {
		v := wire.Obj(wire.TextField("key-"+strings.ReplaceAll(text, "\n", " "), text), wire.Field("list", wire.Texts([]string{text, ""})))
		out := AppendEscaped(nil, v)
		docs, err := Parse(out, options)
		if err != nil || len(docs) != 1 || string(docs[0].Value.JSON()) != string(v.JSON()) {
			t.Errorf("%q is written as %s and read as %v, %v", text, out, docs, err)
		}
		if n := len(strings.FieldsFunc(string(out), func(r rune) bool { return !strings.ContainsRune("[]{},?!&*", r) })); n != 0 {
			t.Errorf("%q is written with marks: %s", text, out)
		}
	}
}
