package quickstart

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
)

// TestUnitWithDollar: systemd expands a dollar sign only in a command line, so only there it is doubled.
func TestUnitWithDollar(t *testing.T) {
	text := steps{Data: "/srv/a$b", Program: "/opt/$c/agentmesh", File: "/srv/a$b/d.yaml", User: "mesh"}.unit("node")
	for _, want := range []string{
		"ReadWritePaths=/srv/a$b", "Environment=AGENTMESH_DATA=/srv/a$b", "ExecStart=/opt/$$c/agentmesh serve --config /srv/a$$b/d.yaml",
	} {
		if !slices.Contains(strings.Split(text, "\n"), want) {
			t.Errorf("the unit has no line %s:\n%s", want, text)
		}
	}
}

// TestUndo: after a failure, the data directory is empty again, so that the user can try again. The files of another
// process that uses the directory stay.
func TestUndo(t *testing.T) {
	for _, tt := range []struct {
		err  error
		left int
	}{
		{nil, 3}, {errors.New("no space"), 0}, {datadir.ErrInUse, 2},
	} {
		d := datadir.Dir(t.TempDir())
		for _, name := range []string{datadir.FileConfig, datadir.FileDatabase, datadir.FileKey} {
			if err := os.WriteFile(d.Path(name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := undoOnError(Env{Dir: d, File: d.Path(datadir.FileConfig)}, tt.err); !errors.Is(err, tt.err) {
			t.Errorf("undoOnError returned %v, want %v", err, tt.err)
		}
		if list, err := os.ReadDir(string(d)); err != nil || len(list) != tt.left {
			t.Errorf("after %v, the directory holds %v, %v", tt.err, list, err)
		}
	}
}

// TestRecords: quickstart proposes only addresses that others on the internet can reach.
func TestRecords(t *testing.T) {
	for _, tt := range []struct {
		name        string
		found       bool
		addresses   []string
		records     []string
		unreachable []string
	}{
		{"public", false, []string{"10.0.0.5", "100.64.0.7", "8.8.8.8", "fd00::1", "2606:4700::1111"}, []string{"m.example. A 8.8.8.8", "m.example. AAAA 2606:4700::1111"}, nil},
		{"shared", false, []string{"100.64.0.7"}, []string{"m.example. A <", "m.example. AAAA <"}, []string{"100.64.0.7"}},
		{"other ranges", false, []string{"198.18.0.1", "192.0.2.1", "240.0.0.1", "2001:db8::1"}, []string{"m.example. A <", "m.example. AAAA <"}, []string{"198.18.0.1", "192.0.2.1", "240.0.0.1", "2001:db8::1"}},
		{"no address", false, nil, []string{"m.example. A <", "m.example. AAAA <"}, nil},
		{"resolves", true, []string{"8.8.8.8"}, []string{"m.example. A 8.8.8.8"}, nil},
		{"resolves to a shared one", true, []string{"::ffff:100.100.1.1", "8.8.8.8"}, []string{"m.example. A 100.100.1.1", "m.example. A 8.8.8.8"}, []string{"100.100.1.1"}},
	} {
		s := steps{Kind: "agent", Domain: "m.example", Found: tt.found}
		var addresses []netip.Addr
		for _, a := range tt.addresses {
			addresses = append(addresses, netip.MustParseAddr(a))
		}
		s.setRecords(addresses)
		if !slices.EqualFunc(s.Records, tt.records, strings.HasPrefix) || !slices.Equal(s.Unreachable, tt.unreachable) {
			t.Errorf("%s: records %q and unreachable %q, want %q and %q", tt.name, s.Records, s.Unreachable, tt.records, tt.unreachable)
		}
		var text strings.Builder
		if err := templates.ExecuteTemplate(&text, "steps", s); err != nil {
			t.Fatal(err)
		}
		advice := "Others on the internet cannot reach " + strings.Join(tt.unreachable, ", ") + ". "
		if strings.Contains(text.String(), advice) != (tt.unreachable != nil) {
			t.Errorf("%s: the steps are\n%s", tt.name, text.String())
		}
	}
}
