package terminal

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/google/go-cmp/cmp"
)

func TestTreeLines(t *testing.T) {
	for text, want := range map[string][]string{
		`"word"`:                   {"word"},
		`{}`:                       {"{}"},
		`{"a":[]}`:                 {"a: []"},
		`{"a":1,"b":"x y"}`:        {"a: 1  b: x y"},
		`{"a":["x","y"],"b":null}`: {"a: x  y", "b: null"},
		`{"MESS":[{"ack":{"re":"r","ref":"1"}},{"v":"1"}]}`: {"MESS:", "  - ack  re: r  ref: 1", "  - v: 1"},
		`{"a":"x\nstatus: y","b\nc":[],"d":["\u001b[2J"]}`:  {"a: x status: y", "b c: []", "d: \uFFFD[2J"},
		`[{"a":{"b":[1,[2]]}}]`:                             {"- a:", "    b:", "      - 1", "      - 2"},
	} {
		v, err := wire.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, TreeLines(v)); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}
