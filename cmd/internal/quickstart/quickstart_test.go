package quickstart

import (
	"errors"
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
