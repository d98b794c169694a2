package manual_test

import (
	"slices"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/agentmesh/agentmesh/cmd/internal/manual"
)

type testGlobals struct {
	Data string
}

type testGrammar struct {
	testGlobals

	Send struct {
		To string `arg:""`
	} `cmd:""`
	Status  struct{} `cmd:""`
	Mirrors struct {
		List struct{} `cmd:""`
	} `cmd:"" name:"directory"`
}

// TestOmitUnnamed checks which commands of a grammar remain for a command line.
func TestOmitUnnamed(t *testing.T) {
	all := []string{"send", "status", "directory"}
	for _, tt := range []struct{ args, want []string }{
		{nil, all},
		{[]string{"--data", "x", "status"}, []string{"status"}},
		{[]string{"directory", "list"}, []string{"directory"}},
		{[]string{"send", "status"}, []string{"send", "status"}},
		{[]string{"mirrors"}, all},
		{[]string{"status", "--help"}, all},
		{[]string{"-h", "status"}, all},
		{all, all},
	} {
		var g testGrammar
		parser, err := kong.New(&g, manual.OmitUnnamed(&g, tt.args))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range parser.Model.Children {
			got = append(got, n.Name)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%q leaves %q, want %q", tt.args, got, tt.want)
		}
		if len(parser.Model.Flags) != 2 {
			t.Errorf("%q leaves %d global flags, want --help and --data", tt.args, len(parser.Model.Flags))
		}
	}
}
